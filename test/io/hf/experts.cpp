// SPDX-License-Identifier: Apache-2.0
// Models with experts from files and as a whole: stacks of expert weights, configurations, PEFT's target_parameters, and
// that generation, merging, switching and rows with adapters of their own give what the formulas give.
#include <doctest/doctest.h>
#include <graft/io/hf/combine_adapters.h>
#include <graft/io/hf/expert_weights.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/hf/save_model.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

#include <fstream>
#include <random>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;
using engine = cpu::engine<float>;

namespace {

std::string config_text(const std::string& family, const std::string& more = "") {
  return "{\"model_type\": \"" + family +
         R"(", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "head_dim": 8,
             "max_position_embeddings": 64, "vocab_size": 99, "intermediate_size": 40, "num_experts_per_tok": 2,
             "num_local_experts": 5)" +
         more + "}";
}
const std::string qwen = R"(, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 16)";
std::string message(const std::string& content) { return hf::parse_config(content, "config.json").message(); }

// Random weights of any configuration, as its formulas need them.
model_weights random_weights(const model_config& c) {
  model_weights w;
  auto memory = std::make_shared<std::deque<std::vector<float>>>();
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.3F);
  const auto fill = [&](const block_formula& f, const std::string& prefix, int layer) {
    const block_spec spec{f, {}, facts_of(c, layer), false, operation_of(c.activation)};
    const builder g = capture_forward(f, block_options_of(spec, pass_kind::forward));
    const named_values values = values_of(c, 64);
    size_values s;
    for (const auto& [name, n] : values.sizes)
      if (const int at = graph(g).sizes.find(name.c_str()); at >= 0) s.v[at] = n;
    for (id i = 0; i < g.n.size(); ++i) {
      if (g.n[i].what != op::base) continue;
      std::vector<float>& v = memory->emplace_back();
      for (long long k = count(g, i, s); k > 0; --k) v.push_back(normal(random));
      view t{v.data(), dtype::f32};
      const axes listed = listed_axes(g.n[i]);
      for (int k = listed.first; k < listed.last; ++k) t.size[t.rank++] = graph(g).sizes.value(g.n[i].d[k], s);
      w.tensors[prefix + graph(g).name(i).c_str()] = t;
    }
  };
  const architecture& a = c.family->formulas;
  fill(a.embed, "", ends_of_model), fill(a.head, "", ends_of_model);
  for (int l = 0; l < c.layers; ++l) fill(a.block, std::string(a.layers) + "." + std::to_string(l) + ".", l);
  w.owner = memory;
  return w;
}
model_config config_of(const std::string& text) {
  const auto c = hf::parse_config(text, "config.json");
  INFO(std::string(c.message()));
  REQUIRE(c);
  return *c;
}
causal_lm<engine> model_of(const std::string& text) {
  const model_config c = config_of(text);
  auto m = causal_lm<engine>::make(c, random_weights(c));
  INFO(std::string(m.message()));
  REQUIRE(m);
  return std::move(*m);
}
void must(const status& s) {
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
}
const std::vector<std::int64_t> prompt{3, 17, 42, 8, 5, 90, 17};
std::vector<float> logits_of(causal_lm<engine>& m, std::span<const causal_lm<engine>::names> of = {}) {
  std::vector<sequence_chunk> chunks(std::max<std::size_t>(1, of.size()), sequence_chunk{prompt});
  std::vector<float> out(chunks.size() * prompt.size() * 99);
  must(m.logits(chunks, out, false, of));
  return out;
}
void close(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(static_cast<double>(a[i]) == doctest::Approx(static_cast<double>(b[i])).epsilon(1e-3).scale(1));
}
// Random LoRA or DoRA of rank 2 on both parameters of the experts of each sparse layer, and on queries.
adapter_set adapter_on_experts(const model_config& c, const model_weights& w, unsigned seed, bool with_norm = false) {
  adapter_set set;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3F);
  const auto tensor = [&](std::vector<long long> shape) {
    long long n = 1;
    for (const long long k : shape) n *= k;
    auto data = std::make_shared<std::vector<float>>();
    for (; n > 0; --n) data->push_back(normal(random));
    return adapter_tensor{"", data, std::move(shape)};
  };
  for (const base_layer& b : hf::modules_of(c, w)) {
    if (b.kind != "experts" && !b.module.ends_with("q_proj")) continue;
    module_adapter m;
    m.module = b.module, m.scalars["scaling"] = 0.5, m.transposed_storage = b.stored_in_out;
    const bool dora_here = with_norm && b.kind == "experts";
    m.of = dora_here ? formula_of<dora<>>() : formula_of<lora<>>();
    std::vector<long long> A{2, b.in}, B{b.out, 2}, norm{b.out};
    if (b.kind == "experts")
      for (auto* shape : {&A, &B, &norm}) shape->insert(shape->begin(), b.shape[0]);
    m.tensors["lora_A.weight"] = tensor(A), m.tensors["lora_B.weight"] = tensor(B);
    if (dora_here) m.tensors["lora_magnitude_vector"] = tensor(norm);
    set.modules.push_back(std::move(m));
  }
  return set;
}
const std::string configs[] = {config_text("mixtral"), config_text("qwen2_moe", qwen + R"(, "decoder_sparse_step": 2)"),
                               config_text("qwen3_moe", qwen + R"(, "mlp_only_layers": [0], "norm_topk_prob": true)"),
                               config_text("gpt_oss", R"(, "sliding_window": 3)")};

}  // namespace

