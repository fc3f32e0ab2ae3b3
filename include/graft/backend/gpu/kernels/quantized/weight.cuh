// SPDX-License-Identifier: Apache-2.0
// A quantized weight as kernels read it, its upload to the device, and the gather of rows of a quantized table
// (embedding). The formats themselves are defined in core/quant.
#pragma once
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/experts/routing.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/backend/gpu/tile/tensor.cuh>
#include <graft/core/algorithm.h>
#include <graft/core/quant_formats.h>

#include <utility>

namespace graft::gpu {

// Reads device memory that no kernel writes, through the read-only cache; host memory on the host.
template <class T> __host__ __device__ __forceinline__ T read_constant(const T* p) {
#if defined(__CUDA_ARCH__)
  return __ldg(p);
#else
  return *p;
#endif
}

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
  float tensor_scale = 1;
  const unsigned char* zeros = nullptr;
  const std::int32_t* column_group = nullptr;
  long long row_groups = 0;  // scales of a row, where blocks are within rows

  // Double-quantized scale, rounded as quant_formats::double_quant_scale does.
  __host__ __device__ float nested_from(float value, float second) const {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(__fmul_rn(value, second), offset);
#else
    return quant_formats::double_quant_scale(value, second, offset);
#endif
  }
  __host__ __device__ float nested(unsigned code, float second) const {
    return nested_from(read_constant(second_codebook + code), second);
  }
  __host__ __device__ float scale(long long k) const {
    switch (format.scales) {
      case dtype::u8:
        return nested(static_cast<const unsigned char*>(scales)[k],
                      read_constant(second_scales + (second_shift < 0 ? k / format.second_block : k >> second_shift)));
      case dtype::f32:
      case dtype::bf16:
      case dtype::f16: return element_ptr<float>(const_cast<void*>(scales), format.scales)[k];
      case dtype::f8_e4m3:
        return quant_formats::nvfp4_format::scale(static_cast<const unsigned char*>(scales)[k], tensor_scale);
      case dtype::f8_e8m0: return quant_formats::mxfp4_format::scale(static_cast<const unsigned char*>(scales)[k]);
      case dtype::f64:
      case dtype::i64:
      case dtype::nf4:
      case dtype::fp4:
      case dtype::int8:
      case dtype::u2:
      case dtype::u3:
      case dtype::u4:
      case dtype::f4_e2m1:
      case dtype::f8_e5m2:
      case dtype::ggml: break;  // no scales are stored so; check_gpu_format has refused them
    }
    return nanf("");
  }
  // Index of the scale of element i.
  __host__ __device__ long long scale_index(long long i) const {
    switch (format.scaled) {
      case scale_granularity::nothing:
      case scale_granularity::tensor: break;
      case scale_granularity::row: return i / cols;
      case scale_granularity::block: return i / cols * row_groups + i % cols / format.block;
      case scale_granularity::column_group: return i / cols * row_groups + column_group[i % cols];
      case scale_granularity::flat_block: return i / format.block;
      case scale_granularity::row_flat_block: return i / cols * (cols / format.block) + i % cols / format.block;
    }
    return 0;
  }
  // The number of element i, which has scale k.
  __host__ __device__ float value(long long i, float scale, long long k) const {
    switch (format.type) {
      case dtype::int8: return quant_formats::int8_format::dequantize(static_cast<signed char>(qweight[i]), scale);
      case dtype::f8_e4m3: return quant_formats::fp8_format::value(qweight[i]) * scale;
      case dtype::nf4:
      case dtype::fp4: return table[quant_formats::nibble_at(qweight, i)] * scale;
      case dtype::u2:
      case dtype::u3:
      case dtype::u4:
      case dtype::u8: {
        using quant_formats::grouped_uint;  // rows are whole bytes, so all rows are one stream
        return grouped_uint::dequantize(grouped_uint::code(qweight, i, bits_of(format.type)), zeros[k], scale);
      }
      case dtype::f4_e2m1: return quant_formats::e2m1::value(quant_formats::e2m1::code_at(qweight, i)) * scale;
      case dtype::f32:
      case dtype::f64:
      case dtype::bf16:
      case dtype::f16:
      case dtype::i64:
      case dtype::f8_e5m2:
      case dtype::f8_e8m0:
      case dtype::ggml: break;  // plain numbers, and blocks, which dequantize_parts.cuh reads
    }
    return nanf("");
  }
  // Dequantizes N elements from `first` on, of a format whose scales are stored apart from its values.
  template <int N> __host__ __device__ void load(float (&to)[N], long long first) const {
    const long long at = scale_index(first);
    if (N == 1 || (format.scaled != scale_granularity::column_group && scale_index(first + N - 1) == at)) {
      const float s = scale(at);
      for (int k = 0; k < N; ++k) to[k] = value(first + k, s, at);
    } else {
      for (int k = 0; k < N; ++k) {
        const long long here = scale_index(first + k);
        to[k] = value(first + k, scale(here), here);
      }
    }
  }
};
inline quantized_weight quantized_weight_of(const view& v) {
  const quant_state& p = *v.quant;
  const weight_view matrix = weight_of(v);
  quantized_weight c;
  c.format = p.format, c.qweight = static_cast<const unsigned char*>(v.data);
  c.scales = p.scales, c.second_scales = p.second_scales, c.second_codebook = p.second_codebook;
  c.offset = p.offset, c.tensor_scale = p.tensor_scale;
  c.zeros = p.zeros, c.column_group = p.column_group;
  c.cols = matrix.cols;
  c.row_groups = p.format.block > 0 ? (c.cols + p.format.block - 1) / p.format.block : 0;
  c.scale_count = scale_counts_of(p.format, matrix.rows, matrix.cols).scales;
  if (const float* const values = four_bit_table(p.format.type)) {
    for (int k = 0; k < 16; ++k) c.table[k] = values[k];
    while (1 << (c.shift + 1) <= p.format.block) ++c.shift;
    while (1 << (c.second_shift + 1) <= p.format.second_block) ++c.second_shift;
    if (1 << c.second_shift != p.format.second_block) c.second_shift = -1;
    c.pitch = p.format.scaled == scale_granularity::flat_block ? c.cols : c.cols >> c.shift << c.shift;
  }
  return c;
}

