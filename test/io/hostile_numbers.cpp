// SPDX-License-Identifier: Apache-2.0
// Numbers in adapter_config.json that contradict the tensors of the file, in every method: they are compared before
// anything is drawn, allocated or factored, so no allocation grows with the number.
#include <doctest/doctest.h>
#include <graft/io/peft/layer.h>
#include <graft/io/safetensors/convert.h>
#include <graft/io/safetensors/reader.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../fuzz/counted_new.h"

using namespace graft;
using namespace graft::io;

namespace {

namespace fs = std::filesystem;
using changeable = nlohmann::ordered_json;

constexpr std::size_t max_allocation = std::size_t{1} << 20U, max_total = std::size_t{64} << 20U;

struct answer {
  std::string error_text;  // the error; empty if the layer was read
  std::size_t at_once = 0, in_all = 0;
};

// A golden layer in memory, with the weight and bias of PEFT's base layer.
struct stored_adapter {
  changeable config;
  safetensors file;
  base_layer base;
  std::vector<float> weight, bias;

  explicit stored_adapter(const std::string& name) {
    const fs::path from = fs::path(GRAFT_GOLDEN_DIR) / "layers" / name;
    std::ifstream(from / "adapter" / "adapter_config.json") >> config;
    const auto tensors = read_adapter_weights(from / "adapter");
    const auto of_base = read_safetensors(from / "base.safetensors");
    REQUIRE(bool(tensors));
    REQUIRE(bool(of_base));
    file = *tensors;
    for (const tensor_view& t : of_base->tensors) {
      const bool is_weight = t.name.ends_with(".weight");
      (is_weight ? weight : bias) = *to_float(t);
      if (!is_weight) continue;
      base.module = t.name.substr(0, t.name.size() - 7);
      for (const auto d : t.shape) base.shape.push_back(static_cast<long long>(d));
    }
    base.bias = !bias.empty();
    base.kind = base.module == "emb"    ? "embedding"
                : base.module == "conv" ? "conv2d"
                : base.module == "norm" ? "layer_norm"
                                        : "linear";
    const bool transposed = config.value("fan_in_fan_out", false) && base.shape.size() == 2;
    base.out = base.shape[transposed ? 1 : 0], base.in = static_cast<long long>(weight.size()) / base.out;
    if (transposed) base.shape = {base.out, base.in};
  }
  std::string key(const char* name) const { return "base_model.model." + base.module + "." + name; }
  void drop(const std::string& end) {
    std::erase_if(file.tensors, [&](const tensor_view& t) { return t.name.ends_with(end); });
  }
  // A tensor without elements, whose other sizes may be anything.
  void empty(const char* name, std::vector<std::uint64_t> shape) {
    for (tensor_view& t : file.tensors)
      if (t.name == key(name)) t.shape = std::move(shape), t.data = {};
  }
  answer read() {
    const auto c = parse_adapter_config(config.dump(), "adapter_config.json");
    if (!c) return {c.message()};
    if (base.kind == "linear" || base.kind == "embedding") base.weight = view_of(weight.data(), base.out, base.in);
    if (base.bias) base.bias_values = view_of(bias.data(), static_cast<long long>(bias.size()));
    counted::begin();
    counted::refuse_above(64 * max_allocation);
    const auto layer = read_peft_layer(*c, file, base);
    counted::refuse_above(std::numeric_limits<std::size_t>::max());
    return {layer ? "" : layer.message(), counted::largest(), counted::total()};
  }
};
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(fs::path(GRAFT_GOLDEN_DIR) / "layers"))
    if (e.is_directory()) names.push_back(e.path().filename().string());
  std::sort(names.begin(), names.end());
  REQUIRE(names.size() >= 100);
  return names;
}
// A golden case whose file lacks the values that can be drawn or computed again.
stored_adapter regenerating(const std::string& name) {
  stored_adapter a(name);
  const std::string type = a.config.at("peft_type");
  if (a.config.contains("save_projection") && type != "FROD") a.config["save_projection"] = false;
  if (a.config.contains("save_precomputed_indices")) a.config["save_precomputed_indices"] = false;
  for (const char* end : {".vera_A", ".vera_B", ".pvera_A", ".pvera_B", ".randlora_A", ".randlora_B", ".tinylora_P",
                          ".shira_indices", ".supertuning_indices"})
    a.drop(end);
  return a;
}
bool says(const std::string& sentence, const std::string& part) { return sentence.find(part) != sentence.npos; }
void check_cheap(const answer& a) {
  CHECK(a.at_once <= max_allocation);
  CHECK(a.in_all <= max_total);
  CHECK(!says(a.error_text, "memory"));
}

const char* const hostile[] = {"0",          "-1",         "1",          "3",
                               "65535",      "2147483647", "2147483648", "-2147483648",
                               "4294967296", "1e308",      "1e-308",     "9223372036854775807",
                               "0.5",        "-0.0",       "1000",       "18446744073709551615"};

}  // namespace

