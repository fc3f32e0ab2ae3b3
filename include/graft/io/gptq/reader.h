// SPDX-License-Identifier: Apache-2.0
// Reads weights of GPTQ and AWQ. A module has instead of its weight
//     qweight, qzeros (I32), scales (F16, BF16 or F32), and for GPTQ g_idx (I32): the group of each column
// in the layouts of packing.h. Codes are put into rows when a model is loaded, because products read rows; the copy has
// the bytes of the file. Every tensor is checked against the others and the configuration: a wrong zero point would
// give wrong numbers without any other sign.
#pragma once
#include <graft/core/bf16.h>
#include <graft/core/quant_formats.h>
#include <graft/io/gptq/packing.h>
#include <graft/io/safetensors/bind.h>
#include <graft/model/model_config.h>

#include <deque>
#include <functional>
#include <set>

namespace graft::io {

// Owns rows, scales and zero points of weights that were read, and their states; it must live as long as the views.
struct gptq_pool {
  std::deque<quant_state> states;
  std::deque<std::vector<std::byte>> bytes;
  std::deque<std::vector<unsigned char>> zeros;
};

class gptq_reader {
 public:
  using finder = std::function<const tensor_view*(const std::string&)>;
  // `settings` must be of GPTQ or AWQ.
  gptq_reader(std::string_view file, finder find, gptq_pool& pool, const quantized_weights& settings)
      : file_(file),
        find_(std::move(find)),
        pool_(pool),
        settings_(settings),
        awq_(settings.stored_as == quantized_storage::awq) {}

  const std::set<std::string>& used() const { return used_; }
  // The name of the weight that a tensor holds the codes of; empty for other tensors.
  static std::string weight_name(const std::string& tensor) {
    return tensor.ends_with(".qweight")
               ? tensor.substr(0, tensor.size() - std::string_view("qweight").size()) + "weight"
               : "";
  }

  // Returns a view of the weight whose codes are in `t`.
  result<std::optional<view>> read(const tensor_view& t) {
    name_ = t.name, module_ = t.name.substr(0, t.name.size() - std::string_view("qweight").size());
    used_.insert(t.name);
    const int bits = bits_of(settings_.type);
    if (t.type != safetensors_type::i32 || t.shape.size() != 2)
      return bad("is ", name_of(t.type), " ", shape_text(t.shape), ", expected a matrix of I32");
    const std::uint64_t in_bits = awq_ ? 0 : t.shape[0] * 32, in = awq_ ? t.shape[0] : in_bits / bits_unsigned(),
                        out = awq_ ? t.shape[1] * gptq::awq_pack : t.shape[1];
    if (in == 0 || out == 0 || in > largest_size || out > largest_size)
      return bad("has shape ", shape_text(t.shape), ", expected ", awq_ ? "[in, out / 8]" : "[in * bits / 32, out]");
    if (!awq_ && in_bits % bits_unsigned() != 0)
      return bad("has ", number(t.shape[0]), " words of 32 bits for a row, which are no whole number of codes of ",
                 bits, " bits; is 'bits' of quantization_config right?");
    if (awq_ && in % 2 != 0) return bad("has rows of ", number(in), " codes of 4 bits, expected an even number");
    if (!awq_ && out * bits_unsigned() % 32 != 0)
      return bad("has ", number(out), " rows, whose zero points of ", bits, " bits do not fill words of 32 bits");
    const auto group = settings_.group_size < 0 ? static_cast<long long>(in) : settings_.group_size;
    const std::uint64_t groups = (in + static_cast<std::uint64_t>(group) - 1) / static_cast<std::uint64_t>(group);
    quant_state p;
    p.format = {settings_.type, scale_granularity::block, static_cast<int>(group)};
    if (status s = read_scales(p, groups, out); !s) return s.failure();
    if (status s = read_zeros(p, groups, out); !s) return s.failure();
    if (status s = read_groups(p, in, groups); !s) return s.failure();
    std::vector<std::byte>& rows = pool_.bytes.emplace_back(t.data.size());
    if (awq_)
      gptq::unpack_awq(t.data.data(), in, out, rows.data());
    else
      gptq::transpose(t.data.data(), t.shape[0], out, gptq::word_bytes, rows.data());
    pool_.states.push_back(p);
    return std::optional<view>({rows.data(),
                                settings_.type,
                                {static_cast<long long>(out), static_cast<long long>(in), 1, 1},
                                2,
                                {},
                                &pool_.states.back()});
  }

 private:
  static constexpr std::uint64_t largest_size = std::uint64_t{1} << 30;

