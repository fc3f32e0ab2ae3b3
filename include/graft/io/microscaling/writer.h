// SPDX-License-Identifier: Apache-2.0
// Writes a weight of MXFP4 or NVFP4 as the tensors that microscaling/reader.h reads, without a copy. Scales of
// activations, which the reader does not use, are not among them: ModelOpt calibrates them again.
#pragma once
#include <graft/core/quant_formats.h>
#include <graft/io/safetensors/writer.h>

namespace graft::io {

// Appends the tensors of one weight to `to`. They are valid as long as the weight lives.
inline status add_microscaling(const std::string& name, const view& v, std::vector<tensor_view>& to) {
  using namespace quant_formats;
  const quant_state& p = *v.quant;
  const bool mx = p.format == mxfp4_format::format();
  if (!mx && p.format != nvfp4_format::format())
    return fail_in(name, "weights of type ", graft::name_of(p.format), " are in no file of this kind");
  const weight_view all = weight_of(v);
  const auto rows = static_cast<std::uint64_t>(all.rows), cols = static_cast<std::uint64_t>(all.cols),
             blocks = cols / static_cast<std::uint64_t>(p.format.block);
  const auto tensor = [&](const std::string& called, safetensors_type type, std::vector<std::uint64_t> shape,
                          const void* data, std::uint64_t bytes) {
    to.push_back({called, type, std::move(shape), {static_cast<const std::byte*>(data), bytes}});
  };
  if (mx) {
    std::vector<std::uint64_t> shape(v.size, v.size + v.rank);
    shape.back() = blocks;
    tensor(name + "_scales", safetensors_type::u8, shape, p.scales, rows * blocks);
    shape.push_back(mxfp4_format::block / 2);
    tensor(name + "_blocks", safetensors_type::u8, shape, v.data, rows * cols / 2);
    return ok;
  }
  tensor(name, safetensors_type::u8, {rows, cols / 2}, v.data, rows * cols / 2);
  tensor(name + "_scale", safetensors_type::f8_e4m3, {rows, blocks}, p.scales, rows * blocks);
  tensor(name + "_scale_2", safetensors_type::f32, {}, &p.tensor_scale, sizeof p.tensor_scale);
  return ok;
}

}  // namespace graft::io