// The experts of a stack that a product reads: those that have rows in its routing. Without rows: all of them.
struct used_experts {
  routing_table<float> routing{};
  long long first = 0;  // expert that the stack begins with

  // Looking for rows costs a search per CTA: where most experts have some, all are dequantized.
  static used_experts of(const routing_table<float>& routing, long long experts, long long first) {
    return routing.rows < 2 * experts ? used_experts{routing, first} : used_experts{};
  }
  __device__ bool has(long long e) const { return routing.begin(first + e) < routing.begin(first + e + 1); }
};

struct gathered_dequantized {
  tensor<float> out;
  quantized_weight from;
  long long rows;
  const std::int64_t* ids;
  bool by_column;
  table_shard shard{};
  // The row or column of the table that element i of the output is in, less those before a shard.
  __host__ __device__ long long looked_up(long long i) const { return ids[i / out.d[3]] - shard.first; }
  __host__ __device__ bool is_inside(long long row) const { return row >= 0 && row < (by_column ? from.cols : rows); }
  // An id outside the table gives NaN, or 0 where the table is sharded.
  __host__ __device__ float outside() const { return shard.is ? 0.0F : nanf(""); }
  __host__ __device__ void operator()(long long i) const {
    const long long c = i % out.d[3], row = looked_up(i);
    float v[1] = {outside()};
    if (is_inside(row)) from.load(v, by_column ? c * from.cols + row : row * from.cols + c);
    out.p.put(i, v[0]);
  }
};

// Copies a quantized weight with everything that belongs to it from host to device memory. The returned view points to
// `state`, which receives the device addresses and must outlive it.
inline result<view> upload_quantized(cudaStream_t stream, const view& host, buffer& into, quant_state& state) {
  if (status s = check_quantized("weight", host); !s) return s.failure();
  if (status s = check_gpu_format("weight", host); !s) return s.failure();
  const quant_planes planes = planes_of(host);
  if (status s = into.reserve(max_of(quant_planes::alignment, planes.padded_bytes())); !s) return s.failure();
  char* next = into.as<char>();
  status copied = ok;
  const auto copy = [&](const quant_plane& p) -> void* {
    if (p.bytes == 0 || !copied) return nullptr;
    char* const to = std::exchange(next, next + quant_planes::padded(p.bytes));
    copied = check(cudaMemcpyAsync(to, p.from, static_cast<std::size_t>(p.bytes), cudaMemcpyHostToDevice, stream),
                   "copying a quantized weight to the GPU");
    return to;
  };
  quant_state placed = *host.quant;
  const void* const values = copy(planes.values);
  placed.scales = copy(planes.scales);
  placed.second_scales = static_cast<const float*>(copy(planes.second_scales));
  placed.second_codebook = static_cast<const float*>(copy(planes.second_codebook));
  placed.zeros = static_cast<const unsigned char*>(copy(planes.zeros));
  placed.column_group = static_cast<const std::int32_t*>(copy(planes.column_group));
  if (!copied) return copied.failure();
  if (status s = check(cudaStreamSynchronize(stream), "copying a quantized weight to the GPU"); !s) return s.failure();
  state = placed;
  view on_device = host;
  on_device.data = values, on_device.quant = &state;
  return on_device;
}

}  // namespace graft::gpu