  template <class... Parts> error bad(const Parts&... parts) const {
    return fail_in(file_, "tensor ", in_quotes(name_), " ", parts...);
  }
  std::uint64_t bits_unsigned() const { return static_cast<std::uint64_t>(bits_of(settings_.type)); }
  const tensor_view* find(const char* name) {
    const tensor_view* const t = find_(module_ + name);
    if (t != nullptr) used_.insert(t->name);
    return t;
  }
  // A companion that must be there with this shape.
  result<const tensor_view*> companion(const char* name, std::uint64_t rows, std::uint64_t cols) {
    const tensor_view* const t = find(name);
    if (t == nullptr) return bad("has no ", in_quotes(module_ + name), " beside it");
    const std::uint64_t expected[] = {rows, cols};
    if (!std::ranges::equal(t->shape, expected))
      return bad("has ", in_quotes(t->name), " of shape ", shape_text(t->shape), ", expected ", shape_text(expected),
                 " for groups of ", settings_.group_size, " columns");
    return t;
  }
  status read_scales(quant_state& p, std::uint64_t groups, std::uint64_t out) {
    const result<const tensor_view*> found = companion("scales", groups, out);
    if (!found) return found.failure();
    const tensor_view& t = **found;
    const std::optional<dtype> type = dtype_of(t.type);
    if (!type || (*type != dtype::f16 && *type != dtype::bf16 && *type != dtype::f32))
      return bad("has ", in_quotes(t.name), " of ", name_of(t.type), ", expected F16, BF16 or F32");
    const auto each = static_cast<std::size_t>(bits_of(*type)) / 8;
    for (std::size_t at = 0; at < t.data.size(); at += each)
      if (!is_usable(t.data.data() + at, *type))
        return bad("has ", in_quotes(t.name), " with a number that is not finite or larger than 1.3e36");
    std::vector<std::byte>& scales = pool_.bytes.emplace_back(t.data.size());
    gptq::transpose(t.data.data(), groups, out, each, scales.data());
    p.format.scales = *type, p.scales = scales.data();
    return ok;
  }
  // Returns true for a scale whose product with any code is a float.
  static bool is_usable(const std::byte* at, dtype type) {
    float scale = 0;
    std::uint16_t half = 0;
    if (type == dtype::f32)
      std::memcpy(&scale, at, sizeof scale);
    else
      std::memcpy(&half, at, sizeof half), scale = type == dtype::f16 ? widen(f16{half}) : widen(bf16{half});
    return abs_max(&scale, 1) <= 1.3e36F && scale == scale;
  }
  status read_zeros(quant_state& p, std::uint64_t groups, std::uint64_t out) {
    const result<const tensor_view*> found = companion("qzeros", groups, out * bits_unsigned() / 32);
    if (!found) return found.failure();
    if ((*found)->type != safetensors_type::i32)
      return bad("has ", in_quotes((*found)->name), " of ", name_of((*found)->type), ", expected I32");
    std::vector<unsigned char>& zeros = pool_.zeros.emplace_back(static_cast<std::size_t>(groups * out));
    gptq::unpack_zeros((*found)->data.data(), static_cast<long long>(groups), static_cast<long long>(out),
                       bits_of(settings_.type), awq_, settings_.zeros_less_one, zeros.data());
    p.zeros = zeros.data();
    return ok;
  }
  // Groups in the order of the columns need no table. Without desc_act there may be none in the file.
  status read_groups(quant_state& p, std::uint64_t in, std::uint64_t groups) {
    const tensor_view* const t = find("g_idx");
    if (awq_ && t != nullptr) return bad("has ", in_quotes(t->name), " beside it, which AWQ has not");
    if (t == nullptr && !settings_.act_order) return ok;
    if (t == nullptr)
      return bad("has no ", in_quotes(module_ + "g_idx"), " beside it, and quantization_config says desc_act true");
    if (t->type != safetensors_type::i32 || t->shape.size() != 1 || t->shape[0] != in)
      return bad("has ", in_quotes(t->name), " of ", name_of(t->type), " ", shape_text(t->shape), ", expected I32 [",
                 number(in), "]");
    if (!is_aligned(*t)) return bad("has ", in_quotes(t->name), " at an address that is no multiple of 4");
    const auto* const g = reinterpret_cast<const std::int32_t*>(t->data.data());
    bool in_order = true;
    for (std::uint64_t k = 0; k < in; ++k) {
      if (g[k] < 0 || static_cast<std::uint64_t>(g[k]) >= groups)
        return bad("has ", in_quotes(t->name), " with group ", g[k], " for column ", number(k), ", expected 0 to ",
                   number(groups - 1));
      in_order = in_order && static_cast<std::uint64_t>(g[k]) == k / static_cast<std::uint64_t>(p.format.block);
    }
    if (in_order) return ok;
    if (!settings_.act_order)
      return bad("has ", in_quotes(t->name), " that is not in order, and quantization_config says desc_act false");
    p.format.scaled = scale_granularity::column_group, p.column_group = g;
    return ok;
  }

  std::string_view file_;
  finder find_;
  gptq_pool& pool_;
  const quantized_weights& settings_;
  bool awq_;
  std::set<std::string> used_;
  std::string name_, module_;
};

}  // namespace graft::io
