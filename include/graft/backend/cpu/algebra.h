// SPDX-License-Identifier: Apache-2.0
// Small dense algebra, matrix by matrix: inverses and PEFT's truncated Cayley series. These run once per change of the
// parameters on matrices of a few dozen rows, so they are done in double whatever the layer's type.
#pragma once
#include <graft/backend/cpu/tensor.h>

#include <Eigen/LU>
#include <vector>

namespace graft::cpu {

using small_matrix = row_major<double>;

template <class Real> void inverse(tensor<Real> out, tensor<Real> a) {
  const long long b = a.d[3];
  for (long long m = 0; m < a.matrices(); ++m) {
    const small_matrix x = const_matrix_map<Real>(a.p + m * b * b, b, b).template cast<double>();
    matrix_map<Real>(out.p + m * b * b, b, b) = x.partialPivLu().inverse().eval().template cast<Real>();
  }
}

// Coefficients of I + 2Q + 2Q² + … + Q^(K-1); PEFT's K = 3 is its K = 4, and K = 2 is I + 2Q.
inline std::vector<double> neumann_coefficients(long long terms) {
  if (terms <= 1) return {1};
  if (terms == 2) return {1, 2};
  if (terms == 3) terms = 4;
  std::vector<double> c(static_cast<std::size_t>(terms), 2.0);
  c.front() = c.back() = 1;
  return c;
}
template <class Real> void neumann(tensor<Real> out, tensor<Real> a, long long terms) {
  const auto c = neumann_coefficients(terms);
  const long long b = a.d[3];
  const small_matrix eye = small_matrix::Identity(b, b);
  for (long long m = 0; m < a.matrices(); ++m) {
    const small_matrix q = const_matrix_map<Real>(a.p + m * b * b, b, b).template cast<double>();
    small_matrix r = c.back() * eye;
    for (auto k = c.size() - 1; k-- > 0;) r = c[k] * eye + q * r;  // Horner
    matrix_map<Real>(out.p + m * b * b, b, b) = r.template cast<Real>();
  }
}
// The adjoint of Horner's scheme: with R_k = c_k I + Q R_{k+1}, dQ = Σ_k G_k R_{k+1}ᵀ and G_{k+1} = Qᵀ G_k.
template <class Real> void neumann_grad(tensor<Real> out, tensor<Real> a, tensor<Real> t, long long terms) {
  const auto c = neumann_coefficients(terms);
  const long long b = a.d[3];
  const small_matrix eye = small_matrix::Identity(b, b);
  for (long long m = 0; m < a.matrices(); ++m) {
    const small_matrix q = const_matrix_map<Real>(a.p + m * b * b, b, b).template cast<double>();
    small_matrix g = const_matrix_map<Real>(t.p + m * b * b, b, b).template cast<double>();
    std::vector<small_matrix> r(c.size());
    r.back() = c.back() * eye;
    for (auto k = c.size() - 1; k-- > 0;) r[k] = c[k] * eye + q * r[k + 1];
    small_matrix d = small_matrix::Zero(b, b);
    for (std::size_t k = 0; k + 1 < c.size(); ++k) {
      d += g * r[k + 1].transpose();
      g = q.transpose() * g;
    }
    matrix_map<Real>(out.p + m * b * b, b, b) = d.template cast<Real>();
  }
}

}  // namespace graft::cpu
