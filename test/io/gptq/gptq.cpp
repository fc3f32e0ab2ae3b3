// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/runtime/convert.h>
#include <graft/io/gptq/reader.h>
#include <graft/io/gptq/writer.h>

#include <cmath>

#include "../tensors.h"

using namespace graft;
using io::safetensors_type;
using io::test::changed_tensors;

namespace {

// A weight [32, 32] whose code of row r and column c is (3 r + c) modulo the codes. Scales are r + 1, zero points r.
constexpr std::uint64_t out = 32, in = 32;

struct weight_in_file {
  quantized_weights quantization{.type = dtype::u4, .stored_as = quantized_storage::gptq, .group_size = 16};
  changed_tensors file{};
  io::gptq_pool pool{};

  explicit weight_in_file(const quantized_weights& settings) : quantization(settings) {
    const int bits = bits_of(quantization.type), mask = (1 << bits) - 1;
    const bool is_awq = quantization.stored_as == quantized_storage::awq;
    const std::uint64_t size = quantization.group_size < 0 ? in : static_cast<std::uint64_t>(quantization.group_size),
                        groups = in / size;
    const auto wide = static_cast<std::uint64_t>(bits);
    std::vector<std::uint32_t> codes(in * out * wide / 32), zeros(groups * out * wide / 32);
    // Sets a code of `bits` bits at bit `at` of column or row `first`, whose words are `stride` apart.
    const auto put = [&](std::vector<std::uint32_t>& to, std::uint64_t first, std::uint64_t stride, std::uint64_t at,
                         int code) {
      for (std::uint64_t b = 0; b < wide; ++b)
        to[first + (at + b) / 32 * stride] |= (static_cast<std::uint32_t>(code) >> b & 1U) << ((at + b) % 32);
    };
    constexpr std::uint64_t place[] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (std::uint64_t r = 0; r < out; ++r) {
      for (std::uint64_t c = 0; c < in; ++c)
        is_awq ? put(codes, c * (out / 8) + r / 8, 1, 4 * place[r % 8], code_of(r, c))
               : put(codes, r, out, c * wide, code_of(r, c));
      for (std::uint64_t g = 0; g < groups; ++g)
        put(zeros, g * out * wide / 32, 1, (is_awq ? r / 8 * 8 + place[r % 8] : r) * wide,
            (zero_of(r) - (quantization.zeros_less_one ? 1 : 0)) & mask);
    }
    std::vector<float> scales;
    std::vector<std::int32_t> group;
    for (std::uint64_t g = 0; g < groups; ++g)
      for (std::uint64_t r = 0; r < out; ++r) scales.push_back(static_cast<float>(r + 1));
    for (std::uint64_t c = 0; c < in; ++c)
      group.push_back(static_cast<std::int32_t>(quantization.act_order ? (c * 7 + 3) % groups : c / size));
    file.put("a.qweight", safetensors_type::i32, is_awq ? shape{in, out / 8} : shape{in * wide / 32, out}, codes);
    file.put("a.qzeros", safetensors_type::i32, {groups, out * wide / 32}, zeros);
    file.put("a.scales", safetensors_type::f32, {groups, out}, scales);
    if (!is_awq) file.put("a.g_idx", safetensors_type::i32, {in}, group);
  }
  using shape = std::vector<std::uint64_t>;
  int code_of(std::uint64_t r, std::uint64_t c) const {
    return static_cast<int>(3 * r + c) & ((1 << bits_of(quantization.type)) - 1);
  }
  int zero_of(std::uint64_t r) const { return static_cast<int>(r) & ((1 << bits_of(quantization.type)) - 1); }

