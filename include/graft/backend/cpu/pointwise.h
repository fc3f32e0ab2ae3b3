// SPDX-License-Identifier: Apache-2.0
// Elementwise ops. Rows are contiguous, so each is one vectorised Eigen expression; an operand of size 1 along an axis
// is read again. The output may be one of the operands.
#pragma once
#include <graft/backend/cpu/tensor.h>

namespace graft::cpu {

template <class Real, class F> void each_row(tensor<Real> out, tensor<Real> a, tensor<Real> b, F f) {
  auto same = [&](const tensor<Real>& t) {
    for (int k = 0; k < 4; ++k)
      if (t.d[k] != out.d[k]) return false;
    return true;
  };
  const bool whole_a = same(a), whole_b = same(b);
  if ((whole_a || a.count() == 1) && (whole_b || b.count() == 1))
    return f(out.p, a.p, whole_a, b.p, whole_b, out.count());
  const long long n = out.d[3];
  auto at = [](const tensor<Real>& t, long long i, long long j, long long k) {
    const long long x = t.d[0] == 1 ? 0 : i, y = t.d[1] == 1 ? 0 : j, z = t.d[2] == 1 ? 0 : k;
    return t.p + ((x * t.d[1] + y) * t.d[2] + z) * t.d[3];
  };
  for (long long i = 0; i < out.d[0]; ++i)
    for (long long j = 0; j < out.d[1]; ++j)
      for (long long k = 0; k < out.d[2]; ++k)
        f(at(out, i, j, k), at(a, i, j, k), a.d[3] == n, at(b, i, j, k), b.d[3] == n, n);
}

template <class Real> void binary(op what, tensor<Real> out, tensor<Real> a, tensor<Real> b) {
  each_row(out, a, b, [what](Real* o, const Real* x, bool wide_x, const Real* y, bool wide_y, long long n) {
    array_map<Real> r(o, n);
    auto with = [&](const auto& p, const auto& q) {
      switch (what) {
        case op::add: r = p + q; break;
        case op::sub: r = p - q; break;
        case op::mul: r = p * q; break;
        case op::div: r = p / q; break;
        case op::minimum: r = p.min(q); break;
        default: break;
      }
    };
    const const_array_map<Real> p(x, wide_x ? n : 1), q(y, wide_y ? n : 1);
    using all = Eigen::Array<Real, Eigen::Dynamic, 1>;
    if (wide_x && wide_y)
      with(p, q);
    else if (wide_x)
      with(p, all::Constant(n, *y));
    else if (wide_y)
      with(all::Constant(n, *x), q);
    else
      with(all::Constant(n, *x), all::Constant(n, *y));
  });
}

template <class Real> void unary(op what, tensor<Real> out, tensor<Real> a) {
  array_map<Real> r(out.p, out.count());
  const const_array_map<Real> x(a.p, out.count());
  switch (what) {
    case op::sqrt: r = x.sqrt(); break;
    case op::exp: r = x.exp(); break;
    case op::tanh: r = x.tanh(); break;
    case op::sigmoid: r = (Real(1) + (-x).exp()).inverse(); break;
    case op::relu: r = x.max(Real(0)); break;
    case op::step: r = (x > Real(0)).template cast<Real>(); break;
    case op::detach: r = x; break;
    default: break;
  }
}

}  // namespace graft::cpu
