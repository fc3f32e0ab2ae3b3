// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/reduce.h>

#include "../../../support/tensors.h"

using namespace test;

TEST_CASE("reduce: sum_to over any axes, overwriting and accumulating") {
  owned<double> a = random_tensor<double>({2, 3, 4, 5}, 1);
  for (int mask = 0; mask < 16; ++mask) {
    four s = a.shape;
    for (int k = 0; k < 4; ++k)
      if ((mask >> k & 1) != 0) s.d[k] = 1;
    owned<double> found(s, 1.0), expected(s, 1.0);
    cpu::sum_to(found.t(), a.t());
    each_element(a.shape, [&](long long i, long long j, long long k, long long l) {
      expected.at(i, j, k, l) += a.at(i, j, k, l);
    });
    INFO("mask ", mask);
    CHECK(furthest(found.v, expected.v) < 1e-13);
  }
}

TEST_CASE("reduce: row-wise dot products, Kronecker products of matrices and of rows") {
  owned<double> a = random_tensor<double>({1, 1, 3, 4}, 1), b = random_tensor<double>({1, 1, 3, 4}, 2), d({1, 1, 3, 1});
  cpu::row_dot(d.t(), a.t(), b.t());
  for (long long r = 0; r < 3; ++r) {
    double sum = 0;
    for (long long c = 0; c < 4; ++c) sum += a.at(0, 0, r, c) * b.at(0, 0, r, c);
    CHECK(d.at(0, 0, r, 0) == doctest::Approx(sum));
  }
  owned<double> w2 = random_tensor<double>({1, 1, 2, 5}, 3), k({1, 1, 6, 20}), rk({1, 1, 3, 16});
  cpu::kron(k.t(), a.t(), w2.t());
  each_element(k.shape, [&](long long, long long, long long r, long long c) {
    CHECK(k.at(0, 0, r, c) == a.at(0, 0, r / 2, c / 5) * w2.at(0, 0, r % 2, c % 5));
  });
  cpu::row_kron(rk.t(), a.t(), b.t());
  each_element(rk.shape, [&](long long, long long, long long r, long long c) {
    CHECK(rk.at(0, 0, r, c) == a.at(0, 0, r, c / 4) * b.at(0, 0, r, c % 4));
  });
}