  result<std::optional<view>> read() {
    const auto find = file.finder();
    io::gptq_reader in_file("file", find, pool, quantization);
    const auto v = in_file.read(*find("a.qweight"));
    if (v) CHECK(in_file.used().size() == file.all.size());
    return v;
  }
  std::string error_text() {
    const auto r = read();
    return r ? "" : r.message();
  }
};
std::vector<quantized_weights> every_setting() {
  std::vector<quantized_weights> all{{.type = dtype::u4, .stored_as = quantized_storage::awq, .group_size = 16},
                                     {.type = dtype::u4, .stored_as = quantized_storage::awq, .group_size = -1}};
  for (const dtype type : {dtype::u2, dtype::u3, dtype::u4, dtype::u8})
    for (const int group : {16, -1})
      for (const bool act_order : {false, true})
        for (const bool less_one : {false, true})
          all.push_back({.type = type,
                         .stored_as = quantized_storage::gptq,
                         .group_size = group,
                         .act_order = act_order,
                         .zeros_less_one = less_one});
  return all;
}

}  // namespace

TEST_CASE("gptq: codes, zero points and scales are those of the file, in every number of bits and both formats") {
  for (const quantized_weights& quantization : every_setting()) {
    INFO(std::string(name_of(quantization.type)), ", groups of ", quantization.group_size, ", desc_act ",
         quantization.act_order, ", v1 ", quantization.zeros_less_one);
    weight_in_file w(quantization);
    const auto v = w.read();
    REQUIRE_MESSAGE(v, std::string(v.message()));
    REQUIRE(v->has_value());
    CHECK(((*v)->size[0] == 32 && (*v)->size[1] == 32));
    CHECK(((*v)->quant->format.scaled == scale_granularity::column_group) ==
          (quantization.act_order && quantization.group_size == 16));
    std::vector<float> numbers(out * in);
    cpu::convert(**v, numbers.data());
    bool right = true;
    for (std::uint64_t r = 0; r < out; ++r)
      for (std::uint64_t c = 0; c < in; ++c)
        right = right &&
                numbers[r * in + c] == static_cast<float>(w.code_of(r, c) - w.zero_of(r)) * static_cast<float>(r + 1);
    CHECK(right);
  }
}

TEST_CASE("gptq: a weight is written with the bytes that it was read from") {
  for (const quantized_weights& quantization : every_setting()) {
    weight_in_file w(quantization);
    const auto v = w.read();
    REQUIRE((v && v->has_value()));
    io::gptq_writer writer(quantization);
    std::vector<io::tensor_view> tensors;
    REQUIRE(writer.add("a.weight", **v, tensors));
    CHECK(tensors.size() == w.file.all.size());
    for (const io::tensor_view& t : tensors) {
      INFO(t.name);
      const changed_tensors::one& before = w.file.all.at(t.name);
      CHECK(t.type == before.type);
      CHECK(t.shape == before.shape);
      CHECK(std::ranges::equal(t.data, before.bytes));
    }
  }
}

TEST_CASE("gptq: without desc_act a file may have no g_idx") {
  weight_in_file w({.type = dtype::u4, .stored_as = quantized_storage::gptq, .group_size = 16});
  w.file.all.erase("a.g_idx");
  CHECK(w.error_text().empty());
}

