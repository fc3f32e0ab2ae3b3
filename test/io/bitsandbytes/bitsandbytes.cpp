// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/quantized/quantize.h>
#include <graft/backend/cpu/runtime/convert.h>
#include <graft/io/bitsandbytes/reader.h>
#include <graft/io/safetensors/reader.h>

#include <cmath>
#include <map>

using namespace graft;

namespace {

// The tensors of a file, which a test changes before they are read.
struct tensors {
  struct one {
    io::safetensors_type type;
    std::vector<std::uint64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, one> all;
  mutable std::map<std::string, io::tensor_view> views;
  io::quant_state_pool quant_state;

  template <class T> void put(const std::string& name, io::safetensors_type type, const std::vector<T>& v) {
    const auto bytes = std::as_bytes(std::span(v));
    all[name] = {type, {v.size()}, {bytes.begin(), bytes.end()}};
  }
  void put_text(const std::string& name, const std::string& s) {
    put(name, io::safetensors_type::u8, std::vector<char>(s.begin(), s.end()));
  }
  result<std::optional<view>> read() {
    views.clear();
    for (const auto& [name, t] : all) views[name] = {name, t.type, t.shape, t.bytes};
    io::quantized_reader in(
        "file", [&](const std::string& n) { return views.contains(n) ? &views[n] : nullptr; }, quant_state);
    return in.read(views.at("a.weight"));
  }
  std::string error_text() {
    const auto r = read();
    return r ? "" : r.message();
  }
};
const std::vector<float> numbers = [] {
  std::vector<float> v(8 * 96);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 37) / 18 - 1;
  return v;
}();

tensors four_bits(bool nested) {
  quant_format format{dtype::nf4, scale_granularity::flat_block, 64};
  if (nested) format.scales = dtype::u8, format.second_block = 256;
  const auto w = cpu::quantize(numbers.data(), 8, 96, format);
  REQUIRE(bool(w));
  tensors t;
  t.put("a.weight", io::safetensors_type::u8, w->data);
  t.put("a.weight.quant_map", io::safetensors_type::f32,
        std::vector<float>(quant_formats::nf4_format::table, quant_formats::nf4_format::table + 16));
  std::string more;
  if (nested) {
    t.put("a.weight.absmax", io::safetensors_type::u8, w->quantized_scales);
    t.put("a.weight.nested_absmax", io::safetensors_type::f32, w->second_scales);
    const float* const map = quant_formats::dynamic_map_values();
    t.put("a.weight.nested_quant_map", io::safetensors_type::f32, std::vector<float>(map, map + 256));
    more =
        R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": )" + std::to_string(w->quant->offset);
  } else {
    t.put("a.weight.absmax", io::safetensors_type::f32, w->scales);
  }
  t.put_text("a.weight.quant_state.bitsandbytes__nf4",
             R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [8, 96])" + more + "}");
  return t;
}
tensors eight_bits() {
  const auto w = cpu::quantize(numbers.data(), 8, 96, {dtype::int8, scale_granularity::row});
  REQUIRE(bool(w));
  tensors t;
  t.put("a.weight", io::safetensors_type::i8, w->data);
  t.all["a.weight"].shape = {8, 96};
  t.put("a.SCB", io::safetensors_type::f32, w->scales);
  t.put("a.weight_format", io::safetensors_type::u8, std::vector<char>{0});
  return t;
}
template <class T> void set_number(tensors& t, const char* name, std::size_t at, T v) {
  std::memcpy(t.all.at(name).bytes.data() + at * sizeof(T), &v, sizeof(T));
}

}  // namespace

TEST_CASE("bitsandbytes: all tensors of a weight are one quantized view") {
  for (tensors t : {four_bits(false), four_bits(true), eight_bits()}) {
    const auto v = t.read();
    INFO(std::string(v ? "" : v.message()));
    REQUIRE((v && *v));
    CHECK((*v)->size[0] == 8);
    CHECK((*v)->size[1] == 96);
    std::vector<float> back(numbers.size());
    cpu::convert(**v, back.data());
    for (std::size_t i = 0; i < back.size(); ++i) CHECK(std::abs(back[i] - numbers[i]) < 0.17F);
  }
  tensors fp8;
  fp8.put("a.weight", io::safetensors_type::f8_e4m3, std::vector<unsigned char>{0x38, 0xb8, 0x40, 0x00});
  fp8.all["a.weight"].shape = {2, 2};
  fp8.put("a.weight_scale", io::safetensors_type::f32, std::vector<float>{2, 3});
  const auto v = fp8.read();
  REQUIRE((v && *v));
  float back[4];
  cpu::convert(**v, back);
  CHECK((back[0] == 2 && back[1] == -2 && back[2] == 6 && back[3] == 0));
  tensors plain;
  plain.put("a.weight", io::safetensors_type::f32, std::vector<float>{1});
  CHECK((plain.read() && !*plain.read()));
}

