// SPDX-License-Identifier: Apache-2.0
// PEFT folders that contradict their layer or themselves: each golden case with one change. The error names the file,
// the key and the expected value.
#include <doctest/doctest.h>
#include <graft/io/peft/all.h>
#include <graft/io/peft/layer.h>
#include <graft/io/safetensors/writer.h>
#include <graft/run/cpu_layer.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using graft::io::test::temp_folder;

namespace {

namespace fs = std::filesystem;
using changeable = nlohmann::ordered_json;

struct stored {
  io::safetensors_type type = io::safetensors_type::f32;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
};
std::vector<std::byte> bytes_of(const std::vector<float>& v) {
  const auto* p = reinterpret_cast<const std::byte*>(v.data());
  return {p, p + v.size() * sizeof(float)};
}
std::uint64_t numbers_in(const std::vector<std::uint64_t>& shape) {
  std::uint64_t n = 1;
  for (const auto d : shape) n *= d;
  return n;
}
stored floats(std::vector<std::uint64_t> shape, float fill = 0.25F) {
  const std::size_t n = numbers_in(shape);
  return {io::safetensors_type::f32, std::move(shape), bytes_of(std::vector<float>(n, fill))};
}

// A golden case in memory, which a test changes and then reads with load() from a folder.
struct peft_case {
  changeable config;
  std::map<std::string, stored> tensors;
  base_layer base;
  std::vector<float> weight, bias;
  temp_folder folder;

