// SPDX-License-Identifier: Apache-2.0
// wgrad, sm_90a: D = factor · Zᵀ Q over all tokens, the gradient of A or B of a low-rank branch, or both in one launch.
// Split-K over the tokens.
//
//   Z [tokens, columns], wide: streamed once per Rank columns of Q    Q [tokens, rank], narrow
//   D [columns, rank] or [rank, columns]
//
// Tiles        A block computes 128 columns of Z by Rank of Q, 64 tokens per stage. The blocks of a cluster (up to 8)
//              have the same tile and divide the tokens.
// Warp roles   Warpgroups 0 and 1: consumers of 64 columns of Z each, wgmma m64nRank, both operands MN-major as they
//              are stored. Thread 256: producer.
// Pipeline     As many stages as let two blocks share an SM, or as the launch asks for.
// Phases       griddepcontrol.wait of the producer; mainloop; the partial sums overwrite the stages in shared memory; cluster barrier; each block reduces a
//              share of the sums through distributed shared memory and writes it.
// Forms        columns: as above. diagonal: Q is as wide as Z, and only the square blocks on the diagonal of Zᵀ Q are
//              stored: the gradient of a rotation. rows: D = Z Qᵀ with 128 rows of Z and Rank rows of Q, a split-K
//              GEMM: the shrink U of a large rank, for which whole tiles would leave half of the SMs idle.
// Occupancy    Two blocks share an SM, so that one loads while the other waits. With Rank = 128 Z is
//              streamed half as often as with 64; where there are no more blocks than SMs each block has
//              one to itself and a deeper pipeline.
// Reduction    Splits are added in their order, without atomics: results are bitwise deterministic.
// Measured     4096 x 4096 and rank 256: 19.5 µs with one block per SM, 23 µs with two. (Tiles of 128 x 256
//              need 4 splits to fill the device, and an H200 holds only 30 such clusters at once: two waves, 34 µs.)
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/arch/wgmma.cuh>
#include <graft/backend/gpu/tile/elements.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>
#include <graft/backend/gpu/tile/tile_order.h>

