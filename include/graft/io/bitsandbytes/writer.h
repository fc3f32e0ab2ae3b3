// SPDX-License-Identifier: Apache-2.0
// Writes a quantized weight as the tensors that bitsandbytes/reader.h reads: quantized values, scales, and for NF4 and
// FP4 codebooks and quant_state JSON. The views refer to the weight's own memory; nothing is copied or requantized.
#pragma once
#include <graft/core/quant_formats.h>
#include <graft/io/safetensors/writer.h>

#include <charconv>
#include <deque>

namespace graft::io {

class quantized_writer {
 public:
  // `dtype_of_numbers` is torch's name of the dequantized type, which the quant_state records.
  explicit quantized_writer(std::string dtype_of_numbers) : dtype_(std::move(dtype_of_numbers)) {}

  // Appends the tensors of one weight to `to`. They are valid as long as this writer and the weight live.
  status add(const std::string& name, const view& v, std::vector<tensor_view>& to) {
    const quant_state& p = *v.quant;
    const auto rows = static_cast<std::uint64_t>(v.size[0]), cols = static_cast<std::uint64_t>(v.size[1]);
    const scale_counts n = scale_counts_of(p.format, v.size[0], v.size[1]);
    const auto scales = static_cast<std::uint64_t>(n.scales), seconds = static_cast<std::uint64_t>(n.second_scales);
    const std::string module = name.ends_with(".weight") ? name.substr(0, name.size() - 6) : name + ".";
    const auto tensor = [&](const std::string& called, safetensors_type type, std::vector<std::uint64_t> shape,
                            const void* data) {
      std::uint64_t bytes = static_cast<std::uint64_t>(facts(type).bits) / 8;
      for (const std::uint64_t s : shape) bytes *= s;
      to.push_back({called, type, std::move(shape), {static_cast<const std::byte*>(data), bytes}});
    };
    if (is_four_bit(p.format)) {
      const bool nf4 = p.format.type == dtype::nf4;
      tensor(name, safetensors_type::u8, {(rows * cols + 1) / 2, 1}, v.data);
      tensor(name + ".quant_map", safetensors_type::f32, {16},
             nf4 ? quant_formats::nf4_format::table : quant_formats::fp4_format::table);
      tensor(name + ".absmax", p.format.second_block > 0 ? safetensors_type::u8 : safetensors_type::f32, {scales},
             p.scales);
      if (p.format.second_block > 0) {
        tensor(name + ".nested_absmax", safetensors_type::f32, {seconds}, p.second_scales);
        tensor(name + ".nested_quant_map", safetensors_type::f32, {256}, p.second_codebook);
      }
      const std::string& state = states_.emplace_back(state_of(p, rows, cols));
      tensor(name + ".quant_state.bitsandbytes__" + graft::name_of(p.format.type), safetensors_type::u8, {state.size()},
             state.data());
      return ok;
    }
    if (p.format.scales != dtype::f32 || (p.format.type != dtype::int8 && p.format.type != dtype::f8_e4m3))
      return fail_in(name, "quantized weights of type ", graft::name_of(p.format),
                     " with these scales are in no file of this kind");
    if (p.format.type == dtype::int8) {
      static constexpr std::byte row_after_row{0};
      tensor(name, safetensors_type::i8, {rows, cols}, v.data),
          tensor(module + "SCB", safetensors_type::f32, {rows}, p.scales);
      tensor(module + "weight_format", safetensors_type::u8, {}, &row_after_row);
      return ok;
    }
    tensor(name, safetensors_type::f8_e4m3, {rows, cols}, v.data);
    if (p.format.scaled == scale_granularity::row)
      tensor(module + "weight_scale", safetensors_type::f32, {rows, 1}, p.scales);
    else
      tensor(module + "weight_scale", safetensors_type::f32, {}, p.scales);
    return ok;
  }

 private:
  std::string state_of(const quant_state& p, std::uint64_t rows, std::uint64_t cols) const {
    std::string s = "{\"quant_type\": \"" + std::string(graft::name_of(p.format.type)) +
                    "\", \"blocksize\": " + std::to_string(p.format.block) + ", \"dtype\": \"" + dtype_ +
                    "\", \"shape\": [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
    if (p.format.second_block > 0) {
      char digits[40];
      const auto end = std::to_chars(std::begin(digits), std::end(digits), static_cast<double>(p.offset)).ptr;
      s += ", \"nested_blocksize\": " + std::to_string(p.format.second_block) +
           ", \"nested_dtype\": \"float32\", \"nested_offset\": " + std::string(std::begin(digits), end);
    }
    return s + "}";
  }

  std::string dtype_;
  std::deque<std::string> states_;
};

}  // namespace graft::io
