// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/algebra.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

using matrix = cpu::small_matrix;

matrix times(const matrix& a, const matrix& b, std::size_t n) {
  matrix c(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t k = 0; k < n; ++k) c[i * n + j] += a[i * n + k] * b[k * n + j];
  return c;
}
matrix identity(std::size_t n) {
  matrix c(n * n);
  for (std::size_t i = 0; i < n; ++i) c[i * n + i] = 1;
  return c;
}
// The largest deviation of the product of two matrices from the identity; both begin at element `at` of their tensors.
double off_identity(const owned<double>& a, const owned<double>& b, std::size_t n, std::size_t at = 0) {
  const auto from = static_cast<std::ptrdiff_t>(at), end = static_cast<std::ptrdiff_t>(at + n * n);
  const matrix one(a.v.begin() + from, a.v.begin() + end), other(b.v.begin() + from, b.v.begin() + end);
  return furthest(times(one, other, n), identity(n));
}

}  // namespace

TEST_CASE("inverse: each matrix of a stack") {
  owned<double> a = random_tensor<double>({2, 3, 4, 4}, 1), b(a.shape);
  for (long long m = 0; m < 6; ++m)
    for (long long i = 0; i < 4; ++i) a.at(m / 3, m % 3, i, i) += 4;
  cpu::inverse(b.t(), a.t());
  for (std::size_t m = 0; m < 6; ++m) CHECK(off_identity(a, b, 4, m * 16) < 1e-13);
}

TEST_CASE("inverse: rows are pivoted if the diagonal is zero or small") {
  for (const double corner : {0.0, 1e-20}) {
    owned<double> a({1, 1, 3, 3}), b(a.shape);
    a.v = {corner, 2, 1, 1, corner, 3, 4, 1, corner};
    cpu::inverse(b.t(), a.t());
    CHECK(off_identity(a, b, 3) < 1e-14);
  }
}

TEST_CASE("inverse: matrices of all sizes up to several vectors") {
  for (long long n = 1; n <= 70; n += 3) {
    owned<double> a = random_tensor<double>({1, 1, n, n}, static_cast<unsigned>(n)), b(a.shape);
    for (long long i = 0; i < n; ++i) a.at(0, 0, i, (i + 1) % n) += 20;  // large elements off the diagonal
    cpu::inverse(b.t(), a.t());
    INFO("size ", n);
    CHECK(off_identity(a, b, static_cast<std::size_t>(n)) < 1e-12);
  }
}

TEST_CASE("inverse: a singular matrix gives non-finite values") {
  owned<double> a({1, 1, 2, 2}, 1.0), b(a.shape);
  cpu::inverse(b.t(), a.t());
  for (const double x : b.v) CHECK_FALSE(std::isfinite(x));
}

TEST_CASE("inverse: float matrices are inverted in double") {
  // The difference of 1e-4 on the diagonal of a matrix of ones would lose most digits in float.
  owned<float> a({1, 1, 2, 2}, 1.0F), b(a.shape);
  a.v[0] = a.v[3] = 1.0F + 1e-4F;
  cpu::inverse(b.t(), a.t());
  const double d = static_cast<double>(a.v[0]), det = d * d - 1;
  CHECK(static_cast<double>(b.v[0]) == doctest::Approx(d / det).epsilon(1e-6));
  CHECK(static_cast<double>(b.v[1]) == doctest::Approx(-1 / det).epsilon(1e-6));
}

TEST_CASE("neumann: PEFT's coefficients for K = 1 to 6; K = 3 equals K = 4") {
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
    for (std::size_t m = 0; m < 2; ++m) {
      const matrix one = cpu::to_double_matrix(q.v.data() + m * 25, 5);
      matrix power = identity(5);
      for (const double k : c) {
        for (std::size_t i = 0; i < 25; ++i) expected.v[m * 25 + i] += k * power[i];
        power = times(power, one, 5);
      }
    }
    INFO("K = ", terms);
    CHECK(furthest(r.v, expected.v) < 1e-12);
  }
}

TEST_CASE("neumann: for small skew matrices it approximates the inverse of the Cayley rotation") {
  owned<double> q({1, 1, 3, 3});
  const double v[3] = {1e-3, -2e-3, 5e-4};
  q.at(0, 0, 0, 1) = v[0], q.at(0, 0, 1, 0) = -v[0], q.at(0, 0, 0, 2) = v[1], q.at(0, 0, 2, 0) = -v[1];
  q.at(0, 0, 1, 2) = v[2], q.at(0, 0, 2, 1) = -v[2];
  owned<double> r(q.shape);
  cpu::neumann(r.t(), q.t(), 5);
  matrix below = identity(3), above = below;  // I - Q and I + Q
  for (std::size_t i = 0; i < 9; ++i) below[i] -= q.v[i], above[i] += q.v[i];
  const matrix cayley = times(below, cpu::inverse_of(above, 3), 3);
  for (std::size_t i = 0; i < 9; ++i) CHECK(std::abs(r.v[i] - cayley[i % 3 * 3 + i / 3]) < 1e-9);
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
