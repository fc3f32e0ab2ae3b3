// SPDX-License-Identifier: Apache-2.0
// Life of adapters on experts, for every method whose formula exists there: merged, disabled, switched, several at
// once, swapped and by row they give what the formulas give. Weighted PEFT files combine expert by expert.
#include <graft/io/hf/combine_adapters.h>
#include <graft/io/hf/new_adapter.h>

#include "expert_models.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

using names = causal_lm<engine>::names;

bool exists_on_experts(const method& m) {
  if (!exists_on(m, "linear") && !exists_on(m, "experts")) return false;
  builder g;
  const scope p{&g};
  m.of.weight(p, experts_kind<false>::weight(p));
  return g.bad.what == formula_error::none && m.of.bias == nullptr && !m.of.trains_bias;
}

// A LoRA on parameters of experts, and on queries, as PEFT would begin it, with other numbers in B.
adapter_set from_files(causal_lm<engine>& m, const std::vector<const char*>& parameters, int rank, std::uint64_t seed) {
  json list;
  list.what = json::kind::list;
  for (const char* name : parameters) list.items.push_back(json_string(name));
  const auto config = make_adapter_config("LORA", {"q_proj"}, {{"target_parameters", list}, {"r", json_number(rank)}});
  REQUIRE(config);
  auto made = hf::new_adapter(m, *config, seed);
  REQUIRE_MESSAGE(made, made.message());
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal(0, 0.1F);
  for (module_adapter& a : made->set.modules)
    for (float& v : *a.tensors.at("lora_B.weight").data) v = normal(random);
  return std::move(*made).with_origin();
}
std::vector<float> logits_with(causal_lm<engine>& m, const names& active) {
  must(m.activate(active));
  return logits_of(m);
}
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

}  // namespace

TEST_CASE("expert adapters: every method is merged, disabled, switched, swapped, one of several, and per row") {
  int methods = 0;
  for (const method& one : built_in_methods()) {
    if (!exists_on_experts(one)) continue;
    ++methods;
    for (const std::string& text : {configs[2], configs[3]}) {
      causal_lm<engine> m = model_of(text);
      INFO(std::string(one.name), " on ", std::string(m.config().family->name));
      const auto set = [&](unsigned seed) { return adapter_on_experts(m.config(), m.weights(), seed, one.of); };
      const std::vector<float> base = logits_of(m);
      must(m.add("a", set(1)));
      must(m.add("b", adapter_on_experts(m.config(), m.weights(), 2)));
      const std::vector<float> a = logits_with(m, {"a"});
      CHECK(largest_difference(a, base) > 1e-3);
      m.enable(false);
      CHECK(logits_of(m) == base);
      m.enable(true);
      const std::vector<float> b = logits_with(m, {"b"});
      CHECK(logits_with(m, {"a"}) == a);

      must(m.merge({"a"}));
      close(logits_of(m), a);
      must(m.unmerge());
      CHECK(logits_of(m) == a);
      if (graft::detail::reads_base_weight(one.of)) {
        const std::vector<float> both = logits_with(m, {"a", "b"});
        CHECK(largest_difference(both, a) > 1e-3);
        if (one.of.weight_with_base == nullptr) {  // PEFT's DoRA merges with another norm than it runs with
          must(m.merge({"a", "b"}));
          close(logits_of(m), both);
          must(m.unmerge());
        }
      } else {  // its W' leaves nothing of another adapter
        CHECK(std::string(m.activate({"a", "b"}).message()).find("one of them replaces it") != std::string::npos);
      }

      must(m.activate({"a"}));
      must(m.replace("a", set(3)));  // "a" stays active
      const std::vector<float> swapped = logits_of(m);
      CHECK(largest_difference(swapped, a) > 1e-3);
      must(m.replace("a", set(1)));
      CHECK(logits_of(m) == a);

      const names rows[] = {{"b"}, {}, {"a"}};
      const std::vector<float> each = logits_of(m, rows);
      const auto n = static_cast<std::ptrdiff_t>(base.size());
      close({each.begin(), each.begin() + n}, b);
      close({each.begin() + n, each.begin() + 2 * n}, base);
      close({each.begin() + 2 * n, each.end()}, a);
      CHECK(logits_with(m, {}) == base);
    }
  }
  CHECK(methods > 40);
}

