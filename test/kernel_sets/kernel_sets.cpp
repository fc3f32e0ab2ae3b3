// SPDX-License-Identifier: Apache-2.0
// Every set of kernels that this machine runs, against products in double: quantized weights in all formats, weights in
// 16 bits, floats by every kernel of gemm.h. This program is compiled without the instructions of the machine, as
// users' are, and the last test checks that the fastest set is what such a program calls.
#include <doctest/doctest.h>
#include <graft/backend/cpu/gemm/matmul.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "../support/quantized.h"

using namespace test;

namespace {

std::vector<double> product_of(const std::vector<float>& w, const std::vector<float>& x, long long rows, long long cols,
                               long long tokens) {
  std::vector<double> y(static_cast<std::size_t>(rows * tokens));
  for (long long t = 0; t < tokens; ++t)
    for (long long r = 0; r < rows; ++r)
      for (long long k = 0; k < cols; ++k)
        y[static_cast<std::size_t>(t * rows + r)] += static_cast<double>(w[static_cast<std::size_t>(r * cols + k)]) *
                                                     static_cast<double>(x[static_cast<std::size_t>(t * cols + k)]);
  return y;
}
// The largest difference, relative to the largest number.
double off(const std::vector<float>& found, const std::vector<double>& expected) {
  double most = 0, worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = std::abs(static_cast<double>(found[i]) - expected[i]);
    most = std::max(most, std::abs(expected[i])), worst = d <= worst ? worst : d;
  }
  return worst / most;
}
template <class F> void for_each_set(F f) {
  for (int k = 0; graft_kernels::supported(k) != nullptr; ++k) {
    INFO(std::string(graft_kernels::supported(k)->name));
    f(*graft_kernels::supported(k));
  }
}

}  // namespace

TEST_CASE("kernel sets: those of this processor, slowest first") {
  int level = 0;
  for_each_set([&](const graft_kernels::set& s) {
    MESSAGE(std::string(s.name));
    CHECK(s.level > level);
    level = s.level;
    CHECK(s.level <= graft_kernels::best()->level);
  });
  CHECK((graft_kernels::best() == nullptr) == (level == 0));
}

TEST_CASE("kernel sets: quantized weights in every format, of few tokens") {
  const long long rows = 37;
  for (const auto* list : {&every_quant_format(), &every_wide_quant_format(), &every_checkpoint_format()})
    for (const named_quant_format& e : *list) {
      const long long cols = e.format.block == 4096 ? 4096 : 512;
      const quantized_and_plain w(normal_numbers(rows * cols, 4), rows, cols, e.format);
      const graft_kernels::quantized stored = cpu::as_kernel_weight(w.as_weight());
      for_each_set([&](const graft_kernels::set& s) {
        INFO(e.name);
        std::vector<float> part(200, 77.0F);
        s.dequantize(stored, 100, 199, part.data());
        CHECK(std::equal(part.begin(), part.end() - 1, w.numbers.begin() + 100));
        CHECK(part.back() == 77.0F);
        for (const long long tokens : {1LL, 2LL, 4LL, 9LL}) {
          if (!s.reads_quantized(stored, tokens)) continue;
          INFO(tokens, " tokens");
          const std::vector<float> x = normal_numbers(tokens * cols, 3);
          std::vector<float> y(static_cast<std::size_t>(rows * tokens));
          // In two shares, as two threads compute it.
          for (const long long first : {0LL, 16LL})
            s.multiply_quantized({first == 0 ? 16 : rows - 16,
                                  tokens,
                                  cols,
                                  {nullptr, cols, 1},
                                  {x.data(), 1, cols},
                                  y.data() + first,
                                  rows,
                                  1.0F},
                                 stored, first);
          CHECK(off(y, product_of(w.numbers, x, rows, cols, tokens)) < 2e-5);
        }
        CHECK(s.reads_quantized(stored, 1));
      });
    }
}