TEST_CASE("experts: configurations") {
  const model_config qwen2 = config_of(configs[1]), qwen3 = config_of(configs[2]);
  CHECK(qwen2.sparse == std::vector<bool>{false, true, false});
  CHECK(qwen3.sparse == std::vector<bool>{false, true, true});
  CHECK(!qwen2.router_over_chosen);
  CHECK(qwen3.router_over_chosen);
  CHECK(config_of(configs[0]).expert_intermediate_size == 40);
  CHECK(config_of(configs[3]).window == std::vector<int>{3, 0, 3});
  CHECK(config_of(config_text("gpt_oss")).rope.kind == rope_kind::yarn);
  CHECK(config_of(config_text("mixtral", R"(, "output_router_logits": true)")).router_loss == 0.001);
  CHECK(config_of(config_text("mixtral", R"(, "router_aux_loss_coef": 0.5)")).router_loss == 0);
  CHECK(config_of(config_text("qwen2_moe", R"(, "output_router_logits": true, "router_aux_loss_coef": 0.5)"))
            .router_loss == 0.5);
  CHECK(message(config_text("mixtral", R"(, "router_aux_loss_coef": -1)")).find("router_aux_loss_coef") !=
        std::string::npos);
  CHECK(message(config_text("mixtral", R"(, "router_jitter_noise": 0.1)")).find("router_jitter_noise") !=
        std::string::npos);
  CHECK(message(config_text("qwen2_moe", R"(, "decoder_sparse_step": 0)")).find("decoder_sparse_step") !=
        std::string::npos);
  CHECK(message(config_text("qwen3_moe", R"(, "mlp_only_layers": [-1])")).find("mlp_only_layers") != std::string::npos);
  std::string six = config_text("mixtral");
  six.replace(six.find("\"num_experts_per_tok\": 2"), 24, "\"num_experts_per_tok\": 6");
  CHECK(message(six).find("'num_experts_per_tok' is 6, and there are 5 experts") != std::string::npos);
}

