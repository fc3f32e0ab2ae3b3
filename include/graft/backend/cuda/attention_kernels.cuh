// SPDX-License-Identifier: Apache-2.0
// The attention kernels as pointers, for every size of a head. A program compiles them in one file.
#pragma once
#include <graft/backend/cuda/attention_decode.cuh>
#include <graft/backend/cuda/attention_dkv.cuh>
#include <graft/backend/cuda/attention_dq.cuh>
#include <graft/backend/cuda/attention_mma_decode.cuh>
#include <graft/backend/cuda/attention_mma_grad.cuh>
#include <graft/backend/cuda/attention_mma_prefill.cuh>
#include <graft/backend/cuda/attention_prefill.cuh>
#include <graft/backend/cuda/attention_spread.cuh>
#include <graft/backend/cuda/attention_table.h>
#include <graft/backend/cuda/linear_kernels.cuh>

namespace graft::cuda {

// The call's keys and values to their places in the cache, 16 bytes a thread.
template <class Piece> struct append_args {
  row_spans spans;
  const Piece* from;
  Piece* cache;
  int row_pieces, first, pieces;  // of a row of the call, before its keys, and of keys and values
};
template <class Piece> __global__ void append_kernel(append_args<Piece> g) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  const auto row = static_cast<int>(i / g.pieces), piece = static_cast<int>(i % g.pieces);
  if (row >= g.spans.rows) return;
  const int to = g.spans.own(row);
  if (to >= 0)
    g.cache[static_cast<long long>(to) * g.pieces + piece] =
        g.from[static_cast<long long>(row) * g.row_pieces + g.first + piece];
}

namespace detail {
template <class T, int Head> void add_attention(attention_kernels& k) {
  constexpr int i = head_index(Head);
  k.prefill[i][0] = {address_of(&prefill_kernel<T, Head, 1>), 384, prefill_shape<Head>::bytes};
  if constexpr (Head % 128 == 0)
    k.prefill[i][1] = {address_of(&prefill_kernel<T, Head, 2>), 384, prefill_shape<Head>::bytes};
  if constexpr (Head <= 128) {
    k.grad_notes[i] = {address_of(&grad_notes_kernel<T, Head>), grad_notes_threads, 0};
    k.key_grad[i] = {address_of(&key_grad_kernel<T, Head>), 384, key_grad_shape<Head>::bytes};
    k.query_grad[i] = {address_of(&query_grad_kernel<T, Head>), 384, query_grad_shape<Head>::bytes};
  }
  using few = decode_shape<Head>;
  k.decode[i][0] = {address_of(&decode_kernel<T, Head>), few::threads, few::bytes};
  k.decode[i][1] = {address_of(&decode_kernel<T, Head>), few::threads, few::long_bytes};
  if constexpr (Head <= 128)
    k.decode[i][2] = {address_of(&decode_kernel<T, Head, 4>), decode_shape<Head, 4>::threads,
                      decode_shape<Head, 4>::bytes};
  if constexpr (Head <= 128)
    k.decode[i][3] = {address_of(&spread_kernel<T, Head>), spread_shape<Head>::threads, spread_shape<Head>::bytes};
}
template <class T, int Head> void add_attention(mma_attention_kernels& k) {
  using shape = mma_attention_shape<Head>;
  constexpr int i = head_index(Head);
  k.prefill[i] = {address_of(&mma_prefill_kernel<T, Head>), shape::threads, shape::prefill_bytes};
  k.decode[i] = {address_of(&mma_decode_kernel<T, Head>), mma_decode_shape<Head>::threads,
                 mma_decode_shape<Head>::bytes};
  k.query_grad[i] = {address_of(&mma_query_grad_kernel<T, Head>), shape::threads, shape::grad_bytes};
  k.key_grad[i] = {address_of(&mma_key_grad_kernel<T, Head>), shape::threads, shape::grad_bytes};
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

}  // namespace graft::cuda