namespace graft::gpu {

inline constexpr int wgrad_tile_columns = 128, wgrad_step = 64;

// The diagonal and rows forms are described in the head comment.
enum class wgrad_form : unsigned char { columns, diagonal, rows };

template <int Rank, wgrad_form What = wgrad_form::columns> struct wgrad_shape {
  static constexpr int threads = 288, blocks = 2, splits = 8;  // blocks per SM; largest cluster
  static constexpr std::uint32_t box = wgrad_step * 128, q = wgrad_step * Rank * (What == wgrad_form::diagonal ? 4 : 2),
                                 stage = 2 * box + q;
  static constexpr int stages = (shared_memory_limit / blocks - 1024 - 256) / stage,
                       // Stages if one block runs per SM.
      stages_one_block = (shared_memory_limit - 1024 - 256) / stage;
  static constexpr std::uint32_t bytes = stages * stage + 256 + 1024,
                                 bytes_one_block = stages_one_block * stage + 256 + 1024;
  // Pitches of the partial sums in shared memory, which have the order of the result: rows of Rank or of 128 floats.
  // The padding avoids bank conflicts between neighboring rows.
  static constexpr int column_major_pitch = Rank + 8, rank_major_pitch = wgrad_tile_columns + 4;
  static_assert(stages >= 2 && wgrad_tile_columns * column_major_pitch * 4 <= stages * stage &&
                Rank * rank_major_pitch * 4 <= stages * stage);
  static_assert(16 * stages_one_block <= 256);
};

inline constexpr int max_wgrads_of_launch = 2;

struct wgrad_maps {
  CUtensorMap z[max_wgrads_of_launch], q[max_wgrads_of_launch];
};
// One wgrad of a launch.
struct wgrad_job {
  int columns, rank;  // columns of Z and Q without padding; rows form: their rows; diagonal form: rank = block size
  bool by_column;     // D is [columns, rank], else [rank, columns]
  bool adds;          // add to `to` instead of overwriting it
  element_ptr<float> factor;  // one number; null: 1
  element_ptr<float> to;
};
struct wgrad_args {
  int steps;        // steps of 64 tokens (rows form: 64 of K)
  int first_tiles;  // tiles of job 0 along the columns; the tiles of job 1 follow them
  int stages = 0;   // pipeline stages; 0: as many as let two blocks share an SM
  wgrad_job job[max_wgrads_of_launch];
};
constexpr int wgrad_tiles(int columns) { return (columns + wgrad_tile_columns - 1) / wgrad_tile_columns; }

template <class T, int Rank, wgrad_form What> struct wgrad_block {
  static constexpr bool diagonal = What == wgrad_form::diagonal, rows_form = What == wgrad_form::rows;
  static_assert(!diagonal || Rank == 64);
  using shape = wgrad_shape<Rank, What>;

  const CUtensorMap &z_map, &q_map;
  const wgrad_job& g;
  int steps, wanted_stages;  // of wgrad_args
  std::uint32_t base;
  float* partial;  // partial sums: reuse the pipeline's shared memory after the mainloop
  int split, splits, column0, rank0;

  __device__ int stages() const { return wanted_stages > 0 ? wanted_stages : shape::stages; }
  __device__ pipeline ring() const { return {base + stages() * shape::stage, stages()}; }
  __device__ int first() const { return static_cast<int>(static_cast<long long>(steps) * split / splits); }
  __device__ int last() const { return static_cast<int>(static_cast<long long>(steps) * (split + 1) / splits); }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages(); ++i) ring().init(i, 1, 2);
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }
  __device__ void produce() const {
    ptx::prefetch(&z_map), ptx::prefetch(&q_map);
    ptx::wait_for_dependency();
    pipeline_state at = pipeline_state::producer();
    for (int s = first(); s < last(); ++s) {
      const std::uint32_t to = base + at.stage * shape::stage;
      ring().producer_acquire(at);
      const std::uint32_t full = ring().producer_commit(at.stage, shape::stage);
      if constexpr (rows_form) {
        ptx::load_tile(to, &z_map, s * wgrad_step, column0, full, ptx::evict_first);
        ptx::load_tile(to + 2 * shape::box, &q_map, s * wgrad_step, rank0, full, ptx::evict_last);
      } else {
        ptx::load_tile(to, &z_map, column0, s * wgrad_step, full, ptx::evict_first);
        ptx::load_tile(to + shape::box, &z_map, column0 + 64, s * wgrad_step, full, ptx::evict_first);
        if constexpr (diagonal) {
          ptx::load_tile(to + 2 * shape::box, &q_map, column0, s * wgrad_step, full);
          ptx::load_tile(to + 3 * shape::box, &q_map, column0 + 64, s * wgrad_step, full);
        } else {
#pragma unroll
          for (int i = 0; i < (Rank + 63) / 64; ++i)
            ptx::load_tile(to + (2 + i) * shape::box, &q_map, rank0 + 64 * i, s * wgrad_step, full, ptx::evict_last);
        }
      }
      at.advance(stages());
    }
  }
  __device__ bool by_column() const { return What != wgrad_form::columns || g.by_column; }
  // Index of the sum of column c of Z and column r of Q in `partial`.
  __device__ int partial_index(int c, int r) const {
    return by_column() ? c * shape::column_major_pitch + r : r * shape::rank_major_pitch + c;
  }
  // The products of one step: 64 columns of Z per warpgroup.
  __device__ __forceinline__ void multiply(float (&acc)[Rank / 2], std::uint32_t at, int group) const {
    if constexpr (rows_form) {
      const std::uint64_t z = tile_descriptor(at + group * shape::box), q = tile_descriptor(at + 2 * shape::box);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) wgmma<T, Rank>::shared(acc, z + 2 * kk, q + 2 * kk, true);
    } else {
      constexpr int pitch = Rank < 64 ? 2 * Rank : 128;  // bytes of a row of Q in shared memory
      const std::uint64_t z = mn_major_descriptor(at + group * shape::box, 0),
                          q = mn_major_descriptor(at + (diagonal ? 2 + group : 2) * shape::box,
                                                  Rank > 64 ? shape::box : 0, pitch);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
        wgmma<T, Rank>::template shared<true, true>(acc, z + 128 * kk, q + pitch * kk, true);
    }
  }

  __device__ void consume() const {
    const int group = static_cast<int>(threadIdx.x / 128), thread = static_cast<int>(threadIdx.x % 128);
    float acc[Rank / 2] = {};
    const pipeline stages = ring();
    wgmma_pipeline_state at;
    for (int s = first(); s < last(); ++s) {
      stages.consumer_wait(at);
      wgmma_fence();
      multiply(acc, base + at.stage * shape::stage, group);
      at.commit(stages.stages, thread == 0,
                [&](int before, reads_done done) { stages.consumer_release(before, done); });
    }
    wgmma_wait<0>();
    ptx::named_barrier(1, 256);  // both warpgroups have finished reading the stages that the sums overwrite
    const int column = group * 64 + thread / 32 * 16 + thread % 32 / 4, r = thread % 4 * 2;
#pragma unroll
    for (int e = 0; e < Rank / 2; e += 2) {
      float* const to = partial + partial_index(column + 8 * ((e >> 1) & 1), r + e / 4 * 8);
      if (by_column())
        *reinterpret_cast<float2*>(to) = make_float2(acc[e], acc[e + 1]);
      else
        to[0] = acc[e], to[shape::rank_major_pitch] = acc[e + 1];
    }
  }
  __device__ void write(int row, int column, float v) const {
    const int c = column0 + (by_column() ? row : column);
    if constexpr (diagonal) {
      const int other = c / 64 * 64 + column, b = g.rank;
      if (c < g.columns && c / b == other / b) {
        const long long at = (static_cast<long long>(c) * b) + other % b;
        g.to.put(at, g.adds ? g.to[at] + v : v);
      }
      return;
    }
    const int r = rank0 + (by_column() ? column : row);
    if (c >= g.columns || r >= g.rank) return;
    const long long at =
        by_column() ? static_cast<long long>(c) * g.rank + r : static_cast<long long>(r) * g.columns + c;
    g.to.put(at, g.adds ? g.to[at] + v : v);
  }
  // Returns true if results are written four at a time: float or T, overwritten, rows a multiple of four, 16-byte
  // aligned.
  __device__ bool can_write_vec4() const {
    const int length = by_column() ? g.rank : g.columns;
    return !diagonal && !g.adds && length % 4 == 0 && reinterpret_cast<std::uintptr_t>(g.to.at) % 16 == 0 &&
           (g.to.type == dtype::f32 || g.to.type == dtype_of<T>);
  }
  __device__ void write_vec4(int row, int column, const float4& v) const {
    const int out_row = by_column() ? column0 + row : rank0 + row,
              out_column = by_column() ? rank0 + column : column0 + column;
    const int rows = by_column() ? g.columns : g.rank, length = by_column() ? g.rank : g.columns;
    if (out_row >= rows || out_column >= length) return;
    const long long at = static_cast<long long>(out_row) * length + out_column;
    if (g.to.type == dtype::f32)
      *reinterpret_cast<float4*>(static_cast<float*>(g.to.at) + at) = v;
    else
      *reinterpret_cast<uint2*>(static_cast<T*>(g.to.at) + at) = make_uint2(pack<T>(v.x, v.y), pack<T>(v.z, v.w));
  }
  // Reduces this block's share of the sums over all splits of the cluster, in their order, and writes it. All loads
  // from distributed shared memory are issued before the first addition.
  __device__ void reduce_splits() const {
    constexpr int quads = wgrad_tile_columns * Rank / 4, at_once = 1;
    const int width = by_column() ? Rank : wgrad_tile_columns,
              pitch = by_column() ? shape::column_major_pitch : shape::rank_major_pitch;
    const int end = quads * (split + 1) / splits;
    const float factor = g.factor.at != nullptr ? g.factor[0] : 1.0F;
    const bool fours = can_write_vec4();
    std::uint32_t from[shape::splits];
#pragma unroll
    for (int p = 0; p < shape::splits; ++p) from[p] = ptx::map_shared_rank(base, p < splits ? p : 0);
#pragma unroll 1
    for (int e0 = quads * split / splits + static_cast<int>(threadIdx.x); e0 < end; e0 += at_once * shape::threads) {
      float4 v[at_once][shape::splits];
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int p = 0; p < shape::splits; ++p) {
          const int e = e0 + i * shape::threads, partial_index = 4 * e / width * pitch + 4 * e % width;
          v[i][p] = p < splits && e < end ? ptx::load_mapped4(from[p] + 4 * partial_index) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int e = e0 + i * shape::threads, row = 4 * e / width, column = 4 * e % width;
        float4 sum = v[i][0];
#pragma unroll
        for (int p = 1; p < shape::splits; ++p)
          sum.x += v[i][p].x, sum.y += v[i][p].y, sum.z += v[i][p].z, sum.w += v[i][p].w;
        if (e >= end) continue;
        sum = make_float4(factor * sum.x, factor * sum.y, factor * sum.z, factor * sum.w);
        if (fours) {
          write_vec4(row, column, sum);
          continue;
        }
        write(row, column, sum.x), write(row, column + 1, sum.y);
        write(row, column + 2, sum.z), write(row, column + 3, sum.w);
      }
    }
  }
};

