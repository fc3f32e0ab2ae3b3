// SPDX-License-Identifier: Apache-2.0
// Norms of long rows and their gradients by thread blocks against a loop in double; a row has the same bits in every
// batch, small or large.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/rowwise/norm_backward.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

using numbers = std::vector<float>;
constexpr float eps = 1e-5F;

// Arrays on the device, in float or bf16.
struct memory_of_rows {
  std::deque<gpu::buffer> all;
  bool narrow;
  gpu::element_ptr<float> put(const numbers& from) {
    REQUIRE(bool(all.emplace_back().reserve(static_cast<long long>(4 * from.size()))));
    std::vector<__nv_bfloat16> rounded(from.size());
    for (std::size_t i = 0; narrow && i < from.size(); ++i) rounded[i] = __float2bfloat16(from[i]);
    REQUIRE(cudaMemcpy(all.back().data(), narrow ? static_cast<const void*>(rounded.data()) : from.data(),
                       from.size() * (narrow ? 2 : 4), cudaMemcpyHostToDevice) == cudaSuccess);
    return {all.back().data(), narrow ? dtype::bf16 : dtype::f32};
  }
  numbers get(const gpu::element_ptr<float>& from, std::size_t n) const {
    numbers y(n);
    std::vector<__nv_bfloat16> rounded(n);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(narrow ? static_cast<void*>(rounded.data()) : y.data(), from.at, n * (narrow ? 2 : 4),
                       cudaMemcpyDeviceToHost) == cudaSuccess);
    for (std::size_t i = 0; narrow && i < n; ++i) y[i] = __bfloat162float(rounded[i]);
    return y;
  }
};
gpu::element_ptr<float> small_number(memory_of_rows& to) {
  const bool narrow = std::exchange(to.narrow, false);
  const gpu::element_ptr<float> at = to.put({eps});
  to.narrow = narrow;
  return at;
}
struct long_rows {
  long long rows, n;
  bool rms, narrow;
  numbers x, w, t, residual;

  numbers part(const numbers& of, long long first, long long count) const {
    return {of.begin() + first * n, of.begin() + (first + count) * n};
  }
  numbers normalized(long long first, long long count, bool float_factors = false) const {
    memory_of_rows on{{}, narrow};
    const auto in = on.put(part(x, first, count)), out = on.put(part(x, first, count));
    on.narrow = narrow && !float_factors;
    const auto factors = on.put(w);
    on.narrow = narrow;
    const gpu::normalize_functor<float> f{
        {out, {1, 1, count, n}}, {in, {1, 1, count, n}}, small_number(on), rms, factors};
    REQUIRE(bool(gpu::normalize(gpu::on_stream{nullptr}, f, "norm")));
    return on.get(out, static_cast<std::size_t>(count * n));
  }
  numbers gradient(long long first, long long count) const {
    memory_of_rows on{{}, narrow};
    const auto in = on.put(part(x, first, count)), slope = on.put(part(t, first, count)),
               sum = on.put(part(residual, first, count)), factors = on.put(w), out = on.put(part(x, first, count));
    const gpu::normalize_grads<float> f{{out, {1, 1, count, n}},
                                        {in, {1, 1, count, n}},
                                        small_number(on),
                                        {slope, {1, 1, count, n}},
                                        rms,
                                        factors,
                                        sum};
    REQUIRE(bool(gpu::normalize_backward(gpu::on_stream{nullptr}, f, "gradient of a norm")));
    return on.get(out, static_cast<std::size_t>(count * n));
  }
  // The errors of row r of y and dx against the formulas, relative to 1 + |expected|.
  std::pair<double, double> errors(long long r, const numbers& y, const numbers& dx) const {
    const auto at = [&](const numbers& v, long long c) { return static_cast<double>(v[static_cast<std::size_t>(c)]); };
    const auto count = static_cast<double>(n);
    double mean = 0, squares = 0, plain = 0, along = 0, worst = 0, worst_dx = 0;
    for (long long c = 0; c < n; ++c) mean += rms ? 0 : at(x, r * n + c) / count;
    for (long long c = 0; c < n; ++c) squares += std::pow(at(x, r * n + c) - mean, 2) / count;
    const double scale = 1 / std::sqrt(squares + static_cast<double>(eps));
    for (long long c = 0; c < n; ++c) {
      const double d = at(t, r * n + c) * at(w, c);
      plain += rms ? 0 : d / count, along += d * (at(x, r * n + c) - mean) * scale / count;
    }
    for (long long c = 0; c < n; ++c) {
      const double u = (at(x, r * n + c) - mean) * scale, want = u * at(w, c),
                   slope = scale * (at(t, r * n + c) * at(w, c) - plain - u * along) + at(residual, r * n + c);
      worst = std::max(worst, std::abs(at(y, r * n + c) - want) / (1 + std::abs(want)));
      worst_dx = std::max(worst_dx, std::abs(at(dx, r * n + c) - slope) / (1 + std::abs(slope)));
    }
    return {worst, worst_dx};
  }
};

}  // namespace

TEST_CASE("gpu: norms of long rows and their gradients") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(0.5F, 2);
  for (const long long n : {1024, 1032, 4096, 5120, 8192})
    for (const bool rms : {false, true})
      for (const bool narrow : {false, true}) {
        INFO(n, " columns, ", std::string(rms ? "rms" : "mean and variance"),
             std::string(narrow ? ", bf16" : ", float"));
        long_rows l{600, n, rms, narrow, {}, {}, {}, {}};
        for (numbers* v : {&l.x, &l.t, &l.residual, &l.w}) {
          v->resize(static_cast<std::size_t>(v == &l.w ? n : l.rows * n));
          for (float& e : *v) e = narrow ? __bfloat162float(__float2bfloat16(normal(engine))) : normal(engine);
        }
        CHECK(l.normalized(0, 64) == l.part(l.normalized(0, l.rows), 0, 64));
        const numbers y = l.normalized(0, l.rows), dx = l.gradient(0, l.rows);
        for (const long long r : {0LL, 1LL, 511LL, 599LL}) {
          const auto [error, error_dx] = l.errors(r, y, dx);
          CHECK(error < (narrow ? 4e-3 : 5e-6));
          CHECK(error_dx < (narrow ? 4e-3 : 2e-5));
          CHECK(l.normalized(r, 1) == l.part(y, r, 1));
          CHECK(l.normalized(r, 1, true) == l.part(y, r, 1));  // bitwise equal
          CHECK(l.gradient(r, 1) == l.part(dx, r, 1));
        }
      }
}