TEST_CASE("hostile numbers: one number of a configuration, of every golden layer") {
  for (const std::string& name : all_names())
    for (const bool again : {false, true}) {
      const stored_adapter stored(name), good = again ? regenerating(name) : stored;
      if (again && good.config == stored.config && good.file.tensors.size() == stored.file.tensors.size()) continue;
      INFO(name, std::string(again ? ", regenerated" : ""));
      check_cheap(stored_adapter(good).read());
      CHECK(stored_adapter(good).read().error_text == "");
      for (const auto& [key, value] : good.config.items()) {
        if (!value.is_number() && !value.is_null() && !value.is_object()) continue;
        for (const char* const number : hostile) {
          stored_adapter a = good;
          a.config[key] =
              value.is_object() ? changeable{{a.base.module, changeable::parse(number)}} : changeable::parse(number);
          INFO(key, " ", std::string(number));
          check_cheap(a.read());
        }
      }
    }
}

TEST_CASE("hostile numbers: two numbers whose product overflows, of every golden layer") {
  for (const std::string& name : all_names()) {
    const stored_adapter good = regenerating(name);
    std::vector<std::string> keys;
    for (const auto& [key, value] : good.config.items())
      if (value.is_number()) keys.push_back(key);
    for (const char* const number : {"2147483647", "65536", "1"})
      for (std::size_t i = 0; i < keys.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) {
          stored_adapter a = good;
          a.config[keys[i]] = a.config[keys[j]] = changeable::parse(number);
          INFO(name, ": ", keys[i], " and ", keys[j], " ", std::string(number));
          check_cheap(a.read());
        }
  }
}

TEST_CASE("hostile numbers: a number that contradicts the tensors is named") {
  const struct {
    const char *layer, *key, *number, *error_text;
  } cases[] = {
      {"vera", "r", "2147483647", "tensor 'vera_lambda_d' has shape [8], expected [r] = [2147483647]"},
      {"pvera", "r", "2147483647", "expected [2 r] = [4294967294]"},
      {"pvera_drawn", "r", "6", "tensor 'pvera_lambda_d' has shape [10], expected [2 r] = [12]"},
      {"randlora", "r", "2147483647",
       "tensor 'randlora_lambda' has shape [4, 12], expected [r, num_bases] = [2147483647, 1]"},
      {"randlora_very_sparse", "r", "5", "tensor 'randlora_lambda' has shape "},
      {"unilora", "r", "2147483647",
       "'r' is 2147483647, expected at most 32, the longest side of the layers that it targets"},
      {"unilora", "r", "33", "'r' is 33, expected at most 32, the longest side of the layers that it targets"},
      {"unilora", "theta_d_length", "2147483647",
       "tensor 'unilora_theta_d' has shape [256], expected [theta_d_length] = [2147483647]"},
      {"unilora_saved", "r", "2147483647", "expected [2147483647, "},
      {"tinylora_drawn", "u", "2147483647", "tensor 'tinylora_v' has shape [1], expected [u] = [2147483647]"},
      {"tinylora_drawn", "r", "2147483647", "the tensor has shape [3, 23], expected [23, 23]"},
      {"fourierft", "n_frequency", "51", "tensor 'fourierft_spectrum' has shape [50], expected [n_frequency] = [51]"},
      {"fourierft", "n_frequency", "2147483647", "'n_frequency' is 2147483647, expected at most the 768 entries"},
      {"waveft", "n_frequency", "61", "tensor 'waveft_spectrum' has shape [60], expected [n_frequency] = [61]"},
      {"waveft", "n_frequency", "2147483647", "'n_frequency' is 2147483647, expected at most the 768 entries"},
      {"psoft", "r", "9", "tensor 'psoft_R.vector_b' has shape [8], expected [r] = [9]"},
      {"psoft", "r", "2147483647", "'psoft_R."},
      {"psoft_lowrank", "psoft_svd_lowrank_niter", "2147483647",
       "'psoft_svd_lowrank_niter' is 2147483647, expected an integer from 0 to 1000"},
      {"psoft", "num_cayley_neumann_terms", "2147483647", "expected an integer from 1 to 1000"},
      {"osf", "effective_rank", "11",
       "tensor 'osf_svd_params.U_low' has shape [32, 12], expected [out, trainable_rank] = [32, 13]"},
      {"osf", "effective_rank", "2147483647", "stay as they are, expected at least one and one less than all"},
      {"shira", "r", "3", "tensor 'shira_weight' has shape [112], expected [num_indices] = [168]"},
      {"shira", "r", "2147483647", "'r' is 2147483647, with which 120259084232 entries"},
      {"supertuning", "sparsity", "0.5", "tensor 'supertuning_values' has shape [76], expected [num_indices] = [384]"},
      {"adamss", "r", "2147483647", "adamss"},
      {"adamss", "r", "9", "'adamss_A"},
      {"adamss", "num_subspaces", "2147483647", "there is no tensor 'base_model.model.lin.adamss_A.3'"},
      {"adamss", "subspace_rank", "1",
       "'base_model.model.lin.adamss_A.0': the tensor has shape [2, 10], expected at most subspace_rank = 1 rows"},
  };
  for (const auto& c : cases) {
    stored_adapter a = regenerating(c.layer);
    a.config[c.key] = changeable::parse(c.number);
    const answer got = a.read();
    INFO(std::string(c.layer), ", ", std::string(c.key), " ", std::string(c.number), ": ", got.error_text);
    CHECK(says(got.error_text, c.error_text));
    check_cheap(got);
  }
}

