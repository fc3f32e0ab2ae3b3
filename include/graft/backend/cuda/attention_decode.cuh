// SPDX-License-Identifier: Apache-2.0
// Attention of few rows over a cache, sm_90: a token step. Each row has its own place and length in the cache, read from
// device memory. The cache is contiguous: a sequence's keys and values lie side by side, [places, 2 kv], so that a tile
// of them is one tensor copy and a row's span two numbers; pages would need a table in front of every copy.
//
// A thread block has one row, one head of keys and values with all heads of queries that share it, and a part of the
// row's keys. One warp requests tiles of 64 keys and values, the others read them (attention_decode_row.cuh). The warps'
// sums meet in shared memory; those of the parts, which are a cluster, are written to the block that finishes their
// columns, and added there always in the same order.
#pragma once
#include <graft/backend/cuda/attention_decode_row.cuh>

namespace graft::cuda {

template <class T, int Head, int Warps> struct decode_block : decode_row<T, decode_shape<Head, Warps>> {
  using in_row = decode_row<T, decode_shape<Head, Warps>>;
  using shape = typename in_row::shape;
  using in_row::g, in_row::row, in_row::share;

  int part, parts;

  __device__ decode_span own_span() const {
    const int first = g.spans.first(row), end = ::max(first, g.spans.end(row)), tiles = (end - first + 63) / 64;
    const auto before = [&](int p) {
      return static_cast<int>(static_cast<unsigned>(tiles * p) / static_cast<unsigned>(parts));
    };
    return {first, end, before(part), before(part + 1)};
  }

  // Columns of the heads that a part finishes, and where they begin.
  __device__ int first_column(int p) const { return ::min(p * g.finished * 4, share() * Head); }
  __device__ int finishing_part(int column) const {
    return static_cast<int>(static_cast<unsigned>(column / 4) * g.one_of_finished >> 20);
  }
  __device__ std::uint32_t received() const { return this->behind_ring(); }
  __device__ std::uint32_t turns_here() const { return received() + 8; }
  __device__ std::uint32_t turns() const { return this->own_row(false) + shape::own; }
  // From each part a largest score and a sum for each head, and behind them its values.
  __device__ std::uint32_t numbers_from(int p) const { return received() + 16 + p * most_decode_group * 16; }
  __device__ std::uint32_t values_from(int p) const { return numbers_from(parts) + p * g.finished * 16; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      this->make_ring();
      ptx::barrier_init(received(), 1), ptx::barrier_init(turns_here(), 1);
      ptx::barrier_init_fence();
      const int from = first_column(part), to = first_column(part + 1),
                heads = to > from ? (to - 1) / Head - from / Head + 1 : 0;
      if (parts > 1) ptx::barrier_expect(received(), parts * ((to - from) * 4 + heads * 16));
    }
    if (parts > 1)
      ptx::cluster_meet();
    else
      __syncthreads();
  }
  __device__ void load_queries(typename in_row::query_columns& q, int lane) const {
    const int query = lane / 4;
    const auto* const from = reinterpret_cast<const std::uint32_t*>(this->queries() + query * Head) + lane % 4;
#pragma unroll
    for (int k = 0; k < shape::steps; ++k)
#pragma unroll
      for (int h = 0; h < 2; ++h) q[k][h] = query < share() ? __ldcg(from + k * 8 + h * 4) : 0;
  }
  // `angles`: as far as they are known before the wait.
  __device__ void read(const decode_span& s, const typename in_row::places& known, const float* angles) const {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const auto own = this->find_own(s, known, part == 0);
    if (!g.settled) ptx::wait_for_previous_kernel(), angles = this->angles_of(row);
    if (angles != nullptr && threadIdx.x == 0) {
      ptx::barrier_expect(turns_here(), 4 * Head);
      ptx::load_bytes(turns(), angles, 4 * Head, turns_here());
    }
    ptx::wait_for_previous_kernel();
    typename in_row::query_columns q;
    load_queries(q, lane);
    if (warp == own.warp && lane < in_row::pieces)
      this->append(own.place, this->own_piece(row, false, lane, angles), this->own_piece(row, true, lane, angles),
                   lane);
    __syncwarp();
    if (!g.settled && warp == ::max(0, own.warp)) {  // kernels that begin from now on find the cache written
      __threadfence();
      ptx::fence_async();
      __syncwarp();
      ptx::let_next_kernel_start();
    }
    if (angles != nullptr) ptx::barrier_wait(turns_here(), 0), this->turn_queries(q, turns(), lane);
    // Once the queries are there, which the vote waits for, little is asked for from memory: what the next kernel asks for
    // delays nobody.
    if (g.settled && warp == 0 && __any_sync(~0U, q[0][0] != 0x7fc17fc1U)) ptx::let_next_kernel_start();
    typename in_row::warp_sums sums;
    ring_place now{0};
    this->consume(q, s, known, true, now, sums);
    this->add_warps(sums, [&](int e, const float4& v, float most, float sum) {
      if (parts == 1) return this->write(e, v, sum);
      const int to = finishing_part(e), first = first_column(to);
      ptx::store_at(values_from(part) + (e - first) * 4, received(), to, v);
      if (e == first || e % Head == 0)
        ptx::store_at(numbers_from(part) + e / Head * 16, received(), to, make_float4(most, sum, 0, 0));
    });
    if (parts > 1) add_parts();
  }
  // This block's share of the columns, over all parts.
  __device__ void add_parts() const {
    const int from = first_column(part), to = first_column(part + 1);
    for (int e = from + static_cast<int>(threadIdx.x) * 4; e < to; e += 32 * shape::warps * 4) {
      ptx::barrier_wait(received(), 0);
      const auto numbers = [&](int p) { return ptx::load_shared_float4(numbers_from(p) + e / Head * 16); };
      float most = -1e30F, sum = 0;
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int p = 0; p < parts; ++p) most = fmaxf(most, numbers(p).x);
#pragma unroll 4
      for (int p = 0; p < parts; ++p) {
        const float4 n = numbers(p), x = ptx::load_shared_float4(values_from(p) + (e - from) * 4);
        const float factor = exp2_fast(n.x - most);
        v.x += factor * x.x, v.y += factor * x.y, v.z += factor * x.z, v.w += factor * x.w;
        sum += factor * n.y;
      }
      this->write(e, v, sum);
    }
  }
};

template <class T, int Head, int Warps = 8>
__global__ void __launch_bounds__(decode_shape<Head, Warps>::threads, (decode_shape<Head, Warps>::resident))
    decode_kernel(const __grid_constant__ decode_maps maps, const __grid_constant__ decode_args<T> g) {
#if __CUDA_ARCH__ >= 900
  using shape = decode_shape<Head, Warps>;
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const decode_block<T, Head, Warps> block{{maps, g, base, reinterpret_cast<float*>(raw + (base - at)),
                                            static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)},
                                           static_cast<int>(blockIdx.x),
                                           static_cast<int>(gridDim.x)};
  const decode_span span = block.own_span();  // asked for before the blocks of a cluster have found each other
  const auto known = block.look_up();
  const float* const angles = g.settled ? block.angles_of(block.row) : nullptr;
  if (threadIdx.x == 32 * shape::warps) ptx::bring(&maps.tile), ptx::bring(&maps.piece);
  block.start();
  if (threadIdx.x < 32 * shape::warps) return block.read(span, known, angles);
  ring_place at_stage[2] = {{1}, {1}};
  if (threadIdx.x == 32 * shape::warps) block.produce(span, at_stage);
#endif
}

}  // namespace graft::cuda
