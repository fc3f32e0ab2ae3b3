// SPDX-License-Identifier: Apache-2.0
// Elementwise ops; an operand of size 1 along an axis is read again. The output may be an operand of its own sizes.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/eights.cuh>

#include <cmath>

namespace graft::cuda {

// An operand as the output sees it. The two usual cases, all of it and a single number, need no division.
template <class Real> struct repeated {
  cells<Real> p;
  long long size[4], step[4];
  bool whole = true, single;

  repeated(const tensor<Real>& t, const tensor<Real>& out) : p(t.p), single(t.count() == 1) {
    long long stride = 1;
    for (int k = 3; k >= 0; --k) {
      whole = whole && t.d[k] == out.d[k];
      size[k] = out.d[k];
      step[k] = t.d[k] == 1 ? 0 : stride;
      stride *= t.d[k];
    }
  }
  __host__ __device__ Real operator[](long long i) const {
    if (single) return p[0];
    if (whole) return p[i];
    long long at = 0;
    for (int k = 3; k >= 0; --k) {
      if (step[k] != 0) at += i % size[k] * step[k];
      i /= size[k];
    }
    return p[at];
  }
};

// The arithmetic of an element.
template <class Real> __host__ __device__ Real combined(op what, Real x, Real y) {
  switch (what) {
    case op::add: return x + y;
    case op::sub: return x - y;
    case op::mul: return x * y;
    case op::div: return x / y;
    case op::minimum: return y < x ? y : x;
    default: return x < y ? y : x;  // maximum
  }
}
template <class Real> __host__ __device__ Real mapped(op what, Real x) {
  switch (what) {
    case op::sqrt: return std::sqrt(x);
    case op::exp: return std::exp(x);
    case op::log: return std::log(x);
    case op::sin: return std::sin(x);
    case op::cos: return std::cos(x);
    case op::tanh: return std::tanh(x);
    case op::erf: return std::erf(x);
    case op::sigmoid: return Real(1) / (Real(1) + std::exp(-x));
    case op::relu: return x < Real(0) ? Real(0) : x;
    case op::silu: return x / (Real(1) + std::exp(-x));
    case op::gelu: return Real(0.5) * x * std::erfc(-x * Real(0.70710678118654752));
    case op::gelu_tanh:
      return Real(0.5) * x * (Real(1) + std::tanh(Real(0.79788456080286536) * (x + Real(0.044715) * x * x * x)));
    case op::step: return x > Real(0) ? Real(1) : Real(0);
    default: return x;  // detach
  }
}

template <class Real> struct binary {
  op what;
  cells<Real> out;
  repeated<Real> a, b;

  binary(op o, const tensor<Real>& to, const tensor<Real>& x, const tensor<Real>& y)
      : what(o), out(to.p), a(x, to), b(y, to) {}
  __host__ __device__ void operator()(long long i) const { out.put(i, of(a[i], b[i])); }
  __host__ __device__ Real of(Real x, Real y) const { return combined(what, x, y); }
};

// The same on eight neighbours of a row at once, where the first operand and the result have all elements and the second
// has them too or is one row.
struct binary_by_eights {
  binary<float> f;
  unsigned width;  // of a row of the second operand; 0: it has all elements

  static bool fits(const tensor<float>& out, const tensor<float>& a, const tensor<float>& b) {
    const bool one_row = b.count() == b.d[3] && b.d[3] == out.d[3];
    return out.d[3] % 8 == 0 && out.count() < 1LL << 35 && a.count() == out.count() &&
           (b.count() == out.count() || one_row) && by_sixteen_bytes(out.p) && by_sixteen_bytes(a.p) &&
           by_sixteen_bytes(b.p);
  }
  __device__ void operator()(long long i) const {
    float x[8], y[8];
    load_eight(x, f.a.p, 8 * i);
    load_eight(y, f.b.p, width == 0 ? 8 * i : 8 * (static_cast<unsigned>(i) % (width / 8)));
    for (int k = 0; k < 8; ++k) x[k] = f.of(x[k], y[k]);
    store_eight(x, f.out, 8 * i);
  }
};
// Where functors of any kind run, and on a stream.
template <class On, class Real>
status combine(const On& on, op what, const tensor<Real>& out, const tensor<Real>& a, const tensor<Real>& b) {
  return on.elements(out.count(), binary<Real>(what, out, a, b), row(what).name);
}
template <streams On>
status combine(const On& on, op what, const tensor<float>& out, const tensor<float>& a, const tensor<float>& b) {
  const binary<float> f(what, out, a, b);
  if (!binary_by_eights::fits(out, a, b)) return on.elements(out.count(), f, row(what).name);
  const unsigned width = b.count() == out.count() ? 0 : static_cast<unsigned>(out.d[3]);
  return on.elements(out.count() / 8, binary_by_eights{f, width}, row(what).name);
}

template <class Real> struct unary {
  op what;
  cells<Real> out, a;

  __host__ __device__ void operator()(long long i) const { out.put(i, of(a[i])); }
  __host__ __device__ Real of(Real x) const { return mapped(what, x); }
};

}  // namespace graft::cuda
