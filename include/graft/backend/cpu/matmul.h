// SPDX-License-Identifier: Apache-2.0
// Matrix products through Eigen: out = a b, or out += sign a b when accumulating, for each matrix of a stack. A weight
// stored in bf16 is widened one panel of rows at a time, so the full-width copy never exists.
#pragma once
#include <graft/backend/cpu/tensor.h>

#include <algorithm>
#include <vector>

namespace graft::cpu {

struct product_mode {
  bool ta = false, tb = false, sum = false;
  int accumulate = 0;  // 0: overwrite, +1 or -1: add or subtract
};

template <class Real>
void product(matrix_map<Real> c, const_matrix_map<Real> a, const_matrix_map<Real> b, product_mode m) {
  if (m.accumulate == 0) c.setZero();
  const Real sign = m.accumulate < 0 ? Real(-1) : Real(1);
  if (m.ta && m.tb)
    c.noalias() += sign * a.transpose() * b.transpose();
  else if (m.ta)
    c.noalias() += sign * a.transpose() * b;
  else if (m.tb)
    c.noalias() += sign * a * b.transpose();
  else
    c.noalias() += sign * a * b;
}

// c = a op(W), W in storage: panels of rows of W, which are columns of c (tb) or a slice of the inner sum.
template <class Real> void decoded_product(tensor<Real> c, tensor<Real> a, tensor<Real> w, product_mode m) {
  const long long rows = a.matrices() * a.d[2], k = a.d[3], panel = 128;
  std::vector<Real> wide(static_cast<std::size_t>(std::min(panel, w.d[2]) * w.d[3]));
  matrix_map<Real> out(c.p, rows, m.tb ? w.d[2] : w.d[3]);
  const const_matrix_map<Real> left(a.p, rows, k);
  if (m.accumulate == 0) out.setZero();
  const Real sign = m.accumulate < 0 ? Real(-1) : Real(1);
  for (long long r = 0; r < w.d[2]; r += panel) {
    const long long n = std::min(panel, w.d[2] - r);
    decode(w.narrow, dtype::bf16, r * w.d[3], n * w.d[3], wide.data());
    const const_matrix_map<Real> part(wide.data(), n, w.d[3]);
    if (m.tb)
      out.middleCols(r, n).noalias() += sign * left * part.transpose();
    else
      out.noalias() += sign * left.middleCols(r, n) * part;
  }
}

template <class Real> void matmul(tensor<Real> out, tensor<Real> a, tensor<Real> b, product_mode m) {
  if (b.narrow != nullptr) return decoded_product(out, a, b, m);
  const bool flat = !m.ta && !m.sum && b.matrices() == 1;  // one product for the whole stack
  if (flat) {
    const long long rows = a.matrices() * a.d[2];
    return product<Real>({out.p, rows, out.d[3]}, {a.p, rows, a.d[3]}, {b.p, b.d[2], b.d[3]}, m);
  }
  if (m.sum && m.ta && !m.tb && a.matrices() == b.matrices()) {  // Σ aᵀ b over a stack is one tall product
    const long long rows = a.matrices() * a.d[2];
    return product<Real>({out.p, out.d[2], out.d[3]}, {a.p, rows, a.d[3]}, {b.p, rows, b.d[3]}, m);
  }
  const long long n0 = a.d[0] == 1 ? b.d[0] : a.d[0], n1 = a.d[1] == 1 ? b.d[1] : a.d[1];
  if (m.sum && m.accumulate == 0 && n0 * n1 == 0) std::fill_n(out.p, out.count(), Real(0));
  for (long long i = 0; i < n0; ++i)
    for (long long j = 0; j < n1; ++j) {
      const long long in_a = (a.d[0] == 1 ? 0 : i) * a.d[1] + (a.d[1] == 1 ? 0 : j);
      const long long in_b = (b.d[0] == 1 ? 0 : i) * b.d[1] + (b.d[1] == 1 ? 0 : j);
      const long long in_c = m.sum ? 0 : i * n1 + j;
      product<Real>({out.p + in_c * out.area(), out.d[2], out.d[3]}, {a.p + in_a * a.area(), a.d[2], a.d[3]},
                    {b.p + in_b * b.area(), b.d[2], b.d[3]}, m);
      if (m.sum && m.accumulate == 0) m.accumulate = 1;
    }
}

}  // namespace graft::cpu
