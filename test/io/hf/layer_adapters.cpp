// SPDX-License-Identifier: Apache-2.0
// Named adapters of a single layer: changes of the list, several active adapters, and combinations. Combinations have
// the bits of those of a whole model, which `golden` compares with PEFT's.
#include <doctest/doctest.h>
#include <graft/io/hf/combine_adapters.h>
#include <graft/io/hf/layer_adapters.h>
#include <graft/model/on_cpu.h>
#include <graft/run/cpu_layer.h>

#include <cmath>
#include <filesystem>

using namespace graft;
namespace hf = graft::io::hf;
using layer_type = adapted_layer<cpu::engine<float>>;
using names = layer_type::names;

namespace {

const std::string llama_folder = GRAFT_GOLDEN_DIR "/models/llama";
const char* const module_name = "model.layers.0.self_attn.v_proj";
constexpr long long out = 32, in = 64, rows = 5;

std::vector<float> numbers(std::size_t n, int seed) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = std::sin(0.37F * static_cast<float>(i + 1) * static_cast<float>(seed));
  return v;
}
struct one_layer {
  std::vector<float> w = numbers(out * in, 3), x = numbers(rows * in, 5);
  io::base_layer base{};
  layer_type is;
  explicit one_layer(const adapter_capacity& limits = {}, composition several = composition::peft)
      : is(rules_of<linear_kind>(), false, {module_name, limits, several}) {
    base.out = out, base.in = in, base.shape = {out, in}, base.weight = view_of(w.data(), out, in);
    REQUIRE(bool(is.set("weight", base.weight)));
  }
  one_layer(const one_layer&) = delete;
  one_layer& operator=(const one_layer&) = delete;

  void load(const char* name, const std::string& folder) {
    const status s = hf::load_adapter(is, base, name, llama_folder + "/" + folder);
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
  }
  std::vector<float> y() { return y_of(x); }
  std::vector<float> y_of(const std::vector<float>& with) {
    std::vector<float> made(rows * out);
    const status s = is.forward(view_of(with.data(), rows, in), view_into(made.data(), rows, out));
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    return made;
  }
  std::vector<float> with(const names& which) {
    const status s = is.activate(which);
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    return y();
  }
};
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0, largest = 1e-30;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = d <= most ? most : d, largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return most / largest;
}

}  // namespace

TEST_CASE("layer adapters: add, activate, rename, replace and remove") {
  one_layer l;
  const std::vector<float> bare = l.y();
  l.load("sql", "multi/a"), l.load("chat", "multi/c");
  CHECK(l.is.all_names() == names{"sql", "chat"});
  CHECK(l.y() == bare);
  const std::vector<float> sql = l.with({"sql"}), chat = l.with({"chat"});
  CHECK(largest_difference(sql, bare) > 1e-3);
  CHECK(largest_difference(sql, chat) > 1e-3);
  {
    const auto off = l.is.disabled();
    CHECK(bool(off.begun()));
    CHECK(l.y() == bare);
  }
  CHECK(l.y() == chat);
  REQUIRE(bool(l.is.rename("chat", "talk")));
  CHECK(l.is.active() == names{"talk"});
  CHECK(l.y() == chat);
  REQUIRE(bool(hf::replace_adapter(l.is, l.base, "talk", llama_folder + "/multi/a")));
  CHECK(l.y() == sql);
  REQUIRE(bool(l.is.remove("talk")));
  CHECK(l.is.all_names() == names{"sql"});
  CHECK(l.y() == bare);
  CHECK(l.with({"sql"}) == sql);
  CHECK(l.with({}) == bare);
}

TEST_CASE("layer adapters: an invalid change leaves names and results unchanged") {
  one_layer l({.adapters = 2});
  l.load("a", "multi/a"), l.load("oft", "oft/adapter_init");
  const std::vector<float> before = l.with({"oft", "a"});
  const auto unchanged = [&](const status& s, const char* says) {
    INFO(std::string(s.message()));
    CHECK(!s);
    CHECK(std::string(s.message()).find(says) != std::string::npos);
    CHECK(l.is.all_names() == names{"a", "oft"});
    CHECK(l.is.active() == names{"oft", "a"});
    CHECK(l.y() == before);
  };
  unchanged(l.is.activate({"b"}), "there is no adapter 'b'; there are a, oft");
  unchanged(l.is.activate({"a", "a"}), "is named twice");
  unchanged(l.is.rename("a", "oft"), "choose one that is free");
  unchanged(l.is.remove("b"), "there is no adapter 'b'");
  unchanged(hf::load_adapter(l.is, l.base, "b", llama_folder + "/multi/b"), "the capacity is 2");
  unchanged(hf::load_adapter(l.is, l.base, "b", llama_folder + "/none"), "none");
  unchanged(hf::replace_adapter(l.is, l.base, "a", llama_folder + "/oft/adapter_init"), "is of type LORA");
  unchanged(hf::combine(l.is, l.base, "c", {"a", "b"}, {1, 1}), "there is no adapter 'b' to combine");
  adapter_set torn = *l.is.find("a");
  torn.modules[0].tensors.erase("lora_B.weight");
  unchanged(l.is.replace("a", torn), "lora_B.weight");
  torn.modules.clear();
  unchanged(l.is.replace("a", torn), "has one module");
}

