// SPDX-License-Identifier: Apache-2.0
// The numbers of a weight that is codes in a panel: memory for one weight at a time, in which the layers of a stream take
// turns. A product of many tokens, its gradient and the nodes around them read it. Codes of four bits are looked up in a
// table of 16 numbers that every lane has for itself, so that no two lanes want the same bank, and rounded once.
#pragma once
#include <graft/backend/cuda/codes.cuh>
#include <graft/backend/cuda/launch.h>
#include <graft/backend/cuda/post.cuh>

namespace graft::cuda {

// Eight neighbours; those beyond the last element are left out.
struct decoded_elements {
  coded from;
  cells<float> to;
  long long count;
  __device__ void operator()(long long piece) const {
    constexpr int width = 8;
    const long long first = piece * width;
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
    const narrow_elements<float> all{narrowed.half, to.type == dtype::bf16};
    for (int k = 0; k < width; ++k) all.put(k, v[k]);
    reinterpret_cast<uint4*>(to.at)[piece] = narrowed.whole;
  }
};

// Codes of four bits, eight to a piece, four pieces a thread; blocks go over rows, or rows are whole blocks.
struct four_bit_panel {
  static constexpr int threads = 256, at_once = 4;
  coded from;
  void* to;
  long long pieces;
};
template <class T>
__global__ void __launch_bounds__(four_bit_panel::threads)
    four_bit_panel_kernel(const __grid_constant__ four_bit_panel g) {
  constexpr int at_once = four_bit_panel::at_once, threads = four_bit_panel::threads;
  __shared__ float table[16][32];
  const int lane = threadIdx.x % 32;
  const long long first = blockIdx.x * static_cast<long long>(threads * at_once) + threadIdx.x;
  unsigned word[at_once];
  float scale[at_once];
#pragma unroll
  for (int k = 0; k < at_once; ++k) {
    const long long piece = first + k * threads;
    const bool inside = piece < g.pieces;
    word[k] = inside ? __ldcs(reinterpret_cast<const unsigned*>(g.from.codes) + piece) : 0;
    scale[k] = inside ? g.from.scale(piece * 8 >> g.from.shift) : 0;
  }
  for (int c = threadIdx.x / 32; c < 16; c += threads / 32) table[c][lane] = g.from.table[c];
  __syncthreads();
  take_turn();  // the kernel ahead may read the panel
#pragma unroll
  for (int k = 0; k < at_once; ++k) {
    std::uint32_t pair[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const unsigned byte = word[k] >> (8 * b) & 255;
      pair[b] = pack<T>(table[byte >> 4][lane] * scale[k], table[byte & 15][lane] * scale[k]);
    }
    const long long piece = first + k * threads;
    if (piece < g.pieces) static_cast<uint4*>(g.to)[piece] = {pair[0], pair[1], pair[2], pair[3]};
  }
}

// Memory for the numbers of one weight.
class code_panel : public common_memory {
 public:
  // The numbers of a weight, in the order of the stream; there must be room.
  result<cells<float>> decode(cudaStream_t stream, const view& codes, dtype as) const {
    const long long n = codes.count();
    if (n * bits_of(as) / 8 > bytes()) return fail("there is no room for the numbers of a weight that is codes");
    const cells<float> to{data(), as};
    const coded from = coded_of(codes);
    const bool quick = has_four_bits(from.how) && from.pitch == from.cols && n % 8 == 0 && n > 0 && as != dtype::f32 &&
                       reinterpret_cast<std::uintptr_t>(from.codes) % 4 == 0;
    const status done = quick ? decode_four_bits(stream, {from, to.at, n / 8}, as)
                              : on_stream{stream}.elements((n + 7) / 8, decoded_elements{from, to, n}, "decode");
    if (!done) return done.failure();
    return to;
  }

 private:
  static status decode_four_bits(cudaStream_t stream, const four_bit_panel& g, dtype as) {
    constexpr long long in_block = four_bit_panel::threads * four_bit_panel::at_once;
    const dim3 blocks(static_cast<unsigned>((g.pieces + in_block - 1) / in_block)), threads(four_bit_panel::threads);
    return as == dtype::bf16
               ? launch_chained(stream, &four_bit_panel_kernel<__nv_bfloat16>, blocks, threads, "decode", g)
               : launch_chained(stream, &four_bit_panel_kernel<__half>, blocks, threads, "decode", g);
  }
};

}  // namespace graft::cuda