TEST_CASE("hostile numbers: nothing is factored for tensors that do not fit") {
  // Factoring and drawing take memory of the order of the base weight, 4 MiB here.
  const struct {
    const char *layer, *key;
    double number;
  } cases[] = {{"psoft", "r", 9},         {"psoft_lowrank", "r", 9},        {"osf", "effective_rank", 0.25},
               {"adamss", "r", 9},        {"frod", "sparse_rate", 0.5},     {"supertuning", "sparsity", 0.5},
               {"shira", "r", 3},         {"fourierft", "n_frequency", 51}, {"waveft", "n_frequency", 61},
               {"tinylora_drawn", "u", 9}};
  for (const auto& c : cases) {
    stored_adapter a = regenerating(c.layer);
    if (c.number < 1)
      a.config[c.key] = c.number;
    else
      a.config[c.key] = static_cast<int>(c.number);
    a.base.out = a.base.in = 1024, a.base.shape = {1024, 1024};
    a.weight.assign(1024 * 1024, 0.5F), a.bias.assign(a.base.bias ? 1024 : 0, 0.0F);
    const answer got = a.read();
    INFO(std::string(c.layer), ": ", got.error_text);
    CHECK(says(got.error_text, "has shape ["));
    check_cheap(got);
  }
}

TEST_CASE("hostile numbers: tensors without elements determine no size") {
  stored_adapter randlora = regenerating("randlora");
  randlora.config["r"] = 2147483647;
  randlora.empty("randlora_lambda", {2147483647, 0});
  const answer bases = randlora.read();
  CHECK(says(bases.error_text, "has shape [2147483647, 0], expected [r, num_bases] = [2147483647, 1]"));
  check_cheap(bases);

  stored_adapter adamss("adamss");
  for (const char* part : {"adamss_A.0", "adamss_A.1", "adamss_A.2"}) adamss.empty(part, {2147483647, 0});
  const answer groups = adamss.read();
  CHECK(says(groups.error_text, "has shape [6442450941, 0]"));
  check_cheap(groups);
}

TEST_CASE("hostile numbers: Uni-LoRA's indices of all layers are counted before they are drawn") {
  stored_adapter a("unilora");
  a.base.all_targets = std::make_shared<target_layers>();
  a.base.all_targets->all.assign(3, {a.base.out, a.base.in});
  a.base.number = 1;
  CHECK(a.read().error_text == "");
  a.base.all_targets->made.clear();
  a.base.all_targets->all.assign(3, {2147483647, 2147483647});
  a.base.all_targets->all[1] = {a.base.out, a.base.in};
  const answer got = a.read();
  CHECK(says(got.error_text,
             "'r' is 4, with which 34359738576 numbers of all layers would be drawn, expected fewer than 4294967296"));
  check_cheap(got);
}

TEST_CASE("hostile numbers: many trainable tokens are read in less than quadratic time") {
  changeable config{{"peft_type", "TRAINABLE_TOKENS"}, {"target_modules", {"emb"}}};
  changeable& tokens = config["token_indices"] = changeable::array();
  for (int i = 0; i < 1'000'000; ++i) tokens.push_back(i);
  CHECK(bool(parse_adapter_config(config.dump(), "adapter_config.json")));
  tokens.push_back(4711);
  const auto twice = parse_adapter_config(config.dump(), "adapter_config.json");
  CHECK(says(twice.message(), "'token_indices' names token 4711 twice, expected each once"));
}
TEST_CASE("hostile numbers: tokens are checked against the rows before rows are selected") {
  stored_adapter a("lora_embedding");
  const std::vector<float> rows(static_cast<std::size_t>(2 * a.base.in), 0.5F);
  const auto* const bytes = reinterpret_cast<const std::byte*>(rows.data());
  a.file.tensors = {{a.key("trainable_tokens_delta"),
                     safetensors_type::f32,
                     {2, static_cast<std::uint64_t>(a.base.in)},
                     {bytes, bytes + rows.size() * sizeof(float)}}};
  a.config = {{"peft_type", "TRAINABLE_TOKENS"}, {"target_modules", {"emb"}}, {"token_indices", {3, 1}}};
  CHECK(a.read().error_text == "");
  a.config["token_indices"] = {3, 2147483647};
  CHECK(says(a.read().error_text, "token 2147483647 of adapter_config.json beside it is none of emb"));
  changeable& tokens = a.config["token_indices"] = changeable::array();
  for (int i = 0; i < 100'000; ++i) tokens.push_back(i);
  const answer got = a.read();
  INFO(got.error_text);
  CHECK(says(got.error_text, "tensor 'trainable_tokens_delta' has shape [2, "));
  CHECK(says(got.error_text, "] = [100000, "));
  check_cheap(got);
}
