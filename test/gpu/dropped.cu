// SPDX-License-Identifier: Apache-2.0
// Narrow products with dropout in them against their formulas, with the draws that the CPU makes: by the kernels for 16
// bits, and for types and sizes that those do not take.
#include <doctest/doctest.h>
#include <graft/backend/cuda/launchers.cuh>
#include <graft/backend/cuda/memory.h>

#include <cmath>
#include <cstdio>
#include <deque>
#include <random>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

using bf = __nv_bfloat16;
using form = dropped_product::form;

struct sizes_of_case {
  long long rows;
  int columns, rank;
};
struct device_numbers {
  std::vector<float> numbers;  // as they are stored
  cuda::buffer memory;
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
  cuda::cells<float> cells() const { return {memory.data(), type}; }
  std::vector<float> read() const {
    std::vector<float> v(numbers.size());
    std::vector<bf> narrow(v.size());
    REQUIRE(cudaMemcpy(type == dtype::f32 ? static_cast<void*>(v.data()) : narrow.data(), memory.data(),
                       v.size() * (type == dtype::f32 ? 4 : 2), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (std::size_t i = 0; type != dtype::f32 && i < v.size(); ++i) v[i] = __bfloat162float(narrow[i]);
    return v;
  }
};

// The distance of a form from its formula; of an expand also with several branches.
double error_of(form how, const sizes_of_case& s, dtype type, bool by_rank, bool drops, int padding, int branches = 1) {
  std::mt19937 engine(3);
  const auto rows = static_cast<std::size_t>(s.rows), columns = static_cast<std::size_t>(s.columns),
             rank = static_cast<std::size_t>(s.rank), pitch = rank + static_cast<std::size_t>(padding);
  const std::size_t entries = how == form::sum ? rank * columns : rows * (how == form::shrink ? rank : columns);
  const device_numbers wide(rows * columns, type, engine, 1),
      out(entries, how == form::sum ? dtype::f32 : type, engine, 1), rate(1, dtype::f32, engine, 0);
  const std::int64_t seed = 77;
  const float share = 0.25F;
  cuda::buffer seed_at;
  REQUIRE(bool(seed_at.reserve(8)));
  REQUIRE(cudaMemcpy(seed_at.data(), &seed, 8, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemcpy(rate.memory.data(), &share, 4, cudaMemcpyHostToDevice) == cudaSuccess);
  cuda::dropped_args g;
  g.wide = wide.cells(), g.out = out.cells(), g.rows = s.rows, g.columns = s.columns, g.terms = branches;
  std::deque<device_numbers> narrow, factor;
  for (int k = 0; k < branches; ++k) {
    cuda::dropped_branch& b = g.term[k];
    b.narrow = narrow.emplace_back(rows * pitch, type, engine, 1.0F).cells();
    b.factor = factor.emplace_back(rank * columns, dtype::f32, engine, 1.0F).cells();
    b.rank_step = by_rank ? s.columns : 1, b.column_step = by_rank ? 1 : s.rank;
    b.rank = s.rank, b.pitch = s.rank + padding, b.salt = 5 + k, b.rate = rate.cells();
    if (drops) b.seed = seed_at.as<std::int64_t>();
  }
  const cuda::launchers by = type == dtype::bf16 ? cuda::all_launchers<__nv_bfloat16>() : cuda::all_launchers<__half>();
  const status done = by.dropped(nullptr, how, g);
  INFO(std::string(done.message()));
  REQUIRE(bool(done));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const auto drawn = [&](std::size_t k) {
    return element_drops::of(seed, 5 + static_cast<long long>(k), static_cast<double>(share));
  };
  const auto x = [&](std::size_t i) {
    return drops && drawn(0).drops(static_cast<long long>(i)) ? 0.0 : static_cast<double>(wide.numbers[i]);
  };
  const auto a = [&](std::size_t k, std::size_t r, std::size_t c) {
    return static_cast<double>(factor[k].numbers[by_rank ? r * columns + c : c * rank + r]);
  };
  const std::vector<float> found = out.read();
  double d = 0, n = 0;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t across = how == form::shrink ? rank : columns, row = i / across, c = i % across;
    double sum = 0;
    for (std::size_t k = 0; how == form::shrink && k < columns; ++k) sum += x(row * columns + k) * a(0, c, k);
    for (std::size_t t = 0; how == form::sum && t < rows; ++t)
      sum += static_cast<double>(narrow[0].numbers[t * pitch + row]) * x(t * columns + c);
    for (std::size_t k = 0; how == form::expand && k < narrow.size(); ++k)
      for (std::size_t r = 0; r < rank && !(drops && drawn(k).drops(static_cast<long long>(i))); ++r)
        sum += static_cast<double>(narrow[k].numbers[row * pitch + r]) * a(k, r, c);
    if (drops) sum *= 4.0 / 3;
    if (how == form::expand) sum += static_cast<double>(wide.numbers[i]);
    d += (found[i] - sum) * (found[i] - sum), n += sum * sum;
  }
  return std::isnan(d) ? INFINITY : std::sqrt(d / n);
}

}  // namespace

TEST_CASE("gpu: narrow products with dropout in them") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  const sizes_of_case all[] = {{128, 256, 16}, {100, 96, 16},   {1, 32, 8},  {300, 512, 32},
                               {77, 4096, 64}, {1000, 288, 40}, {33, 45, 5}, {200, 64, 7}};
  for (const sizes_of_case& s : all)
    for (const dtype type : {dtype::bf16, dtype::f32})
      for (const form how : {form::shrink, form::sum, form::expand})
        for (const bool by_rank : {true, false})
          for (const bool drops : {true, false}) {
            INFO(s.rows, " x ", s.columns, ", rank ", s.rank, ", form ", static_cast<int>(how), ", ", by_rank, drops);
            const int padding = by_rank ? 0 : 16 - s.rank % 16;  // rows of T as a product stores them
            const double most = type == dtype::f32 ? 1e-5 : 4e-3;
            CHECK(error_of(how, s, type, by_rank, drops, padding) < most);
            for (int branches = 2; how == form::expand && branches <= most_dropped_terms; ++branches)
              CHECK(error_of(how, s, type, by_rank, drops, padding, branches) < most);
          }
}