template <class T, int Rank, wgrad_form What = wgrad_form::columns>
__global__ void __launch_bounds__(wgrad_shape<Rank, What>::threads, wgrad_shape<Rank, What>::blocks)
    wgrad_kernel(const __grid_constant__ wgrad_maps maps, const __grid_constant__ wgrad_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t at = ptx::shared_address(raw), base = (at + 1023) & ~1023U;
  const int tile = static_cast<int>(blockIdx.y), job = tile < g.first_tiles ? 0 : 1;
  const wgrad_block<T, Rank, What> block{maps.z[job],
                                         maps.q[job],
                                         g.job[job],
                                         g.steps,
                                         g.stages,
                                         base,
                                         reinterpret_cast<float*>(raw + (base - at)),
                                         static_cast<int>(blockIdx.x),
                                         static_cast<int>(gridDim.x),
                                         (job == 0 ? tile : tile - g.first_tiles) * wgrad_tile_columns,
                                         static_cast<int>(blockIdx.z) * Rank};
  block.start();
  ptx::launch_dependents();
  if (threadIdx.x < 256)
    block.consume();
  else if (threadIdx.x == 256)
    block.produce();
  __syncwarp();
  ptx::cluster_sync();
  block.reduce_splits();
  ptx::cluster_sync();  // a block must not exit while others read its sums
#endif
}

}  // namespace graft::gpu
