// SPDX-License-Identifier: Apache-2.0
// Eigen's packets, the numbers that one instruction works on: what rows are summed, scaled and mapped with. They are
// loaded from wherever a row begins. Eigen's own expressions begin at the first aligned address, so that the same
// numbers give other bits in another buffer; and they compile a loop for every expression.
#pragma once
#include <Eigen/Core>
#include <cmath>
#include <limits>

namespace graft::cpu {

template <class Real> using packet = typename Eigen::internal::packet_traits<Real>::type;
template <class Real> inline constexpr long long packet_width = Eigen::internal::unpacket_traits<packet<Real>>::size;

template <class Real> packet<Real> all(Real v) { return Eigen::internal::pset1<packet<Real>>(v); }
template <class Real> packet<Real> load(const Real* p) { return Eigen::internal::ploadu<packet<Real>>(p); }

// f of each number, for what has no instruction.
template <class Real, class F> packet<Real> each(packet<Real> p, F f) {
  Real v[packet_width<Real>];
  Eigen::internal::pstoreu(v, p);
  for (Real& x : v) x = f(x);
  return load(v);
}
// e^x. Eigen's ends at the smallest normal number; below it is zero.
template <class Real> packet<Real> exp(packet<Real> p) {
  using namespace Eigen::internal;
  if constexpr (packet_traits<Real>::HasExp) {
    const packet<Real> e = pexp(p);
    return pandnot(e, pcmp_lt(e, all(std::numeric_limits<Real>::min())));
  } else {
    return each<Real>(p, [](Real x) { return std::exp(x); });
  }
}
template <class Real> packet<Real> tanh(packet<Real> p) {
  if constexpr (Eigen::internal::packet_traits<Real>::HasTanh)
    return Eigen::internal::ptanh(p);
  else
    return each<Real>(p, [](Real x) { return std::tanh(x); });
}
template <class Real> packet<Real> sigmoid(packet<Real> p) {
  using namespace Eigen::internal;
  return pdiv(all(Real(1)), padd(all(Real(1)), exp<Real>(pnegate(p))));
}

}  // namespace graft::cpu
