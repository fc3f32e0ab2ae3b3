// SPDX-License-Identifier: Apache-2.0
// Best rank-k approximation as the factors B = U S and A = Vᵀ, of a matrix or of a product P Q of thin factors. The
// product is never formed: its singular triplets follow from those of a small matrix between orthonormal bases.
//     P Q = (Q_P R_P) (Q_Q R_Q)ᵀ,   R_P R_Qᵀ = u s vᵀ,   U = Q_P u,   V = Q_Q v
#pragma once
#include <graft/io/svd/low_rank.h>

#include <span>

namespace graft::io::svd {

struct rank_factors {
  std::vector<float> B, A;  // [rows, k], [k, cols]
};

namespace detail {
// Columns and rows beyond the rank of the matrix are zero.
inline rank_factors as_factors(const matrix& m, std::size_t k, const matrix* left, const matrix* right) {
  const std::size_t rows = left != nullptr ? left->rows : m.rows, cols = right != nullptr ? right->rows : m.cols;
  rank_factors f{std::vector<float>(rows * k), std::vector<float>(k * cols)};
  if (std::all_of(m.a.begin(), m.a.end(), [](double v) { return v == 0; })) return f;
  const std::size_t found = std::min({k, m.rows, m.cols});
  const singular_triplets p = largest_singular_triplets(m, found);
  const auto outward = [](const matrix* q, const std::vector<double>& v) {
    if (q == nullptr) return v;
    matrix column(v.size(), 1);
    column.a = v;
    return product(*q, column).a;
  };
  for (std::size_t j = 0; j < found; ++j) {
    if (!(p.values[j] > 1e-7 * p.values[0])) continue;
    const std::vector<double> u = outward(left, p.left[j]), v = outward(right, p.right[j]);
    for (std::size_t i = 0; i < rows; ++i) f.B[i * k + j] = static_cast<float>(u[i] * p.values[j]);
    for (std::size_t i = 0; i < cols; ++i) f.A[j * cols + i] = static_cast<float>(v[i]);
  }
  return f;
}
}  // namespace detail

inline rank_factors truncated_factors(const matrix& m, std::size_t k) {
  return detail::as_factors(m, k, nullptr, nullptr);
}
// Factors of p q, with p [rows, n], q [n, cols] and n at most rows and cols.
inline rank_factors truncated_factors(const matrix& p, const matrix& q, std::size_t k) {
  const matrix left = orthonormal(p), right = orthonormal(transposed(q));
  const matrix core = product(product(transposed(left), p), product(q, right));
  return detail::as_factors(core, k, &left, &right);
}

}  // namespace graft::io::svd
