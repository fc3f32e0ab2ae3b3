// SPDX-License-Identifier: Apache-2.0
// A weight that is codes as the tensors that bitsandbytes has of it in a file, the way bitsandbytes.h reads them: codes,
// scales, and in 4 bits the tables and the state as JSON. Nothing is computed; what lies in memory is written.
#pragma once
#include <graft/core/encodings.h>
#include <graft/io/safetensors_write.h>

#include <charconv>
#include <deque>

namespace graft::io {

class coded_writer {
 public:
  // torch's name for the type of the numbers that the codes stand for.
  explicit coded_writer(std::string dtype_of_numbers) : dtype_(std::move(dtype_of_numbers)) {}

  // The tensors of one weight; what they point to lives as long as this and the weight.
  status add(const std::string& name, const view& v, std::vector<tensor_view>& to) {
    const planes& p = *v.beside;
    const auto rows = static_cast<std::uint64_t>(v.size[0]), cols = static_cast<std::uint64_t>(v.size[1]);
    const plane_sizes n = planes_of(p.how, v.size[0], v.size[1]);
    const auto scales = static_cast<std::uint64_t>(n.scales), seconds = static_cast<std::uint64_t>(n.second_scales);
    const std::string module = name.ends_with(".weight") ? name.substr(0, name.size() - 6) : name + ".";
    const auto tensor = [&](const std::string& called, safetensors_type type, std::vector<std::uint64_t> shape,
                            const void* data) {
      std::uint64_t bytes = static_cast<std::uint64_t>(facts(type).bits) / 8;
      for (const std::uint64_t s : shape) bytes *= s;
      to.push_back({called, type, std::move(shape), {static_cast<const std::byte*>(data), bytes}});
    };
    if (has_four_bits(p.how)) {
      const bool nf4 = p.how.codes == dtype::nf4;
      tensor(name, safetensors_type::u8, {(rows * cols + 1) / 2, 1}, v.data);
      tensor(name + ".quant_map", safetensors_type::f32, {16},
             nf4 ? encodings::nf4_codes::table : encodings::fp4_codes::table);
      tensor(name + ".absmax", p.how.second_block > 0 ? safetensors_type::u8 : safetensors_type::f32, {scales},
             p.scales);
      if (p.how.second_block > 0) {
        tensor(name + ".nested_absmax", safetensors_type::f32, {seconds}, p.second_scales);
        tensor(name + ".nested_quant_map", safetensors_type::f32, {256}, p.second_table);
      }
      const std::string& state = states_.emplace_back(state_of(p, rows, cols));
      tensor(name + ".quant_state.bitsandbytes__" + graft::name_of(p.how.codes), safetensors_type::u8, {state.size()},
             state.data());
      return ok;
    }
    if (p.how.scales != dtype::f32 || p.how.block_bytes > 0)
      return fail_in(name, "codes of ", graft::name_of(p.how), " with these scales are in no file of this kind");
    if (p.how.codes == dtype::int8) {
      static constexpr std::byte row_after_row{0};
      tensor(name, safetensors_type::i8, {rows, cols}, v.data),
          tensor(module + "SCB", safetensors_type::f32, {rows}, p.scales);
      tensor(module + "weight_format", safetensors_type::u8, {}, &row_after_row);
      return ok;
    }
    tensor(name, safetensors_type::f8_e4m3, {rows, cols}, v.data);
    if (p.how.scaled == scaled_by::row)
      tensor(module + "weight_scale", safetensors_type::f32, {rows, 1}, p.scales);
    else
      tensor(module + "weight_scale", safetensors_type::f32, {}, p.scales);
    return ok;
  }

 private:
  std::string state_of(const planes& p, std::uint64_t rows, std::uint64_t cols) const {
    std::string s = "{\"quant_type\": \"" + std::string(graft::name_of(p.how.codes)) +
                    "\", \"blocksize\": " + std::to_string(p.how.block) + ", \"dtype\": \"" + dtype_ +
                    "\", \"shape\": [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
    if (p.how.second_block > 0) {
      char digits[40];
      const auto end = std::to_chars(std::begin(digits), std::end(digits), static_cast<double>(p.offset)).ptr;
      s += ", \"nested_blocksize\": " + std::to_string(p.how.second_block) +
           ", \"nested_dtype\": \"float32\", \"nested_offset\": " + std::string(std::begin(digits), end);
    }
    return s + "}";
  }

  std::string dtype_;
  std::deque<std::string> states_;
};

}  // namespace graft::io
