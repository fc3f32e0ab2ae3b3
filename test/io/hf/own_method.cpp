// SPDX-License-Identifier: Apache-2.0
// A user-defined method on a whole model: created, changed, saved, loaded and replaced like the methods of PEFT.
#include <doctest/doctest.h>
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/layer_adapters.h>
#include <graft/io/svd/principal.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

using engine = cpu::engine<float>;
const std::string models = std::string(GRAFT_GOLDEN_DIR) + "/models/";

struct lora_xs {  // W' = W + s B R A, A and B from the weight's largest singular pairs (arXiv 2405.17604)
  static constexpr const char* name = "LoRA-XS";
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    auto A = p.frozen("lora_A.weight", r, W.cols()), B = p.frozen("lora_B.weight", W.rows(), r);
    return W + p.scalar("scaling") * (B * (p.param("xs_R.weight", r, r) * A));
  }
};
struct tilted {  // W' = W + s a (B D) with D shared by all layers
  static constexpr const char* name = "tilted";
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    auto D = p.frozen("tilt_D", r, W.cols());
    return W + p.scalar("scaling") * (p.scalar("tilt") * (p.param("tilt_B.weight", W.rows(), r) * D));
  }
};

result<bool> start_xs(const base_layer& base, const std::string& leaf, const std::vector<long long>& shape,
                      std::span<float> to) {
  if (leaf == "xs_R.weight") {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = 0.01F * static_cast<float>(i % 7);
    return true;
  }
  svd::matrix w(static_cast<std::size_t>(base.out), static_cast<std::size_t>(base.in));
  std::vector<double> row(w.cols);
  for (std::size_t i = 0; i < w.rows; ++i) {
    cpu::read(base.weight, static_cast<long long>(i) * base.in, base.in, row.data());
    for (std::size_t j = 0; j < w.cols; ++j) w(i, j) = row[j];
  }
  const bool is_A = leaf == "lora_A.weight";
  const auto r = static_cast<std::size_t>(is_A ? shape[0] : shape[1]);
  const svd::singular_triplets p = svd::largest_singular_triplets(w, r);
  for (std::size_t k = 0; k < r; ++k) {
    for (std::size_t j = 0; is_A && j < w.cols; ++j) to[k * w.cols + j] = static_cast<float>(p.right[k][j]);
    for (std::size_t i = 0; !is_A && i < w.rows; ++i) to[i * r + k] = static_cast<float>(p.left[k][i] * p.values[k]);
  }
  return true;
}

method_table own_methods() {
  method_table methods;
  REQUIRE(bool(methods.add<lora_xs>("LORA_XS")));
  REQUIRE(bool(methods.add<tilted>("TILTED")));
  return methods;
}
causal_lm<engine> base(const char* name) {
  auto m = hf::load_model<engine>(models + name + "/base");
  REQUIRE_MESSAGE(m, std::string(m.message()));
  return std::move(*m);
}
std::vector<float> logits(causal_lm<engine>& m) {
  const std::vector<std::int64_t> ids{1, 5, 7, 90, 33};
  const sequence_chunk run{ids};
  std::vector<float> out(ids.size() * static_cast<std::size_t>(m.config().vocabulary));
  const status s = m.logits(std::span(&run, 1), out, false);
  REQUIRE_MESSAGE(s, std::string(s.message()));
  return out;
}
result<adapter_config> xs_config(const method_table& methods, const std::vector<std::string>& modules) {
  return make_adapter_config("LORA_XS", modules, {{"r", json_number(4)}, {"alpha", json_number(8)}}, methods);
}
bool says(const char* sentence, const std::string& part) {
  return std::string(sentence).find(part) != std::string::npos;
}
void must(const status& s) { REQUIRE_MESSAGE(s, std::string(s.message())); }

}  // namespace

TEST_CASE("own method on a model: created, changed, saved, loaded, replaced") {
  const method_table methods = own_methods();
  for (const char* family : {"llama", "gpt2"}) {  // GPT-2 stores its weights [in, out]
    CAPTURE(std::string(family));
    const std::vector<std::string> modules =
        family[0] == 'l' ? std::vector<std::string>{"q_proj", "down_proj"} : std::vector<std::string>{"c_attn", "c_fc"};
    causal_lm<engine> m = base(family);
    const std::vector<float> bare = logits(m);
    const auto config = xs_config(methods, modules);
    REQUIRE_MESSAGE(config, std::string(config.message()));
    must(hf::add_adapter(m, "mine", *config, 0, start_xs));
    must(m.activate({"mine"}));
    const std::vector<float> begun = logits(m);
    CHECK(begun != bare);

    temp_folder dir;
    must(hf::save_adapter(dir.path / "begun", m, "mine"));
    auto run = training_run<engine>::make(m);
    REQUIRE_MESSAGE(run, std::string(run.message()));
    const std::vector<std::int64_t> ids{1, 2, 3, 4, 5};
    const labeled_sequence batch{ids};
    REQUIRE(run->add(std::span(&batch, 1)));
    REQUIRE(run->parameters().size() == m.find("mine")->modules.size());  // R of each module, without frozen factors
    for (const module_adapter& a : m.find("mine")->modules)
      for (float& v : *a.tensors.at("xs_R.weight").data) v += 0.05F;
    must(m.adapters_changed());
    const std::vector<float> trained = logits(m);
    CHECK(trained != begun);
    must(hf::save_adapter(dir.path / "trained", m, "mine"));

    causal_lm<engine> other = base(family);
    must(hf::load_adapter(other, "again", dir.path / "begun", methods));
    must(other.activate({"again"}));
    CHECK(logits(other) == begun);
    must(hf::replace_adapter(other, "again", dir.path / "trained", methods));
    CHECK(logits(other) == trained);
    const auto opened = open_peft_folder(dir.path / "trained", methods);
    REQUIRE(bool(opened));
    auto loaded = hf::adapters_from(*opened, other.config(), other.weights());
    REQUIRE_MESSAGE(loaded, std::string(loaded.message()));
    must(hf::save_adapters(dir.path / "copy", *loaded));
    const auto first = read_file(dir.path / "trained" / "adapter_model.safetensors"),
               second = read_file(dir.path / "copy" / "adapter_model.safetensors");
    CHECK(*first == *second);
  }
}