TEST_CASE("layer adapters: several active adapters give PEFT's results") {
  one_layer l;
  l.load("a", "multi/a"), l.load("c", "multi/c"), l.load("oft", "oft/adapter_init"), l.load("ia3", "ia3/adapter_init");
  const std::vector<float> bare = l.y(), a = l.with({"a"}), c = l.with({"c"}), both = l.with({"a", "c"});
  std::vector<float> sum(bare.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] + c[i] - bare[i];
  CHECK(largest_difference(both, sum) < 1e-5);
  // An IA3 after other adapters scales the weight that those have changed.
  adapter_set merged = *l.is.find("a");
  std::vector<float> w(l.w.size());
  REQUIRE(bool(l.is.activate({"a"})));
  REQUIRE(bool(l.is.layer_executor().merge(view_into(w.data(), out, in))));
  one_layer on;
  REQUIRE(bool(on.is.set("weight", view_of(w.data(), out, in))));
  on.load("oft", "oft/adapter_init"), on.load("ia3", "ia3/adapter_init");
  CHECK(largest_difference(l.with({"a", "oft"}), on.with({"oft"})) < 1e-5);
  CHECK(largest_difference(l.with({"a", "ia3"}), on.with({"ia3"})) < 1e-5);
  CHECK(largest_difference(l.with({"a", "oft"}), l.with({"oft", "a"})) > 1e-4);
}

TEST_CASE("layer adapters: PEFT applies the first of two rotations to x first, the exact composition last") {
  std::vector<float> R;
  for (const composition rule : {composition::peft, composition::exact}) {
    one_layer l({}, rule);
    l.load("first", "oft/adapter_init");
    adapter_set other = *l.is.find("first");
    for (auto& [name, t] : other.modules[0].tensors) {
      t.data = std::make_shared<std::vector<float>>(*t.data);
      for (std::size_t i = 0; i < t.data->size(); ++i) (*t.data)[i] = 0.3F * std::cos(static_cast<float>(i));
    }
    REQUIRE(bool(l.is.add("second", other)));
    const char *const inner = rule == composition::peft ? "first" : "second", *const outer = rule == composition::peft
                                                                                                 ? "second"
                                                                                                 : "first";
    // Rotates x by a layer whose weight is the identity.
    adapted_layer<cpu::engine<float>> rotation(rules_of<linear_kind>(), false, {module_name});
    std::vector<float> eye(in * in, 0.0F), rotated(rows * in);
    for (std::size_t i = 0; i < static_cast<std::size_t>(in); ++i) eye[i * in + i] = 1;
    REQUIRE(bool(rotation.set("weight", view_of(eye.data(), in, in))));
    REQUIRE(bool(rotation.add("r", *l.is.find(inner))));
    REQUIRE(bool(rotation.activate({"r"})));
    REQUIRE(bool(rotation.forward(view_of(l.x.data(), rows, in), view_into(rotated.data(), rows, in))));
    REQUIRE(bool(l.is.activate({outer})));
    const std::vector<float> expected = l.y_of(rotated);
    CHECK(largest_difference(l.with({"first", "second"}), expected) < 1e-5);
    CHECK(largest_difference(l.with({"second", "first"}), expected) > 1e-4);
  }
}

TEST_CASE("layer adapters: combinations equal those of a model") {
  const auto file = io::read_json(llama_folder + "/multi/case.json");
  REQUIRE(bool(file));
  auto model = hf::load_model<cpu::engine<float>>(llama_folder + "/base");
  REQUIRE(bool(model));
  one_layer l;
  for (const char* name : {"a", "b", "c"}) {
    l.load(name, std::string("multi/") + name);
    REQUIRE(bool(hf::load_adapter(*model, name, llama_folder + "/multi/" + name)));
  }
  int compared = 0;
  for (const io::json& one : file->find("weighted")->items) {
    const std::string name = one.find("name")->word, type = one.find("combination_type")->word;
    INFO(name);
    names of;
    std::vector<double> weights;
    for (const io::json& a : one.find("adapters")->items) of.push_back(a.word);
    for (const io::json& w : one.find("weights")->items) weights.push_back(w.real);
    combination_settings settings;
    for (std::size_t k = 0; k < std::size(combination_names); ++k)
      if (type == combination_names[k]) settings.type = static_cast<combination>(k);
    if (const io::json* d = one.find("density")) settings.density = d->real;
    const status made = hf::combine(l.is, l.base, name, of, weights, settings);
    INFO(std::string(made.message()));
    REQUIRE(bool(made));
    REQUIRE(bool(hf::combine(*model, name, of, weights, settings)));
    const module_adapter& mine = l.is.find(name)->modules[0];
    const module_adapter* const whole = model->find(name)->find(module_name);
    REQUIRE(whole != nullptr);
    CHECK(mine.scalars == whole->scalars);
    REQUIRE(mine.tensors.size() == whole->tensors.size());
    for (const auto& [tensor, t] : whole->tensors) CHECK(*mine.tensors.at(tensor).data == *t.data);
    const std::vector<float> bare = l.with({});
    CHECK(largest_difference(l.with({name}), bare) > 1e-4);
    ++compared;
  }
  CHECK(compared == 8);
}

