// SPDX-License-Identifier: Apache-2.0
// Prefill attention, forward, by mma.sync, sm_80 and later, with or without a KV cache (FlashAttention-2-style).
//
//   O = softmax(Q Kᵀ / √d) V   Q, O [rows, heads, d]   K, V [rows or slots, kv_heads, d]   lse [heads, rows]
//   Scores may have a soft cap (Capped); a sink joins the sum of its row after the last key (softmax_rows.cuh).
//
// Tile         64 query rows of one head x 64 keys (32 for d > 128); grid (row tiles, heads), four warps of 16 rows.
// Pipeline     cp.async: V loads while scores are computed, the next K while P V is accumulated.
// Softmax      Online with a running maximum (Milakov and Gimelshein 2018; Dao 2023). Rows without keys give zeros.
//              Masked keys are multiplied by 0, so every slot of a cache must hold finite numbers.
#pragma once
#include <graft/backend/gpu/kernels/attention/mma_tiles.cuh>

namespace graft::gpu {

template <class T> struct mma_prefill_args {
  attention_ranges ranges;
  head_rows<T> q, k, v;
  int heads, group;  // query heads, and query heads per KV head
  float scale;
  T* out;
  float* lse;  // see prefill_args
  score_cap cap;
  attention_sinks sinks;
};

template <class T, int Head, bool Capped = false>
__global__ void __launch_bounds__(128) mma_prefill_kernel(const __grid_constant__ mma_prefill_args<T> g) {
#if __CUDA_ARCH__ >= 800
  using shape = mma_attention_shape<Head>;
  constexpr int keys = shape::keys;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t q = ptx::shared_address(raw), k = q + shape::tile, v = k + shape::step;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  // With causal ranges the last rows attend to most keys, so their tiles start first.
  const int row0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * shape::rows, head = static_cast<int>(blockIdx.y),
            shared_head = head / g.group;
  const row_ranges attended(g.ranges, row0);
  thread_rows mine;
  mine.load(g.ranges, row0 + warp * 16 + lane / 4);
  const float unit = score_unit<Capped>(g.scale, g.cap), c = unit * log2_e;
  float s[keys / 2], o[Head / 2] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  std::uint32_t p[keys / 16][4];
  int block = attended.template from<keys>(0);
  copy_rows<T, Head, shape::rows>(q, g.q, head, row0);
  if (block != INT_MAX) copy_rows<T, Head, keys>(k, g.k, shared_head, block * keys);
  ptx::commit_copies();
#pragma unroll 1
  while (block != INT_MAX) {
    wait_for_copies();  // K has arrived, and all warps have read the previous V
    copy_rows<T, Head, keys>(v, g.v, shared_head, block * keys);
    ptx::commit_copies();
    multiply_nt<T, Head, keys>(s, q + warp * 16 * shape::pitch, k);
    if constexpr (Capped) cap_scores(s, g.cap);
    if (!attended.template whole<keys>(block)) mine.mask(s, block * keys + lane % 4 * 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(largest[h], row_max(s, h)), shift = most == -INFINITY ? 0 : most;
      const float factor = exp2_approx((largest[h] - shift) * c);
      sum[h] = sum[h] * factor + exponentials(s, h, c, shift);
      largest[h] = most;
#pragma unroll
      for (int n = 0; n < Head / 8; ++n) o[4 * n + 2 * h] *= factor, o[4 * n + 2 * h + 1] *= factor;
    }
    pack_rows<T>(p, s);
    block = attended.template from<keys>(block + 1);
    wait_for_copies();  // V has arrived, and all warps have read K
    if (block != INT_MAX) copy_rows<T, Head, keys>(k, g.k, shared_head, block * keys);
    ptx::commit_copies();
    multiply_trans_b<T, Head>(o, p, v);
  }
  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(~0U, sum[h], 1), sum[h] += __shfl_xor_sync(~0U, sum[h], 2);
    const int r = row0 + warp * 16 + lane / 4 + 8 * h;
    float factor = 1;
    if (g.sinks.p != nullptr && sum[h] > 0) {
      float most = largest[h] * c;
      factor = add_sink(most, sum[h], load_sink<T>(g.sinks, r, head)), largest[h] = most / c;
    }
    inverse[h] = sum[h] > 0 ? factor / sum[h] : 0;
    if (g.lse != nullptr && lane % 4 == 0 && r < g.ranges.rows)
      g.lse[static_cast<long long>(head) * g.ranges.rows + r] =
          sum[h] > 0 ? largest[h] * unit + __logf(sum[h]) : INFINITY;
  }
  write_rows<T, Head>(g.out + static_cast<long long>(head) * Head, static_cast<long long>(g.heads) * Head,
                      row0 + warp * 16, g.ranges.rows, o, inverse[0], inverse[1]);
#endif
}

}  // namespace graft::gpu
