// SPDX-License-Identifier: Apache-2.0
// Tensors that own their numbers, for tests of the CPU's kernels.
#pragma once
#include <graft/backend/cpu/runtime/tensor.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace test {

using namespace graft;

struct four {
  long long d[4];
};
template <class Real> struct owned {
  std::vector<Real> v;
  four shape;

  explicit owned(four s, Real fill = Real(0))
      : v(static_cast<std::size_t>(s.d[0] * s.d[1] * s.d[2] * s.d[3]), fill), shape(s) {}
  cpu::tensor<Real> t() { return {v.data(), {shape.d[0], shape.d[1], shape.d[2], shape.d[3]}}; }
  // Returns an element; an axis of size 1 is broadcast.
  Real& at(long long i, long long j, long long k, long long l) {
    auto place = [&](int axis, long long n) { return shape.d[axis] == 1 ? 0 : n; };
    const long long row = (place(0, i) * shape.d[1] + place(1, j)) * shape.d[2] + place(2, k);
    return v[static_cast<std::size_t>(row * shape.d[3] + place(3, l))];
  }
};
template <class Real> owned<Real> random_tensor(four s, unsigned seed) {
  owned<Real> t(s);
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (Real& x : t.v) x = static_cast<Real>(uniform(engine));
  return t;
}
template <class F> void each_element(four s, F f) {
  for (long long i = 0; i < s.d[0]; ++i)
    for (long long j = 0; j < s.d[1]; ++j)
      for (long long k = 0; k < s.d[2]; ++k)
        for (long long l = 0; l < s.d[3]; ++l) f(i, j, k, l);
}
template <class Real> double furthest(const std::vector<Real>& a, const std::vector<Real>& b) {
  double most = 0;
  if (a.size() != b.size()) return INFINITY;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= most)) most = std::isnan(d) ? INFINITY : d;
  }
  return most;
}
template <class Real> double dot(const std::vector<Real>& a, const std::vector<Real>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace test
