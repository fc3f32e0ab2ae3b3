// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM of a mixture of experts with many rows, sm_90a: prefill and training. Operands of 16 bits, float
// accumulators; the low-rank branch runs inside.
//
//   y [rows, n] = x [rows, k] W(expert)ᵀ + U [rows, rank] B(expert)ᵀ       W [experts, n, k] (NT), B [experts, n, rank]
//   NN: W [experts, k, n] as it is stored and B [experts, rank, n], dx = dy W + dU A
//
// Tiles        128 sorted rows of one expert by 256 columns, 64 of k per stage, wgmma m64n256k16. x and the stacked
//              matrices are two-dimensional for TMA: a tile may read rows of the next expert, which are not stored.
// Warp roles   Warpgroups 0 and 1: consumers of 64 rows each; one without rows of the expert only releases stages, so
//              that a tile of up to 64 rows takes half of the products. Warp 8: producer.
// Branch       U and B have types of their own, often float: the consumers copy them, rounded, to stage 0 while the
//              producer fills the other stages, and multiply them first. Stage 0 then joins the ring.
// Store        Four lanes of a row exchange their pairs, so that each stores 16 contiguous bytes.
// Order        That of find_row_tile(): 16 tiles of rows side by side, then the next columns.
// Measured     H200, four layers in the shape of Mixtral-8x7B, a prompt of 2048 tokens: 13.8 ms, 1.62 of its products at
//              760 Tflop/s (docs/performance.md); with the mma.sync tiles of grouped_gemm_mma.cuh 43.8 ms.
#pragma once
#include <graft/backend/gpu/arch/tensor_map.h>
#include <graft/backend/gpu/arch/wgmma.cuh>
#include <graft/backend/gpu/kernels/experts/grouped_gemm_mma.cuh>
#include <graft/backend/gpu/tile/pipeline.cuh>
#include <graft/backend/gpu/tile/tile_order.h>

namespace graft::gpu {

struct grouped_sm90_shape {
  static constexpr int rows = 128, cols = 256, deep = 64, stages = 4, consumers = 256, threads = consumers + 32;
  static constexpr std::uint32_t box = 64 * 128;  // 64 lines of 128 bytes
  static constexpr std::uint32_t a = rows * 128, b = cols * 128, stage = a + b;
  static constexpr std::uint32_t barriers = stages * stage, bytes = barriers + pipeline::bytes(stages) + 1024;
  static_assert(bytes + 8 * 1024 <= shared_memory_limit);  // the table of find_row_tile() is in static shared memory
};
struct grouped_sm90_maps {
  CUtensorMap x, w;
};

template <class T, bool WeightNN> struct grouped_sm90_block {
  using shape = grouped_sm90_shape;
  using accumulators = float[shape::cols / 2];

  const grouped_sm90_maps& maps;
  const grouped_products<float>& g;
  expert_tile at;
  int steps, depth;
  std::uint32_t base;

  __device__ pipeline ring() const { return {base + shape::barriers, shape::stages}; }
  __device__ std::uint32_t stage(int q) const { return base + q * shape::stage; }
  // The branch takes the first turn of stage 0.
  __device__ int first_stage() const { return g.has_branch() ? 1 : 0; }

  __device__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shape::stages; ++i) ring().init(i, 1, 2);
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }
  __device__ void produce() const {
    pipeline_state to = pipeline_state::producer();
    to.stage = first_stage();
    for (int s = 0; s < steps; ++s) {
      ring().producer_acquire(to);
      const std::uint32_t full = ring().producer_commit(to.stage, shape::stage), here = stage(to.stage);
      ptx::load_tile(here, &maps.x, s * shape::deep, at.first + at.row0, full);
      if constexpr (WeightNN) {
#pragma unroll
        for (int i = 0; i < shape::cols / 64; ++i)
          ptx::load_tile(here + shape::a + i * shape::box, &maps.w, at.col0 + 64 * i,
                         at.expert * depth + s * shape::deep, full);
      } else {
        ptx::load_tile(here + shape::a, &maps.w, s * shape::deep, at.expert * static_cast<int>(g.cols()) + at.col0,
                       full);
      }
      to.advance(shape::stages);
    }
  }
  __device__ __forceinline__ void multiply(accumulators& acc, std::uint32_t here, int group) const {
    constexpr int next_k = WeightNN ? 128 : 2;  // descriptor increment for the next sixteen elements of k
    const std::uint64_t x = tile_descriptor(here + group * shape::box),
                        w = WeightNN ? mn_major_descriptor(here + shape::a, shape::box)
                                     : tile_descriptor(here + shape::a);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < shape::deep / 16; ++kk)
      wgmma<T, shape::cols>::template shared<false, WeightNN>(acc, x + 2 * kk, w + next_k * kk, true);
  }
  // Copies U and B to stage 0, by all consumers.
  __device__ void load_branch() const {
    const products<float> branch = g.of_branch(at.expert, at.first, at.count);
    const detail::operand_tiles<T, shape::rows, shape::consumers> u(branch.a, at.row0, branch.rows, branch.depth);
    const detail::operand_tiles<T, shape::cols, shape::consumers> b(branch.b, at.col0, branch.cols, branch.depth);
    u.fill(stage(0), 0), b.fill(stage(0) + shape::a, 0);
    ptx::commit_copies();
    ptx::wait_for_copies<0>();
    ptx::fence_async_shared();
    ptx::named_barrier(1, shape::consumers);
    if (threadIdx.x == 0) ring().producer_commit(0);  // the phase of the barrier that the branch takes
  }
  __device__ void consume() const {
    const int group = static_cast<int>(threadIdx.x) / 128;
    const bool elected = threadIdx.x % 128 == 0, has_rows = at.row0 + 64 * group < at.count;
    if (g.has_branch()) load_branch();
    wgmma_pipeline_state now;
    const int turns = steps + first_stage();
    if (!has_rows) {
      for (int i = 0; i < turns; ++i) {
        ring().consumer_wait(now);
        if (elected) ring().consumer_release(now.stage, nothing_read());
        now.advance(shape::stages);
      }
      return;
    }
    accumulators acc = {};
#pragma unroll 1
    for (int i = 0; i < turns; ++i) {
      ring().consumer_wait(now);
      multiply(acc, stage(now.stage), group);
      now.commit(shape::stages, elected, [&](int before, reads_done done) { ring().consumer_release(before, done); });
    }
    wgmma_wait<0>();
    ptx::pin(acc);
    store(acc, group);
  }
  // A lane has two pairs of columns, of rows r and r + 8, in each group of eight columns. Of four groups lane q of a
  // row collects group q.
  __device__ __forceinline__ void store(const accumulators& acc, int group) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, q = lane % 4, n = static_cast<int>(g.cols());
    const int row = at.row0 + group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
    T* const to = static_cast<T*>(g.out.p.at) + static_cast<long long>(at.first) * n;