  explicit peft_case(const fs::path& from) {
    std::ifstream(from / "adapter" / "adapter_config.json") >> config;
    const auto file = read_adapter_weights(from / "adapter");
    REQUIRE(bool(file));
    for (const tensor_view& t : file->tensors) tensors[t.name] = {t.type, t.shape, {t.data.begin(), t.data.end()}};
    const auto b = read_safetensors(from / "base.safetensors");
    REQUIRE(bool(b));
    for (const tensor_view& t : b->tensors) {
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
    const long long out = base.shape[transposed ? 1 : 0];
    resize(out, static_cast<long long>(weight.size()) / out);
  }
  void resize(long long out, long long in) {  // changes the layer, not the adapter
    base.out = out, base.in = in;
    if (base.shape.size() == 2) base.shape = {out, in};
    weight.resize(static_cast<std::size_t>(out * in));
    if (base.bias) bias.resize(static_cast<std::size_t>(base.kind == "layer_norm" ? in * out : out));
  }
  std::string key(const char* name) const { return "base_model.model." + base.module + "." + name; }
  stored& operator[](const char* name) { return tensors.at(key(name)); }

  fs::path file() const { return folder.path / "adapter_model.safetensors"; }
  result<peft_layer> read() {
    std::ofstream(folder.path / "adapter_config.json") << config.dump(2);
    std::vector<tensor_view> views;
    for (const auto& [name, t] : tensors) views.push_back({name, t.type, t.shape, t.bytes});
    if (const status s = write_safetensors(file(), views); !s) return s.failure();
    const auto c = read_adapter_config(folder.path);
    if (!c) return c.failure();
    const auto f = read_adapter_weights(folder.path);
    if (!f) return f.failure();
    base.weight = view_of(weight.data(), base.out, base.in);
    if (base.bias) base.bias_values = view_of(bias.data(), bias.size());
    return read_peft_layer(*c, *f, base);
  }
  // Reads the folder and attaches it to a layer, as a program would; returns the first error, or "".
  std::string load() {
    const auto layer = read();
    if (!layer) return layer.message();
    const auto g = built_in_methods().graphs(base.kind.c_str(), layer->formula, base.bias);
    if (!g) return g.message();
    cpu::executor<float> e(*g);
    view w{weight.data(), graft::dtype::f32, {1, 1, 1, 1}, static_cast<int>(base.shape.size())};
    for (std::size_t k = 0; k < base.shape.size(); ++k) w.size[k] = base.shape[k];
    if (const status s = e.set("weight", w); !s) return s.message();
    if (base.bias)
      if (const status s = e.set("bias", view_of(bias.data(), bias.size())); !s) return s.message();
    return attach(e, *layer).message();
  }
};

peft_case golden(const char* name) { return peft_case(fs::path(GRAFT_GOLDEN_DIR) / "layers" / name); }
std::vector<fs::path> all_cases() {
  std::vector<fs::path> found;
  for (const auto& e : fs::directory_iterator(fs::path(GRAFT_GOLDEN_DIR) / "layers"))
    if (e.is_directory()) found.push_back(e.path());
  std::sort(found.begin(), found.end());
  REQUIRE(found.size() >= 35);
  return found;
}
// Copies of RandLoRA's shared bases, which every module has and which are not read.
bool is_copy(const std::string& key) {
  return key.starts_with("base_model.model.") && (key.ends_with(".randlora_A") || key.ends_with(".randlora_B"));
}
// Tensors that a file may lack, because they follow from the configuration or the base weight, or are zeros.
bool is_found_again(const std::string& key) {
  return key.ends_with(".shira_indices") || key.ends_with(".supertuning_indices") || key.ends_with(".tinylora_P") ||
         key.ends_with(".zeros");
}
bool says(const std::string& sentence, const std::string& part) { return sentence.find(part) != sentence.npos; }

}  // namespace

// ---- every golden case

TEST_CASE("peft layer: every unchanged golden case is read") {
  for (const fs::path& p : all_cases()) {
    peft_case c(p);
    INFO(p.filename().string());
    CHECK(c.load() == "");
  }
}

TEST_CASE("peft layer: each tensor of every case missing") {
  for (const fs::path& p : all_cases()) {
    peft_case c(p);
    const auto whole = c.tensors;
    for (const auto& one : whole) {
      if (is_copy(one.first) || is_found_again(one.first)) continue;
      c.tensors = whole;
      c.tensors.erase(one.first);
      const std::string error_text = c.load();
      INFO(p.filename().string(), ", ", one.first, ": ", error_text);
      CHECK(says(error_text, c.file().string() + ": "));
      // The error may name the other tensor of a pair, because LoKr and LoHa have several forms.
      const bool pair = says(one.first, "lokr_w1_a") || says(one.first, "lokr_w2_a") || says(one.first, "hada_t1");
      CHECK((says(error_text, "'" + one.first + "'") || pair));
    }
  }
}

TEST_CASE("peft layer: an unexpected tensor in every case") {
  for (const fs::path& p : all_cases()) {
    peft_case c(p);
    c.tensors[c.key("lora_C.weight")] = floats({4, 4});
    const std::string error_text = c.load();
    INFO(p.filename().string(), ": ", error_text);
    CHECK(says(error_text,
               c.file().string() + ": tensor '" + c.key("lora_C.weight") + "' is not part of this adapter ("));
  }
}

TEST_CASE("peft layer: each tensor of every case with another number of dimensions") {
  for (const fs::path& p : all_cases()) {
    peft_case c(p);
    const auto whole = c.tensors;
    for (const auto& one : whole) {
      if (is_copy(one.first)) continue;
      c.tensors = whole;
      stored& t = c.tensors.at(one.first);
      if (t.shape.size() == 4 && says(one.first, "magnitude")) continue;  // convolutions have four dimensions
      t.shape = {t.shape[0], 1, 1, 1, numbers_in({t.shape.begin() + 1, t.shape.end()})};  // five
      const std::string error_text = c.load();
      INFO(p.filename().string(), ", ", one.first, ": ", error_text);
      CHECK(says(error_text, c.file().string() + ": "));
      CHECK((says(error_text, one.first) ||
             says(error_text, one.first.substr(11))));  // VeRA's shared projections are named vera_A
    }
  }
}

TEST_CASE("peft layer: each tensor of every case one row longer") {
  for (const fs::path& p : all_cases()) {
    peft_case c(p);
    const auto whole = c.tensors;
    for (const auto& one : whole) {
      // A shared projection may be larger than the layer.
      if (says(one.first, "base_model.vera_") || says(one.first, "base_model.pvera_") ||
          says(one.first, "randlora_A") || says(one.first, "randlora_B"))
        continue;
      c.tensors = whole;
      stored& t = c.tensors.at(one.first);
      // BOFT's tensor determines the number of factors; shared blocks are one, or as many as fit.
      if (says(one.first, "boft_R")) continue;
      ++t.shape[0];
      t.bytes.resize(numbers_in(t.shape) * static_cast<std::size_t>(facts(t.type).bits / 8));
      const std::string error_text = c.load();
      INFO(p.filename().string(), ", ", one.first, ": ", error_text);
      CHECK(says(error_text, c.file().string() + ": "));
      CHECK(says(error_text, "expected "));
    }
  }
}

TEST_CASE("peft layer: factors are floats, not integers") {
  using type = io::safetensors_type;
  for (const auto& [as, name, bytes] :
       {std::tuple{type::i64, "I64", 8U}, std::tuple{type::u64, "U64", 8U}, std::tuple{type::i32, "I32", 4U},
        std::tuple{type::i16, "I16", 2U}, std::tuple{type::i8, "I8", 1U}, std::tuple{type::u8, "U8", 1U},
        std::tuple{type::boolean, "BOOL", 1U}}) {
    peft_case c = golden("lora");
    stored& A = c["lora_A.weight"];
    A.type = as, A.bytes.assign(numbers_in(A.shape) * bytes, std::byte{1});
    CHECK(c.load() == c.file().string() + ": tensor '" + c.key("lora_A.weight") + "' is " + name +
                          ", expected floats (F32, F16 or BF16); save the adapter unquantized");
  }
  peft_case indices = golden("shira");  // its indices are integers, which are valid
  CHECK(indices.load() == "");
}

TEST_CASE("peft layer: a non-finite value in each tensor of every case") {
  for (const fs::path& p : all_cases()) {
    peft_case c(p);
    const auto whole = c.tensors;
    for (const auto& one : whole) {
      if (is_copy(one.first)) continue;
      c.tensors = whole;
      const float bad = INFINITY;
      auto& bytes = c.tensors.at(one.first).bytes;
      // FRoD without entries stores empty tensors, and integers are always finite.
      if (bytes.empty() || one.second.type != io::safetensors_type::f32) continue;
      std::memcpy(bytes.data() + (bytes.size() / 4 - 1) * 4, &bad, 4);
      INFO(p.filename().string());
      CHECK(c.load() == c.file().string() + ": tensor '" + one.first + "' holds a value that is not finite");
    }
  }
}

TEST_CASE("peft layer: half floats are read, and an infinity in them is found") {
  peft_case c = golden("lora");
  stored& b = c["lora_B.weight"];
  b.type = io::safetensors_type::f16;
  b.bytes.assign(64 * 8 * 2, std::byte{0});
  CHECK(c.load() == "");
  b.bytes[1] = std::byte{0x7c};
  CHECK(c.load() == c.file().string() + ": tensor '" + c.key("lora_B.weight") + "' holds a value that is not finite");
}

// ---- the configuration against the tensors

TEST_CASE("peft layer: a rank in the configuration that contradicts the tensors") {
  peft_case c = golden("lora");
  c.config["r"] = 4;
  CHECK(c.load() == c.file().string() + ": key '" + c.key("lora_B.weight") +
                        "': tensor 'lora_B.weight' has shape [64, 8], expected [out, r] = [64, 4]");
  for (const char* name :
       {"dora", "loha", "hra", "miss", "vblora", "vera", "lora_embedding", "lora_conv2d", "lokr_factor"}) {
    peft_case other = golden(name);
    other.config["r"] = 3;
    const std::string error_text = other.load();
    INFO(name, ": ", error_text);
    CHECK(says(error_text, other.file().string() + ": key '"));
    CHECK(says(error_text, "expected ["));
  }
  peft_case a = golden("adalora");
  a.config["init_r"] = 11;
  CHECK(says(a.load(),
             ": key '" + a.key("lora_A") + "': tensor 'lora_A' has shape [8, 48], expected [r, in] = [11, 48]"));
}

TEST_CASE("peft layer: a rank for one layer") {
  peft_case c = golden("lora");
  c.config["r"] = 4;
  c.config["rank_pattern"] = {{"lin", 8}};
  CHECK(c.load() == "");
}

TEST_CASE("peft layer: an adapter for another layer") {
  for (const char* name : {"lora", "dora", "adalora", "loha", "lokr", "vblora"}) {
    peft_case c = golden(name);
    c.resize(c.base.out + 8, c.base.in);
    const std::string wide = c.load();
    INFO(name, ": ", wide);
    CHECK(says(wide, c.file().string() + ": key '"));
    CHECK(says(wide, "expected ["));
  }
  for (const char* name :
       {"lora", "dora", "adalora", "loha", "lokr", "vblora", "hra", "oft_cayley", "boft_1", "ia3_ff"}) {
    peft_case c = golden(name);
    c.resize(c.base.out, c.base.in + 8);
    const std::string deep = c.load();
    INFO(name, ": ", deep);
    CHECK(says(deep, c.file().string() + ": key '"));
    CHECK(says(deep, "expected ["));
  }
  peft_case larger = golden("vera");
  larger.resize(larger.base.out, larger.base.in + 1);
  CHECK(
      says(larger.load(), ": key 'base_model.vera_A': the shared tensor has shape [8, 48], expected at least [8, 49]"));
}

TEST_CASE("peft layer: transposed factors are refused") {
  peft_case c = golden("lora");
  std::swap(c["lora_A.weight"].shape[0], c["lora_A.weight"].shape[1]);
  CHECK(says(c.load(), "'lora_A.weight' has shape [48, 8], expected [r, in] = [8, 48]"));
}

TEST_CASE("peft layer: a file for another module") {
  peft_case c = golden("lora");
  c.base.module = "other";
  CHECK(says(c.load(), c.file().string() + ": module 'other' is not a target of this adapter"));
  c.config["target_modules"] = {"other"};
  CHECK(says(c.load(), "'base_model.model.other.lora_"));
  c.base.module = "lin";
  c.config["target_modules"] = "all-linear";
  CHECK(c.load() == "");
}

// ---- method by method

TEST_CASE("peft layer: use_dora and the magnitude tensor require each other") {
  peft_case without = golden("lora");
  without.config["use_dora"] = true;
  const std::string error_text = without.load();
  INFO(error_text);
  CHECK(says(error_text, without.file().string()));
  CHECK(says(error_text, "'" + without.key("lora_magnitude_vector") + "'"));
  peft_case with = golden("dora");
  with.config["use_dora"] = false;
  CHECK(with.load() == with.file().string() + ": tensor '" + with.key("lora_magnitude_vector") +
                           "' is not part of this adapter (LORA)");
  peft_case wrong = golden("dora");
  wrong["lora_magnitude_vector"].shape = {1, 64};
  CHECK(says(wrong.load(), "key '" + wrong.key("lora_magnitude_vector") +
                               "': tensor 'lora_magnitude_vector' has shape [1, 64], expected [out] = [64]"));
}

TEST_CASE("peft layer: lora_bias and its tensor require each other") {
  peft_case with = golden("lora_bias");
  with.config["lora_bias"] = false;
  CHECK(says(with.load(), "tensor '" + with.key("lora_B.bias") + "' is not part of this adapter (LORA)"));
  peft_case without = golden("lora");
  without.config["lora_bias"] = true;
  CHECK(says(without.load(), "'" + without.key("lora_B.bias") + "'"));
}

TEST_CASE("peft layer: an OFT block size that does not divide is adjusted as in PEFT, or an error") {
  for (const int asked : {8, 9, 10}) {  // PEFT uses the nearest divisor of 48, the smaller one of two
    peft_case c = golden("oft_cayley");
    c.config["oft_block_size"] = asked;
    INFO(asked);
    CHECK(c.load() == "");
  }
  for (const int asked : {7, 11, 6, 16}) {
    peft_case c = golden("oft_cayley");
    c.config["oft_block_size"] = asked;
    const std::string error_text = c.load();
    INFO(asked, ": ", error_text);
    CHECK(says(error_text,
               c.file().string() + ": key '" + c.key("oft_R.weight") + "': tensor 'oft_R.weight' has shape [6, 28]"));
    CHECK(says(error_text, "expected [in/b, b(b-1)/2] = ["));
  }
  peft_case by_number = golden("oft_cayley");  // six blocks of eight
  by_number.config["oft_block_size"] = 0;
  by_number.config["r"] = 6;
  CHECK(by_number.load() == "");
  by_number.config["r"] = 5;  // adjusted to 4, which contradicts the tensors
  CHECK(says(by_number.load(), "'oft_R.weight' has shape [6, 28], expected [in/b, b(b-1)/2] = [4, 66]"));
}

TEST_CASE("peft layer: PEFT's adjustment of a block size, with PEFT's examples") {
  CHECK(peft::nearest_divisor(16, 5) == 4);
  CHECK(peft::nearest_divisor(16, 12) == 8);
  CHECK(peft::nearest_divisor(100, 32) == 25);
  CHECK(peft::nearest_divisor(50, 32) == 25);
  CHECK(peft::nearest_divisor(30, 7) == 6);
  CHECK(peft::nearest_divisor(30, 30) == 30);
  CHECK(peft::nearest_divisor(30, 1000) == 30);
}

TEST_CASE("peft layer: shared blocks have one entry, other blocks as many as fit") {
  peft_case shared = golden("oft_cayley");
  shared.config["block_share"] = true;
  CHECK(says(shared.load(), "'oft_R.weight' has shape [6, 28], expected [1, b(b-1)/2] = [1, 28]"));
  peft_case own = golden("oft_shared");
  own.config["block_share"] = false;
  CHECK(says(own.load(), "'oft_R.weight' has shape [1, 28], expected [in/b, b(b-1)/2] = [6, 28]"));
}

TEST_CASE("peft layer: LoKr tensors that contradict its factor") {
  peft_case c = golden("lokr_factor");
  c.config["decompose_factor"] = 8;
  CHECK(says(c.load(), c.file().string() + ": key '" + c.key("lokr_w1") +
                           "': tensor 'lokr_w1' has shape [4, 4], expected [a, c] = [8, 8]"));
  c.config["decompose_factor"] = -1;
  CHECK(says(c.load(), "'lokr_w1' has shape [4, 4], expected [a, c] = [8, 6]"));
}

TEST_CASE("peft layer: IA3 of the other kind") {
  peft_case c = golden("ia3");
  c.config["feedforward_modules"] = {"lin"};
  CHECK(says(c.load(), "key '" + c.key("ia3_l") + "': tensor 'ia3_l' has shape [64, 1], expected [1, in] = [1, 48]"));
  peft_case f = golden("ia3_ff");
  f.config["feedforward_modules"] = changeable::array();
  CHECK(says(f.load(), "key '" + f.key("ia3_l") + "': tensor 'ia3_l' has shape [1, 48], expected [out, 1] = [64, 1]"));
}

TEST_CASE("peft layer: BOFT's tensors determine the number of factors, its configuration the block size") {
  peft_case c = golden("boft_2");
  c.config["boft_n_butterfly_factor"] = 1;  // PEFT writes the requested number, not the number it used
  CHECK(c.load() == "");
  // An odd number of blocks, or an odd block size, allows no second factor.
  for (const auto& shape : {std::vector<std::uint64_t>{2, 3, 16, 16}, std::vector<std::uint64_t>{2, 16, 3, 3},
                            std::vector<std::uint64_t>{3, 6, 8, 8}}) {
    peft_case odd = golden("boft_2");
    odd["boft_R"] = floats(shape);
    odd.config["boft_block_size"] = shape[3];
    const std::string error_text = odd.load();
    INFO(shape[0], " ", shape[1], " ", shape[2], ": ", error_text);
    CHECK(says(error_text, odd.file().string() + ": key '" + odd.key("boft_R") + "'"));
  }
}

TEST_CASE("peft layer: a BOFT block size that contradicts the tensors") {
  peft_case c = golden("boft_2");
  c.config["boft_block_size"] = 8;
  CHECK(c.load() != "");
  peft_case n = golden("boft_2");
  n.config["boft_block_size"] = 0;
  n.config["boft_block_num"] = 6;
  CHECK(n.load() != "");
}

TEST_CASE("peft layer: VeRA's projections, stored or drawn from the key") {
  peft_case kept = golden("vera"), drawn = golden("vera");
  drawn.config["save_projection"] = false;
  drawn.tensors.erase("base_model.vera_A");
  drawn.tensors.erase("base_model.vera_B");
  const auto a = kept.read(), b = drawn.read();
  REQUIRE(bool(a));
  REQUIRE(bool(b));
  CHECK(a->tensors.at("vera_A").data == b->tensors.at("vera_A").data);
  CHECK(a->tensors.at("vera_B").data == b->tensors.at("vera_B").data);
  CHECK(drawn.load() == "");

  drawn.config["projection_prng_key"] = 2;
  const auto other = drawn.read();
  REQUIRE(bool(other));
  CHECK(other->tensors.at("vera_A").data != b->tensors.at("vera_A").data);

  peft_case missing = golden("vera");
  missing.tensors.erase("base_model.vera_A");
  const std::string error_text = missing.load();
  INFO(error_text);
  CHECK(says(error_text, missing.file().string()));
  CHECK(says(error_text, "'base_model.vera_A'"));
}

TEST_CASE("peft layer: VeRA allocates nothing for a rank that its tensors do not have") {
  peft_case c = golden("vera");
  c.config["save_projection"] = false, c.config["r"] = 2147483647;
  c.tensors.erase("base_model.vera_A"), c.tensors.erase("base_model.vera_B");
  const std::string error_text = c.load();
  INFO(error_text);
  CHECK(says(error_text, "vera_lambda_d"));
  CHECK(says(error_text, "2147483647"));
}

TEST_CASE("peft layer: VeRA draws for the size of the largest layer, and each layer uses the upper left submatrix") {
  peft_case c = golden("vera");
  c.config["save_projection"] = false;
  c.tensors.erase("base_model.vera_A");
  c.tensors.erase("base_model.vera_B");
  c.base.largest_in = 100, c.base.largest_out = 90;
  const auto layer = c.read();
  REQUIRE(bool(layer));
  const auto whole = make_vera_projection(1, 8, 100, 90);
  REQUIRE(bool(whole));
  const auto& A = layer->tensors.at("vera_A").data;
  const auto& B = layer->tensors.at("vera_B").data;
  REQUIRE(A.size() == 8 * 48);
  REQUIRE(B.size() == 64 * 8);
  bool corner = true;
  for (std::size_t r = 0; r < 8; ++r)
    for (std::size_t i = 0; i < 48; ++i) corner = corner && A[r * 48 + i] == whole->A[r * 100 + i];
  for (std::size_t i = 0; i < B.size(); ++i) corner = corner && B[i] == whole->B[i];
  CHECK(corner);
}

TEST_CASE("peft layer: a layer uses the upper left submatrix of larger stored projections") {
  peft_case c = golden("vera");
  c.resize(40, 30);
  c["vera_lambda_b"] = floats({40});
  CHECK(c.load() == "");
  const auto layer = c.read();
  REQUIRE(bool(layer));
  CHECK(layer->tensors.at("vera_A").shape == std::vector<long long>{8, 30});
  CHECK(layer->tensors.at("vera_B").shape == std::vector<long long>{40, 8});
}

TEST_CASE("peft layer: AdaLoRA has the rank of its pattern") {
  peft_case c = golden("adalora");
  changeable flags = changeable::array();
  for (int i = 0; i < c.config.at("init_r").get<int>(); ++i) flags.push_back(i < 5);
  c.config["rank_pattern"] = {{"lin.lora_E", flags}};
  CHECK(says(c.load(), "expected [r, in] = [5, 48]"));
  c["lora_A"] = floats({5, 48});
  c["lora_B"] = floats({64, 5});
  c["lora_E"] = floats({5, 1});
  CHECK(c.load() == "");
  const auto layer = c.read();
  REQUIRE(bool(layer));
  const double r = c.config.at("init_r").get<int>();  // not 5
  CHECK(layer->scalars.at("scaling") == doctest::Approx(c.config.at("lora_alpha").get<double>() / (r + 1e-5)));
}

TEST_CASE("peft layer: VB-LoRA saved without its logits is refused") {
  peft_case c = golden("vblora");
  c.config["save_only_topk_weights"] = true;
  CHECK(says(c.load(), c.file().string() + ": save_only_topk_weights is true"));
}

TEST_CASE("peft layer: missing index tensors are computed as PEFT stores them") {
  for (const auto& one :
       {std::pair{"shira", "shira_indices"}, std::pair{"shira_unseeded", "shira_indices"},
        std::pair{"supertuning", "supertuning_indices"}, std::pair{"supertuning_lora", "supertuning_indices"}}) {
    const char *const name = one.first, *const index = one.second;
    peft_case kept = golden(name), lacking = golden(name);
    REQUIRE(lacking.tensors.erase(lacking.key(index)) == 1);
    const auto a = kept.read(), b = lacking.read();
    INFO(name);
    REQUIRE(bool(a));
    REQUIRE(bool(b));
    CHECK(a->tensors.at(index).indices == b->tensors.at(index).indices);
  }
}

TEST_CASE("peft layer: AdaMSS with too many groups, and with the weight of another layer") {
  peft_case fewer = golden("adamss");
  fewer.config["num_subspaces"] = 2;
  CHECK(fewer.load() == fewer.file().string() + ": tensor '" + fewer.key("adamss_A.2") +
                            "' is one too many: num_subspaces says 2 groups");
  peft_case other = golden("adamss");
  std::reverse(other.weight.begin(), other.weight.end());
  CHECK(says(other.load(), "give the base weight that the adapter was trained on"));
}
TEST_CASE("peft layer: AdaMSS whose groups belong to another weight, or depend on rounding") {
  // Other directions with groups of the same sizes: only the singular vectors differ.
  peft_case rotated = golden("adamss_dynamic");
  stored& right = rotated.tensors.at(rotated.key("adamss_newB"));
  std::vector<float> values(numbers_in(right.shape));
  std::memcpy(values.data(), right.bytes.data(), right.bytes.size());
  std::rotate(values.begin(), values.begin() + 1, values.end());
  right.bytes = bytes_of(values);
  CHECK(says(rotated.load(),
             "key '" + rotated.key("adamss_newB") + "': its row 0 is no singular vector of the weight of "));
  peft_case all = golden("adamss");
  all.config["r"] = 1000;
  all.resize(12, 24);
  CHECK(says(all.load(), "'r' is 1000 and lin has 12 outputs, expected an r below them"));
}

TEST_CASE("peft layer: GLoRA's absent factors are zeros, and TinyLoRA's groups need all targets") {
  peft_case zeros = golden("glora_constant");
  zeros["glora_C.zeros"] = floats({33, 1}, 0.5F);
  CHECK(
      says(zeros.load(), "tensor '" + zeros.key("glora_C.zeros") + "' holds a number other than zero, expected none"));
  peft_case groups = golden("tinylora");
  groups.tensors["base_model.tinylora_v.1"] = floats({64});
  CHECK(says(groups.load(), "depends on all targets: give them as base_layer::all_targets"));
  peft_case drawn = golden("pvera");
  drawn.config["sample_at_inference"] = true;
  CHECK(says(drawn.load(), "'sample_at_inference' is true, expected false"));
}
TEST_CASE("peft layer: OSF trains some of the singular pairs, neither all nor none") {
  peft_case c = golden("osf_rank");
  for (const double all : {0.0, 1000.0}) {
    c.config["effective_rank"] = all;
    CHECK(says(c.load(), "stay as they are, expected at least one and one less than all: see effective_rank"));
  }
}

// ---- the base layer

TEST_CASE("peft layer: a base bias that was trained with the adapter") {
  for (const char* value : {"all", "lora_only"}) {
    peft_case c = golden("lora");
    c.config["bias"] = value;
    CHECK(says(c.load(), "'" + c.key("base_layer.bias") + "'"));
    c.tensors[c.key("base_layer.bias")] = floats({64}, 0.5F);
    const auto layer = c.read();
    INFO(std::string(layer.message()));
    REQUIRE(bool(layer));
    REQUIRE(layer->base_bias.has_value());
    CHECK(layer->base_bias->data == std::vector<float>(64, 0.5F));
    c.config["bias"] = "none";
    CHECK(says(c.load(), "'" + c.key("base_layer.bias") + "' is not part of this adapter (LORA)"));
  }
  peft_case none = golden("lora_nobias");
  none.config["bias"] = "all";
  CHECK(none.load() == "");
}

TEST_CASE("peft layer: fan_in_fan_out is the layout of the base weight and does not change the adapter") {
  peft_case c = golden("lora");
  c.config["fan_in_fan_out"] = true;
  CHECK(c.load() == "");
}

TEST_CASE("peft layer: a method that does not exist for the kind of layer") {
  peft_case c = golden("hra");
  c.base.kind = "embedding";
  c.base.bias = false;
  CHECK(says(c.load(), "does not exist for this kind of layer (embedding); it exists on linear"));
}

TEST_CASE("peft layer: numbers that follow from the configuration") {
  CHECK(golden("lora").read()->scalars.at("scaling") == 2.0);  // 16 / 8
  peft_case c = golden("lora");
  c.config["use_rslora"] = true;
  CHECK(c.read()->scalars.at("scaling") == doctest::Approx(16 / std::sqrt(8.0)));
  c.config["alpha_pattern"] = {{"lin", 4}};
  CHECK(c.read()->scalars.at("scaling") == doctest::Approx(4 / std::sqrt(8.0)));
  peft_case k = golden("lokr_lowrank");
  CHECK(k.read()->scalars.at("scaling") == 2.0);  // 4 / 2
  peft_case a = golden("adalora");
  a.config["lora_alpha"] = 0;
  CHECK(a.read()->scalars.at("scaling") == doctest::Approx(8 / 8.00001));
  peft_case coft = golden("oft_coft");
  CHECK(coft.read()->scalars.at("coft_limit") ==
        doctest::Approx(coft.config.at("eps").get<double>() / std::sqrt(2.0 * 6)));
}
