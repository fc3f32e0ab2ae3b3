// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/pointwise.h>

#include "../support/tensors.h"

using namespace test;

namespace {

double plain(op what, double x, double y) {
  switch (what) {
    case op::add: return x + y;
    case op::sub: return x - y;
    case op::mul: return x * y;
    case op::div: return x / y;
    case op::minimum: return std::min(x, y);
    case op::sqrt: return std::sqrt(x);
    case op::exp: return std::exp(x);
    case op::tanh: return std::tanh(x);
    case op::sigmoid: return 1 / (1 + std::exp(-x));
    case op::relu: return x > 0 ? x : 0;
    case op::step: return x > 0 ? 1 : 0;
    default: return x;
  }
}
constexpr op binaries[] = {op::add, op::sub, op::mul, op::div, op::minimum};
// Every axis full or of size 1, for one operand.
four shape_of_mask(int mask) {
  const long long full[4] = {2, 3, 4, 5};
  four s{};
  for (int k = 0; k < 4; ++k) s.d[k] = (mask >> k & 1) != 0 ? full[k] : 1;
  return s;
}

}  // namespace

TEST_CASE("pointwise: every pair of broadcast shapes against a plain loop") {
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      owned<double> a = random_tensor<double>(shape_of_mask(m), 1), b = random_tensor<double>(shape_of_mask(n), 2);
      for (const op what : binaries) {
        owned<double> found(shape_of_mask(m | n)), expected(shape_of_mask(m | n));
        cpu::binary(what, found.t(), a.t(), b.t());
        each_element(expected.shape, [&](long long i, long long j, long long k, long long l) {
          expected.at(i, j, k, l) = plain(what, a.at(i, j, k, l), b.at(i, j, k, l));
        });
        INFO(row(what).name, " of ", m, " and ", n);
        CHECK(furthest(found.v, expected.v) == 0);
      }
    }
}

TEST_CASE("pointwise: the output may be an operand") {
  for (const op what : binaries) {
    owned<double> a = random_tensor<double>({1, 1, 6, 5}, 1), b = random_tensor<double>({1, 1, 1, 5}, 2), apart = a;
    cpu::binary(what, apart.t(), a.t(), b.t());
    owned<double> inplace = a;
    cpu::binary(what, inplace.t(), inplace.t(), b.t());
    CHECK(furthest(inplace.v, apart.v) == 0);
    owned<double> second = random_tensor<double>({1, 1, 6, 5}, 3), copy = second, out(second.shape);
    cpu::binary(what, out.t(), a.t(), second.t());
    cpu::binary(what, copy.t(), a.t(), copy.t());
    CHECK(furthest(copy.v, out.v) == 0);
  }
}

TEST_CASE("pointwise: functions of one operand") {
  for (const op what : {op::exp, op::tanh, op::sigmoid, op::relu, op::step, op::detach, op::sqrt}) {
    owned<double> a = random_tensor<double>({1, 2, 3, 7}, 4), found(a.shape), expected(a.shape);
    if (what == op::sqrt)
      for (double& x : a.v) x = std::abs(x);
    a.v[0] = 0;
    cpu::unary(what, found.t(), a.t());
    for (std::size_t i = 0; i < a.v.size(); ++i) expected.v[i] = plain(what, a.v[i], 0);
    INFO(row(what).name);
    CHECK(furthest(found.v, expected.v) < 1e-14);
  }
}

TEST_CASE("pointwise: empty tensors are left alone") {
  owned<float> a({1, 1, 0, 5}), b({1, 1, 1, 5}), out({1, 1, 0, 5});
  cpu::binary(op::add, out.t(), a.t(), b.t());
  CHECK(out.v.empty());
}
