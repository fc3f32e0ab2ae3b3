// SPDX-License-Identifier: Apache-2.0
// Reads weights of MXFP4 and NVFP4, 4-bit floats with an 8-bit float as the scale of a block, as transformers and
// ModelOpt save them. Views refer to the file; nothing is copied.
//     MXFP4    NAME_blocks (U8 [out, in / 32, 16]) and NAME_scales (U8 [out, in / 32], E8M0), for NAME = MODULE.weight,
//              both with a first axis for experts, for NAME = MODULE.gate_up_proj or MODULE.down_proj
//     NVFP4    MODULE.weight (U8 [out, in / 2]), MODULE.weight_scale (F8_E4M3 [out, in / 16]), MODULE.weight_scale_2
//              (F32, one number); MODULE.input_scale, k_scale and v_scale are of quantized activations and not used
#pragma once
#include <graft/core/quant_formats.h>
#include <graft/io/safetensors/bind.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <set>

namespace graft::io {

class microscaling_reader {
 public:
  using finder = std::function<const tensor_view*(const std::string&)>;
  // `states` owns the quant_state of every view and must live as long as they and the bytes of the file.
  microscaling_reader(std::string_view file, finder find, std::deque<quant_state>& states, bool is_nvfp4)
      : file_(file), find_(std::move(find)), states_(states), nvfp4_(is_nvfp4) {}

  const std::set<std::string>& used() const { return used_; }
  // The name of the weight that a tensor holds the codes of; empty for other tensors.
  std::string weight_name(const std::string& tensor) const {
    constexpr std::string_view blocks = "_blocks";
    if (nvfp4_) return tensor.ends_with(".weight") ? tensor : "";
    return tensor.ends_with(blocks) ? tensor.substr(0, tensor.size() - blocks.size()) : "";
  }

  // Returns a view of the weight whose codes are in `t`, and nothing for an unquantized one.
  result<std::optional<view>> read(const tensor_view& t) {
    name_ = t.name;
    return nvfp4_ ? read_nvfp4(t) : read_mxfp4(t);
  }

 private:
  using mxfp4 = quant_formats::mxfp4_format;
  using nvfp4 = quant_formats::nvfp4_format;

  template <class... Parts> error bad(const Parts&... parts) const {
    return fail_in(file_, "tensor ", in_quotes(name_), " ", parts...);
  }
  const tensor_view* find(const std::string& name) {
    const tensor_view* const t = find_(name);
    if (t != nullptr) used_.insert(name);
    return t;
  }
  result<const tensor_view*> scales_of(const std::string& name, safetensors_type type,
                                       const std::vector<std::uint64_t>& expected) {
    const tensor_view* const t = find(name);
    if (t == nullptr) return bad("has no ", in_quotes(name), " beside it");
    if (t->type != type || !std::ranges::equal(t->shape, expected))
      return bad("has ", in_quotes(name), " of ", name_of(t->type), " ", shape_text(t->shape), ", expected ",
                 name_of(type), " ", shape_text(expected));
    return t;
  }
  // Neither kind of scale may be NaN. Those of NVFP4 are magnitudes, and six times one of MXFP4 must be a float.
  status check(const tensor_view& scales) const {
    constexpr unsigned largest_mx = 252;
    for (const std::byte b : scales.data)
      if (std::to_integer<unsigned>(b) > (nvfp4_ ? 0x7eU : largest_mx))
        return bad("has ", in_quotes(scales.name), " with a scale that is NaN or ",
                   nvfp4_ ? "negative" : "larger than a float can be");
    return ok;
  }
  std::optional<view> store(const tensor_view& t, const quant_state& p, const std::vector<std::uint64_t>& shape) {
    states_.push_back(p);
    view v{t.data.data(), p.format.type};
    for (const std::uint64_t n : shape) v.size[v.rank++] = static_cast<long long>(n);
    v.quant = &states_.back();
    return v;
  }

  result<std::optional<view>> read_mxfp4(const tensor_view& t) {
    used_.insert(t.name);
    const bool is_bad = t.type != safetensors_type::u8 || t.shape.size() < 3 || t.shape.size() > 4 ||
                        t.shape.back() != mxfp4::block / 2 || std::ranges::count(t.shape, 0U) > 0;
    if (is_bad)
      return bad("is ", name_of(t.type), " ", shape_text(t.shape),
                 ", expected U8 [out, in / 32, 16] or [experts, out, ", "in / 32, 16]");
    const std::string of = t.name.substr(0, t.name.size() - std::string_view("_blocks").size());
    const auto scales = scales_of(of + "_scales", safetensors_type::u8, {t.shape.begin(), t.shape.end() - 1});
    if (!scales) return scales.failure();
    if (status s = check(**scales); !s) return s.failure();
    quant_state p;
    p.format = mxfp4::format(), p.scales = (*scales)->data.data();
    std::vector<std::uint64_t> shape(t.shape.begin(), t.shape.end() - 1);
    shape.back() *= static_cast<std::uint64_t>(mxfp4::block);
    return store(t, p, shape);
  }
  result<std::optional<view>> read_nvfp4(const tensor_view& t) {
    const std::string module = t.name.substr(0, t.name.size() - std::string_view("weight").size());
    for (const char* unused : {"input_scale", "k_scale", "v_scale"}) static_cast<void>(find(module + unused));
    if (t.type != safetensors_type::u8) return std::optional<view>();
    if (find(module + "pre_quant_scale") != nullptr)
      return bad("has ", in_quotes(module + "pre_quant_scale"), " beside it (NVFP4_AWQ), which is not supported");
    if (t.shape.size() != 2 || t.shape[0] == 0 || t.shape[1] == 0 || t.shape[1] % (nvfp4::block / 2) != 0)
      return bad("has shape ", shape_text(t.shape), ", expected [out, in / 2] with rows of whole blocks of ",
                 nvfp4::block);
    const std::uint64_t cols = t.shape[1] * 2;
    const auto scales = scales_of(module + "weight_scale", safetensors_type::f8_e4m3,
                                  {t.shape[0], cols / static_cast<std::uint64_t>(nvfp4::block)});
    if (!scales) return scales.failure();
    if (status s = check(**scales); !s) return s.failure();
    const tensor_view* const whole = find(module + "weight_scale_2");
    if (whole == nullptr) return bad("has no ", in_quotes(module + "weight_scale_2"), " beside it");
    quant_state p;
    if (whole->type != safetensors_type::f32 || whole->data.size() != sizeof p.tensor_scale)
      return bad("has ", in_quotes(whole->name), " of ", name_of(whole->type), " ", shape_text(whole->shape),
                 ", expected one F32");
    std::memcpy(&p.tensor_scale, whole->data.data(), sizeof p.tensor_scale);
    constexpr float most = 3.4e38F / (quant_formats::e2m1::largest * quant_formats::fp8_format::largest);
    if (!(p.tensor_scale >= 0 && p.tensor_scale <= most))
      return bad("has ", in_quotes(whole->name), " that is negative, not finite or larger than a float can be");
    p.format = nvfp4::format(), p.scales = (*scales)->data.data();
    return store(t, p, {t.shape[0], cols});
  }

  std::string_view file_;
  finder find_;
  std::deque<quant_state>& states_;
  bool nvfp4_;
  std::set<std::string> used_;
  std::string name_;
};

}  // namespace graft::io
