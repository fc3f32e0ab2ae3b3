// SPDX-License-Identifier: Apache-2.0
// Elementwise operations, unary and binary with broadcasting: an operand of size 1 along an axis repeats along it. The
// output may be an operand of the same size.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>

#include <cmath>

namespace graft::gpu {

// An operand broadcast to the output's shape. The two common cases, the same shape and a single number, need no
// division.
template <class Real> struct broadcast_operand {
  element_ptr<Real> p;
  long long size[4], step[4];
  bool whole = true, single;

  broadcast_operand(const tensor<Real>& t, const tensor<Real>& out) : p(t.p), single(t.count() == 1) {
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

// The arithmetic of one element: binary operations (combined) and unary operations (mapped).
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
    case op::heaviside: return x > Real(0) ? Real(1) : Real(0);
    default: return x;  // detach
  }
}

template <class Real> struct binary {
  op what;
  element_ptr<Real> out;
  broadcast_operand<Real> a, b;

  binary(op o, const tensor<Real>& to, const tensor<Real>& x, const tensor<Real>& y)
      : what(o), out(to.p), a(x, to), b(y, to) {}
  __host__ __device__ void operator()(long long i) const { out.put(i, of(a[i], b[i])); }
  __host__ __device__ Real of(Real x, Real y) const { return combined(what, x, y); }
};

// A binary operation on vectors of eight, if the first operand has the output's shape and the second one too, or is one
// row, or one column for all rows (the weights of a router); or the other way round.
struct binary_vec8 {
  enum class second_operand : unsigned char { all, row, column };
  binary<float> f;
  unsigned vectors;  // per row of the result
  second_operand kind;
  bool swapped;  // the first operand is the row or column

  static bool is_whole(const tensor<float>& out, const tensor<float>& a) {
    return a.count() == out.count() && is_aligned16(a.p);
  }
  static bool is_row(const tensor<float>& out, const tensor<float>& b) {
    return b.count() == b.d[3] && b.d[3] == out.d[3] && is_aligned16(b.p);
  }
  static bool is_column(const tensor<float>& out, const tensor<float>& b) {
    return b.d[3] == 1 && b.count() == out.rows();
  }
  static bool is_small(const tensor<float>& out, const tensor<float>& b) { return is_row(out, b) || is_column(out, b); }
  static bool fits(const tensor<float>& out, const tensor<float>& a, const tensor<float>& b) {
    return out.d[3] % 8 == 0 && out.count() < 1LL << 35 && is_aligned16(out.p) &&
           ((is_whole(out, a) && (is_whole(out, b) || is_small(out, b))) || (is_small(out, a) && is_whole(out, b)));
  }
  binary_vec8(const binary<float>& of, const tensor<float>& out, const tensor<float>& a, const tensor<float>& b)
      : f(of), vectors(static_cast<unsigned>(out.d[3] / 8)), swapped(!is_whole(out, a)) {
    const tensor<float>& small = swapped ? a : b;
    kind = is_whole(out, small) ? second_operand::all
           : is_row(out, small) ? second_operand::row
                                : second_operand::column;
  }
  __device__ void operator()(long long i) const {
    const element_ptr<float>&whole = swapped ? f.b.p : f.a.p, &other = swapped ? f.a.p : f.b.p;
    float x[8], y[8];
    load_vec8(x, whole, 8 * i);
    if (kind == second_operand::column) {
      const float one = other[static_cast<unsigned>(i) / vectors];
      for (float& v : y) v = one;
    } else {
      load_vec8(y, other, kind == second_operand::all ? 8 * i : 8 * (static_cast<unsigned>(i) % vectors));
    }
    for (int k = 0; k < 8; ++k) x[k] = swapped ? f.of(y[k], x[k]) : f.of(x[k], y[k]);
    store_vec8(x, f.out, 8 * i);
  }
};
// combine() for any executor of functors, and, with vectors, on a stream.
template <class On, class Real>
status combine(const On& on, op what, const tensor<Real>& out, const tensor<Real>& a, const tensor<Real>& b) {
  return on.elements(out.count(), binary<Real>(what, out, a, b), traits_of(what).name);
}
template <runs_on_stream On>
status combine(const On& on, op what, const tensor<float>& out, const tensor<float>& a, const tensor<float>& b) {
  const binary<float> f(what, out, a, b);
  if (!binary_vec8::fits(out, a, b)) return on.elements(out.count(), f, traits_of(what).name);
  return on.elements(out.count() / 8, binary_vec8(f, out, a, b), traits_of(what).name);
}

template <class Real> struct unary {
  op what;
  element_ptr<Real> out, a;

  __host__ __device__ void operator()(long long i) const { out.put(i, of(a[i])); }
  __host__ __device__ Real of(Real x) const { return mapped(what, x); }
};

}  // namespace graft::gpu
