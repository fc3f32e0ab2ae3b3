// SPDX-License-Identifier: Apache-2.0
// Writes a weight of GPTQ or AWQ as the tensors that gptq/reader.h reads, with the bytes of the file it came from.
#pragma once
#include <graft/core/quant_formats.h>
#include <graft/io/gptq/packing.h>
#include <graft/io/safetensors/writer.h>
#include <graft/model/model_config.h>

#include <deque>
#include <functional>
#include <numeric>

namespace graft::io {

class gptq_writer {
 public:
  explicit gptq_writer(const quantized_weights& settings) : settings_(settings) {}

  // Appends the tensors of one weight to `to`. They are valid as long as this writer and the weight live.
  status add(const std::string& name, const view& v, std::vector<tensor_view>& to) {
    const quant_state& p = *v.quant;
    const bool awq = settings_.stored_as == quantized_storage::awq;
    if (v.type != settings_.type || !name.ends_with(".weight"))
      return fail_in(name, "weights of type ", graft::name_of(p.format), " are in no file of this kind");
    const std::string module = name.substr(0, name.size() - std::string_view("weight").size());
    const int bits = bits_of(v.type);
    const auto out = static_cast<std::uint64_t>(v.size[0]), in = static_cast<std::uint64_t>(v.size[1]),
               groups = static_cast<std::uint64_t>((v.size[1] + p.format.block - 1) / p.format.block),
               code_bits = static_cast<std::uint64_t>(bits);
    const auto tensor = [&](const char* called, safetensors_type type, std::vector<std::uint64_t> shape) -> std::byte* {
      const std::uint64_t count = std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
      std::vector<std::byte>& bytes = bytes_.emplace_back(count * static_cast<std::uint64_t>(facts(type).bits) / 8);
      to.push_back({module + called, type, std::move(shape), bytes});
      return bytes.data();
    };
    const auto* const codes = static_cast<const std::byte*>(v.data);
    if (awq)
      gptq::pack_awq(codes, in, out, tensor("qweight", safetensors_type::i32, {in, out / gptq::awq_pack}));
    else
      gptq::transpose(codes, out, in * code_bits / 32, gptq::word_bytes,
                      tensor("qweight", safetensors_type::i32, {in * code_bits / 32, out}));
    gptq::pack_zeros(p.zeros, static_cast<long long>(groups), v.size[0], bits, awq, settings_.zeros_less_one,
                     tensor("qzeros", safetensors_type::i32, {groups, out * code_bits / 32}));
    const safetensors_type scales = p.format.scales == dtype::f16    ? safetensors_type::f16
                                    : p.format.scales == dtype::bf16 ? safetensors_type::bf16
                                                                     : safetensors_type::f32;
    gptq::transpose(static_cast<const std::byte*>(p.scales), out, groups,
                    static_cast<std::size_t>(bits_of(p.format.scales)) / 8, tensor("scales", scales, {groups, out}));
    if (awq) return ok;
    std::byte* const g_idx = tensor("g_idx", safetensors_type::i32, {in});
    for (std::uint64_t k = 0; k < in; ++k) {
      const std::int32_t group = p.column_group != nullptr
                                     ? p.column_group[k]
                                     : static_cast<std::int32_t>(k / static_cast<std::uint64_t>(p.format.block));
      std::memcpy(g_idx + k * sizeof group, &group, sizeof group);
    }
    return ok;
  }

 private:
  quantized_weights settings_;
  std::deque<std::vector<std::byte>> bytes_;
};

}  // namespace graft::io
