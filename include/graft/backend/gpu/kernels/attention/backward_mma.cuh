// SPDX-License-Identifier: Apache-2.0
// Attention backward by mma.sync, sm_80 and later, every supported head size, in two launches.
//
//   P = exp(Q Kᵀ / √d - lse)   dP = dO Vᵀ   dS = P ⊙ (dP - D)   dQ = dS K / √d   dK = dSᵀ Q / √d   dV = Pᵀ dO
//   Q, dO, O [rows, heads, d], K, V [rows, kv_heads, d]; D = delta = <dO, O> per row and head
//
//   With a soft cap (Capped) dS is multiplied by its slope (softmax_rows.cuh). Sinks are in lse.
//
// First kernel   grid (blocks of 64 rows, heads): dQ of 64 rows of one head, over its key blocks. It also stores the
//                row statistics (row_statistics.cuh) for the second kernel.
// Second kernel  grid (blocks of 64 keys, KV heads, 2): dK (z = 0) or dV (z = 1) of 64 keys, over the rows of all heads
//                that share them. Both recompute P, because dK and dV together exceed the registers.
// Reduction      Sums are added in the order of rows and keys, without atomics: the same call gives the same bits.
#pragma once
#include <graft/backend/gpu/kernels/attention/mma_tiles.cuh>
#include <graft/backend/gpu/kernels/attention/row_statistics.cuh>

namespace graft::gpu {

template <class T> struct mma_grad_args {
  attention_ranges ranges;
  head_rows<T> q, k, v, d_out, out;
  int heads, group;
  float scale;
  const float* lse;  // [heads][rows], from forward
  row_statistics statistics;
  T *dq, *dk, *dv;
  long long pitch;  // elements between rows of the gradients
  score_cap cap;
  attention_sinks sinks;
  void* d_sinks;  // gradient of the sinks, with their pitch
};

template <class T, int Head, bool Capped = false>
__global__ void __launch_bounds__(128) mma_query_grad_kernel(const __grid_constant__ mma_grad_args<T> g) {
#if __CUDA_ARCH__ >= 800
  using shape = mma_attention_shape<Head>;
  constexpr int keys = shape::keys;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t q = ptx::shared_address(raw), d_out = q + shape::tile, k = d_out + shape::tile,
                      v = k + shape::step;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int at = static_cast<int>(gridDim.x - 1 - blockIdx.x), row0 = at * shape::rows,
            head = static_cast<int>(blockIdx.y), shared_head = head / g.group, own = warp * 16 + lane / 4;
  copy_rows<T, Head, shape::rows>(q, g.q, head, row0);
  copy_rows<T, Head, shape::rows>(d_out, g.d_out, head, row0);
  ptx::commit_copies();
  const row_ranges attended(g.ranges, row0);
  if (head == 0 && warp == 0) store_ranges(g.ranges, g.statistics, at, lane);
  thread_rows mine;
  mine.load(g.ranges, row0 + own);
  float shift[2], mean[2] = {0, 0};  // -lse log2(e), and delta
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row0 + own + 8 * h;
    shift[h] = -INFINITY;
    if (r < g.ranges.rows) {
      shift[h] = -log2_e * g.lse[static_cast<long long>(head) * g.ranges.rows + r];
      const T *const up = g.d_out.template head<Head>(head) + r * g.d_out.pitch, *const o =
                                                                                     g.out.template head<Head>(head) +
                                                                                     r * g.out.pitch;
#pragma unroll 4
      for (int i = lane % 4 * 2; i < Head; i += 8)
        mean[h] += to_float(up[i]) * to_float(o[i]) + to_float(up[i + 1]) * to_float(o[i + 1]);
    }
    mean[h] += __shfl_xor_sync(~0U, mean[h], 1), mean[h] += __shfl_xor_sync(~0U, mean[h], 2);
    float* const note =
        g.statistics.numbers + (static_cast<long long>(head) * gridDim.x + at) * 2 * shape::rows + own + 8 * h;
    if (lane % 4 == 0) {
      note[0] = -shift[h], note[shape::rows] = mean[h];
      if (g.sinks.p != nullptr && r < g.ranges.rows)
        store_sink_grad<T>(g.sinks, g.d_sinks, r, head, -shift[h], mean[h]);
    }
  }
  const float c = score_unit<Capped>(g.scale, g.cap) * log2_e;
  float s[keys / 2], dp[keys / 2], dq[Head / 2] = {};
  std::uint32_t ds[keys / 16][4];
#pragma unroll 1
  for (int block = attended.template from<keys>(0); block != INT_MAX; block = attended.template from<keys>(block + 1)) {
    copy_rows<T, Head, keys>(k, g.k, shared_head, block * keys);
    copy_rows<T, Head, keys>(v, g.v, shared_head, block * keys);
    ptx::commit_copies();
    wait_for_copies();
    multiply_nt<T, Head, keys>(s, q + warp * 16 * shape::pitch, k);
    multiply_nt<T, Head, keys>(dp, d_out + warp * 16 * shape::pitch, v);
    if constexpr (Capped) {
      cap_scores(s, g.cap);
#pragma unroll
      for (int e = 0; e < keys / 2; ++e) dp[e] = (dp[e] - mean[e / 2 % 2]) * fmaf(-s[e], s[e], 1);
    }
    if (!attended.template whole<keys>(block)) mine.mask(s, block * keys + lane % 4 * 2);
#pragma unroll
    for (int e = 0; e < keys / 2; ++e) {
      const int h = e / 2 % 2;
      s[e] = exp2_approx(fmaf(s[e], c, shift[h])) * (Capped ? dp[e] : dp[e] - mean[h]);
    }
    pack_rows<T>(ds, s);
    multiply_trans_b<T, Head>(dq, ds, k);
    __syncthreads();  // all warps have read K and V
  }
  write_rows<T, Head>(g.dq + static_cast<long long>(head) * Head, g.pitch, row0 + warp * 16, g.ranges.rows, dq, g.scale,
                      g.scale);
#endif
}