TEST_CASE("experts: files with a tensor per expert are stacked, and stored as they were") {
  for (const std::string& text : configs) {
    const model_config c = config_of(text);
    const model_weights w = random_weights(c);
    model_weights in_files;
    in_files.owner = w.owner;
    for (const auto& [name, v] : w.tensors)
      for (const hf::stored_tensor& t : hf::stored_tensors_of(c, name, v)) in_files.tensors[t.name] = t.of;
    const bool stacked = c.family == &families::gpt_oss;
    CHECK(in_files.tensors.contains("model.layers.1.block_sparse_moe.experts.4.w2.weight") ==
          (c.family == &families::mixtral));
    CHECK((in_files.tensors.size() == w.tensors.size()) == stacked);
    must(hf::stack_experts(in_files, "folder"));
    REQUIRE(in_files.tensors.size() == w.tensors.size());
    for (const auto& [name, v] : w.tensors) {
      const view& t = in_files.tensors.at(name);
      REQUIRE(t.count() == v.count());
      CHECK(std::equal(t.size, t.size + 4, v.size));
      CHECK(std::memcmp(t.data, v.data, static_cast<std::size_t>(v.count()) * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("experts: incomplete and unequal stacks are refused") {
  const std::vector<float> numbers(64);
  const auto with = [&](const std::string& left_out, long long rows_of_last, dtype type_of_last) {
    model_weights w;
    for (int e = 0; e < 3; ++e)
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = "model.layers.0.mlp.experts." + std::to_string(e) + "." + part + ".weight";
        const bool last = e == 2 && std::string(part) == "up_proj";
        if (name.find(left_out) == name.npos)
          w.tensors[name] = {numbers.data(), last ? type_of_last : dtype::f32, {last ? rows_of_last : 4, 8, 1, 1}, 2};
      }
    return std::string(hf::stack_experts(w, "folder").message());
  };
  CHECK(with("nothing", 4, dtype::f32).empty());
  const std::string incomplete = "'model.layers.0.mlp.experts' does not have gate, up and down of every expert";
  CHECK(with("1.up_proj", 4, dtype::f32).find(incomplete) != std::string::npos);
  CHECK(with("experts.0.", 4, dtype::f32).find(incomplete) != std::string::npos);
  CHECK(with("down_proj", 4, dtype::f32).find(incomplete) != std::string::npos);
  const std::string unequal = "the tensors of expert 2 of 'model.layers.0.mlp.experts' are not of the type and shape";
  CHECK(with("nothing", 5, dtype::f32).find(unequal) != std::string::npos);
  CHECK(with("nothing", 4, dtype::bf16).find(unequal) != std::string::npos);
  CHECK(with("nothing", 4, dtype::i64).find("is quantized") != std::string::npos);
}

TEST_CASE("experts: generation over the KV cache") {
  for (const std::string& text : configs) {
    causal_lm<engine> m = model_of(text);
    generation_settings settings;
    settings.max_new_tokens = 6, settings.eos_tokens = no_eos_tokens;
    auto g = generator<engine>::make(m, settings, 1, 32);
    REQUIRE(g);
    const auto made = g->run(std::vector<std::vector<std::int64_t>>{prompt});
    REQUIRE(made);
    std::vector<std::int64_t> tokens = prompt;
    for (int step = 0; step < 6; ++step) {
      const sequence_chunk all[] = {{tokens}};
      std::vector<float> out(99);
      must(m.logits(all, out, true));
      tokens.push_back(std::max_element(out.begin(), out.end()) - out.begin());
    }
    CHECK((*made)[0].tokens == tokens);
  }
}

TEST_CASE("experts: adapters are merged, disabled, switched, several at once, and per row") {
  for (const std::string& text : configs)
    for (const bool with_norm : {false, true}) {
      causal_lm<engine> m = model_of(text);
      CAPTURE(std::string(m.config().family->name));
      const std::vector<float> base = logits_of(m);
      must(m.add("a", adapter_on_experts(m.config(), m.weights(), 1, with_norm)));
      must(m.add("b", adapter_on_experts(m.config(), m.weights(), 2)));
      must(m.activate({"a"}));
      const std::vector<float> a = logits_of(m);
      CHECK(a != base);
      m.enable(false);
      CHECK(logits_of(m) == base);
      m.enable(true);
      must(m.activate({"b"}));
      const std::vector<float> b = logits_of(m);
      must(m.activate({"a", "b"}));
      const std::vector<float> both = logits_of(m);
      CHECK(both != a);
      if (!with_norm) {  // PEFT computes DoRA's norm of the base weight, and merges with that of the merged one
        must(m.merge({"a", "b"}));
        close(logits_of(m), both);
        must(m.unmerge());
      }
      must(m.activate({"a"})), must(m.merge({"a"}));
      close(logits_of(m), a);
      must(m.unmerge());
      CHECK(logits_of(m) == a);
      must(m.replace("a", adapter_on_experts(m.config(), m.weights(), 2)));  // hot swap: "a" stays active
      close(logits_of(m), b);
      must(m.replace("a", adapter_on_experts(m.config(), m.weights(), 1, with_norm)));
      CHECK(logits_of(m) == a);
      must(m.activate({}));
      CHECK(logits_of(m) == base);
      const causal_lm<engine>::names rows[] = {{"b"}, {}, {"a"}};
      const std::vector<float> each = logits_of(m, rows);
      const std::size_t n = base.size();
      close({each.begin(), each.begin() + static_cast<std::ptrdiff_t>(n)}, b);
      close({each.begin() + static_cast<std::ptrdiff_t>(n), each.begin() + static_cast<std::ptrdiff_t>(2 * n)}, base);
      close({each.begin() + static_cast<std::ptrdiff_t>(2 * n), each.end()}, a);
    }
}

TEST_CASE("experts: the auxiliary loss of routers is part of the loss, whatever backward saves") {
  for (const std::string& text : configs) {
    model_config c = config_of(text);
    const model_weights w = random_weights(c);
    const std::vector<labeled_sequence> batch{{prompt}, {prompt}};
    const auto train = [&](double factor, bool checkpoint) {
      c.router_loss = factor;
      auto m = causal_lm<engine>::make(c, w);
      REQUIRE(m);
      must(m->set_adapters(adapter_on_experts(c, w, 1)));
      auto t = training_run<engine>::make(*m, {.checkpoint = checkpoint});
      REQUIRE(t);
      const auto alone = t->loss(batch), loss = t->add(batch, 0.5);
      REQUIRE(alone);
      REQUIRE(loss);
      CHECK(*alone == doctest::Approx(*loss).epsilon(1e-6));
      std::vector<float> all{static_cast<float>(*loss)};
      for (const trained_parameter& p : t->parameters())
        all.insert(all.end(), static_cast<const float*>(p.gradient.data),
                   static_cast<const float*>(p.gradient.data) + p.gradient.count());
      return all;
    };
    const std::vector<float> without = train(0, false), with = train(0.4, false), twice = train(0.8, false);
    CHECK(train(0.4, true)[0] == with[0]);
    close(train(0.4, true), with);
    const float balance = (with[0] - without[0]) / 0.4F;  // E Σ C S / T² is k where all experts have equal shares
    CHECK(balance > 1);
    REQUIRE(twice.size() == without.size());
    bool differs = false;
    for (std::size_t i = 0; i < without.size(); ++i) {
      const auto step = static_cast<double>(with[i] - without[i]), both = static_cast<double>(twice[i] - without[i]);
      CHECK(both == doctest::Approx(2 * step).epsilon(1e-3).scale(1e-2));
      differs = differs || (i > 0 && std::abs(step) > 1e-5);
    }
    CHECK(differs);  // through the rows that earlier layers give the router
  }
}

TEST_CASE("experts: rows with adapters on attention alone share the launches of the base") {
  causal_lm<engine> m = model_of(configs[2]);
  const std::vector<float> base = logits_of(m);
  adapter_set on_queries = adapter_on_experts(m.config(), m.weights(), 4);
  std::erase_if(on_queries.modules,
                [](const module_adapter& a) { return a.module.find("experts") != std::string::npos; });
  must(m.add("queries", on_queries));
  must(m.add("experts", adapter_on_experts(m.config(), m.weights(), 5)));
  const causal_lm<engine>::names sets[] = {{"queries"}, {"experts"}};
  const auto explained = m.explain_multi_lora(sets);
  REQUIRE(explained);
  CHECK(explained->starts_with("queries: fused into the base's launches"));
  CHECK(explained->find("experts: an adapter needs other launches than the base") != std::string::npos);
  must(m.activate({"queries"}));
  const std::vector<float> alone = logits_of(m);
  const causal_lm<engine>::names rows[] = {{}, {"queries"}};
  const std::vector<float> each = logits_of(m, rows);
  const auto half = each.begin() + static_cast<std::ptrdiff_t>(base.size());
  close({each.begin(), half}, base);
  close({half, each.end()}, alone);
}

TEST_CASE("experts: a model is saved and loaded, and a new adapter of parameters of experts") {
  for (const std::string& text : configs) {
    temp_folder from, to, adapter;
    std::ofstream(from.path / "config.json") << text;
    causal_lm<engine> m = model_of(text);
    must(hf::save_model(to.path / "model", m.weights(), from.path));
    auto again = hf::load_model<engine>(to.path / "model");
    INFO(std::string(again.message()));
    REQUIRE(again);
    const std::vector<float> base = logits_of(*again);
    CHECK(base == logits_of(m));

    json parameters, rank = json_number(3);
    parameters.what = json::kind::list;
    parameters.items = {json_string("experts.gate_up_proj"), json_string("experts.down_proj")};
    const auto config = make_adapter_config("LORA", {"q_proj"}, {{"target_parameters", parameters}, {"r", rank}});
    INFO(std::string(config.message()));
    REQUIRE(config);
    auto made = hf::new_adapter(*again, *config, 7);
    INFO(std::string(made.message()));
    REQUIRE(made);
    for (module_adapter& a : made->set.modules)  // B begins with zeros
      for (auto& [name, t] : a.tensors)
        for (std::size_t i = 0; i < t.data->size(); ++i) (*t.data)[i] += 0.01F * static_cast<float>(i % 7);
    must(again->set_adapters(made->set));
    const std::vector<float> adapted = logits_of(*again);
    CHECK(adapted != base);
    must(hf::save_adapters(adapter.path / "a", *made));
    const auto read = hf::load_adapters(adapter.path / "a", *again);
    INFO(std::string(read.message()));
    REQUIRE(read);
    must(again->set_adapters(read->set));
    CHECK(logits_of(*again) == adapted);
    const auto file = read_safetensors((adapter.path / "a" / "adapter_model.safetensors").string());
    REQUIRE(file);
    const std::string experts = "base_model.model.model.layers.1.mlp.experts.";
    REQUIRE(file->get(experts + "base_layer.lora_A.weight") != nullptr);
    CHECK(file->get(experts + "base_layer.lora_A.weight")->shape == std::vector<std::uint64_t>{15, 32});
    CHECK(file->get(experts + "lora_B.weight")->shape == std::vector<std::uint64_t>{32, 15});

    // PEFT's add_weighted_adapter refuses parameters too.
    for (const char* name : {"x", "y"}) {
      auto one = hf::load_adapters(adapter.path / "a", *again);
      REQUIRE(one);
      must(again->add(name, std::move(*one).with_origin()));
    }
    const status combined = hf::combine(*again, "both", {"x", "y"}, {0.5, 0.5});
    CHECK(std::string(combined.message()).find("adapters of experts cannot be combined by weights") !=
          std::string::npos);
    CHECK(again->find("both") == nullptr);
  }
}

TEST_CASE("experts: a single parameter has no base_layer in its path, and bad target_parameters are refused") {
  causal_lm<engine> m = model_of(configs[0]);
  const auto list = [](const std::vector<const char*>& names) {
    json l;
    l.what = json::kind::list;
    for (const char* n : names) l.items.push_back(json_string(n));
    return l;
  };
  const auto one = make_adapter_config("LORA", {}, {{"target_parameters", list({"experts.gate_up_proj"})}});
  REQUIRE(one);
  auto made = hf::new_adapter(m, *one, 7);
  REQUIRE(made);
  CHECK(made->set.modules.size() == 3);
  CHECK(made->set.modules[0].tensors.at("lora_A.weight").key ==
        "base_model.model.model.layers.0.mlp.experts.lora_A.weight");

  const auto wrong = make_adapter_config("LORA", {}, {{"target_parameters", list({"experts.gate_proj"})}});
  REQUIRE(wrong);
  CHECK(std::string(hf::new_adapter(m, *wrong, 7).message())
            .find("names 'experts.gate_proj', expected parameters of "
                  "experts, which are here") != std::string::npos);
  const auto refused = [&](const char* type, const char* key, json v) {
    const auto c =
        make_adapter_config(type, {"q_proj"}, {{"target_parameters", list({"experts.down_proj"})}, {key, v}});
    return std::string(c.message());
  };
  CHECK(refused("IA3", "task_type", {}).find("which PEFT has for LORA alone") != std::string::npos);
  CHECK(refused("LORA", "use_dora", json_bool(true)).find("'use_dora' is true and 'target_parameters' is set") !=
        std::string::npos);
  CHECK(refused("LORA", "lora_dropout", json_number(0.1)).find("'lora_dropout' is 0.1") != std::string::npos);
}

TEST_CASE("experts: methods that do not exist on them are refused by name") {
  causal_lm<engine> m = model_of(configs[0]);
  adapter_set set = adapter_on_experts(m.config(), m.weights(), 1);
  for (module_adapter& a : set.modules)
    if (a.module.find("experts") != std::string::npos) a.of = formula_of<oft<>>();
  CHECK(std::string(m.add("a", set).message()).find("method 'OFT (Cayley)' does not exist on the experts") !=
        std::string::npos);
  CHECK(m.all_names().empty());
}

TEST_CASE("experts: MXFP4 experts are saved as they were, and merged in full width as the family stores them") {
  const std::string from = std::string(GRAFT_GOLDEN_DIR) + "/checkpoints/models/gpt_oss_mxfp4/base";
  temp_folder to;
  auto m = hf::load_model<engine>(from);
  INFO(std::string(m.message()));
  REQUIRE(m);
  const std::string experts = "model.layers.1.mlp.experts.down_proj";
  CHECK(m->weights().tensors.at(experts).quant != nullptr);
  const auto logits = [&](causal_lm<engine>& of) {
    const std::vector<std::int64_t> ids{3, 17, 9, 8, 5};
    const sequence_chunk one[] = {{ids}};
    std::vector<float> out(ids.size() * 32);
    must(of.logits(one, out));
    return out;
  };
  const std::vector<float> base = logits(*m);

  must(hf::save_model(to.path / "same", m->weights(), from));
  const auto was = read_safetensors(from + "/model.safetensors");
  const auto is = read_safetensors((to.path / "same" / "model.safetensors").string());
  REQUIRE(was);
  REQUIRE(is);
  REQUIRE(was->tensors.size() == is->tensors.size());
  for (const tensor_view& t : *was) {
    const tensor_view* const saved = is->get(t.name);
    REQUIRE(saved != nullptr);
    CHECK(saved->shape == t.shape);
    CHECK(std::ranges::equal(saved->data, t.data));
  }
  auto same = hf::load_model<engine>(to.path / "same");
  REQUIRE(same);
  CHECK(logits(*same) == base);

  adapter_set on_experts = adapter_on_experts(m->config(), m->weights(), 3);
  std::erase_if(on_experts.modules, [](const module_adapter& a) { return a.module.ends_with("q_proj"); });
  must(m->add("a", on_experts));
  must(m->activate({"a"}));
  const std::vector<float> adapted = logits(*m);
  CHECK(adapted != base);
  const auto wide = m->merged_weights({"a"}, merged_format::f32);
  REQUIRE(wide);
  must(hf::save_model(to.path / "wide", *wide, from));
  auto merged = hf::load_model<engine>(to.path / "wide");
  INFO(std::string(merged.message()));
  REQUIRE(merged);
  CHECK(!merged->config().quantized);
  CHECK(merged->weights().tensors.at(experts).size[1] == 32);  // [experts, in, out]
  close(logits(*merged), adapted);
  must(m->merge({"a"}));  // in the blocks of the base, which are coarse
  CHECK(m->merge_rounding().at(experts) > 0);
  must(m->unmerge()), must(m->activate({}));
  CHECK(logits(*m) == base);

  // Experts of one layer in full width are no model that the family can store.
  model_weights some = *wide;
  some.tensors[experts] = m->weights().tensors.at(experts);
  CHECK(std::string(hf::save_model(to.path / "some", some, from).message())
            .find("some experts are quantized and others are not") != std::string::npos);
}