TEST_CASE("bitsandbytes: tensors that do not fit are refused with the name of the weight") {
  auto four = [](bool nested, auto change) {
    tensors t = four_bits(nested);
    change(t);
    return t.error_text();
  };
  auto state = [&](const char* text) {
    return four(false, [&](tensors& t) { t.put_text("a.weight.quant_state.bitsandbytes__nf4", text); });
  };
  CHECK(four(false, [](tensors& t) { t.all.erase("a.weight.quant_state.bitsandbytes__nf4"); }) ==
        "file: tensor 'a.weight' is U8 and there is no 'a.weight.quant_state.bitsandbytes__nf4' (or __fp4) beside it");
  CHECK(four(false, [](tensors& t) { t.all.erase("a.weight.absmax"); }) ==
        "file: tensor 'a.weight' has no 'a.weight.absmax' beside it");
  CHECK(four(false, [](tensors& t) { t.all["a.weight"].bytes.pop_back(); }) ==
        "file: tensor 'a.weight' has 383 bytes of quantized values, expected 384 for [8, 96]");
  CHECK(four(false, [](tensors& t) { t.all["a.weight.absmax"].bytes.resize(44); }) ==
        "file: tensor 'a.weight' has 'a.weight.absmax' of 11 F32, expected 12 F32");
  for (const float wrong : {NAN, INFINITY, -1.0F})
    CHECK(four(false, [&](tensors& t) { set_number(t, "a.weight.absmax", 3, wrong); }) ==
          "file: tensor 'a.weight' has 'a.weight.absmax' with a number that is negative or not finite");
  CHECK(four(false, [](tensors& t) { set_number(t, "a.weight.quant_map", 2, 0.5F); }) ==
        "file: tensor 'a.weight' has a quant_map that is not the table of nf4");
  CHECK(state(R"({"quant_type": "nf4", "blocksize": 64})") ==
        "file: tensor 'a.weight' has a quant_state without the shape of a matrix");
  CHECK(state(R"({"quant_type": "nf4", "blocksize": 48, "shape": [8, 96]})") ==
        "file: tensor 'a.weight' has blocks of 48, expected a power of two from 32 to 4096");
  CHECK(state(R"({"quant_type": "fp4", "blocksize": 64, "shape": [8, 96]})") ==
        "file: tensor 'a.weight' has a quant_state of 'nf4' that says 'fp4'");
  CHECK(state(R"({"quant_type": "nf4", "blocksize": 128, "shape": [8, 96]})") ==
        "file: tensor 'a.weight' has 'a.weight.absmax' of 12 F32, expected 6 F32");
  CHECK(four(true, [](tensors& t) { t.all.erase("a.weight.nested_absmax"); }) ==
        "file: tensor 'a.weight' has no 'a.weight.nested_absmax' beside it");
  CHECK(four(true, [](tensors& t) {
          t.put_text("a.weight.quant_state.bitsandbytes__nf4",
                     R"({"blocksize": 64, "shape": [8, 96], "nested_blocksize": 256})");
        }) == "file: tensor 'a.weight' has a quant_state without a finite nested_offset");
  CHECK(four(true,
             [](tensors& t) {
               t.put_text("a.weight.quant_state.bitsandbytes__nf4", R"({"blocksize": 64, "shape": [8, 96]})");
             }) ==
        "file: tensor 'a.weight' has quantized scales (double quantization), and its quant_state has no "
        "nested_blocksize");
  tensors t = eight_bits();
  t.all.erase("a.SCB");
  CHECK(t.error_text() == "file: tensor 'a.weight' has no 'SCB' beside it");
  t = eight_bits();
  t.put("a.weight_format", io::safetensors_type::u8, std::vector<char>{1});
  CHECK(t.error_text().ends_with(
      "has a weight_format that is not 0 (row-major); save it with bitsandbytes 0.45 or later"));
}
