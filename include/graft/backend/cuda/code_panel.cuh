// SPDX-License-Identifier: Apache-2.0
// The numbers of a weight that is codes in a panel: memory for one weight at a time, in which the layers of a stream take
// turns. A product of many tokens, its gradient and the nodes around them read it. Codes of four bits are looked up in a
// table of 16 numbers that every lane has for itself, so that no two lanes want the same bank, and rounded once.
#pragma once
#include <cuda_fp8.h>
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

// Eight codes to a piece, four pieces a thread. Blocks of codes of four bits go over rows, or rows are whole blocks.
struct piece_panel {
  static constexpr int threads = 256, at_once = 4;
  coded from;
  void* to;
  unsigned pieces, row_pieces;
};
template <class T> __device__ __forceinline__ uint4 eight_bytes(uint2 codes, bool whole_numbers, float scale) {
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
__global__ void __launch_bounds__(piece_panel::threads) piece_panel_kernel(const __grid_constant__ piece_panel g) {
  constexpr int at_once = piece_panel::at_once, threads = piece_panel::threads;
  __shared__ float table[16][32];
  const int lane = threadIdx.x % 32;
  const unsigned first = blockIdx.x * (threads * at_once) + threadIdx.x;
  const bool whole_numbers = g.from.how.codes == dtype::int8;
  uint2 word[at_once];
  float scale[at_once];
#pragma unroll
  for (int k = 0; k < at_once; ++k) {
    const unsigned piece = first + k * threads;
    if (piece >= g.pieces) break;
    if constexpr (FourBits) {
      word[k].x = __ldcs(reinterpret_cast<const unsigned*>(g.from.codes) + piece);
      scale[k] = g.from.scale(piece * 8LL >> g.from.shift);
    } else {
      word[k] = __ldcs(reinterpret_cast<const uint2*>(g.from.codes) + piece);
      const float s = g.from.scale(g.from.how.scaled == scaled_by::row ? piece / g.row_pieces : 0);
      scale[k] = whole_numbers ? encodings::int8_codes::number(1, s) : s;
    }
  }
  if constexpr (FourBits) {
    for (int c = threadIdx.x / 32; c < 16; c += threads / 32) table[c][lane] = g.from.table[c];
    __syncthreads();
  }
  take_turn();  // the kernel ahead may read the panel
#pragma unroll
  for (int k = 0; k < at_once; ++k) {
    const unsigned piece = first + k * threads;
    if (piece >= g.pieces) break;
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
      out = eight_bytes<T>(word[k], whole_numbers, scale[k]);
    }
    static_cast<uint4*>(g.to)[piece] = out;
  }
}

// What reads codes where no product does, as pointers: to name one is to compile its kernels, and most layer types have no
// codes. `decode`: the first n numbers of a weight; `gather`: rows of a table.
struct code_functions {
  status (*decode)(cudaStream_t, const coded& from, long long n, const cells<float>& to) = nullptr;
  status (*gather)(cudaStream_t, const gathered_codes&) = nullptr;
};
inline status no_codes() {
  return fail("a tensor is codes, and this layer has no kernels for them: name their type as that of the layer, as in ",
              "linear<4096, 4096, nf4<64>, lora<16>>, or use cuda::executor");
}

// Memory for the numbers of one weight.
class code_panel : public common_memory {
 public:
  explicit code_panel(const code_functions& by = {}) : by_(by) {}
  void read_by(const code_functions& by) { by_ = by; }
  const code_functions& readers() const { return by_; }
  // The numbers of a weight, in the order of the stream; there must be room.
  result<cells<float>> decode(cudaStream_t stream, const view& codes, dtype as) const {
    const long long n = codes.count();
    if (by_.decode == nullptr) return no_codes().failure();
    if (n * bits_of(as) / 8 > bytes()) return fail("there is no room for the numbers of a weight that is codes");
    const cells<float> to{data(), as};
    if (status s = by_.decode(stream, coded_of(codes), n, to); !s) return s.failure();
    return to;
  }

 private:
  code_functions by_;
};

// In pieces where the type is T, a layer's own.
template <class T> bool decodes_pieces(const coded& c, long long n, dtype as) {
  const bool four = has_four_bits(c.how), eight = c.how.codes == dtype::int8 || c.how.codes == dtype::f8_e4m3;
  return sizeof(T) == 2 && as == dtype_of<T> && n > 0 && n % 8 == 0 && n / 8 < (1LL << 31) &&
         reinterpret_cast<std::uintptr_t>(c.codes) % 8 == 0 &&
         ((four && c.pitch == c.cols) || (eight && c.cols % 8 == 0));
}
template <class T> status decode_codes(cudaStream_t stream, const coded& from, long long n, const cells<float>& to) {
  if constexpr (sizeof(T) == 2)
    if (decodes_pieces<T>(from, n, to.type)) {
      constexpr long long in_block = piece_panel::threads * piece_panel::at_once;
      const piece_panel g{from, to.at, static_cast<unsigned>(n / 8), static_cast<unsigned>(from.cols / 8)};
      const dim3 blocks(static_cast<unsigned>((n / 8 + in_block - 1) / in_block)), threads(piece_panel::threads);
      const auto run = [&](auto* kernel) { return launch_chained(stream, kernel, blocks, threads, "decode", g); };
      return has_four_bits(from.how) ? run(&piece_panel_kernel<T, true>) : run(&piece_panel_kernel<T, false>);
    }
  return on_stream{stream}.elements((n + 7) / 8, decoded_elements{from, to, n}, "decode");
}
template <class Codes = gathered_codes> status gather_codes(cudaStream_t stream, const Codes& f) {
  return on_stream{stream}.elements(f.out.count(), f, "gather of codes");
}

}  // namespace graft::cuda
