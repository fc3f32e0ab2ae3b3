// SPDX-License-Identifier: Apache-2.0
// The truncated Neumann series of Cayley for blocks of 32 x 32 and its gradient, whose matrices are in shared memory
// and registers, against the series in double on the host.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/linalg/neumann_block.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>

#include <cmath>
#include <random>
#include <vector>

#include "gpu.h"

using namespace graft;

namespace {

constexpr long long blocks = 5, area = 32 * 32;

struct matrices {
  std::vector<float> host;
  gpu::buffer memory;

  explicit matrices(float size, unsigned seed) : host(blocks * area) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> any(-size, size);
    for (float& x : host) x = any(engine);
    REQUIRE(bool(memory.reserve(blocks * area * 4)));
    REQUIRE(cudaMemcpy(memory.data(), host.data(), host.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  gpu::tensor<float> here() { return {host.data(), {1, blocks, 32, 32}}; }
  gpu::tensor<float> there() const { return {memory.as<float>(), {1, blocks, 32, 32}}; }
  double distance_to_device() const {
    std::vector<float> found(host.size());
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(found.data(), memory.data(), found.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    double most = 0, largest = 0;
    for (std::size_t i = 0; i < host.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(found[i]) - static_cast<double>(host[i])));
      largest = std::max(largest, std::abs(static_cast<double>(host[i])));
    }
    return most / largest;
  }
};

}  // namespace

TEST_CASE("gpu: the Neumann series of small blocks and its gradient, for every number of terms with its own kernel") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  for (const long long terms : {3, 4, 5, 6}) {
    INFO(terms, " terms");
    const gpu::neumann_series c(terms);
    matrices q(0.15F, 1), up(1, 2), sum(0, 3), back(0, 4);
    std::vector<double> scratch(static_cast<std::size_t>((c.count + 4) * blocks * area));
    gpu::neumann_functor<float> there{sum.there(), q.there(), c, nullptr},
        here{sum.here(), q.here(), c, scratch.data()};
    gpu::neumann_grads<float> back_there{back.there(), q.there(), up.there(), c, nullptr},
        back_here{back.here(), q.here(), up.here(), c, scratch.data()};
    gpu::buffer scratch_memory;
    REQUIRE(bool(scratch_memory.reserve(static_cast<long long>(scratch.size() * 8))));
    there.scratch = back_there.scratch = scratch_memory.as<double>();
    CHECK(gpu::fits_block_series(there.a, there.out, c) == (terms < 6));
    REQUIRE(bool(gpu::run_neumann(gpu::on_stream{nullptr}, there)));
    REQUIRE(bool(gpu::run_neumann_backward(gpu::on_stream{nullptr}, back_there)));
    for (long long m = 0; m < blocks; ++m) here(m, gpu::single_thread{}), back_here(m, gpu::single_thread{});
    CHECK(sum.distance_to_device() < 1e-6);
    CHECK(back.distance_to_device() < 1e-6);
  }
}
