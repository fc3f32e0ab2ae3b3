// SPDX-License-Identifier: Apache-2.0
// Gates and their gradients as one pass: by the kernels that know them, by the one that decodes the steps, and on rows that
// neither takes eight at a time, against the formula.
#include <doctest/doctest.h>
#include <graft/backend/cuda/launchers.cuh>
#include <graft/backend/cuda/memory.h>

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
  std::vector<std::vector<float>> numbers;  // as they are stored
  std::vector<float> factors[2];            // of the columns
  std::deque<cuda::buffer> memory;          // three of all elements, a one, the factors
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
  cuda::tensor<float> at(int k) const {
    return {{memory[static_cast<std::size_t>(k)].data(), k >= 3 ? dtype::f32 : dtype::bf16},
            {1, 1, k >= 3 ? 1 : rows, k == 3 ? 1 : width}};
  }
};
// The expression of `steps`, with the operands in this order.
template <class Steps> cuda::expression written(const operands& with, const std::vector<int>& order) {
  cuda::expression e{};
  for (int k = 0; k < Steps::count; ++k) e.step[e.steps++] = Steps::at(k);
  for (const int k : order) {
    e.operand[e.operands] = with.at(k).p;
    const unsigned step[4] = {0, 0, k >= 3 ? 0 : static_cast<unsigned>(with.width), k == 3 ? 0U : 1U};
    std::copy(step, step + 4, e.stride[e.operands++]);
  }
  return e;
}
std::vector<float> evaluated(const cuda::expression& e, long long rows, long long width, dtype type) {
  cuda::buffer memory;
  const long long n = rows * width;
  REQUIRE(bool(memory.reserve(4 * n)));
  const cuda::tensor<float> out{{memory.data(), type}, {1, 1, rows, width}};
  const long long before = cuda::launch_count();
  const cuda::launchers by = cuda::all_launchers<__nv_bfloat16>();
  const status done = by.expression(nullptr, by.sums, e, out, out);
  INFO(std::string(done.message()));
  REQUIRE(bool(done));
  CHECK(cuda::launch_count() == before + 1);
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
  const cuda::expression e = written<Steps>(with, order);
  const std::vector<float> narrow = evaluated(e, with.rows, with.width, dtype::bf16),
                           wide = evaluated(e, with.rows, with.width, dtype::f32);
  double worst_narrow = 0, worst_wide = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const std::size_t column = i % static_cast<std::size_t>(with.width);
    const bool scaled = std::find(order.begin(), order.end(), 4) != order.end();
    const float p = scaled ? with.factors[0][column] : 1, q = scaled ? with.factors[1][column] : 1;
    // What cancels in a gradient near its zero is a fifth of the product of the other factors, known to four units of
    // float's last place. Without factors the operands are too coarse to come so near.
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
    check<cuda::silu_gate>(with, {0, 1}, gate);
    check<cuda::silu_gate_by_second>(with, {2, 0}, by_second);
    check<cuda::silu_gate_by_first>(with, {2, 1, 0, 3}, by_first);
    check<cuda::scaled_gate>(with, {0, 4, 1, 5}, gate);
    check<cuda::scaled_gate_by_second>(with, {2, 0, 4}, by_second);
    check<cuda::scaled_gate_by_first>(with, {2, 1, 5, 0, 4, 3}, by_first);
  }
}
TEST_CASE("gpu: a residual that is computed again is the sum with a scaled row") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  const operands with(37, 256);
  const std::vector<float> found = evaluated(written<cuda::scaled_residual>(with, {2, 0, 4}), 37, 256, dtype::bf16),
                           sums = evaluated(written<cuda::sum_of_three>(with, {0, 1, 2}), 37, 256, dtype::bf16);
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
// Of each row, or of each column, twice.
template <class Steps> void check_sums(const operands& with, const std::vector<int>& order, bool of_rows) {
  const long long results = of_rows ? with.rows : with.width;
  cuda::buffer memory;
  REQUIRE(bool(memory.reserve(4 * results)));
  cuda::tensor<float> of, out;
  of.d[2] = with.rows, of.d[3] = with.width, out.p = cuda::cells<float>(memory.as<float>());
  out.d[2] = of_rows ? results : 1, out.d[3] = of_rows ? 1 : results;
  const cuda::launchers by = cuda::all_launchers<bf>();
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
using product_of_two = cuda::known_steps<cuda::reading(0), cuda::reading(1), cuda::doing(op::mul)>;
using product_of_three =
    cuda::known_steps<cuda::reading(0), cuda::reading(1), cuda::doing(op::mul), cuda::reading(2), cuda::doing(op::mul)>;

TEST_CASE("gpu: sums of an expression, of each row and of each column, are right and the same every time") {
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
      check_sums<cuda::sum_of_three>(with, {0, 1, 2}, of_rows);
    }
}
TEST_CASE("gpu: both gradients of a gate in one pass have the bits of a pass for each") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  using first = cuda::known_gate_by_second::kernel;
  using second = cuda::known_gate_by_first::kernel;
  const operands with(300, 512);
  const std::size_t n = 300 * 512;
  cuda::buffer memory;
  REQUIRE(bool(memory.reserve(static_cast<long long>(4 * n))));
  bf* const at = memory.as<bf>();
  const first one{{with.at(2).p, with.at(0).p}, {at, dtype::bf16}, 512};
  const second other{{with.at(2).p, with.at(1).p, with.at(0).p, with.at(3).p}, {at + n, dtype::bf16}, 512};
  REQUIRE(
      bool(cuda::each(nullptr, static_cast<long long>(n / 8), cuda::known_pair<first, second>{one, other}, "both")));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<bf> both(2 * n);
  REQUIRE(cudaMemcpy(both.data(), at, 4 * n, cudaMemcpyDeviceToHost) == cudaSuccess);
  const std::vector<float> by_second =
                               evaluated(written<cuda::silu_gate_by_second>(with, {2, 0}), 300, 512, dtype::bf16),
                           by_first =
                               evaluated(written<cuda::silu_gate_by_first>(with, {2, 1, 0, 3}), 300, 512, dtype::bf16);
  bool same = true;
  for (std::size_t i = 0; i < n; ++i)
    same = same && __bfloat162float(both[i]) == by_second[i] && __bfloat162float(both[n + i]) == by_first[i];
  CHECK(same);
}
TEST_CASE("gpu: the kernels of known gates take what they are for, and nothing else") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  const operands with(4, 16);
  cuda::buffer memory;
  REQUIRE(bool(memory.reserve(4 * 64)));
  const auto takes = [&](const cuda::expression& e, dtype type) {
    cuda::expression_eights<true> f{e, {memory.data(), type}, 16, {}};
    const unsigned size[4] = {1, 1, 4, 16};
    REQUIRE(f.take(size));
    const result<bool> known = cuda::evaluate_known<__nv_bfloat16>(nullptr, f, 8);
    return known && *known;
  };
  CHECK(takes(written<cuda::silu_gate>(with, {0, 1}), dtype::bf16));
  CHECK(takes(written<cuda::silu_gate_by_second>(with, {2, 0}), dtype::bf16));
  CHECK(takes(written<cuda::silu_gate_by_first>(with, {2, 1, 0, 3}), dtype::bf16));
  CHECK(takes(written<cuda::scaled_residual>(with, {2, 0, 4}), dtype::bf16));
  CHECK(takes(written<cuda::sum_of_three>(with, {0, 1, 2}), dtype::bf16));
  CHECK(takes(written<cuda::scaled_gate>(with, {0, 4, 1, 5}), dtype::bf16));
  CHECK(takes(written<cuda::scaled_gate_by_second>(with, {2, 0, 4}), dtype::bf16));
  CHECK(takes(written<cuda::scaled_gate_by_first>(with, {2, 1, 5, 0, 4, 3}), dtype::bf16));
  CHECK(!takes(written<cuda::scaled_gate>(with, {0, 1, 2, 4}), dtype::bf16));  // all elements in the place of a row
  CHECK(!takes(written<cuda::silu_gate>(with, {0, 1}), dtype::f16));
  CHECK(!takes(written<cuda::silu_gate>(with, {0, 3}), dtype::bf16));  // a number in the place of a row
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
}
