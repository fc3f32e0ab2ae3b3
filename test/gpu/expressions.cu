// SPDX-License-Identifier: Apache-2.0
// Gates and their gradients as one pass over the elements: by their own kernels, by the kernel that interprets the
// steps, and on rows that are no multiple of eight elements, against the formula.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/launchers.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <random>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

using bf = __nv_bfloat16;

struct operands {
  long long rows, width;
  std::vector<std::vector<float>> numbers;  // after rounding to the storage type
  std::vector<float> factors[2];            // one per column
  std::deque<gpu::buffer> memory;           // three full operands, the scalar 1, the factors
  operands(long long r, long long w) : rows(r), width(w) {
    std::mt19937 engine(7);
    std::normal_distribution<float> normal(0, 2);
    for (int k = 0; k < 3; ++k) {
      std::vector<bf> narrow;
      std::vector<float>& wide = numbers.emplace_back();
      for (long long i = 0; i < r * w; ++i)
        narrow.push_back(__float2bfloat16(normal(engine))), wide.push_back(__bfloat162float(narrow.back()));
      put(narrow.data(), 2 * r * w);
    }
    const float one = 1;
    put(&one, 4);
    for (std::vector<float>& row : factors) {
      for (long long c = 0; c < w; ++c) row.push_back(normal(engine));
      put(row.data(), 4 * w);
    }
  }
  void put(const void* from, long long bytes) {
    REQUIRE(bool(memory.emplace_back().reserve(bytes)));
    REQUIRE(cudaMemcpy(memory.back().data(), from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  gpu::tensor<float> at(int k) const {
    return {{memory[static_cast<std::size_t>(k)].data(), k >= 3 ? dtype::f32 : dtype::bf16},
            {1, 1, k >= 3 ? 1 : rows, k == 3 ? 1 : width}};
  }
};
// The expression with these steps and the operands in this order.
template <class Steps> gpu::expression written(const operands& with, const std::vector<int>& order) {
  gpu::expression e{};
  for (int k = 0; k < Steps::count; ++k) e.step[e.steps++] = Steps::at(k);
  for (const int k : order) {
    e.operand[e.operands] = with.at(k).p;
    const unsigned step[4] = {0, 0, k >= 3 ? 0 : static_cast<unsigned>(with.width), k == 3 ? 0U : 1U};
    std::copy(step, step + 4, e.stride[e.operands++]);
  }
  return e;
}
std::vector<float> evaluated(const gpu::expression& e, long long rows, long long width, dtype type) {
  gpu::buffer memory;
  const long long n = rows * width;
  REQUIRE(bool(memory.reserve(4 * n)));
  const gpu::tensor<float> out{{memory.data(), type}, {1, 1, rows, width}};
  const long long before = gpu::launch_count();
  const gpu::launchers by = gpu::all_launchers<__nv_bfloat16>();
  const status done = by.expression(nullptr, by.sums, e, out, out);
  INFO(std::string(done.message()));
  REQUIRE(bool(done));
  CHECK(gpu::launch_count() == before + 1);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<float> y(static_cast<std::size_t>(n));
  std::vector<bf> narrow(y.size());
  REQUIRE(cudaMemcpy(type == dtype::f32 ? static_cast<void*>(y.data()) : narrow.data(), memory.data(),
                     y.size() * (type == dtype::f32 ? 4 : 2), cudaMemcpyDeviceToHost) == cudaSuccess);
  for (std::size_t i = 0; type != dtype::f32 && i < y.size(); ++i) y[i] = __bfloat162float(narrow[i]);
  return y;
}
template <class Steps, class Formula>
void check(const operands& with, const std::vector<int>& order, const Formula& formula) {
  const gpu::expression e = written<Steps>(with, order);
  const std::vector<float> narrow = evaluated(e, with.rows, with.width, dtype::bf16),
                           wide = evaluated(e, with.rows, with.width, dtype::f32);
  double worst_narrow = 0, worst_wide = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const std::size_t column = i % static_cast<std::size_t>(with.width);
    const bool scaled = std::find(order.begin(), order.end(), 4) != order.end();
    const float p = scaled ? with.factors[0][column] : 1, q = scaled ? with.factors[1][column] : 1;
    // A gradient near its zero is the difference of two terms, each up to a fifth of the product of the other factors
    // and exact to four units in the last place of float. Without factors the operands are too coarse for such a case.
    const double terms =
        scaled ? 1 + 10 * std::abs(static_cast<double>(q * with.numbers[1][i] * with.numbers[2][i])) : 1;
    const double want = formula(static_cast<double>(p * with.numbers[0][i]),
                                static_cast<double>(q * with.numbers[1][i]), static_cast<double>(with.numbers[2][i])),
                 size = std::abs(want) + 1e-3 * terms;
    worst_narrow = std::max(worst_narrow, std::abs(narrow[i] - want) / size);
    worst_wide = std::max(worst_wide, std::abs(wide[i] - want) / size);
  }
  CHECK(worst_narrow < 4.2e-3);  // half a unit in the last place of bf16 is 1 / 256
  CHECK(worst_wide < 1e-5);
}

}  // namespace

TEST_CASE("gpu: gates and their gradients as one pass") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  const auto sigmoid = [](double a) { return 1 / (1 + std::exp(-a)); };
  for (const auto& [rows, width] : {std::pair{1LL, 8LL}, {3LL, 40LL}, {20LL, 14336LL}, {257LL, 512LL}, {5LL, 33LL}}) {
    INFO(rows, " x ", width);
    const operands with(rows, width);
    const auto gate = [&](double a, double b, double) { return a * sigmoid(a) * b; };
    const auto by_second = [&](double a, double, double t) { return t * a * sigmoid(a); };
    const auto by_first = [&](double a, double b, double t) {
      return t * b * (sigmoid(a) + a * sigmoid(a) * (1 - sigmoid(a)));
    };
    check<gpu::swiglu>(with, {0, 1}, gate);
    check<gpu::swiglu_grad_up>(with, {2, 0}, by_second);
    check<gpu::swiglu_grad_gate>(with, {2, 1, 0, 3}, by_first);
    check<gpu::scaled_swiglu>(with, {0, 4, 1, 5}, gate);
    check<gpu::scaled_swiglu_grad_up>(with, {2, 0, 4}, by_second);
    check<gpu::scaled_swiglu_grad_gate>(with, {2, 1, 5, 0, 4, 3}, by_first);
  }
}
TEST_CASE("gpu: recomputing a residual gives the sum with a scaled row") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  const operands with(37, 256);
  const std::vector<float> found = evaluated(written<gpu::scaled_residual>(with, {2, 0, 4}), 37, 256, dtype::bf16),
                           sums = evaluated(written<gpu::sum_of_three>(with, {0, 1, 2}), 37, 256, dtype::bf16);
  double worst = 0, worst_sum = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double x = static_cast<double>(with.numbers[2][i]),
                 more = static_cast<double>(with.numbers[0][i]) * static_cast<double>(with.factors[0][i % 256]);
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - x - more) / (std::abs(x) + std::abs(more) + 1e-3));
  }
  CHECK(worst < 4.2e-3);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double sum = 0, size = 1e-3;
    for (const std::vector<float>& v : with.numbers)
      sum += static_cast<double>(v[i]), size += std::abs(static_cast<double>(v[i]));
    worst_sum = std::max(worst_sum, std::abs(static_cast<double>(sums[i]) - sum) / size);
  }
  CHECK(worst_sum < 4.2e-3);
}
// Sums each row, or each column, twice.
template <class Steps> void check_sums(const operands& with, const std::vector<int>& order, bool of_rows) {
  const long long results = of_rows ? with.rows : with.width;
  gpu::buffer memory;
  REQUIRE(bool(memory.reserve(4 * results)));
  gpu::tensor<float> of, out;
  of.d[2] = with.rows, of.d[3] = with.width, out.p = gpu::element_ptr<float>(memory.as<float>());
  out.d[2] = of_rows ? results : 1, out.d[3] = of_rows ? 1 : results;
  const gpu::launchers by = gpu::all_launchers<bf>();
  std::vector<float> sums[2];
  for (std::vector<float>& found : sums) {
    found.resize(static_cast<std::size_t>(results));
    REQUIRE(cudaMemset(memory.data(), 255, static_cast<std::size_t>(4 * results)) == cudaSuccess);
    REQUIRE(bool(by.expression(nullptr, by.sums, written<Steps>(with, order), of, out)));
    REQUIRE(cudaMemcpy(found.data(), memory.data(), 4 * found.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  }
  CHECK(std::equal(sums[0].begin(), sums[0].end(), sums[1].begin()));
  std::vector<double> want(sums[0].size()), size(sums[0].size(), 1e-3);
  for (std::size_t i = 0; i < with.numbers[0].size(); ++i) {
    const auto width = static_cast<std::size_t>(with.width), at = of_rows ? i / width : i % width;
    const double a = with.numbers[0][i], b = with.numbers[1][i], c = with.numbers[2][i], p = with.factors[0][i % width],
                 v = order.size() == 2 ? a * p
                     : order[2] == 4   ? a * b * p
                                       : a + b + c;
    want[at] += v, size[at] += std::abs(v);
  }
  double worst = 0;
  for (std::size_t k = 0; k < want.size(); ++k)
    worst = std::max(worst, std::abs(static_cast<double>(sums[0][k]) - want[k]) / size[k]);
  CHECK(worst < 2e-6);
}
using product_of_two = gpu::fixed_steps<gpu::read_step(0), gpu::read_step(1), gpu::op_step(op::mul)>;
using product_of_three = gpu::fixed_steps<gpu::read_step(0), gpu::read_step(1), gpu::op_step(op::mul),
                                          gpu::read_step(2), gpu::op_step(op::mul)>;

TEST_CASE("gpu: sums of an expression over rows and over columns are correct and bitwise repeatable") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  for (const auto& [rows, width] : {std::pair{1LL, 8LL},
                                    {37LL, 256LL},
                                    {1000LL, 264LL},
                                    {4099LL, 16LL},
                                    {130LL, 40LL},
                                    {2050LL, 1032LL},
                                    {5LL, 33LL}})
    for (const bool of_rows : {true, false}) {
      INFO(rows, " x ", width, of_rows ? ", rows" : ", columns");
      const operands with(rows, width);
      check_sums<product_of_two>(with, {0, 4}, of_rows);
      check_sums<product_of_three>(with, {0, 1, 4}, of_rows);
      check_sums<gpu::sum_of_three>(with, {0, 1, 2}, of_rows);
    }
}
TEST_CASE("gpu: both gradients of a gate in one pass have the bits of two passes") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  using first = gpu::fixed_swiglu_grad_up::kernel;
  using second = gpu::fixed_swiglu_grad_gate::kernel;
  const operands with(300, 512);
  const std::size_t n = 300 * 512;
  gpu::buffer memory;
  REQUIRE(bool(memory.reserve(static_cast<long long>(4 * n))));
  bf* const at = memory.as<bf>();
  const first one{{with.at(2).p, with.at(0).p}, {at, dtype::bf16}, 512};
  const second other{{with.at(2).p, with.at(1).p, with.at(0).p, with.at(3).p}, {at + n, dtype::bf16}, 512};
  REQUIRE(bool(gpu::each(nullptr, static_cast<long long>(n / 8), gpu::fixed_pair<first, second>{one, other}, "both")));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<bf> both(2 * n);
  REQUIRE(cudaMemcpy(both.data(), at, 4 * n, cudaMemcpyDeviceToHost) == cudaSuccess);
  const std::vector<float> by_second = evaluated(written<gpu::swiglu_grad_up>(with, {2, 0}), 300, 512, dtype::bf16),
                           by_first =
                               evaluated(written<gpu::swiglu_grad_gate>(with, {2, 1, 0, 3}), 300, 512, dtype::bf16);
  bool same = true;
  for (std::size_t i = 0; i < n; ++i)
    same = same && __bfloat162float(both[i]) == by_second[i] && __bfloat162float(both[n + i]) == by_first[i];
  CHECK(same);
}
TEST_CASE("gpu: the kernels of fixed gates match their expressions only") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  const operands with(4, 16);
  gpu::buffer memory;
  REQUIRE(bool(memory.reserve(4 * 64)));
  const auto takes = [&](const gpu::expression& e, dtype type) {
    gpu::expression_vec8<true> f{e, {memory.data(), type}, 16, {}};
    const unsigned size[4] = {1, 1, 4, 16};
    REQUIRE(f.take(size));
    const result<bool> known = gpu::evaluate_fixed<__nv_bfloat16>(nullptr, f, 8);
    return known && *known;
  };
  CHECK(takes(written<gpu::swiglu>(with, {0, 1}), dtype::bf16));
  CHECK(takes(written<gpu::swiglu_grad_up>(with, {2, 0}), dtype::bf16));
  CHECK(takes(written<gpu::swiglu_grad_gate>(with, {2, 1, 0, 3}), dtype::bf16));
  CHECK(takes(written<gpu::scaled_residual>(with, {2, 0, 4}), dtype::bf16));
  CHECK(takes(written<gpu::sum_of_three>(with, {0, 1, 2}), dtype::bf16));
  CHECK(takes(written<gpu::scaled_swiglu>(with, {0, 4, 1, 5}), dtype::bf16));
  CHECK(takes(written<gpu::scaled_swiglu_grad_up>(with, {2, 0, 4}), dtype::bf16));
  CHECK(takes(written<gpu::scaled_swiglu_grad_gate>(with, {2, 1, 5, 0, 4, 3}), dtype::bf16));
  CHECK(!takes(written<gpu::scaled_swiglu>(with, {0, 1, 2, 4}), dtype::bf16));  // a full operand instead of a row
  CHECK(!takes(written<gpu::swiglu>(with, {0, 1}), dtype::f16));
  CHECK(!takes(written<gpu::swiglu>(with, {0, 3}), dtype::bf16));  // a scalar instead of a row
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
}
