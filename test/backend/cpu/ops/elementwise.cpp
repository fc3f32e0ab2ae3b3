// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/elementwise.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

double plain(op what, double x, double y) {
  switch (what) {
    case op::add: return x + y;
    case op::sub: return x - y;
    case op::mul: return x * y;
    case op::div: return x / y;
    case op::minimum: return std::min(x, y);
    case op::maximum: return std::max(x, y);
    case op::sqrt: return std::sqrt(x);
    case op::exp: return std::exp(x);
    case op::log: return std::log(x);
    case op::sin: return std::sin(x);
    case op::cos: return std::cos(x);
    case op::erf: return std::erf(x);
    case op::silu: return x / (1 + std::exp(-x));
    case op::gelu: return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case op::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case op::tanh: return std::tanh(x);
    case op::sigmoid: return 1 / (1 + std::exp(-x));
    case op::relu: return x > 0 ? x : 0;
    case op::heaviside: return x > 0 ? 1 : 0;
    default: return x;
  }
}
constexpr op binaries[] = {op::add, op::sub, op::mul, op::div, op::minimum, op::maximum};
// The shape of an operand whose axes are full or of size 1, by the bits of the mask.
four shape_of_mask(int mask) {
  const long long full[4] = {2, 3, 4, 5};
  four s{};
  for (int k = 0; k < 4; ++k) s.d[k] = (mask >> k & 1) != 0 ? full[k] : 1;
  return s;
}

}  // namespace

TEST_CASE("elementwise: every pair of broadcast shapes against a plain loop") {
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      owned<double> a = random_tensor<double>(shape_of_mask(m), 1), b = random_tensor<double>(shape_of_mask(n), 2);
      for (const op what : binaries) {
        owned<double> found(shape_of_mask(m | n)), expected(shape_of_mask(m | n));
        cpu::binary(what, found.t(), a.t(), b.t());
        each_element(expected.shape, [&](long long i, long long j, long long k, long long l) {
          expected.at(i, j, k, l) = plain(what, a.at(i, j, k, l), b.at(i, j, k, l));
        });
        INFO(traits_of(what).name, " of ", m, " and ", n);
        CHECK(furthest(found.v, expected.v) == 0);
      }
    }
}

TEST_CASE("elementwise: the output may be an operand") {
  for (const op what : binaries) {
    owned<double> a = random_tensor<double>({1, 1, 6, 5}, 1), b = random_tensor<double>({1, 1, 1, 5}, 2), strided = a;
    cpu::binary(what, strided.t(), a.t(), b.t());
    owned<double> inplace = a;
    cpu::binary(what, inplace.t(), inplace.t(), b.t());
    CHECK(furthest(inplace.v, strided.v) == 0);
    owned<double> second = random_tensor<double>({1, 1, 6, 5}, 3), copy = second, out(second.shape);
    cpu::binary(what, out.t(), a.t(), second.t());
    cpu::binary(what, copy.t(), a.t(), copy.t());
    CHECK(furthest(copy.v, out.v) == 0);
  }
}

namespace {

template <class Real> void functions_of_one_operand(double tolerance) {
  for (const op what : {op::sqrt, op::exp, op::log, op::sin, op::cos, op::tanh, op::erf, op::sigmoid, op::relu,
                        op::silu, op::gelu, op::gelu_tanh, op::heaviside, op::detach}) {
    owned<Real> a = random_tensor<Real>({1, 2, 3, 27}, 4), found(a.shape);  // packets and a remainder
    for (std::size_t i = 0; i < a.v.size(); ++i) {
      a.v[i] = i == 0 ? Real(0) : a.v[i] * static_cast<Real>(i % 9 + 1);  // up to 9 from zero
      if (what == op::sqrt || what == op::log) a.v[i] = std::abs(a.v[i]) + Real(what == op::log ? 0.01 : 0);
    }
    cpu::unary(what, found.t(), a.t());
    double furthest_off = 0;
    for (std::size_t i = 0; i < a.v.size(); ++i) {
      const double expected = plain(what, static_cast<double>(a.v[i]), 0);
      const double off = std::abs(static_cast<double>(found.v[i]) - expected) / (1 + std::abs(expected));
      furthest_off = std::isnan(off) ? INFINITY : std::max(off, furthest_off);
    }
    INFO(traits_of(what).name);
    CHECK(furthest_off < tolerance);
    cpu::unary(what, a.t(), a.t());
    CHECK(a.v == found.v);  // in place
  }
}

}  // namespace

TEST_CASE("elementwise: functions of one operand") {
  functions_of_one_operand<double>(1e-14);
  functions_of_one_operand<float>(2e-6);
}

TEST_CASE("elementwise: activations far from zero equal their limits") {
  const double large[] = {1e4, -1e4};
  for (const op what : {op::sigmoid, op::silu, op::gelu, op::gelu_tanh, op::tanh}) {
    owned<double> a({1, 1, 1, 2}), y(a.shape);
    a.v = {large[0], large[1]};
    cpu::unary(what, y.t(), a.t());
    const bool bounded = what == op::sigmoid || what == op::tanh;
    INFO(traits_of(what).name);
    CHECK(y.v[0] == (bounded ? 1 : 1e4));
    CHECK(y.v[1] == (what == op::tanh ? -1.0 : 0.0));
  }
}

TEST_CASE("elementwise: empty tensors are not touched") {
  owned<float> a({1, 1, 0, 5}), b({1, 1, 1, 5}), out({1, 1, 0, 5});
  cpu::binary(op::add, out.t(), a.t(), b.t());
  CHECK(out.v.empty());
}
