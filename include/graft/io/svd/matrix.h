// SPDX-License-Identifier: Apache-2.0
// Column-major matrix of double, and Householder reflections with LAPACK's sign: the new first entry has the opposite
// sign of the old one (xLARFG).
//     H = I − τ v vᵀ,   v_0 = 1
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

namespace graft::io::svd {

struct matrix {
  std::size_t rows = 0, cols = 0;
  std::vector<double> a;

  matrix(std::size_t m, std::size_t n) : rows(m), cols(n), a(m * n) {}
  double* col(std::size_t j) { return a.data() + j * rows; }
  const double* col(std::size_t j) const { return a.data() + j * rows; }
  double& operator()(std::size_t i, std::size_t j) { return a[j * rows + i]; }
  double operator()(std::size_t i, std::size_t j) const { return a[j * rows + i]; }
};
inline matrix transposed(const matrix& m) {
  matrix t(m.cols, m.rows);
  for (std::size_t j = 0; j < m.cols; ++j)
    for (std::size_t i = 0; i < m.rows; ++i) t(j, i) = m(i, j);
  return t;
}
inline matrix product(const matrix& a, const matrix& b) {
  matrix c(a.rows, b.cols);
  for (std::size_t j = 0; j < b.cols; ++j)
    for (std::size_t k = 0; k < a.cols; ++k) {
      const double f = b(k, j);
      const double* from = a.col(k);
      double* to = c.col(j);
      for (std::size_t i = 0; i < a.rows; ++i) to[i] += f * from[i];
    }
  return c;
}

struct reflection {
  std::size_t first = 0;  // row that v_0 acts on
  std::vector<double> v;
  double tau = 0, becomes = 0;  // `becomes` is the value of x_0 after the reflection, which zeroes all others

  reflection(std::size_t at, std::vector<double> x) : first(at), v(std::move(x)) {
    double tail = 0;
    for (std::size_t i = 1; i < v.size(); ++i) tail += v[i] * v[i];
    const double head = v[0];
    becomes = tail == 0 ? head : -std::copysign(std::sqrt(head * head + tail), head);
    tau = tail == 0 ? 0 : (becomes - head) / becomes;
    for (std::size_t i = 1; i < v.size(); ++i) v[i] = tail == 0 ? 0 : v[i] / (head - becomes);
    v[0] = 1;
  }
  void apply(double* column) const {
    double dot = 0;
    for (std::size_t i = 0; i < v.size(); ++i) dot += v[i] * column[first + i];
    for (std::size_t i = 0; i < v.size(); ++i) column[first + i] -= tau * dot * v[i];
  }
  void apply_left(matrix& m, std::size_t from) const {
    for (std::size_t j = from; j < m.cols; ++j) apply(m.col(j));
  }
  void apply_right(matrix& m, std::size_t from) const {  // acts on the columns first, first + 1, …
    std::vector<double> dot(m.rows, 0.0);
    for (std::size_t k = 0; k < v.size(); ++k)
      for (std::size_t i = from; i < m.rows; ++i) dot[i] += v[k] * m(i, first + k);
    for (std::size_t k = 0; k < v.size(); ++k)
      for (std::size_t i = from; i < m.rows; ++i) m(i, first + k) -= tau * dot[i] * v[k];
  }
};

// Applies H_0 H_1 … to a column.
inline void apply_all(const std::vector<reflection>& h, double* column) {
  for (std::size_t i = h.size(); i-- > 0;) h[i].apply(column);
}

// QR factorization a = Q R: the upper triangle of `a` becomes R, and the returned reflections are Q.
inline std::vector<reflection> factor_qr(matrix& a) {
  std::vector<reflection> q;
  for (std::size_t i = 0; i < a.cols && i < a.rows; ++i) {
    q.emplace_back(i, std::vector<double>(a.col(i) + i, a.col(i) + a.rows));
    q.back().apply_left(a, i);
    for (std::size_t k = i + 1; k < a.rows; ++k) a(k, i) = 0;
  }
  return q;
}

}  // namespace graft::io::svd
