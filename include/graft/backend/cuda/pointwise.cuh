// SPDX-License-Identifier: Apache-2.0
// Elementwise ops; an operand of size 1 along an axis is read again. The output may be an operand of its own sizes.
#pragma once
#include <graft/backend/cuda/tensor.h>

#include <cmath>

namespace graft::cuda {

// An operand as the output sees it. The two usual cases, all of it and a single number, need no division.
template <class Real> struct repeated {
  const Real* p;
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
    if (single) return *p;
    if (whole) return p[i];
    long long at = 0;
    for (int k = 3; k >= 0; --k) {
      if (step[k] != 0) at += i % size[k] * step[k];
      i /= size[k];
    }
    return p[at];
  }
};

template <class Real> struct binary {
  op what;
  Real* out;
  repeated<Real> a, b;

  binary(op o, const tensor<Real>& to, const tensor<Real>& x, const tensor<Real>& y)
      : what(o), out(to.p), a(x, to), b(y, to) {}
  __host__ __device__ void operator()(long long i) const {
    const Real x = a[i], y = b[i];
    switch (what) {
      case op::add: out[i] = x + y; break;
      case op::sub: out[i] = x - y; break;
      case op::mul: out[i] = x * y; break;
      case op::div: out[i] = x / y; break;
      case op::minimum: out[i] = y < x ? y : x; break;
      default: break;
    }
  }
};

template <class Real> struct unary {
  op what;
  Real* out;
  const Real* a;

  __host__ __device__ void operator()(long long i) const {
    const Real x = a[i];
    switch (what) {
      case op::sqrt: out[i] = std::sqrt(x); break;
      case op::exp: out[i] = std::exp(x); break;
      case op::tanh: out[i] = std::tanh(x); break;
      case op::sigmoid: out[i] = Real(1) / (Real(1) + std::exp(-x)); break;
      case op::relu: out[i] = x < Real(0) ? Real(0) : x; break;
      case op::step: out[i] = x > Real(0) ? Real(1) : Real(0); break;
      case op::detach: out[i] = x; break;
      default: break;
    }
  }
};

}  // namespace graft::cuda
