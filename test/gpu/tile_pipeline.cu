// SPDX-License-Identifier: Apache-2.0
// The tile pipeline (backend/gpu/tile/pipeline.cuh): kernels that do nothing but pass tiles through a short ring and
// sum their rows, once with words that ldmatrix loads and once with wgmma operands in shared memory. A stage that is
// released before it has been read shows as a wrong sum: numbers are small integers, so that every sum is exact.
//
// The kernels *_too_early break the rule on purpose. They are never launched; test/gpu_host/pipeline_order.sh reads the
// machine code of all four and must accept the first two and refuse these.
#include <doctest/doctest.h>
#include <graft/backend/gpu/arch/mma_sync.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/backend/gpu/tile/pipeline.cuh>

#include <random>
#include <vector>

#include "gpu.h"

using namespace graft;
using namespace graft::gpu;

namespace {

using bf = __nv_bfloat16;
constexpr int rows = 64, columns = 64, ring_stages = 2, different = 61, steps = 6000;
constexpr std::uint32_t tile_bytes = rows * columns * 2, ones_bytes = 8 * columns * 2;

struct row_sum_args {
  const bf* tiles;  // [different][rows][columns], passed through the ring again and again
  float* sums;      // [blocks][rows]
};

// Shared memory: the ring, 8 x 64 ones as right operand of wgmma, barriers. Every block begins with another tile.
struct row_sum_block {
  std::uint32_t base;
  const row_sum_args& g;

  __device__ pipeline ring() const { return {base + ring_stages * tile_bytes + ones_bytes, ring_stages}; }
  __device__ std::uint32_t ones() const { return base + ring_stages * tile_bytes; }
  __device__ void start(std::uint32_t releases) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < ring_stages; ++i) ring().init(i, 1, releases);
      ptx::barrier_init_fence();
    }
    for (std::uint32_t at = 4 * threadIdx.x; at < ones_bytes; at += 4 * blockDim.x)
      ptx::store_shared(ones() + at, std::uint32_t{0x3F803F80});
    ptx::fence_async_shared();
    __syncthreads();
  }
  __device__ void produce() const {
    pipeline_state at = pipeline_state::producer();
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const long long tile = (static_cast<int>(blockIdx.x) + i) % different;
      ring().producer_acquire(at);
      ptx::load_bulk(base + at.stage * tile_bytes, g.tiles + tile * rows * columns, tile_bytes,
                     ring().producer_commit(at.stage, tile_bytes));
      at.advance(ring_stages);
    }
  }
  __device__ void store(int row, float sum) const { g.sums[blockIdx.x * rows + static_cast<unsigned>(row)] = sum; }
};

