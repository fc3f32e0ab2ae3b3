// SPDX-License-Identifier: Apache-2.0
// Includes the GPU header together with CUB, Thrust and libcu++ in a file that says `using namespace graft`: no name of
// ours hides theirs.
#include <cub/cub.cuh>
#include <doctest/doctest.h>
#include <graft/gpu.h>
#include <thrust/sort.h>

#include <cuda/std/span>

using namespace graft;

namespace {

struct projection : linear<64, 64, bf16, lora<8>> {};
using block_sum = cub::BlockReduce<int, 128>;
__global__ void sum(::cuda::std::span<const int> from, int* to) {
  __shared__ block_sum::TempStorage storage;
  const int all = block_sum(storage).Sum(threadIdx.x < from.size() ? from[threadIdx.x] : 0);
  if (threadIdx.x == 0) *to = all;
}

}  // namespace

TEST_CASE("CCCL: layers, CUB, Thrust and libcu++ in one file") {
  static_assert(gpu::layer<projection, fullgraph>::kernels == 1);
  int numbers[] = {3, 1, 2};
  thrust::sort(thrust::host, numbers, numbers + 3);
  CHECK(numbers[0] == 1);
  cuda::std::span<const int> all(numbers, 3);
  CHECK(all.size() == 3);
  static_cast<void>(&sum);  // that nvcc compiles the kernel is the test: without a device it cannot run
}