// blockIdx.z: 0 for dK, 1 for dV. Keys are the rows of the products Sᵀ and dPᵀ, query rows their columns.
template <class T, int Head, bool Capped = false>
__global__ void __launch_bounds__(128) mma_key_grad_kernel(const __grid_constant__ mma_grad_args<T> g) {
#if __CUDA_ARCH__ >= 800
  using shape = mma_attention_shape<Head>;
  constexpr int keys = shape::rows, rows = shape::keys, parts = 64 / rows;  // row statistics come in blocks of 64
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t k = ptx::shared_address(raw), v = k + shape::tile, q = v + shape::tile, d_out = q + shape::step;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int key0 = static_cast<int>(blockIdx.x) * keys, shared_head = static_cast<int>(blockIdx.y),
            blocks = static_cast<int>(gridDim.x), new_key = key0 + warp * 16 + lane / 4;
  const bool of_values = blockIdx.z == 1;
  copy_rows<T, Head, keys>(k, g.k, shared_head, key0);
  if (!of_values) copy_rows<T, Head, keys>(v, g.v, shared_head, key0);
  ptx::commit_copies();
  const float c = score_unit<Capped>(g.scale, g.cap) * log2_e;
  float s[rows / 2], dp[rows / 2], sum[Head / 2] = {};
  std::uint32_t p[rows / 16][4];
#pragma unroll 1
  for (int head = shared_head * g.group; head < (shared_head + 1) * g.group; ++head)
#pragma unroll 1
    for (int b = 0; b < blocks; b += 32) {
      const int4 key_bounds = b + lane < blocks ? g.statistics.key_bounds[b + lane] : make_int4(INT_MAX, 0, INT_MAX, 0);
      unsigned wanted = __ballot_sync(~0U, key_bounds.x < key0 + keys && key_bounds.y > key0);
      const unsigned whole = __ballot_sync(~0U, key_bounds.z <= key0 && key_bounds.w >= key0 + keys);
#pragma unroll 1
      for (int part = 0; wanted != 0; part = (part + 1) % parts, wanted &= part == 0 ? wanted - 1 : wanted) {
        const int bit = __ffs(static_cast<int>(wanted)) - 1, block = b + bit, row0 = block * 64 + part * rows;
        copy_rows<T, Head, rows>(q, g.q, head, row0);
        copy_rows<T, Head, rows>(d_out, g.d_out, head, row0);
        ptx::commit_copies();
        wait_for_copies();
        const float* const statistics =
            g.statistics.numbers + (static_cast<long long>(head) * blocks + block) * 128 + part * rows + lane % 4 * 2;
        multiply_nt<T, Head, rows>(s, k + warp * 16 * shape::pitch, q);
        if constexpr (Capped) cap_scores(s, g.cap);
#pragma unroll
        for (int j = 0; j < rows / 8; ++j) {
          const float2 lse = *reinterpret_cast<const float2*>(statistics + 8 * j);
          int4 look = make_int4(0, INT_MAX, 0, INT_MAX);  // ranges of two rows
          if ((whole >> bit & 1) == 0)
            look = *reinterpret_cast<const int4*>(g.statistics.ranges + row0 + 8 * j + lane % 4 * 2);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = new_key + e / 2 * 8;
            const bool sees = e % 2 == 0 ? key >= look.x && key < look.y : key >= look.z && key < look.w;
            const float x = exp2_approx(fmaf(s[4 * j + e], c, e % 2 == 0 ? -lse.x : -lse.y));
            s[4 * j + e] = sees ? x : 0;
          }
        }
        if (!of_values) {
          multiply_nt<T, Head, rows>(dp, v + warp * 16 * shape::pitch, d_out);
#pragma unroll
          for (int j = 0; j < rows / 8; ++j) {
            const float2 mean = *reinterpret_cast<const float2*>(statistics + 64 + 8 * j);
            const float2 lse = Capped ? *reinterpret_cast<const float2*>(statistics + 8 * j) : make_float2(0, 0);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const float probability = s[4 * j + e];
              s[4 * j + e] *= dp[4 * j + e] - (e % 2 == 0 ? mean.x : mean.y);
              if constexpr (Capped) s[4 * j + e] *= cap_slope(probability, e % 2 == 0 ? lse.x : lse.y, g.cap);
            }
          }
        }
        pack_rows<T>(p, s);
        multiply_trans_b<T, Head>(sum, p, of_values ? d_out : q);
        __syncthreads();  // all warps have read Q and dO
      }
    }
  const float factor = of_values ? 1 : g.scale;
  write_rows<T, Head>((of_values ? g.dv : g.dk) + static_cast<long long>(shared_head) * Head, g.pitch, key0 + warp * 16,
                      g.ranges.rows, sum, factor, factor);
#endif
}

}  // namespace graft::gpu
