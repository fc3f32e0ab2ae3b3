// SPDX-License-Identifier: Apache-2.0
// Reductions and scaled additions of rows, whose order of sums follows from the length alone. They are not inlined,
// because they have many callers and a copy in each would cost compile time.
#pragma once
#include <graft/backend/cpu/runtime/packets.h>

namespace graft::cpu {

// The sum over a row in four packets of partial sums: add(sum, i) adds the packet at i, number(i) is the number at i.
template <class Real, class Add, class Number> Real reduce_row(long long n, Add add, Number number) {
  constexpr long long width = packet_width<Real>;
  packet<Real> sum[4] = {all(Real(0)), all(Real(0)), all(Real(0)), all(Real(0))};
  long long i = 0;
  for (; i + 4 * width <= n; i += 4 * width)
    for (int k = 0; k < 4; ++k) sum[k] = add(sum[k], i + k * width);
  for (; i + width <= n; i += width) sum[0] = add(sum[0], i);
  using namespace Eigen::internal;
  Real total = predux(padd(padd(sum[0], sum[1]), padd(sum[2], sum[3])));
  for (; i < n; ++i) total += number(i);
  return total;
}
template <class Real> [[gnu::noinline]] Real sum(const Real* a, long long n) {
  return reduce_row<Real>(
      n, [&](packet<Real> s, long long i) { return Eigen::internal::padd(s, load(a + i)); },
      [&](long long i) { return a[i]; });
}
template <class Real> [[gnu::noinline]] Real dot(const Real* a, const Real* b, long long n) {
  return reduce_row<Real>(
      n, [&](packet<Real> s, long long i) { return Eigen::internal::pmadd(load(a + i), load(b + i), s); },
      [&](long long i) { return a[i] * b[i]; });
}

// y += s x
template <class Real> [[gnu::noinline]] void axpy(Real* y, Real s, const Real* x, long long n) {
  long long i = 0;
  for (; i + packet_width<Real> <= n; i += packet_width<Real>)
    Eigen::internal::pstoreu(y + i, Eigen::internal::pmadd(all(s), load(x + i), load(y + i)));
  for (; i < n; ++i) y[i] += s * x[i];
}
template <class Real> void add(Real* y, const Real* x, long long n) { axpy(y, Real(1), x, n); }
// y = s x
template <class Real> [[gnu::noinline]] void scale_into(Real* y, Real s, const Real* x, long long n) {
  long long i = 0;
  for (; i + packet_width<Real> <= n; i += packet_width<Real>)
    Eigen::internal::pstoreu(y + i, Eigen::internal::pmul(all(s), load(x + i)));
  for (; i < n; ++i) y[i] = s * x[i];
}

}  // namespace graft::cpu
