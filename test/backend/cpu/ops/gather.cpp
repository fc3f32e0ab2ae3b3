// SPDX-License-Identifier: Apache-2.0
// Gathers and scatters; each with its adjoint: <f(a), b> = <a, f*(b)>.
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/gather.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

void adjoint(double left, double right) { CHECK(left == doctest::Approx(right).epsilon(1e-12)); }

}  // namespace

TEST_CASE("gather: by rows and by columns, and scatter as its adjoint, also with repeated ids") {
  const std::int64_t ids[] = {4, 0, 4, 2, 6};
  for (const bool by_column : {false, true}) {
    owned<double> w = random_tensor<double>(by_column ? four{1, 1, 3, 7} : four{1, 1, 7, 3}, 1), y({1, 1, 5, 3});
    cpu::gather(y.t(), w.t(), ids, by_column);
    for (long long t = 0; t < 5; ++t)
      for (long long c = 0; c < 3; ++c)
        CHECK(y.at(0, 0, t, c) == (by_column ? w.at(0, 0, c, ids[t]) : w.at(0, 0, ids[t], c)));
    owned<double> dy = random_tensor<double>(y.shape, 2), dw(w.shape);
    cpu::scatter(dw.t(), dy.t(), ids, by_column);
    adjoint(dot(y.v, dy.v), dot(w.v, dw.v));
    CHECK((by_column ? dw.at(0, 0, 0, 1) : dw.at(0, 0, 1, 0)) == 0);  // an id that does not occur
  }
}

TEST_CASE("gather: a stored table, row-major or not, equals its dequantized copy") {
  const std::int64_t ids[] = {4, 0, 4, 2, 6};
  std::vector<bf16> codes(21);
  std::vector<f16> halves(21);
  owned<float> numbers = random_tensor<float>({1, 1, 7, 3}, 1);
  for (std::size_t i = 0; i < 21; ++i) codes[i] = narrow(numbers.v[i]), halves[i] = narrow_to_f16(numbers.v[i]);
  for (const view& v :
       {view_of(codes.data(), 7, 3), view_of(halves.data(), 7, 3), view_of(codes.data(), 3, 7).transposed()})
    for (const bool by_column : {false, true}) {
      const weight_view table = by_column ? weight_of(v.transposed(), 3, 7) : weight_of(v, 7, 3);
      cpu::tensor<float> w{nullptr, {1, 1, table.rows, table.cols}};
      w.stored = &table;
      owned<float> y({1, 1, 5, 3}, NAN), all({1, 1, 7, 3});
      cpu::convert(v, all.v.data());
      cpu::gather(y.t(), w, ids, by_column);
      for (long long t = 0; t < 5; ++t)
        for (long long c = 0; c < 3; ++c) CHECK(y.at(0, 0, t, c) == all.at(0, 0, ids[t], c));
    }
}

TEST_CASE("gather: numbers are scattered into a matrix and gathered from it; repeated indices add up") {
  const std::int64_t at[] = {2, 0, 2, 1, 3, 4, 3, 0};  // rows 2, 0, 2, 1; columns 3, 4, 3, 0
  owned<double> numbers = random_tensor<double>({1, 1, 4, 1}, 1), sum({1, 1, 3, 5}), expected(sum.shape);
  sum.at(0, 0, 0, 4) = expected.at(0, 0, 0, 4) = 7;  // other elements are unchanged
  cpu::scatter_elements(sum.t(), numbers.t(), at);
  for (int i = 0; i < 4; ++i) expected.at(0, 0, at[i], at[4 + i]) += numbers.at(0, 0, i, 0);
  CHECK(furthest(sum.v, expected.v) == 0);

  owned<double> m = random_tensor<double>({1, 1, 3, 5}, 2), picked(numbers.shape, NAN), placed(m.shape);
  cpu::gather_elements(picked.t(), m.t(), at);
  for (int i = 0; i < 4; ++i) CHECK(picked.at(0, 0, i, 0) == m.at(0, 0, at[i], at[4 + i]));
  cpu::scatter_elements(placed.t(), numbers.t(), at);
  adjoint(dot(placed.v, m.v), dot(numbers.v, picked.v));
}