TEST_CASE("own method on a model: a tensor that layers share is written once") {
  const method_table methods = own_methods();
  causal_lm<engine> m = base("llama");
  const auto shape = [&](const char* module) {
    const view& w = m.weights().tensors.at(std::string(module) + ".weight");
    return std::vector<std::uint64_t>{static_cast<std::uint64_t>(w.size[0]), 2};
  };
  temp_folder dir;
  std::filesystem::create_directories(dir.path / "shared");
  std::vector<tensor_view> tensors;
  std::vector<float> ones(4096, 0.02F);
  const auto put = [&](const std::string& key, std::vector<std::uint64_t> size) {
    tensors.push_back({key, safetensors_type::f32, size, std::as_bytes(std::span(ones.data(), size[0] * size[1]))});
  };
  for (int layer = 0; layer < m.config().layers; ++layer) {
    const std::string module = "model.layers." + std::to_string(layer) + ".self_attn.q_proj";
    put("base_model.model." + module + ".tilt_B.weight", shape(module.c_str()));
  }
  put("base_model.tilt_D",
      {2, static_cast<std::uint64_t>(m.weights().tensors.at("model.layers.0.self_attn.q_proj.weight").size[1])});
  REQUIRE(bool(write_safetensors(dir.path / "shared" / "adapter_model.safetensors", tensors)));
  REQUIRE(bool(write_file(
      dir.path / "shared" / "adapter_config.json",
      bytes_of(R"({"peft_type": "TILTED", "target_modules": ["q_proj"], "r": 2, "alpha": 8, "tilt": 0.5})"))));
  must(hf::load_adapter(m, "tilted", dir.path / "shared", methods));
  must(hf::save_adapter(dir.path / "copy", m, "tilted"));
  const auto copy = read_safetensors(dir.path / "copy" / "adapter_model.safetensors");
  REQUIRE(bool(copy));
  CHECK(copy->tensors.size() == tensors.size());
  CHECK(copy->get("base_model.tilt_D") != nullptr);

  // An adapter of another user-defined method cannot replace this one.
  const auto config = xs_config(methods, {"q_proj"});
  must(hf::add_adapter(m, "xs", *config, 0, start_xs));
  const status refused = hf::replace_adapter(m, "xs", dir.path / "shared", methods);
  CHECK(says(refused.message(), "adapter 'xs' is of type LORA_XS, the folder holds TILTED"));
}

TEST_CASE("own method on a model: a method that no table has, and a leaf without initializer") {
  const method_table methods = own_methods();
  causal_lm<engine> m = base("llama");
  const auto config = xs_config(methods, {"q_proj"});
  REQUIRE(bool(config));
  const status unknown = hf::add_adapter(m, "mine", *config);
  CHECK(std::string(unknown.message()) ==
        "there is no initialization for 'xs_R.weight' of LORA_XS; give new_adapter a function (leaf_start) that writes "
        "its "
        "first values");
  const auto no = [](const base_layer&, const std::string&, const std::vector<long long>&,
                     std::span<float>) -> result<bool> { return fail("there is no GPU"); };
  const std::string told = hf::add_adapter(m, "mine", *config, 0, no).message();
  CHECK(told.starts_with("model.layers.0.self_attn.q_proj: 'lora_"));
  CHECK(told.ends_with(".weight': there is no GPU"));
  CHECK(m.all_names().empty());

  temp_folder dir;
  must(hf::add_adapter(m, "mine", *config, 0, start_xs));
  must(hf::save_adapter(dir.path / "mine", m, "mine"));
  for (const status& s :
       {hf::load_adapter(m, "again", dir.path / "mine"), hf::replace_adapter(m, "mine", dir.path / "mine")}) {
    CHECK(says(s.message(), "adapter_config.json: 'peft_type' is \"LORA_XS\", expected one of LORA, "));
    CHECK(says(s.message(), "or a method of your own in the method_table that the call is given"));
  }
  CHECK_FALSE(bool(xs_config(built_in_methods(), {"q_proj"})));
}

TEST_CASE("own method on a layer: created, saved, loaded, replaced") {
  const method_table methods = own_methods();
  std::vector<float> w(12 * 8);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>((i * 37) % 11) * 0.1F - 0.5F;
  base_layer here;
  here.out = 12, here.in = 8, here.shape = {12, 8}, here.weight = view_of(w.data(), 12, 8);
  adapted_layer<engine> layer(rules_of<linear_kind>(), false, {"lin", {}, composition::peft});
  must(layer.set("weight", here.weight));
  const auto config = xs_config(methods, {"lin"});
  must(hf::add_adapter(layer, here, "mine", *config, 0, start_xs));
  temp_folder dir;
  must(hf::save_adapter(dir.path / "a", layer, "mine"));
  must(hf::load_adapter(layer, here, "again", dir.path / "a", methods));
  must(hf::replace_adapter(layer, here, "mine", dir.path / "a", methods));
  CHECK(*layer.find("again")->modules[0].tensors.at("xs_R.weight").data ==
        *layer.find("mine")->modules[0].tensors.at("xs_R.weight").data);
  CHECK_FALSE(bool(hf::load_adapter(layer, here, "third", dir.path / "a")));
}
