// SPDX-License-Identifier: Apache-2.0
// Randomized SVD as torch.svd_lowrank computes it: subspace iteration (Halko et al. 2009, algorithms 4.4 and 5.1) on
// the matrix or its transpose, whichever is tall. The start R is torch.randn after torch.manual_seed(seed).
//     Q = qr(A R);  niter times Q = qr(Aᵀ Q), Q = qr(A Q);  Qᵀ A = U S Vᵀ;  A ≈ (Q U) S Vᵀ
#pragma once
#include <graft/io/random/torch.h>
#include <graft/io/svd/principal.h>

namespace graft::io::svd {

// Returns Q of the QR factorization a = Q R.
inline matrix orthonormal(matrix a) {
  const std::vector<reflection> h = factor_qr(a);
  matrix q(a.rows, a.cols);
  for (std::size_t j = 0; j < q.cols; ++j) q(j, j) = 1, apply_all(h, q.col(j));
  return q;
}

inline singular_triplets randomized_svd(matrix a, std::size_t r, int rounds, std::uint64_t seed) {
  const bool wide = a.rows < a.cols;
  if (wide) a = transposed(a);
  const matrix back = transposed(a);
  mersenne_twister engine(static_cast<std::uint32_t>(seed & 0xffffffff));
  const std::vector<float> drawn = draw_normal(engine, a.cols * r);
  matrix start(a.cols, r);
  for (std::size_t i = 0; i < a.cols; ++i)
    for (std::size_t j = 0; j < r; ++j) start(i, j) = drawn[i * r + j];
  matrix q = orthonormal(product(a, start));
  for (int i = 0; i < rounds; ++i) {
    q = orthonormal(product(back, q));
    q = orthonormal(product(a, q));
  }
  singular_triplets p = largest_singular_triplets(product(transposed(q), a), r);
  for (std::vector<double>& u : p.left) {
    matrix column(r, 1);
    column.a = u;
    u = product(q, column).a;
  }
  if (wide) std::swap(p.left, p.right);
  return p;
}

}  // namespace graft::io::svd
