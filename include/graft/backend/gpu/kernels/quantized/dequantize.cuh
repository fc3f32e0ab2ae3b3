// SPDX-License-Identifier: Apache-2.0
// Dequantization of a whole quantized weight into a buffer, which the layers of a stream reuse one after the other.
// GEMMs of more than 32 tokens, their gradients and nodes that read the weight use it. Here are the formats that a
// layer type can name; dequantize_parts.cuh has those of files.
//
//   to[i] = round(value(qweight[i]) · scale(i))      n elements, flat
//
// Vector kernel   Each thread dequantizes four vectors of 8 elements. 4-bit values are looked up in a table of 16
//                 floats that every lane has a copy of in its own shared memory bank; the product is rounded once.
// Elements        Formats, types and alignments that no vector kernel takes: dequantized_elements, 8 per thread.
// Measured        H200, 4096 x 4096, 4096 tokens, LoRA r16: 1.03 of the bare bf16 product on NF4, 0.97 on a bf16 weight
//                 (docs/performance.md).
#pragma once
#include <cuda_fp8.h>
#include <graft/backend/gpu/kernels/quantized/weight.cuh>
#include <graft/backend/gpu/runtime/launch.h>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

// Dequantizes 8 consecutive elements per index; the last vector may be shorter.
struct dequantized_elements {
  quantized_weight from;
  element_ptr<float> to;
  long long count;
  __host__ __device__ void operator()(long long vec) const {
    constexpr int width = 8;
    const long long first = vec * width;
    if (first + width > count) {
      for (long long i = first; i < count; ++i) {
        float one[1];
        from.load(one, i), to.put(i, one[0]);
      }
      return;
    }
    float v[width];
    from.load(v, first);
    if (to.type == dtype::f32) {
      auto* const p = reinterpret_cast<float4*>(static_cast<float*>(to.at) + first);
      p[0] = {v[0], v[1], v[2], v[3]}, p[1] = {v[4], v[5], v[6], v[7]};
      return;
    }
    union {
      unsigned short half[width];
      uint4 whole;
    } narrowed;
    const half_elements<float> all{narrowed.half, to.type == dtype::bf16};
    for (int k = 0; k < width; ++k) all.put(k, v[k]);
    reinterpret_cast<uint4*>(to.at)[vec] = narrowed.whole;
  }
};

// Vectors of 8 elements, at_once per thread. 4-bit formats need blocks that cross rows, or rows of whole blocks.
struct dequantize_args {
  static constexpr int threads = 256, at_once = 4;
  quantized_weight from;
  void* to;
  unsigned vectors, row_vectors;
};
template <class T> __device__ __forceinline__ uint4 dequantize_bytes8(uint2 codes, bool whole_numbers, float scale) {
  std::uint32_t pair[4];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const unsigned two = (b < 2 ? codes.x : codes.y) >> (16 * (b % 2)) & 0xffff;
    float2 v;
    if (whole_numbers)
      v = {static_cast<float>(static_cast<signed char>(two & 255)),
           static_cast<float>(static_cast<signed char>(two >> 8))};
    else
      v = __half22float2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3));
    pair[b] = pack<T>(v.x * scale, v.y * scale);
  }
  return {pair[0], pair[1], pair[2], pair[3]};
}
template <class T, bool FourBits>
__global__ void __launch_bounds__(dequantize_args::threads)
    dequantize_kernel(const __grid_constant__ dequantize_args g) {
  constexpr int at_once = dequantize_args::at_once, threads = dequantize_args::threads;
  __shared__ float table[16][32];
  const int lane = threadIdx.x % 32;
  const unsigned first = blockIdx.x * (threads * at_once) + threadIdx.x;
  const bool whole_numbers = g.from.format.type == dtype::int8;
  uint2 word[at_once];
  float scale[at_once];
#pragma unroll
  for (int k = 0; k < at_once; ++k) {
    const unsigned vec = first + k * threads;
    if (vec >= g.vectors) break;
    if constexpr (FourBits) {
      word[k].x = __ldcs(reinterpret_cast<const unsigned*>(g.from.qweight) + vec);
      scale[k] = g.from.scale(vec * 8LL >> g.from.shift);
    } else {
      word[k] = __ldcs(reinterpret_cast<const uint2*>(g.from.qweight) + vec);
      const float s = g.from.scale(g.from.format.scaled == scale_granularity::row ? vec / g.row_vectors : 0);
      scale[k] = whole_numbers ? quant_formats::int8_format::dequantize(1, s) : s;
    }
  }
  if constexpr (FourBits) {
    for (int c = threadIdx.x / 32; c < 16; c += threads / 32) table[c][lane] = g.from.table[c];
    __syncthreads();
  }
  pdl_begin();  // the previous kernel may still read the buffer
#pragma unroll
  for (int k = 0; k < at_once; ++k) {
    const unsigned vec = first + k * threads;
    if (vec >= g.vectors) break;
    uint4 out;
    if constexpr (FourBits) {
      std::uint32_t pair[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const unsigned byte = word[k].x >> (8 * b) & 255;
        pair[b] = pack<T>(table[byte >> 4][lane] * scale[k], table[byte & 15][lane] * scale[k]);
      }
      out = {pair[0], pair[1], pair[2], pair[3]};
    } else {
      out = dequantize_bytes8<T>(word[k], whole_numbers, scale[k]);
    }
    static_cast<uint4*>(g.to)[vec] = out;
  }
}