// Four warps of 16 rows each. The order of columns within a row does not matter for its sum.
template <class Release>
__device__ __forceinline__ void sum_loaded(const row_sum_block& block, const Release& release) {
  block.start(128);
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) block.produce();
    return;
  }
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const std::uint32_t one[2] = {0x3F803F80, 0x3F803F80};
  float sum[4] = {};
  pipeline_state at;
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    block.ring().consumer_wait(at);
    const std::uint32_t from =
        block.base + at.stage * tile_bytes + (warp * 16 + lane % 16) * columns * 2 + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < columns / 16; ++k) {
      std::uint32_t a[4];
      ptx::load_matrix(a, from + k * 32);
      ptx::mma_m16n8k16<bf>(sum, a, one);
    }
    release(block.ring(), at.stage, sum[0]);
    at.advance(ring_stages);
  }
  if (lane % 4 == 0) block.store(warp * 16 + lane / 4, sum[0]), block.store(warp * 16 + lane / 4 + 8, sum[2]);
}
// One warpgroup, wgmma m64n8k16 with both operands in shared memory.
template <class Release>
__device__ __forceinline__ void sum_products(const row_sum_block& block, const Release& release) {
  block.start(1);
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) block.produce();
    return;
  }
  float sum[4] = {};
  wgmma_pipeline_state at;
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    block.ring().consumer_wait(at);
    const std::uint64_t left = tile_descriptor(block.base + at.stage * tile_bytes),
                        right = tile_descriptor(block.ones());
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < columns / 16; ++k) wgmma<bf, 8>::shared(sum, left + 2 * k, right + 2 * k, true);
    release(block.ring(), at);
  }
  wgmma_wait<0>();
  ptx::pin(sum);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (lane % 4 == 0) block.store(warp * 16 + lane / 4, sum[0]), block.store(warp * 16 + lane / 4 + 8, sum[2]);
}
__device__ __forceinline__ std::uint32_t ring_base(const void* raw) {
  return (ptx::shared_address(raw) + 1023) & ~1023U;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(160) registers_by_rule(const __grid_constant__ row_sum_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  register_reads reads(static_cast<int>(gridDim.x));
  sum_loaded({ring_base(raw), g}, [&](const pipeline& ring, int stage, float sum) {
    reads.add(__float_as_uint(sum));
    reads.release(ring, stage);
  });
#endif
}
extern "C" __global__ void __launch_bounds__(160) registers_too_early(const __grid_constant__ row_sum_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  sum_loaded({ring_base(raw), g},
             [](const pipeline& ring, int stage, float) { ring.consumer_release(stage, nothing_read()); });
#endif
}
extern "C" __global__ void __launch_bounds__(160) products_by_rule(const __grid_constant__ row_sum_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  sum_products({ring_base(raw), g}, [](const pipeline& ring, wgmma_pipeline_state& at) {
    at.commit(ring_stages, threadIdx.x == 0, [&](int before, reads_done done) { ring.consumer_release(before, done); });
  });
#endif
}
extern "C" __global__ void __launch_bounds__(160) products_too_early(const __grid_constant__ row_sum_args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t raw[];
  sum_products({ring_base(raw), g}, [](const pipeline& ring, wgmma_pipeline_state& at) {
    wgmma_commit();
    if (threadIdx.x == 0) ring.consumer_release(at.stage, nothing_read());
    at.advance(ring_stages);
    wgmma_wait<0>();
  });
#endif
}

namespace {

void check_row_sums(void (*kernel)(row_sum_args)) {
  constexpr int blocks = 264, bytes = static_cast<int>(ring_stages * tile_bytes + ones_bytes) + 16 * ring_stages + 1024;
  std::mt19937 engine{7};
  std::vector<bf> tiles;
  std::vector<int> of_tile(different * rows);
  for (int i = 0; i < different * rows; ++i)
    for (int c = 0; c < columns; ++c) {
      const int v = static_cast<int>(engine() % 17) - 8;
      of_tile[static_cast<std::size_t>(i)] += v;
      tiles.push_back(__float2bfloat16(static_cast<float>(v)));
    }
  buffer from, to;
  REQUIRE(bool(from.reserve(static_cast<long long>(tiles.size() * sizeof(bf)))));
  REQUIRE(bool(to.reserve(blocks * rows * 4)));
  REQUIRE(cudaMemcpy(from.data(), tiles.data(), tiles.size() * sizeof(bf), cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess);
  for (int round = 0; round < 20; ++round) {
    REQUIRE(cudaMemset(to.data(), 0xff, blocks * rows * 4) == cudaSuccess);
    kernel<<<blocks, 160, bytes>>>({from.as<bf>(), to.as<float>()});
    std::vector<float> sums(blocks * rows);
    REQUIRE(cudaMemcpy(sums.data(), to.data(), sums.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    int wrong = 0;
    for (int b = 0; b < blocks; ++b)
      for (int r = 0; r < rows; ++r) {
        long long sum = 0;
        for (int i = 0; i < steps; ++i) sum += of_tile[static_cast<std::size_t>((b + i) % different * rows + r)];
        wrong += sums[static_cast<std::size_t>(b * rows + r)] == static_cast<float>(sum) ? 0 : 1;
      }
    REQUIRE(wrong == 0);
  }
}

}  // namespace

TEST_CASE("a stage is released after ldmatrix has read it") {
  if (test::no_gpu()) return;
  check_row_sums(&registers_by_rule);
}
TEST_CASE("a stage is released after wgmma has read it") {
  if (test::no_gpu()) return;
  check_row_sums(&products_by_rule);
}