TEST_CASE(
    "expert adapters: weighted combinations are those of each expert's factors, and are written as PEFT's files") {
  for (const std::string& text : configs) {
    causal_lm<engine> m = model_of(text);
    INFO(std::string(m.config().family->name));
    must(m.add("x", from_files(m, {"experts.gate_up_proj", "experts.down_proj"}, 2, 1)));
    must(m.add("y", from_files(m, {"experts.down_proj", "experts.gate_up_proj"}, 2, 2)));
    must(m.add("z", from_files(m, {"experts.gate_up_proj"}, 3, 3)));
    const std::vector<float> x = logits_with(m, {"x"}), y = logits_with(m, {"y"}), sum = logits_with(m, {"x", "z"});
    CHECK(largest_difference(x, y) > 1e-2);
    const auto combined = [&](const char* name, const names& of, const std::vector<double>& weights,
                              const combination_settings& how) {
      must(hf::combine(m, name, of, weights, how));
      return logits_with(m, {name});
    };
    CHECK(largest_difference(combined("first", {"x", "y"}, {1, 0}, {.type = combination::linear}), x) < 1e-4);
    CHECK(largest_difference(combined("sum", {"x", "z"}, {1, 1}, {.type = combination::cat}), sum) < 1e-3);
    CHECK(largest_difference(combined("less", {"sum", "z"}, {1, -1}, {.type = combination::cat}), x) < 1e-3);
    const combination_settings exact{combination::svd, 1, majority::total, scaling::exact, 5};
    CHECK(largest_difference(combined("svd", {"x", "z"}, {1, 1}, exact), sum) < 1e-3);
    CHECK(largest_difference(combined("low", {"x", "z"}, {1, 1}, {.type = combination::svd, .rank = 1}), sum) > 1e-3);
    for (const combination type : {combination::ties, combination::dare_linear, combination::dare_ties,
                                   combination::magnitude_prune, combination::ties_svd, combination::dare_linear_svd,
                                   combination::dare_ties_svd, combination::magnitude_prune_svd}) {
      const char* const name = combination_names[static_cast<int>(type)];
      INFO(std::string(name));
      const std::vector<float> made = combined(name, {"x", "y"}, {0.5, 0.5}, {type, 0.6});
      CHECK(largest_difference(made, x) > 1e-4);
      CHECK(largest_difference(made, y) > 1e-4);
    }
    const status unequal = hf::combine(m, "bad", {"x", "z"}, {1, 1}, {.type = combination::linear});
    CHECK(std::string(unequal.message()).find("different ranks") != std::string::npos);
    CHECK(m.find("bad") == nullptr);

    const temp_folder to;  // the paths of one adapted parameter and of two differ
    must(hf::save_adapter(to.path / "sum", m, "sum")), must(hf::combine(m, "one", {"z"}, {2}, {}));
    must(hf::save_adapter(to.path / "one", m, "one"));
    const auto file = read_safetensors((to.path / "one" / "adapter_model.safetensors").string());
    REQUIRE(file);
    CHECK(file->get("base_model.model.model.layers.1.mlp.experts.lora_A.weight") != nullptr);
    for (const std::string name : {"sum", "one"}) {
      must(hf::load_adapter(m, name + " again", to.path / name));
      CHECK(logits_with(m, {name + " again"}) == logits_with(m, {name}));
    }
  }
}

TEST_CASE("expert adapters: combinations by svd take the updates of other methods") {
  for (const std::string& text : {configs[0], configs[3]}) {
    causal_lm<engine> m = model_of(text);
    must(m.add("lora", from_files(m, {"experts.gate_up_proj", "experts.down_proj"}, 2, 1)));
    for (const formula& of : {formula_of<dora<>>(), formula_of<hira<>>(), formula_of<loha<>>()}) {
      INFO(std::string(of.name));
      adapter_set other = adapter_on_experts(m.config(), m.weights(), 5, of);
      other.origin = m.find("lora")->origin;
      must(m.add("other", std::move(other)));
      const std::vector<float> wanted = logits_with(m, {"other"});
      must(hf::combine(m, "folded", {"other"}, {1}, {combination::svd, 1, majority::total, scaling::exact, 40}));
      CHECK(largest_difference(logits_with(m, {"folded"}), wanted) < 2e-3);
      const status factors = hf::combine(m, "bad", {"other", "lora"}, {1, 1}, {.type = combination::cat});
      CHECK(std::string(factors.message()).find("only LoRA's factors can be combined as cat") != std::string::npos);
      must(m.activate({})), must(m.remove("other")), must(m.remove("folded"));
    }
  }
}
