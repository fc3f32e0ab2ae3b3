// SPDX-License-Identifier: Apache-2.0
// Instantiations of the attention kernels as pointers, for every supported head size. A program compiles them once.
#pragma once
#include <graft/backend/gpu/kernels/attention/backward_dkv.cuh>
#include <graft/backend/gpu/kernels/attention/backward_dq.cuh>
#include <graft/backend/gpu/kernels/attention/backward_mma.cuh>
#include <graft/backend/gpu/kernels/attention/decode.cuh>
#include <graft/backend/gpu/kernels/attention/decode_mma.cuh>
#include <graft/backend/gpu/kernels/attention/decode_split_kv.cuh>
#include <graft/backend/gpu/kernels/attention/kernel_table.h>
#include <graft/backend/gpu/kernels/attention/prefill.cuh>
#include <graft/backend/gpu/kernels/attention/prefill_mma.cuh>
#include <graft/backend/gpu/kernels/gemm/instances.cuh>

namespace graft::gpu {

// Appends the call's keys and values to the KV cache, one 16-byte vector per thread.
template <class Vector> struct append_args {
  attention_ranges ranges;
  const Vector* from;
  Vector* cache;
  int row_vectors, first, vectors;  // vectors per qkv row; before its keys; of keys and values together
};
template <class Vector> __global__ void append_kernel(append_args<Vector> g) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  const auto row = static_cast<int>(i / g.vectors), vec = static_cast<int>(i % g.vectors);
  if (row >= g.ranges.rows) return;
  const int to = g.ranges.own(row);
  if (to >= 0)
    g.cache[static_cast<long long>(to) * g.vectors + vec] =
        g.from[static_cast<long long>(row) * g.row_vectors + g.first + vec];
}

namespace detail {
template <class T, int Head, bool Capped> void add_scores(attention_kernels& k) {
  constexpr int i = head_index(Head);
  k.prefill[Capped][i][0] = {address_of(&prefill_kernel<T, Head, 1, Capped>), 384, prefill_shape<Head>::bytes};
  if constexpr (Head % 128 == 0)
    k.prefill[Capped][i][1] = {address_of(&prefill_kernel<T, Head, 2, Capped>), 384, prefill_shape<Head>::bytes};
  using small_decode = decode_shape<Head>;
  kernel_entry(&decode)[4] = k.decode[Capped][i];
  decode[0] = {address_of(&decode_kernel<T, Head, 8, Capped>), small_decode::threads, small_decode::bytes};
  decode[1] = {address_of(&decode_kernel<T, Head, 8, Capped>), small_decode::threads, small_decode::long_bytes};
  if constexpr (Head <= 128) {
    k.key_grad[Capped][i] = {address_of(&dkv_kernel<T, Head, Capped>), 384, dkv_shape<Head>::bytes};
    decode[2] = {address_of(&decode_kernel<T, Head, 4, Capped>), decode_shape<Head, 4>::threads,
                 decode_shape<Head, 4>::bytes};
    decode[3] = {address_of(&split_kv_kernel<T, Head, Capped>), split_kv_shape<Head>::threads,
                 split_kv_shape<Head>::bytes};
  }
}
template <class T, int Head> void add_attention(attention_kernels& k) {
  constexpr int i = head_index(Head);
  add_scores<T, Head, false>(k), add_scores<T, Head, true>(k);
  if constexpr (Head <= 128) {
    k.row_statistics_entry[i] = {address_of(&row_statistics_kernel<T, Head>), row_statistics_threads, 0};
    k.query_grad[i] = {address_of(&dq_kernel<T, Head>), 384, dq_shape<Head>::bytes};
  }
}
template <class T, int Head, bool Capped> void add_scores(mma_attention_kernels& k) {
  using shape = mma_attention_shape<Head>;
  constexpr int i = head_index(Head);
  k.prefill[Capped][i] = {address_of(&mma_prefill_kernel<T, Head, Capped>), shape::threads, shape::prefill_bytes};
  k.decode[Capped][i] = {address_of(&mma_decode_kernel<T, Head, Capped>), mma_decode_shape<Head>::threads,
                         mma_decode_shape<Head>::bytes};
  k.query_grad[Capped][i] = {address_of(&mma_query_grad_kernel<T, Head, Capped>), shape::threads, shape::grad_bytes};
  k.key_grad[Capped][i] = {address_of(&mma_key_grad_kernel<T, Head, Capped>), shape::threads, shape::grad_bytes};
}
template <class T, int Head> void add_attention(mma_attention_kernels& k) {
  add_scores<T, Head, false>(k), add_scores<T, Head, true>(k);
}
}  // namespace detail

template <class T> mma_attention_kernels all_mma_attention_kernels() {
  mma_attention_kernels k;
  detail::add_attention<T, 64>(k), detail::add_attention<T, 80>(k), detail::add_attention<T, 96>(k);
  detail::add_attention<T, 128>(k), detail::add_attention<T, 256>(k);
  k.decode_sum = {detail::address_of(&mma_decode_sum_kernel<T>), 128, 0};
  return k;
}
template <class T> attention_kernels all_attention_kernels() {
  attention_kernels k;
  detail::add_attention<T, 64>(k), detail::add_attention<T, 80>(k), detail::add_attention<T, 96>(k);
  detail::add_attention<T, 128>(k), detail::add_attention<T, 256>(k);
  k.append = {detail::address_of(&append_kernel<uint4>), 256, 0};
  return k;
}

}  // namespace graft::gpu
