// SPDX-License-Identifier: Apache-2.0
// Norms of long rows by thread blocks give what a loop in double gives, and a row the same bits whatever rows are beside it.
#include <doctest/doctest.h>
#include <graft/backend/cuda/memory.h>
#include <graft/backend/cuda/rowwise.cuh>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

std::vector<float> normalized(const std::vector<float>& x, const std::vector<float>& w, long long rows, bool rms) {
  const long long n = static_cast<long long>(w.size());
  cuda::buffer memory;
  REQUIRE(bool(memory.reserve(4 * (2 * rows * n + n + 4))));
  float* const at = memory.as<float>();
  const float eps = 1e-5F;
  auto bring = [](float* to, const float* from, std::size_t count) {
    REQUIRE(cudaMemcpy(to, from, 4 * count, cudaMemcpyHostToDevice) == cudaSuccess);
  };
  float *const from = at, *const to = at + rows * n, *const factors = to + rows * n, *const number = factors + n;
  bring(from, x.data(), static_cast<std::size_t>(rows * n)), bring(factors, w.data(), w.size()), bring(number, &eps, 1);
  const cuda::normalized<float> f{{cuda::cells<float>(to), {1, 1, rows, n}},
                                  {cuda::cells<float>(from), {1, 1, rows, n}},
                                  cuda::cells<float>(number),
                                  rms,
                                  cuda::cells<float>(factors)};
  REQUIRE(cuda::normalized_by_blocks::fits(f));
  REQUIRE(bool(cuda::normalize(cuda::on_stream{nullptr}, f, "norm")));
  std::vector<float> y(static_cast<std::size_t>(rows * n));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(cudaMemcpy(y.data(), to, 4 * y.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  return y;
}

}  // namespace

TEST_CASE("gpu: norms of long rows") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(0.5F, 2);
  constexpr long long rows = 5;
  for (const long long n : {1024, 1032, 4096, 5120, 8192})
    for (const bool rms : {false, true}) {
      INFO(n, " columns, ", rms ? "rms" : "mean and variance");
      std::vector<float> x(static_cast<std::size_t>(rows * n)), w(static_cast<std::size_t>(n));
      for (float& v : x) v = normal(engine);
      for (float& v : w) v = normal(engine);
      const std::vector<float> all = normalized(x, w, rows, rms);
      for (long long r = 0; r < rows; ++r) {
        const std::vector<float> row(x.begin() + r * n, x.begin() + (r + 1) * n);
        double mean = 0, squares = 0, worst = 0;
        for (const float v : row) mean += rms ? 0 : static_cast<double>(v) / static_cast<double>(n);
        for (const float v : row) squares += (v - mean) * (v - mean) / static_cast<double>(n);
        const double scale = 1 / std::sqrt(squares + 1e-5);
        for (std::size_t c = 0; c < row.size(); ++c) {
          const double want = (row[c] - mean) * scale * w[c];
          worst = std::max(worst, std::abs(all[static_cast<std::size_t>(r * n) + c] - want) / (1 + std::abs(want)));
        }
        CHECK(worst < 5e-6);
        const std::vector<float> alone = normalized(row, w, 1, rms);
        CHECK(std::equal(alone.begin(), alone.end(), all.begin() + r * n));
      }
    }
}
