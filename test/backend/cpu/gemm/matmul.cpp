// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/gemm/matmul.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "../../../support/tensors.h"

using namespace test;

namespace {

// Reference: c[i, j] (+)= a[i, j] b[i, j] for each matrix of the stacks; an operand of one matrix is broadcast.
owned<double> plain(owned<double> c, owned<double> a, owned<double> b, cpu::matmul_mode m) {
  const long long n0 = std::max(a.shape.d[0], b.shape.d[0]), n1 = std::max(a.shape.d[1], b.shape.d[1]);
  if (m.accumulate == 0) std::fill(c.v.begin(), c.v.end(), 0.0);
  const double sign = m.accumulate < 0 ? -1 : 1;
  const long long inner = a.shape.d[m.ta ? 2 : 3];
  for (long long i = 0; i < n0; ++i)
    for (long long j = 0; j < n1; ++j)
      for (long long r = 0; r < c.shape.d[2]; ++r)
        for (long long s = 0; s < c.shape.d[3]; ++s)
          for (long long k = 0; k < inner; ++k)
            c.at(m.sum ? 0 : i, m.sum ? 0 : j, r, s) +=
                sign * (m.ta ? a.at(i, j, k, r) : a.at(i, j, r, k)) * (m.tb ? b.at(i, j, s, k) : b.at(i, j, k, s));
  return c;
}
struct stacks {
  long long a0, a1, b0, b1;
};

}  // namespace

