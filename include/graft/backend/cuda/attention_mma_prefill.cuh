// SPDX-License-Identifier: Apache-2.0
// Attention of many rows by mma.sync, sm_80 and later, with or without a cache: softmax(Q Kᵀ / √head) V, block by block
// of keys with a running maximum (Milakov, Gimelshein 2018; Dao 2023). A thread block has 64 rows of one head. Values
// arrive while scores are computed, the next keys while values are added. Rows that look at nothing are zeros. What
// else lies in a cache must be numbers.
#pragma once
#include <graft/backend/cuda/attention_mma_tiles.cuh>

namespace graft::cuda {

template <class T> struct mma_prefill_args {
  row_spans spans;
  head_rows<T> q, k, v;
  int heads, group;  // of queries, and how many of them share keys
  float scale;
  T* out;
  float* sums;  // as in attention_prefill.cuh
};

template <class T, int Head>
__global__ void __launch_bounds__(128) mma_prefill_kernel(const __grid_constant__ mma_prefill_args<T> g) {
#if __CUDA_ARCH__ >= 800
  using shape = mma_attention_shape<Head>;
  constexpr int keys = shape::keys;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t q = ptx::shared_address(raw), k = q + shape::tile, v = k + shape::step;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  // The last rows have most to do.
  const int row0 = static_cast<int>(gridDim.x - 1 - blockIdx.x) * shape::rows, head = static_cast<int>(blockIdx.y),
            shared_head = head / g.group;
  const rows_that_look looks(g.spans, row0);
  thread_rows mine;
  mine.load(g.spans, row0 + warp * 16 + lane / 4);
  const float c = g.scale * log2_e;
  float s[keys / 2], o[Head / 2] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  std::uint32_t p[keys / 16][4];
  int block = looks.template from<keys>(0);
  copy_rows<T, Head, shape::rows>(q, g.q, head, row0);
  if (block != INT_MAX) copy_rows<T, Head, keys>(k, g.k, shared_head, block * keys);
  commit_copies();
#pragma unroll 1
  while (block != INT_MAX) {
    wait_for_copies();  // these keys; and all have added the values before
    copy_rows<T, Head, keys>(v, g.v, shared_head, block * keys);
    commit_copies();
    multiply_along<T, Head, keys>(s, q + warp * 16 * shape::pitch, k);
    if (!looks.template whole<keys>(block)) mine.mask(s, block * keys + lane % 4 * 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(largest[h], row_max(s, h)), shift = most == -INFINITY ? 0 : most;
      const float factor = exp2_fast((largest[h] - shift) * c);
      sum[h] = sum[h] * factor + exponentials(s, h, c, shift);
      largest[h] = most;
#pragma unroll
      for (int n = 0; n < Head / 8; ++n) o[4 * n + 2 * h] *= factor, o[4 * n + 2 * h + 1] *= factor;
    }
    pack_rows<T>(p, s);
    block = looks.template from<keys>(block + 1);
    wait_for_copies();  // the values; and all have read the keys
    if (block != INT_MAX) copy_rows<T, Head, keys>(k, g.k, shared_head, block * keys);
    commit_copies();
    multiply_across<T, Head>(o, p, v);
  }
  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(~0U, sum[h], 1), sum[h] += __shfl_xor_sync(~0U, sum[h], 2);
    inverse[h] = sum[h] > 0 ? 1 / sum[h] : 0;
    const int r = row0 + warp * 16 + lane / 4 + 8 * h;
    if (g.sums != nullptr && lane % 4 == 0 && r < g.spans.rows)
      g.sums[static_cast<long long>(head) * g.spans.rows + r] =
          sum[h] > 0 ? largest[h] * g.scale + __logf(sum[h]) : INFINITY;
  }
  write_rows<T, Head>(g.out + static_cast<long long>(head) * Head, static_cast<long long>(g.heads) * Head,
                      row0 + warp * 16, g.spans.rows, o, inverse[0], inverse[1]);
#endif
}

}  // namespace graft::cuda