TEST_CASE("layer adapters: laws of combinations") {
  one_layer l;
  l.load("a", "multi/a"), l.load("b", "multi/b"), l.load("dora", "dora/adapter_init"),
      l.load("ia3", "ia3/adapter_init");
  const std::vector<float> bare = l.with({}), a = l.with({"a"}), dora = l.with({"dora"}), ia3 = l.with({"ia3"});
  REQUIRE(bool(hf::combine(l.is, l.base, "first", {"a", "b"}, {1, 0}, {combination::linear})));
  CHECK(largest_difference(l.with({"first"}), a) < 1e-5);
  for (const combination type : {combination::dare_linear, combination::dare_ties}) {
    combination_settings settings{type};
    settings.density = 0.5, settings.seed = 7;
    const std::string name = combination_names[static_cast<int>(type)];
    REQUIRE(bool(hf::combine(l.is, l.base, name, {"a", "b"}, {0.5, 0.5}, settings)));
    REQUIRE(bool(hf::combine(l.is, l.base, name + " again", {"a", "b"}, {0.5, 0.5}, settings)));
    CHECK(l.with({name}) == l.with({name + " again"}));
    CHECK(largest_difference(l.y(), bare) > 1e-4);
  }
  // The folded update of another method, with a rank that is large enough for it.
  combination_settings all{combination::svd};
  all.rank = out, all.scales = scaling::exact;
  REQUIRE(bool(hf::combine(l.is, l.base, "folded", {"dora"}, {1}, all)));
  CHECK(largest_difference(l.with({"folded"}), dora) < 1e-4);
  REQUIRE(bool(hf::combine(l.is, l.base, "scaled", {"ia3"}, {1}, {combination::linear})));
  CHECK(largest_difference(l.with({"scaled"}), ia3) < 1e-6);
  const status s = hf::combine(l.is, l.base, "none", {"dora", "a"}, {1, 1}, {combination::linear});
  CHECK(std::string(s.message()).find("only LoRA's factors") != std::string::npos);
}

TEST_CASE("layer adapters: a new adapter is initialized as by PEFT and changes no result") {
  one_layer l;
  const std::vector<float> bare = l.y();
  for (const char* type : {"LORA", "OFT", "IA3"}) {
    std::vector<std::pair<std::string, io::json>> keys;
    if (std::string(type) == "OFT") keys = {{"oft_block_size", io::json_number(16)}};
    if (std::string(type) == "IA3") keys = {{"feedforward_modules", io::json_string("none")}};
    const auto config = io::make_adapter_config(type, {"v_proj"}, keys);
    REQUIRE(bool(config));
    const status s = hf::add_adapter(l.is, l.base, type, *config, 7);
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    CHECK(largest_difference(l.with({type}), bare) < 1e-6);
  }
  const auto dora = io::make_adapter_config("LORA", {"v_proj"}, {{"use_dora", io::json_bool(true)}});
  REQUIRE(bool(dora));
  REQUIRE(bool(hf::add_adapter(l.is, l.base, "dora", *dora)));
  CHECK(largest_difference(l.with({"dora"}), bare) < 1e-5);
  const auto elsewhere = io::make_adapter_config("LORA", {"q_proj"});
  REQUIRE(bool(elsewhere));
  CHECK(!hf::add_adapter(l.is, l.base, "elsewhere", *elsewhere));
  CHECK(l.is.all_names() == names{"LORA", "OFT", "IA3", "dora"});
}

TEST_CASE("layer adapters: an adapter is saved as it was read") {
  one_layer l;
  l.load("a", "multi/a");
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "graft_layer_adapter";
  std::filesystem::remove_all(folder);
  const status saved = hf::save_adapter(folder.string(), l.is, "a");
  INFO(std::string(saved.message()));
  REQUIRE(bool(saved));
  const status read = hf::load_adapter(l.is, l.base, "again", folder.string());
  INFO(std::string(read.message()));
  REQUIRE(bool(read));
  CHECK(l.with({"again"}) == l.with({"a"}));
  std::filesystem::remove_all(folder);
}