#pragma unroll
    for (int j = 0; j < shape::cols / 8; j += 4)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        std::uint32_t own[4], all[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) own[i] = pack<T>(acc[4 * (j + i) + 2 * h], acc[4 * (j + i) + 2 * h + 1]);
#pragma unroll
        for (int d = 0; d < 4; ++d) {
          // Lane q sends its pair of group q ^ d to lane q ^ d, which puts it at place q.
          const int to_lane = q ^ d;
          const std::uint32_t sent = to_lane == 0 ? own[0] : to_lane == 1 ? own[1] : to_lane == 2 ? own[2] : own[3];
          const std::uint32_t got = __shfl_xor_sync(0xffffffffU, sent, d);
#pragma unroll
          for (int i = 0; i < 4; ++i) all[i] = i == to_lane ? got : all[i];
        }
        const int column = at.col0 + 8 * (j + q);
        if (row + 8 * h < at.count && column < n)
          *reinterpret_cast<uint4*>(to + static_cast<long long>(row + 8 * h) * n + column) =
              make_uint4(all[0], all[1], all[2], all[3]);
      }
  }
};

template <class T, bool WeightNN>
__global__ void __launch_bounds__(grouped_sm90_shape::threads, 1)
    grouped_sm90_kernel(const __grid_constant__ grouped_sm90_maps maps,
                        const __grid_constant__ grouped_products<float> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using shape = grouped_sm90_shape;
  extern __shared__ std::uint8_t raw[];
  pdl_begin();
  const expert_tile at = find_row_tile<shape::threads>(g, blockIdx.x, shape::rows, shape::cols);
  if (at.expert < 0) return;
  const int depth = static_cast<int>(g.a.d[3]);
  const grouped_sm90_block<T, WeightNN> block{
      maps, g, at, (depth + shape::deep - 1) / shape::deep, depth, (ptx::shared_address(raw) + 1023) & ~1023U};
  block.start();
  if (threadIdx.x < shape::consumers)
    block.consume();
  else if (threadIdx.x == shape::consumers)
    block.produce();
#endif
}

// Whether the kernel takes the problem: both operands and the result have type T, their rows are multiples of 16 bytes,
// an expert's matrix ends with a step of k where a step runs over its rows, and one stage holds the rank of the branch.
template <class T> bool fits_grouped_sm90(const grouped_products<float>& g) {
  const auto stored = [](const tensor<float>& t) {
    return t.p.type == dtype_of<T> && is_aligned16(t.p) && t.d[3] % 8 == 0;
  };
  const long long k = g.a.d[3], lines = g.b.count() / g.b.d[3];
  return !g.is_wgrad && g.cols() > grouped_sm90_shape::cols / 2 && stored(g.out) && stored(g.a) && stored(g.b) &&
         (g.tb || k % grouped_sm90_shape::deep == 0) && lines < 0x7fffffffLL &&
         (!g.has_branch() || (g.branch.a.d[3] <= grouped_sm90_shape::deep && g.branch.tb == g.tb));
}
template <class T, bool WeightNN> status launch_grouped_sm90(cudaStream_t stream, const grouped_products<float>& g) {
  using shape = grouped_sm90_shape;
  const long long k = g.a.d[3], lines = g.b.count() / g.b.d[3];
  grouped_sm90_maps maps;
  if (status s = make_map(maps.x, dtype_of<T>, {g.a.p.at, g.routing.rows, k}, shape::rows, shape::deep); !s) return s;
  if (status s = make_map(maps.w, dtype_of<T>, {g.b.p.at, lines, g.b.d[3]}, WeightNN ? 64 : shape::cols, 64); !s)
    return s;
  const auto* const entry = reinterpret_cast<const void*>(&grouped_sm90_kernel<T, WeightNN>);
  if (status s =
          check(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::bytes), "grouped GEMM");
      !s)
    return s;
  const long long blocks = blocks_of(g, shape::rows, shape::cols);
  if (blocks > 0x7fffffffLL) return fail("a grouped GEMM has more tiles than a grid; call with fewer tokens");
  grouped_products<float> argument = g;
  void* arguments[] = {&maps, &argument};
  cudaLaunchAttribute early = pdl_attribute();
  const cudaLaunchConfig_t config{static_cast<unsigned>(blocks), shape::threads, shape::bytes, stream, &early, 1};
  return launch(config, entry, arguments, "grouped GEMM");
}

}  // namespace graft::gpu