// Dequantization as function pointers, because naming a function compiles its kernels and most layer types are not
// quantized. `dequantize` writes the first n elements of a weight, of a stack of matrices at least those of the experts
// that are used, and `gather` rows of a table (embedding).
struct dequantize_functions {
  status (*dequantize)(cudaStream_t, const quantized_weight& from, long long n, const element_ptr<float>& to,
                       long long matrices, const used_experts& used) = nullptr;
  status (*gather)(cudaStream_t, const gathered_dequantized&) = nullptr;
};
inline status no_quantized_kernels() {
  return fail(
      "a tensor is quantized, and this layer has no kernels for its format: name that format as the element type of "
      "the layer, as in ",
      "linear<4096, 4096, nf4<64>, lora<16>>, or use gpu::executor");
}

// Device memory for one dequantized weight.
class dequantized_buffer : public growing_buffer {
 public:
  explicit dequantized_buffer(const dequantize_functions& by = {}) : by_(by) {}
  void use_functions(const dequantize_functions& by) { by_ = by; }
  const dequantize_functions& functions() const { return by_; }
  // Dequantizes a weight in stream order; fails where the buffer is too small.
  result<element_ptr<float>> dequantize(cudaStream_t stream, const view& codes, dtype as,
                                        const used_experts& used = {}) const {
    const long long n = codes.count();
    if (by_.dequantize == nullptr) return no_quantized_kernels().failure();
    if (n * bits_of(as) / 8 > bytes())
      return fail("there is no buffer for the dequantized values of a quantized weight");
    const element_ptr<float> to{data(), as};
    const long long matrices = codes.rank == 3 ? codes.size[0] : 1;
    if (status s = by_.dequantize(stream, quantized_weight_of(codes), n, to, matrices, used); !s) return s.failure();
    return to;
  }

 private:
  dequantize_functions by_;
};

// Returns true if the vector kernel applies: 16-bit T, whole vectors and aligned addresses.
template <class T> bool can_dequantize_vec8(const quantized_weight& c, long long n, dtype as) {
  const bool four = is_four_bit(c.format), eight = c.format.type == dtype::int8 || c.format.type == dtype::f8_e4m3;
  return sizeof(T) == 2 && as == dtype_of<T> && n > 0 && n % 8 == 0 && n / 8 < (1LL << 31) &&
         reinterpret_cast<std::uintptr_t>(c.qweight) % 8 == 0 &&
         ((four && c.pitch == c.cols) || (eight && c.cols % 8 == 0));
}
template <class T>
status dequantize_weight(cudaStream_t stream, const quantized_weight& from, long long n, const element_ptr<float>& to,
                         long long = 1, const used_experts& = {}) {
  if (from.format.block_bytes > 0) return no_quantized_kernels();
  if constexpr (sizeof(T) == 2)
    if (can_dequantize_vec8<T>(from, n, to.type)) {
      constexpr long long in_block = dequantize_args::threads * dequantize_args::at_once;
      const dequantize_args g{from, to.at, static_cast<unsigned>(n / 8), static_cast<unsigned>(from.cols / 8)};
      const dim3 blocks(static_cast<unsigned>((n / 8 + in_block - 1) / in_block)), threads(dequantize_args::threads);
      const auto run = [&](auto* kernel) { return launch_pdl(stream, kernel, blocks, threads, "dequantize", g); };
      return is_four_bit(from.format) ? run(&dequantize_kernel<T, true>) : run(&dequantize_kernel<T, false>);
    }
  return on_stream{stream}.elements((n + 7) / 8, dequantized_elements{from, to, n}, "dequantize");
}
template <class Gather = gathered_dequantized> status gather_dequantized(cudaStream_t stream, const Gather& f) {
  if (f.from.format.block_bytes > 0) return no_quantized_kernels();
  return on_stream{stream}.elements(f.out.count(), f, "gather from a quantized table");
}

}  // namespace graft::gpu
