// SPDX-License-Identifier: Apache-2.0
// Bidiagonalization a = Q B Pᵀ, B upper bidiagonal, with the reflections and the order of MKL's xGESDD, which torch
// calls on x86-64. The signs of singular vectors depend on both.
//     rows >= 3/2 columns      a QR factorization comes first
//     rows < columns           B is lower bidiagonal first and becomes upper bidiagonal by Givens rotations
//     columns >= 32 rows       an LQ factorization comes first (observed at a ratio of 64, not at 16)
// Reference LAPACK factorizes from a ratio of 11/6 on, for wide matrices too, so torch returns other signs for some
// vectors on other processors.
#pragma once
#include <graft/io/svd/matrix.h>

#include <algorithm>
#include <utility>

namespace graft::io::svd {

struct rotation {
  double c = 1, s = 0, r = 0;  // [c s; −s c] [f; g] = [r; 0]
};
inline rotation rotation_of(double f, double g) {  // as xLARTG, with c >= 0
  if (g == 0) return {1, 0, f};
  if (f == 0) return {0, std::copysign(1.0, g), std::abs(g)};
  const double d = std::hypot(f, g), r = std::copysign(d, f);
  return {std::abs(f) / d, g / r, r};
}

struct bidiagonal {
  std::vector<double> d, e;  // diagonal and superdiagonal
};

// The bidiagonal form of a matrix, and the maps from singular vectors of B to those of the matrix.
class reduction {
 public:
  bidiagonal b;

  explicit reduction(matrix a)
      : rows_(a.rows),
        cols_(a.cols),
        tall_(a.rows >= a.cols && a.rows >= a.cols * 3 / 2),
        very_wide_(a.cols >= a.rows * 32),
        wide_(a.rows < a.cols && !very_wide_) {
    if (wide_ || very_wide_) a = transposed(a);
    if (tall_ || very_wide_) {
      outer_ = factor_qr(a);
      matrix r(a.cols, a.cols);
      for (std::size_t j = 0; j < r.cols; ++j)
        for (std::size_t i = 0; i <= j; ++i) (very_wide_ ? r(j, i) : r(i, j)) = a(i, j);
      a = std::move(r);
    }
    reduce(a);
    if (wide_) make_upper();
  }
  // u and v have the size of B; the results have as many entries as the matrix has rows and columns.
  std::vector<double> left(std::vector<double> u) const {
    if (wide_) return undo_rotations(std::move(u));
    return through(left_, tall_ ? outer_ : none_, std::move(u), rows_);
  }
  std::vector<double> right(std::vector<double> v) const {
    return through(wide_ ? left_ : right_, very_wide_ ? outer_ : none_, std::move(v), cols_);
  }

 private:
  void reduce(matrix& a) {
    const std::size_t n = a.cols;
    for (std::size_t i = 0; i < n; ++i) {
      left_.emplace_back(i, std::vector<double>(a.col(i) + i, a.col(i) + a.rows));
      left_.back().apply_left(a, i);
      b.d.push_back(left_.back().becomes);
      if (i + 1 == n) break;
      std::vector<double> row;
      for (std::size_t j = i + 1; j < n; ++j) row.push_back(a(i, j));
      right_.emplace_back(i + 1, std::move(row));
      right_.back().apply_right(a, i);
      b.e.push_back(right_.back().becomes);
    }
  }
  void make_upper() {
    for (std::size_t i = 0; i + 1 < b.d.size(); ++i) {
      const rotation g = rotation_of(b.d[i], b.e[i]);
      b.d[i] = g.r, b.e[i] = g.s * b.d[i + 1], b.d[i + 1] *= g.c;
      rotated_.push_back(g);
    }
  }
  std::vector<double> undo_rotations(std::vector<double> u) const {
    for (std::size_t i = rotated_.size(); i-- > 0;) {
      const double x = u[i], y = u[i + 1];
      u[i] = rotated_[i].c * x - rotated_[i].s * y, u[i + 1] = rotated_[i].s * x + rotated_[i].c * y;
    }
    return through(right_, {}, std::move(u), rows_);
  }
  static std::vector<double> through(const std::vector<reflection>& inner, const std::vector<reflection>& outer,
                                     std::vector<double> x, std::size_t size) {
    std::size_t first = x.size();
    for (const reflection& h : inner) first = std::max(first, h.first + h.v.size());
    x.resize(first);
    apply_all(inner, x.data());
    x.resize(size);
    apply_all(outer, x.data());
    return x;
  }
  std::size_t rows_, cols_;
  bool tall_, very_wide_, wide_;  // tall and very wide matrices are factorized first, wide ones are transposed
  std::vector<reflection> outer_, left_, right_, none_;
  std::vector<rotation> rotated_;
};

}  // namespace graft::io::svd