TEST_CASE("kernel sets: floats by every kernel, and weights in 16 bits") {
  for (const long long rows : {3LL, 48LL, 131LL})
    for (const long long cols : {16LL, 64LL, 200LL})
      for (const long long tokens : {1LL, 3LL, 24LL, 100LL}) {
        const std::vector<float> w = normal_numbers(rows * cols, 1), x = normal_numbers(tokens * cols, 2);
        std::vector<float> by_column(w.size());
        for (long long r = 0; r < rows; ++r)
          for (long long k = 0; k < cols; ++k)
            by_column[static_cast<std::size_t>(k * rows + r)] = w[static_cast<std::size_t>(r * cols + k)];
        const std::vector<double> expected = product_of(w, x, rows, cols, tokens);
        for_each_set([&](const graft_kernels::set& s) {
          INFO(rows, " x ", cols, ", ", tokens, " tokens");
          std::vector<float> y(expected.size());
          for (const bool columns : {false, true}) {
            const cpu::strided<float> left =
                columns ? cpu::strided<float>{by_column.data(), 1, rows} : cpu::strided<float>{w.data(), cols, 1};
            const cpu::gemm_problem<float> c{rows, tokens, cols, left, {x.data(), 1, cols}, y.data(), rows, 1.0F};
            const auto kernel = cpu::detail::choose_kernel(c);
            INFO("kernel ", static_cast<int>(kernel));
            s.reserve(cpu::as_kernel_product(c), static_cast<int>(kernel));
            s.multiply(cpu::as_kernel_product(c), static_cast<int>(kernel), true);
            CHECK(off(y, expected) < 2e-6);
          }
          std::vector<bf16> narrow_w;
          std::vector<f16> half_w;
          std::vector<float> narrow_numbers, half_numbers;
          for (const float v : w) {
            narrow_w.push_back(narrow(v)), half_w.push_back(narrow_to_f16(v));
            narrow_numbers.push_back(widen(narrow_w.back())), half_numbers.push_back(widen(half_w.back()));
          }
          graft_kernels::product c{rows,     tokens, cols, {narrow_w.data(), cols, 1}, {x.data(), 1, cols},
                                   y.data(), rows,   1.0F};
          std::fill(y.begin(), y.end(), 0.0F);
          s.multiply_bf16(c);
          CHECK(off(y, product_of(narrow_numbers, x, rows, cols, tokens)) < 2e-6);
          std::fill(y.begin(), y.end(), 0.0F);
          c.left.p = half_w.data();
          s.multiply_f16(c);
          CHECK(off(y, product_of(half_numbers, x, rows, cols, tokens)) < 2e-6);
        });
      }
}

TEST_CASE("kernel sets: a program that is compiled for every processor calls the fastest one") {
  const graft_kernels::set* const best = graft_kernels::best();
  CHECK(cpu::faster_kernels() == (best != nullptr && best->level > cpu::instruction_level ? best : nullptr));
  const long long rows = 40, cols = 512;
  const quantized_and_plain w(normal_numbers(rows * cols, 4), rows, cols, quant_formats::q8_0_format::format());
  const std::vector<float> x = normal_numbers(cols, 3);
  std::vector<float> y(static_cast<std::size_t>(rows));
  cpu::weight_gemm<float>({y.data(), {1, 1, 1, rows}}, {const_cast<float*>(x.data()), {1, 1, 1, cols}}, w.as_weight(),
                          {false, true});
  CHECK(off(y, product_of(w.numbers, x, rows, cols, 1)) < 2e-5);
  if (best == nullptr || best->level <= cpu::instruction_level) return;
  std::vector<float> by_set(y.size());
  best->multiply_quantized({rows, 1, cols, {nullptr, cols, 1}, {x.data(), 1, cols}, by_set.data(), rows, 1.0F},
                           cpu::as_kernel_weight(w.as_weight()), 0);
  CHECK(y == by_set);
}
