// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/quantized/quantize.h>
#include <graft/backend/cpu/runtime/convert.h>
#include <graft/io/microscaling/reader.h>
#include <graft/io/microscaling/writer.h>

#include <cmath>

#include "../tensors.h"

using namespace graft;
using io::safetensors_type;
using io::test::changed_tensors;

namespace {

struct weight_in_file {
  bool nvfp4;
  changed_tensors file{};
  std::deque<quant_state> states{};
  cpu::quantized_weight made{};

  explicit weight_in_file(bool is_nvfp4) : nvfp4(is_nvfp4) {
    std::vector<float> numbers(4 * 64);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 37) / 18 - 1;
    auto w = cpu::quantize(numbers.data(), 4, 64,
                           nvfp4 ? quant_formats::nvfp4_format::format() : quant_formats::mxfp4_format::format());
    REQUIRE(w);
    made = std::move(*w);
    if (nvfp4) {
      file.put("a.weight", safetensors_type::u8, {4, 32}, made.data);
      file.put("a.weight_scale", safetensors_type::f8_e4m3, {4, 4}, made.quantized_scales);
      file.put("a.weight_scale_2", safetensors_type::f32, {}, std::vector<float>{made.quant->tensor_scale});
      return;
    }
    file.put("a.weight_blocks", safetensors_type::u8, {4, 2, 16}, made.data);
    file.put("a.weight_scales", safetensors_type::u8, {4, 2}, made.quantized_scales);
  }
  const char* codes() const { return nvfp4 ? "a.weight" : "a.weight_blocks"; }
  result<std::optional<view>> read() {
    const auto find = file.finder();
    io::microscaling_reader in("file", find, states, nvfp4);
    CHECK(in.weight_name(codes()) == "a.weight");
    CHECK(in.weight_name("a.bias").empty());
    return in.read(*find(codes()));
  }
  std::string error_text() {
    const auto r = read();
    return r ? "" : r.message();
  }
};

}  // namespace

TEST_CASE("microscaling: a weight is read in place and written with the bytes of its file") {
  for (const bool nvfp4 : {false, true}) {
    weight_in_file w(nvfp4);
    const auto v = w.read();
    REQUIRE_MESSAGE(v, v.message());
    REQUIRE(v->has_value());
    CHECK((*v)->data == w.file.all.at(w.codes()).bytes.data());
    std::vector<float> found(4 * 64), expected(4 * 64);
    cpu::convert(**v, found.data()), cpu::convert(w.made.as_view(), expected.data());
    CHECK(found == expected);
    std::vector<io::tensor_view> tensors;
    REQUIRE(io::add_microscaling("a.weight", **v, tensors));
    CHECK(tensors.size() == w.file.all.size());
    for (const io::tensor_view& t : tensors) {
      const changed_tensors::one& before = w.file.all.at(t.name);
      CHECK(t.type == before.type);
      CHECK(t.shape == before.shape);
      CHECK(std::ranges::equal(t.data, before.bytes));
    }
  }
  // A weight of ModelOpt that was not quantized is an ordinary tensor.
  weight_in_file plain(true);
  plain.file.all["a.weight"].type = safetensors_type::bf16;
  const auto v = plain.read();
  CHECK((v && !v->has_value()));
}

TEST_CASE("microscaling: tensors that do not fit are refused with the name of the weight") {
  const auto changed = [](bool nvfp4, auto change) {
    weight_in_file w(nvfp4);
    change(w.file.all, w.file);
    return w.error_text();
  };
  CHECK(changed(false, [](auto& all, auto&) { all.erase("a.weight_scales"); }) ==
        "file: tensor 'a.weight_blocks' has no 'a.weight_scales' beside it");
  CHECK(
      changed(false,
              [](auto& all, auto&) {
                all["a.weight_blocks"].shape = {4, 4, 8};
              }) ==
      "file: tensor 'a.weight_blocks' is U8 [4, 4, 8], expected U8 [out, in / 32, 16] or [experts, out, in / 32, 16]");
  CHECK(changed(false, [](auto& all, auto&) {
          all["a.weight_blocks"].shape = {2, 2, 2, 16};
        }) == "file: tensor 'a.weight_blocks' has 'a.weight_scales' of U8 [4, 2], expected U8 [2, 2, 2]");
  CHECK(changed(false, [](auto& all, auto&) { all["a.weight_scales"].shape = {8}; }) ==
        "file: tensor 'a.weight_blocks' has 'a.weight_scales' of U8 [8], expected U8 [4, 2]");
  CHECK(changed(false, [](auto&, auto& f) { f.set("a.weight_scales", 3, static_cast<unsigned char>(255)); }) ==
        "file: tensor 'a.weight_blocks' has 'a.weight_scales' with a scale that is NaN or larger than a float can be");
  CHECK(changed(true, [](auto& all, auto&) { all.erase("a.weight_scale"); }) ==
        "file: tensor 'a.weight' has no 'a.weight_scale' beside it");
  CHECK(changed(true, [](auto& all, auto&) { all.erase("a.weight_scale_2"); }) ==
        "file: tensor 'a.weight' has no 'a.weight_scale_2' beside it");
  CHECK(changed(true, [](auto& all, auto&) {
          all["a.weight"].shape = {32, 4};
        }) == "file: tensor 'a.weight' has shape [32, 4], expected [out, in / 2] with rows of whole blocks of 16");
  CHECK(changed(true, [](auto& all, auto&) { all["a.weight_scale"].type = safetensors_type::u8; }) ==
        "file: tensor 'a.weight' has 'a.weight_scale' of U8 [4, 4], expected F8_E4M3 [4, 4]");
  for (const int wrong : {0x7f, 0x80, 0xff})
    CHECK(changed(true, [&](auto&, auto& f) { f.set("a.weight_scale", 3, static_cast<unsigned char>(wrong)); }) ==
          "file: tensor 'a.weight' has 'a.weight_scale' with a scale that is NaN or negative");
  for (const float wrong : {NAN, INFINITY, -1.0F, 1e37F})
    CHECK(changed(true, [&](auto&, auto& f) { f.set("a.weight_scale_2", 0, wrong); }) ==
          "file: tensor 'a.weight' has 'a.weight_scale_2' that is negative, not finite or larger than a float can be");
  CHECK(changed(true, [](auto& all, auto&) {
          all["a.pre_quant_scale"] = {safetensors_type::f32, {}, {}};
        }) == "file: tensor 'a.weight' has 'a.pre_quant_scale' beside it (NVFP4_AWQ), which is not supported");
}
