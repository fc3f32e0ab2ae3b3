// SPDX-License-Identifier: Apache-2.0
// A quantized weight as kernels read it, its upload to the device, and the gather of rows of a quantized table
// (embedding). The formats themselves are defined in core/quant.
#pragma once
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/backend/gpu/tile/tensor.cuh>
#include <graft/core/algorithm.h>
#include <graft/core/quant_formats.h>

namespace graft::gpu {

struct quantized_weight {
  quant_format format{};
  const unsigned char* qweight = nullptr;
  const void* scales = nullptr;
  const float *second_scales = nullptr, *second_codebook = nullptr;
  float offset = 0;
  long long cols = 0;
  float table[16] = {};  // values of a 4-bit format
  int shift = 0;         // log2 of the block size of a 4-bit format
  int second_shift = 0;  // log2 of the scales that share a second scale; -1: not a power of two
  long long pitch = 0;   // elements between rows in the index of 4-bit blocks
  long long scale_count = 0;

  // Double-quantized scale, rounded as quant_formats::double_quant_scale does.
  __device__ float nested_from(float value, float second) const { return __fadd_rn(__fmul_rn(value, second), offset); }
  __device__ float nested(unsigned code, float second) const {
    return nested_from(__ldg(second_codebook + code), second);
  }
  __device__ float scale(long long k) const {
    if (format.scales == dtype::u8)
      return nested(static_cast<const unsigned char*>(scales)[k],
                    __ldg(second_scales + (second_shift < 0 ? k / format.second_block : k >> second_shift)));
    return element_ptr<float>(const_cast<void*>(scales), format.scales)[k];
  }
  // Index of the scale of element i.
  __device__ long long scale_index(long long i) const {
    switch (format.scaled) {
      case scale_granularity::row: return i / cols;
      case scale_granularity::flat_block: return i / format.block;
      case scale_granularity::row_flat_block: return i / cols * (cols / format.block) + i % cols / format.block;
      default: return 0;
    }
  }
  __device__ float value(long long i, float scale) const {
    switch (format.type) {
      case dtype::int8: return quant_formats::int8_format::dequantize(static_cast<signed char>(qweight[i]), scale);
      case dtype::f8_e4m3: return quant_formats::fp8_format::value(qweight[i]) * scale;
      case dtype::nf4:
      case dtype::fp4: return table[quant_formats::nibble_at(qweight, i)] * scale;
      case dtype::f32:
      case dtype::f64:
      case dtype::bf16:
      case dtype::f16:
      case dtype::i64:
      case dtype::u2:
      case dtype::u3:
      case dtype::u4:
      case dtype::u8:
      case dtype::f4_e2m1:
      case dtype::f8_e5m2:
      case dtype::f8_e8m0:
      case dtype::ggml: break;  // check_gpu_format has refused them
    }
    return nanf("");
  }
  // Dequantizes N elements from `first` on. In ggml formats they must be in one block.
  template <int N> __device__ void load(float (&to)[N], long long first) const {
    if (format.block_bytes > 0) {
      const unsigned char* const block = qweight + first / format.block * format.block_bytes;
      const auto inside = static_cast<int>(first % format.block);
      const float s = quant_formats::load_half(block);
      // check_gpu_format has refused other formats.
      for (int k = 0; k < N; ++k) {
        if (format.block_type == quant_formats::q8_0_format::ggml_type_id)
          to[k] = quant_formats::q8_0_format::dequantize(block, inside + k, s);
        else if (format.block_type == quant_formats::q4_0_format::ggml_type_id)
          to[k] = quant_formats::q4_0_format::dequantize(block, inside + k, s);
        else
          to[k] = nanf("");
      }
      return;
    }
    const long long scale_at_index = scale_index(first);
    if (N == 1 || scale_index(first + N - 1) == scale_at_index) {
      const float s = scale(scale_at_index);
      for (int k = 0; k < N; ++k) to[k] = value(first + k, s);
    } else {
      for (int k = 0; k < N; ++k) to[k] = value(first + k, scale(scale_index(first + k)));
    }
  }
};
inline quantized_weight quantized_weight_of(const view& v) {
  const quant_state& p = *v.quant;
  quantized_weight c{p.format,          static_cast<const unsigned char*>(v.data),
                     p.scales,          p.second_scales,
                     p.second_codebook, p.offset,
                     v.size[v.rank - 1]};
  const float* const values =
      p.format.type == dtype::fp4 ? quant_formats::fp4_format::table : quant_formats::nf4_format::table;
  for (int k = 0; k < 16; ++k) c.table[k] = values[k];
  c.scale_count = scale_counts_of(p.format, v.size[0], v.size[1]).scales;
  if (is_four_bit(p.format)) {
    while (1 << (c.shift + 1) <= p.format.block) ++c.shift;
    while (1 << (c.second_shift + 1) <= p.format.second_block) ++c.second_shift;
    if (1 << c.second_shift != p.format.second_block) c.second_shift = -1;
    c.pitch = p.format.scaled == scale_granularity::flat_block ? c.cols : c.cols >> c.shift << c.shift;
  }
  return c;
}

struct gathered_dequantized {
  tensor<float> out;
  quantized_weight from;
  long long rows;
  const std::int64_t* ids;
  bool by_column;
  table_shard shard{};
  __device__ void operator()(long long i) const {
    const long long c = i % out.d[3], row = ids[i / out.d[3]] - shard.first;
    float v[1] = {shard.is ? 0.0F : nanf("")};  // an id outside the table gives NaN, or 0 where the table is sharded
    if (row >= 0 && row < (by_column ? from.cols : rows))
      from.load(v, by_column ? c * from.cols + row : row * from.cols + c);
    out.p.put(i, v[0]);
  }
};

// Copies a quantized weight with scales and codebook from host to device memory. The returned view points to `beside`,
// which receives the device addresses and must outlive it.
inline result<view> upload_quantized(cudaStream_t stream, const view& host, buffer& into, quant_state& state) {
  if (status s = check_quantized("weight", host); !s) return s.failure();
  if (status s = check_gpu_format("weight", host); !s) return s.failure();
  const quant_state& from = *host.quant;
  const scale_counts n = scale_counts_of(from.format, host.size[0], host.size[1]);
  struct plane {
    const void* from;
    long long bytes, at;
  };
  plane all[4] = {{host.data, quantized_bytes(from.format, host.size[0], host.size[1]), 0},
                  {from.scales, n.scales * bits_of(from.format.scales) / 8, 0},
                  {from.second_scales, n.second_scales * 4, 0},
                  {from.second_codebook, from.format.second_block > 0 ? 256 * 4 : 0, 0}};
  long long total = 0;
  for (plane& p : all) p.at = total, total += (p.bytes + 255) / 256 * 256;
  if (status s = into.reserve(max_of(256LL, total)); !s) return s.failure();
  char* const at = into.as<char>();
  for (const plane& p : all)
    if (p.bytes > 0)
      if (status s = check(
              cudaMemcpyAsync(at + p.at, p.from, static_cast<std::size_t>(p.bytes), cudaMemcpyHostToDevice, stream),
              "copying a quantized weight to the GPU");
          !s)
        return s.failure();
  if (status s = check(cudaStreamSynchronize(stream), "copying a quantized weight to the GPU"); !s) return s.failure();
  state = from;
  if (all[1].bytes > 0) state.scales = at + all[1].at;
  if (from.format.second_block > 0)
    state.second_scales = reinterpret_cast<float*>(at + all[2].at),
    state.second_codebook = reinterpret_cast<float*>(at + all[3].at);
  view placed = host;
  placed.data = at, placed.quant = &state;
  return placed;
}

}  // namespace graft::gpu