TEST_CASE("gptq: tensors that do not fit are refused with the name of the weight") {
  const quantized_weights gptq{.type = dtype::u4, .stored_as = quantized_storage::gptq, .group_size = 16};
  const auto changed = [](quantized_weights quantization, auto change) {
    weight_in_file w(quantization);
    change(w.file.all, w);
    return w.error_text();
  };
  CHECK(changed(gptq, [](auto& all, auto&) { all.erase("a.scales"); }) ==
        "file: tensor 'a.qweight' has no 'a.scales' beside it");
  CHECK(changed(gptq, [](auto& all, auto&) { all.erase("a.qzeros"); }) ==
        "file: tensor 'a.qweight' has no 'a.qzeros' beside it");
  CHECK(changed(gptq, [](auto& all, auto&) { all["a.qweight"].type = safetensors_type::f32; }) ==
        "file: tensor 'a.qweight' is F32 [4, 32], expected a matrix of I32");
  CHECK(changed(gptq, [](auto& all, auto&) { all["a.qweight"].shape = {32}; }) ==
        "file: tensor 'a.qweight' is I32 [32], expected a matrix of I32");
  CHECK(changed(gptq, [](auto& all, auto&) {
          all["a.qweight"] = {safetensors_type::i32, {0, 32}, {}};
        }) == "file: tensor 'a.qweight' has shape [0, 32], expected [in * bits / 32, out]");
  CHECK(changed(gptq, [](auto& all, auto&) {
          all["a.scales"] = {safetensors_type::f32, {1, 32}, {}};
        }) == "file: tensor 'a.qweight' has 'a.scales' of shape [1, 32], expected [2, 32] for groups of 16 columns");
  CHECK(changed(gptq, [](auto& all, auto&) { all["a.scales"].type = safetensors_type::f64; }) ==
        "file: tensor 'a.qweight' has 'a.scales' of F64, expected F16, BF16 or F32");
  CHECK(changed(gptq, [](auto& all, auto&) {
          all["a.qzeros"].shape = {2, 2};
        }) == "file: tensor 'a.qweight' has 'a.qzeros' of shape [2, 2], expected [2, 4] for groups of 16 columns");
  CHECK(changed(gptq, [](auto& all, auto&) { all["a.qzeros"].type = safetensors_type::f32; }) ==
        "file: tensor 'a.qweight' has 'a.qzeros' of F32, expected I32");
  for (const float wrong : {NAN, INFINITY, -INFINITY, 3e38F})
    CHECK(changed(gptq, [&](auto&, auto& w) { w.file.set("a.scales", 3, wrong); }) ==
          "file: tensor 'a.qweight' has 'a.scales' with a number that is not finite or larger than 1.3e36");
  // Bits of another number than the file has: 3 bits are no whole number of codes, 8 bits are half as many columns.
  CHECK(changed(gptq, [](auto&, auto& w) { w.quantization.type = dtype::u3; }) ==
        "file: tensor 'a.qweight' has 4 words of 32 bits for a row, which are no whole number of codes of 3 bits; is "
        "'bits' of quantization_config right?");
  CHECK(changed(gptq, [](auto&, auto& w) { w.quantization.type = dtype::u8; }) ==
        "file: tensor 'a.qweight' has 'a.scales' of shape [2, 32], expected [1, 32] for groups of 16 columns");
  CHECK(changed(gptq, [](auto& all, auto&) {
          all["a.qweight"].shape = {32, 4};
        }) == "file: tensor 'a.qweight' has 4 rows, whose zero points of 4 bits do not fill words of 32 bits");
  for (const std::int32_t group : {-1, 2, 1 << 30})
    CHECK(changed(gptq, [&](auto&, auto& w) { w.file.set("a.g_idx", 5, group); }) ==
          "file: tensor 'a.qweight' has 'a.g_idx' with group " + std::to_string(group) +
              " for column 5, expected 0 to 1");
  CHECK(changed(gptq, [](auto&, auto& w) { w.file.set("a.g_idx", 5, 1); }) ==
        "file: tensor 'a.qweight' has 'a.g_idx' that is not in order, and quantization_config says desc_act false");
  CHECK(changed(gptq, [](auto& all, auto&) { all["a.g_idx"].shape = {31}; }) ==
        "file: tensor 'a.qweight' has 'a.g_idx' of I32 [31], expected I32 [32]");
  quantized_weights ordered = gptq;
  ordered.act_order = true;
  CHECK(changed(ordered, [](auto& all, auto&) { all.erase("a.g_idx"); }) ==
        "file: tensor 'a.qweight' has no 'a.g_idx' beside it, and quantization_config says desc_act true");
  quantized_weights awq = gptq;
  awq.stored_as = quantized_storage::awq;
  CHECK(changed(awq, [](auto& all, auto&) {
          all["a.g_idx"] = {safetensors_type::i32, {32}, {}};
        }) == "file: tensor 'a.qweight' has 'a.g_idx' beside it, which AWQ has not");
  CHECK(changed(awq, [](auto& all, auto&) {
          all["a.qweight"].shape = {31, 4};
        }) == "file: tensor 'a.qweight' has rows of 31 codes of 4 bits, expected an even number");
}
