// SPDX-License-Identifier: Apache-2.0
// Elementwise operations on packets; an operand of size 1 along an axis is broadcast. The output may be one of the
// operands. Each operation is compiled as one loop over packets: strides are handled at run time, and the remainder of
// a row runs through the same instructions, so the value of an element does not depend on its position.
#pragma once
#include <graft/backend/cpu/runtime/packets.h>
#include <graft/backend/cpu/runtime/tensor.h>
#include <graft/backend/cpu/runtime/threads.h>

#include <algorithm>
#include <numbers>

namespace graft::cpu {

// to = f(x, y) for n numbers, a multiple of the packet width; x and y advance by step_x and step_y per packet.
template <class Real>
using packet_function = void (*)(const Real* x, long long step_x, const Real* y, long long step_y, Real* to,
                                 long long n);

template <class Real, class F>
void on_packets(const Real* x, long long step_x, const Real* y, long long step_y, Real* to, long long n) {
  for (long long i = 0; i < n; i += packet_width<Real>, x += step_x, y += step_y)
    Eigen::internal::pstoreu(to + i, F{}(load(x), load(y)));
}
template <class Real, class F> constexpr packet_function<Real> with(F) { return on_packets<Real, F>; }

template <class Real> packet_function<Real> binary_packets(op what) {
  using namespace Eigen::internal;
  using some = packet<Real>;
  switch (what) {
    case op::add: return with<Real>([](some x, some y) { return padd(x, y); });
    case op::sub: return with<Real>([](some x, some y) { return psub(x, y); });
    case op::mul: return with<Real>([](some x, some y) { return pmul(x, y); });
    case op::div: return with<Real>([](some x, some y) { return pdiv(x, y); });
    case op::minimum: return with<Real>([](some x, some y) { return pmin(x, y); });
    case op::maximum: return with<Real>([](some x, some y) { return pmax(x, y); });
    default: return nullptr;
  }
}
template <class Real> packet_function<Real> unary_packets(op what) {
  using namespace Eigen::internal;
  using some = packet<Real>;
  switch (what) {
    case op::sqrt: return with<Real>([](some x, some) { return each<Real>(x, [](Real v) { return std::sqrt(v); }); });
    case op::exp: return with<Real>([](some x, some) { return exp<Real>(x); });
    case op::log: return with<Real>([](some x, some) { return each<Real>(x, [](Real v) { return std::log(v); }); });
    case op::sin: return with<Real>([](some x, some) { return each<Real>(x, [](Real v) { return std::sin(v); }); });
    case op::cos: return with<Real>([](some x, some) { return each<Real>(x, [](Real v) { return std::cos(v); }); });
    case op::tanh: return with<Real>([](some x, some) { return tanh<Real>(x); });
    case op::erf: return with<Real>([](some x, some) { return each<Real>(x, [](Real v) { return std::erf(v); }); });
    case op::sigmoid: return with<Real>([](some x, some) { return sigmoid<Real>(x); });
    case op::relu: return with<Real>([](some x, some) { return pmax(x, all(Real(0))); });
    case op::silu: return with<Real>([](some x, some) { return pmul(x, sigmoid<Real>(x)); });
    case op::gelu:
      return with<Real>([](some x, some) {
        return each<Real>(x,
                          [](Real v) { return Real(0.5) * v * (Real(1) + std::erf(v / std::numbers::sqrt2_v<Real>)); });
      });
    case op::gelu_tanh:
      return with<Real>([](some x, some) {
        const some slope = all(std::numbers::sqrt2_v<Real> * std::numbers::inv_sqrtpi_v<Real>);
        const some cubed = pmul(pmul(x, all(Real(0.044715))), pmul(x, x));
        const some t = tanh<Real>(pmul(slope, padd(x, cubed)));
        return pmul(pmul(all(Real(0.5)), x), padd(all(Real(1)), t));
      });
    case op::heaviside: return with<Real>([](some x, some) { return pand(all(Real(1)), pcmp_lt(all(Real(0)), x)); });
    case op::detach: return with<Real>([](some x, some) { return x; });
    default: return nullptr;
  }
}

// Applies f to a row of n elements; an operand that is not wide is one number for all of them.
template <class Real>
[[gnu::noinline]] void each_row(packet_function<Real> f, Real* out, const Real* a, bool wide_a, const Real* b,
                                bool wide_b, long long n) {
  if (n == 0) return;
  constexpr long long width = packet_width<Real>;
  const long long whole = n - n % width, rest = n - whole;
  Real x[packet_lanes<Real>], y[packet_lanes<Real>], to[packet_lanes<Real>];
  std::fill_n(x, width, *a);
  std::fill_n(y, width, *b);
  f(wide_a ? a : x, wide_a ? width : 0, wide_b ? b : y, wide_b ? width : 0, out, whole);
  if (wide_a) std::copy_n(a + whole, rest, x);
  if (wide_b) std::copy_n(b + whole, rest, y);
  f(x, 0, y, 0, to, rest > 0 ? width : 0);
  std::copy_n(to, rest, out + whole);
}
template <class Real> void binary(op what, tensor<Real> out, tensor<Real> a, tensor<Real> b) {
  const packet_function<Real> f = binary_packets<Real>(what);
  auto same = [&](const tensor<Real>& t) { return std::equal(t.d, t.d + 4, out.d); };
  const bool whole_a = same(a), whole_b = same(b);
  if ((whole_a || a.count() == 1) && (whole_b || b.count() == 1))
    return parallel_for(out.count(), out.count(), [&](long long from, long long end) {
      each_row(f, out.p + from, whole_a ? a.p + from : a.p, whole_a, whole_b ? b.p + from : b.p, whole_b, end - from);
    });
  const long long n = out.d[3], rows = out.d[1] * out.d[2];
  auto at = [](const tensor<Real>& t, long long i, long long j, long long k) {
    const long long x = t.d[0] == 1 ? 0 : i, y = t.d[1] == 1 ? 0 : j, z = t.d[2] == 1 ? 0 : k;
    return t.p + ((x * t.d[1] + y) * t.d[2] + z) * t.d[3];
  };
  parallel_for(out.d[0] * rows, out.count(), [&](long long from, long long end) {
    for (long long r = from; r < end; ++r) {
      const long long i = r / rows, j = r % rows / out.d[2], k = r % out.d[2];
      each_row(f, at(out, i, j, k), at(a, i, j, k), a.d[3] == n, at(b, i, j, k), b.d[3] == n, n);
    }
  });
}
template <class Real> void unary(op what, tensor<Real> out, tensor<Real> a) {
  parallel_for(out.count(), out.count(), [&](long long from, long long end) {
    each_row(unary_packets<Real>(what), out.p + from, a.p + from, true, a.p + from, false, end - from);
  });
}

}  // namespace graft::cpu
