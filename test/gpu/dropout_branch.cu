// SPDX-License-Identifier: Apache-2.0
// The narrow GEMMs with fused dropout against their formulas, with the mask that the CPU draws: by the 16-bit kernels,
// and for types and sizes that those do not support.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/launchers.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

using bf = __nv_bfloat16;
using form = dropout_gemm::form;

struct sizes_of_case {
  long long rows;
  int columns, rank;
};
struct device_numbers {
  std::vector<float> numbers;  // after rounding to the storage type
  gpu::buffer memory;
  dtype type;
  device_numbers(std::size_t n, dtype t, std::mt19937& engine, float scale) : numbers(n), type(t) {
    std::uniform_real_distribution<float> any(-scale, scale);
    std::vector<bf> narrow(n);
    for (std::size_t i = 0; i < n; ++i) {
      narrow[i] = __float2bfloat16(any(engine));
      numbers[i] = __bfloat162float(narrow[i]);
    }
    REQUIRE(bool(memory.reserve(static_cast<long long>(4 * n))));
    const void* const from = t == dtype::f32 ? static_cast<const void*>(numbers.data()) : narrow.data();
    REQUIRE(cudaMemcpy(memory.data(), from, n * (t == dtype::f32 ? 4 : 2), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  gpu::element_ptr<float> element_ptr() const { return {memory.data(), type}; }
  std::vector<float> read() const {
    std::vector<float> v(numbers.size());
    std::vector<bf> narrow(v.size());
    REQUIRE(cudaMemcpy(type == dtype::f32 ? static_cast<void*>(v.data()) : narrow.data(), memory.data(),
                       v.size() * (type == dtype::f32 ? 4 : 2), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (std::size_t i = 0; type != dtype::f32 && i < v.size(); ++i) v[i] = __bfloat162float(narrow[i]);
    return v;
  }
};

// The error of a form relative to its formula.
double error_of(form form_kind, const sizes_of_case& s, dtype type, bool by_rank, bool drops, int padding) {
  std::mt19937 engine(3);
  const auto rows = static_cast<std::size_t>(s.rows), columns = static_cast<std::size_t>(s.columns),
             rank = static_cast<std::size_t>(s.rank), pitch = rank + static_cast<std::size_t>(padding);
  const std::size_t entries =
      form_kind == form::sum ? rank * columns : rows * (form_kind == form::shrink ? rank : columns);
  const device_numbers wide(rows * columns, type, engine, 1),
      out(entries, form_kind == form::sum ? dtype::f32 : type, engine, 1), rate(1, dtype::f32, engine, 0);
  const std::int64_t seed = 77;
  const float share = 0.25F;
  gpu::buffer seed_at;
  REQUIRE(bool(seed_at.reserve(8)));
  REQUIRE(cudaMemcpy(seed_at.data(), &seed, 8, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemcpy(rate.memory.data(), &share, 4, cudaMemcpyHostToDevice) == cudaSuccess);
  gpu::dropout_gemm_args g;
  g.wide = wide.element_ptr(), g.out = out.element_ptr(), g.rows = s.rows, g.columns = s.columns;
  const device_numbers narrow(rows * pitch, type, engine, 1.0F), factor(rank * columns, dtype::f32, engine, 1.0F);
  gpu::dropout_branch& b = g.branch;
  b.narrow = narrow.element_ptr(), b.factor = factor.element_ptr();
  b.rank_step = by_rank ? s.columns : 1, b.column_step = by_rank ? 1 : s.rank;
  b.rank = s.rank, b.pitch = s.rank + padding, b.salt = 5, b.rate = rate.element_ptr();
  if (drops) b.seed = seed_at.as<std::int64_t>();
  const gpu::launchers by = type == dtype::bf16 ? gpu::all_launchers<__nv_bfloat16>() : gpu::all_launchers<__half>();
  const status done = by.dropout_gemms(nullptr, form_kind, g);
  INFO(std::string(done.message()));
  REQUIRE(bool(done));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const dropout_mask drawn = dropout_mask::of(seed, 5, static_cast<double>(share));
  const auto x = [&](std::size_t i) {
    return drops && drawn.drops(static_cast<long long>(i)) ? 0.0 : static_cast<double>(wide.numbers[i]);
  };
  const auto a = [&](std::size_t r, std::size_t c) {
    return static_cast<double>(factor.numbers[by_rank ? r * columns + c : c * rank + r]);
  };
  const std::vector<float> found = out.read();
  double d = 0, n = 0;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t out_columns = form_kind == form::shrink ? rank : columns, row = i / out_columns,
                      c = i % out_columns;
    double sum = 0;
    for (std::size_t k = 0; form_kind == form::shrink && k < columns; ++k) sum += x(row * columns + k) * a(c, k);
    for (std::size_t t = 0; form_kind == form::sum && t < rows; ++t)
      sum += static_cast<double>(narrow.numbers[t * pitch + row]) * x(t * columns + c);
    if (form_kind == form::expand && !(drops && drawn.drops(static_cast<long long>(i))))
      for (std::size_t r = 0; r < rank; ++r) sum += static_cast<double>(narrow.numbers[row * pitch + r]) * a(r, c);
    if (drops) sum *= 4.0 / 3;
    if (form_kind == form::expand) sum += static_cast<double>(wide.numbers[i]);
    d += (found[i] - sum) * (found[i] - sum), n += sum * sum;
  }
  return std::isnan(d) ? INFINITY : std::sqrt(d / n);
}

}  // namespace

TEST_CASE("gpu: narrow GEMMs with fused dropout") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  const sizes_of_case all[] = {{128, 256, 16}, {100, 96, 16},   {1, 32, 8},  {300, 512, 32},
                               {77, 4096, 64}, {1000, 288, 40}, {33, 45, 5}, {200, 64, 7}};
  for (const sizes_of_case& s : all)
    for (const dtype type : {dtype::bf16, dtype::f32})
      for (const form form_kind : {form::shrink, form::sum, form::expand})
        for (const bool by_rank : {true, false})
          for (const bool drops : {true, false}) {
            INFO(s.rows, " x ", s.columns, ", rank ", s.rank, ", form ", static_cast<int>(form_kind), ", ", by_rank,
                 drops);
            const int padding = by_rank ? 0 : 16 - s.rank % 16;  // rows of T = dy B as a GEMM stores them
            const double most = type == dtype::f32 ? 1e-5 : 4e-3;
            CHECK(error_of(form_kind, s, type, by_rank, drops, padding) < most);
          }
}
