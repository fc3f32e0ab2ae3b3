// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/algebra.h>

#include "../support/tensors.h"

using namespace test;

TEST_CASE("inverse: of each matrix of a stack") {
  owned<double> a = random_tensor<double>({2, 3, 4, 4}, 1), b(a.shape);
  for (long long m = 0; m < 6; ++m) cpu::matrix_map<double>(a.v.data() + m * 16, 4, 4).diagonal().array() += 4;
  cpu::inverse(b.t(), a.t());
  for (long long m = 0; m < 6; ++m) {
    const cpu::small_matrix product = cpu::const_matrix_map<double>(a.v.data() + m * 16, 4, 4) *
                                      cpu::const_matrix_map<double>(b.v.data() + m * 16, 4, 4);
    CHECK((product - cpu::small_matrix::Identity(4, 4)).norm() < 1e-12);
  }
}

TEST_CASE("inverse: float matrices are inverted in double") {
  // 1 + 1e-6 on the diagonal of a matrix of ones: float alone would lose it.
  owned<float> a({1, 1, 2, 2}, 1.0F), b(a.shape);
  a.v[0] = a.v[3] = 1.0F + 1e-4F;
  cpu::inverse(b.t(), a.t());
  const double d = static_cast<double>(a.v[0]), det = d * d - 1;
  CHECK(static_cast<double>(b.v[0]) == doctest::Approx(d / det).epsilon(1e-6));
  CHECK(static_cast<double>(b.v[1]) == doctest::Approx(-1 / det).epsilon(1e-6));
}

TEST_CASE("neumann: PEFT's coefficients for K = 1 to 6; K = 3 is K = 4") {
  using list = std::vector<double>;
  CHECK(cpu::neumann_coefficients(1) == list{1});
  CHECK(cpu::neumann_coefficients(2) == list{1, 2});
  CHECK(cpu::neumann_coefficients(3) == list{1, 2, 2, 1});
  CHECK(cpu::neumann_coefficients(4) == list{1, 2, 2, 1});
  CHECK(cpu::neumann_coefficients(5) == list{1, 2, 2, 2, 1});
  CHECK(cpu::neumann_coefficients(6) == list{1, 2, 2, 2, 2, 1});
}

TEST_CASE("neumann: the series, term by term") {
  for (long long terms = 1; terms <= 6; ++terms) {
    owned<double> q = random_tensor<double>({1, 2, 5, 5}, 3), r(q.shape), expected(q.shape);
    cpu::neumann(r.t(), q.t(), terms);
    const std::vector<double> c = cpu::neumann_coefficients(terms);
    for (long long m = 0; m < 2; ++m) {
      const cpu::small_matrix one = cpu::const_matrix_map<double>(q.v.data() + m * 25, 5, 5);
      cpu::small_matrix power = cpu::small_matrix::Identity(5, 5), sum = cpu::small_matrix::Zero(5, 5);
      for (const double k : c) sum += k * power, power = (power * one).eval();
      cpu::matrix_map<double>(expected.v.data() + m * 25, 5, 5) = sum;
    }
    INFO("K = ", terms);
    CHECK(furthest(r.v, expected.v) < 1e-12);
  }
}

TEST_CASE("neumann: small skew matrices are nearly turned by it, the other way than by Cayley") {
  owned<double> q({1, 1, 3, 3});
  const double v[3] = {1e-3, -2e-3, 5e-4};
  q.at(0, 0, 0, 1) = v[0], q.at(0, 0, 1, 0) = -v[0], q.at(0, 0, 0, 2) = v[1], q.at(0, 0, 2, 0) = -v[1];
  q.at(0, 0, 1, 2) = v[2], q.at(0, 0, 2, 1) = -v[2];
  owned<double> r(q.shape);
  cpu::neumann(r.t(), q.t(), 5);
  const cpu::small_matrix Q = cpu::const_matrix_map<double>(q.v.data(), 3, 3), I = cpu::small_matrix::Identity(3, 3);
  const cpu::small_matrix cayley = (I - Q) * (I + Q).inverse();
  CHECK((cpu::const_matrix_map<double>(r.v.data(), 3, 3) - cayley.transpose()).norm() < 1e-9);
}

TEST_CASE("neumann: its gradient, by differences") {
  for (long long terms = 1; terms <= 6; ++terms) {
    owned<double> q = random_tensor<double>({1, 2, 4, 4}, 5), t = random_tensor<double>(q.shape, 6), r(q.shape),
                  gradient(q.shape, NAN);
    cpu::neumann_grad(gradient.t(), q.t(), t.t(), terms);
    auto loss = [&] {
      cpu::neumann(r.t(), q.t(), terms);
      return dot(r.v, t.v);
    };
    for (std::size_t i = 0; i < q.v.size(); ++i) {
      const double at = q.v[i], eps = 1e-6;
      q.v[i] = at + eps;
      const double above = loss();
      q.v[i] = at - eps;
      const double below = loss();
      q.v[i] = at;
      INFO("K = ", terms, ", element ", i);
      CHECK(gradient.v[i] == doctest::Approx((above - below) / (2 * eps)).epsilon(1e-6).scale(1));
    }
  }
}