TEST_CASE("matmul: every transposition, stack, sum and mode of accumulation against the definition") {
  const long long rows = 5, inner = 7, cols = 6;
  for (const stacks& s : {stacks{1, 1, 1, 1}, stacks{1, 4, 1, 1}, stacks{1, 1, 1, 4}, stacks{1, 4, 1, 4},
                          stacks{2, 3, 2, 3}, stacks{2, 3, 1, 1}, stacks{2, 1, 2, 3}, stacks{1, 3, 2, 3}})
    for (int flags = 0; flags < 8; ++flags)
      for (const int accumulate : {0, 1, -1}) {
        const cpu::matmul_mode m{(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, accumulate};
        owned<double> a = random_tensor<double>({s.a0, s.a1, m.ta ? inner : rows, m.ta ? rows : inner}, 1);
        owned<double> b = random_tensor<double>({s.b0, s.b1, m.tb ? cols : inner, m.tb ? inner : cols}, 2);
        const four shape =
            m.sum ? four{1, 1, rows, cols} : four{std::max(s.a0, s.b0), std::max(s.a1, s.b1), rows, cols};
        owned<double> found = random_tensor<double>(shape, 3);
        const owned<double> expected = plain(found, a, b, m);
        cpu::matmul(found.t(), a.t(), b.t(), m);
        INFO("stacks ", s.a0, " ", s.a1, " and ", s.b0, " ", s.b1, ", flags ", flags, ", accumulate ", accumulate);
        CHECK(furthest(found.v, expected.v) < 1e-13);
      }
}

TEST_CASE("matmul: overwriting discards a NaN") {
  owned<double> a = random_tensor<double>({1, 1, 3, 4}, 1), b = random_tensor<double>({1, 1, 4, 2}, 2);
  owned<double> c({1, 1, 3, 2}, NAN), clean({1, 1, 3, 2});
  cpu::matmul(c.t(), a.t(), b.t(), {});
  cpu::matmul(clean.t(), a.t(), b.t(), {});
  CHECK(furthest(c.v, clean.v) == 0);
}

TEST_CASE("matmul: no rows, and stacks of no matrices") {
  owned<double> a({1, 1, 0, 4}), b = random_tensor<double>({1, 1, 4, 2}, 2), none({1, 1, 0, 2});
  cpu::matmul(none.t(), a.t(), b.t(), {});
  CHECK(none.v.empty());
  owned<double> stack({1, 0, 3, 4}), one = random_tensor<double>({1, 1, 5, 3}, 3), out({1, 0, 5, 4});
  cpu::matmul(out.t(), one.t(), stack.t(), {});
  CHECK(out.v.empty());
  owned<double> left({1, 0, 3, 4}), sum({1, 1, 3, 3}, 5.0);
  cpu::matmul(sum.t(), left.t(), left.t(), {false, true, true});  // a sum over no matrices is zero
  CHECK(furthest(sum.v, owned<double>({1, 1, 3, 3}).v) == 0);
  owned<double> wide({1, 1, 3, 0}), tall({1, 1, 0, 3}), empty_sum({1, 1, 3, 3}, 5.0);
  cpu::matmul(empty_sum.t(), wide.t(), tall.t(), {});
  CHECK(furthest(empty_sum.v, owned<double>({1, 1, 3, 3}).v) == 0);
}

namespace {

// A weight in storage, row-major or column-major, with or without gaps between rows or columns; and its values as
// floats.
template <class Stored> struct stored_weight {
  std::vector<Stored> codes;
  owned<float> numbers;
  weight_view view;

  stored_weight(long long rows, long long cols, bool column_major, long long padding, unsigned seed)
      : numbers(random_tensor<float>({1, 1, rows, cols}, seed)) {
    const long long line = (column_major ? rows : cols) + padding;
    codes.resize(static_cast<std::size_t>((column_major ? cols : rows) * line));
    view = {quant_format_of<Stored>(), rows, cols, column_major ? 1 : line, column_major ? line : 1, codes.data()};
    each_element(numbers.shape, [&](long long, long long, long long r, long long c) {
      Stored& code = codes[static_cast<std::size_t>(r * view.row_stride + c * view.col_stride)];
      cpu::convert_to(&numbers.at(0, 0, r, c), 1, &code, dtype_of<Stored>(), 0);
      cpu::convert(&code, dtype_of<Stored>(), 0, 1, &numbers.at(0, 0, r, c));
    });
  }
  cpu::tensor<float> t() const {
    cpu::tensor<float> w{nullptr, {1, 1, view.rows, view.cols}};
    w.stored = &view;
    return w;
  }
};
// Checks a stored weight against its dequantized copy: bit for bit, because the sums have the same order, except where
// a column-major weight is read in place or a BLAS computes.
template <class Stored> void equals_its_dequantized() {
  for (const long long out : {1, 95, 96, 97, 128, 129, 300})  // around the rows that are dequantized at a time
    for (const long long rows : {1, 2, 4, 9, 70})
      for (int flags = 0; flags < 8; ++flags)
        for (const int accumulate : {0, 1, -1}) {
          const bool tb = (flags & 1) != 0, column_major = (flags & 2) != 0;
          const long long in = 33, inner = tb ? in : out, cols = tb ? out : in;  // a W' or a W
          stored_weight<Stored> w(out, in, column_major, (flags & 4) != 0 ? 7 : 0, 5);
          owned<float> a = random_tensor<float>({1, 1, rows, inner}, 6),
                       y = random_tensor<float>({1, 1, rows, cols}, 7), wide = y;
          cpu::matmul(wide.t(), a.t(), w.numbers.t(), {false, tb, false, accumulate});
          cpu::matmul(y.t(), a.t(), w.t(), {false, tb, false, accumulate});
          INFO(name_of(dtype_of<Stored>()), ", out ", out, ", rows ", rows, ", flags ", flags);
          const bool same_order = !(std::is_same_v<Stored, float> && column_major) &&
                                  !(cpu::has_blas && (rows == 70 || !tb));  // a BLAS has another order of summation
          const bool in_parts = cpu::has_blas && std::is_same_v<Stored, bf16> && rows > 64 && cols > 64;
          CHECK(furthest(y.v, wide.v) <= (in_parts ? (tb ? 1e-4 : 0.1) : same_order ? 0.0 : 2e-5));
        }
}

}  // namespace

TEST_CASE("matmul: a stored weight of any type, layout and strides equals its dequantized copy") {
  equals_its_dequantized<bf16>();
  equals_its_dequantized<f16>();
  equals_its_dequantized<float>();
  equals_its_dequantized<double>();
}

// Where build and CPU have matrix instructions, every activation is split into two bf16 numbers: a single one would
// have an error of 2^-9, two hundred times the tolerance. Gradients may use a single one.
TEST_CASE("matmul: many rows on a bf16 weight have a relative error below 2^-16, gradients below 2^-9") {
  for (const bool column_major : {false, true})
    for (const bool tb : {false, true})
      for (const int accumulate : {0, 1, -1}) {
        stored_weight<bf16> w(130, 200, column_major, 8, 1);
        owned<float> a = random_tensor<float>({1, 1, 90, tb ? 200 : 130}, 2),
                     y = random_tensor<float>({1, 1, 90, tb ? 130 : 200}, 3), old = y;
        cpu::matmul(y.t(), a.t(), w.t(), {false, tb, false, accumulate});
        each_element(y.shape, [&](long long, long long, long long r, long long c) {
          double sum = accumulate == 0 ? 0 : old.at(0, 0, r, c), size = std::abs(sum);
          for (long long k = 0; k < a.shape.d[3]; ++k) {
            const double term = static_cast<double>(a.at(0, 0, r, k)) *
                                static_cast<double>(tb ? w.numbers.at(0, 0, c, k) : w.numbers.at(0, 0, k, c));
            sum += accumulate < 0 ? -term : term, size += std::abs(term);
          }
          CHECK(std::abs(static_cast<double>(y.at(0, 0, r, c)) - sum) <= size / (tb ? 65536 : 512));
        });
      }
}

TEST_CASE("matmul: the sum of two bf16 is a float up to 2^-17, and non-finite values are preserved") {
  const float largest = std::numeric_limits<float>::max(), infinite = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0.0F,   -0.0F,   1.0F,     1.00390625F, -3.1415926F, 1e-30F,
                          6.5e4F, largest, infinite, -infinite,   NAN};
  for (int i = 0; i < 100; ++i)
    x.push_back(std::sin(static_cast<float>(i)) * std::exp2(static_cast<float>(i % 40 - 20)));
  std::vector<bf16> high(x.size()), low(x.size());
  cpu::split_bf16(x.data(), static_cast<long long>(x.size()), high.data(), low.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float h = widen(high[i]), sum = h + widen(low[i]);
    INFO(x[i], " as ", h, " and ", widen(low[i]));
    CHECK(high[i].bits == narrow(x[i]).bits);
    if (!std::isfinite(h))
      CHECK(low[i].bits == 0);
    else
      CHECK(std::abs(sum - x[i]) <= std::abs(x[i]) / 131072);
  }
}

TEST_CASE("matmul: stacks of rows on a stored weight") {
  stored_weight<bf16> w(130, 20, true, 0, 1);
  owned<float> a = random_tensor<float>({2, 3, 4, 20}, 2), y({2, 3, 4, 130}, NAN), wide(y.shape);
  cpu::matmul(y.t(), a.t(), w.t(), {false, true});
  cpu::matmul(wide.t(), a.t(), w.numbers.t(), {false, true});
  CHECK(furthest(y.v, wide.v) == 0);
}
