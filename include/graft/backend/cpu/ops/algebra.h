// SPDX-License-Identifier: Apache-2.0
// Dense linear algebra on small matrices: inverses (Cayley transform), orthonormal bases and PEFT's truncated Neumann
// series. These run once per parameter change on matrices of a few dozen rows or columns, so they are computed in
// double for every type and with loops of our own: Eigen's LU, and its products for a second element type, would take
// longer to compile than everything else here.
#pragma once
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/runtime/tensor.h>

#include <cmath>
#include <vector>

namespace graft::cpu {

// A square matrix, row-major.
using small_matrix = std::vector<double>;

template <class Real> small_matrix to_double_matrix(const Real* from, long long n) { return {from, from + n * n}; }

// c += a b for n x n matrices, with a register tile of c; element (i, k) of a is a[i row + k col].
inline void add_matmul(double* c, const double* a, long long row, long long col, const double* b, long long n) {
  constexpr long long width = packet_width<double>, tall = 4, wide = 2;
  const long long rows = n / tall * tall, cols = n / (wide * width) * (wide * width);
  for (long long i = 0; i < rows; i += tall)
    for (long long j = 0; j < cols; j += wide * width) {
      packet<double> sum[tall][wide];
      for (long long r = 0; r < tall; ++r)
        for (long long w = 0; w < wide; ++w) sum[r][w] = load(c + (i + r) * n + j + w * width);
      for (long long k = 0; k < n; ++k)
        for (long long r = 0; r < tall; ++r) {
          const packet<double> factor = all(a[(i + r) * row + k * col]);
          for (long long w = 0; w < wide; ++w)
            sum[r][w] = Eigen::internal::pmadd(factor, load(b + k * n + j + w * width), sum[r][w]);
        }
      for (long long r = 0; r < tall; ++r)
        for (long long w = 0; w < wide; ++w) Eigen::internal::pstoreu(c + (i + r) * n + j + w * width, sum[r][w]);
    }
  for (long long i = 0; i < n; ++i)
    for (long long k = 0, j = i < rows ? cols : 0; k < n && j < n; ++k)
      axpy(c + i * n + j, a[i * row + k * col], b + k * n + j, n - j);
}

// The inverse by Gauss-Jordan elimination with partial pivoting. A singular matrix gives infinities or NaN.
inline small_matrix inverse_of(small_matrix matrix, long long n) {
  small_matrix result(matrix.size());
  double *a = matrix.data(), *r = result.data();
  for (long long i = 0; i < n; ++i) r[i * n + i] = 1;
  for (long long c = 0; c < n; ++c) {
    long long pivot = c;
    for (long long i = c + 1; i < n; ++i)
      if (std::abs(a[i * n + c]) > std::abs(a[pivot * n + c])) pivot = i;
    for (double* m : {a, r})
      if (pivot != c) std::swap_ranges(m + c * n, m + c * n + n, m + pivot * n);
    const double scale = 1 / a[c * n + c];
    for (double* m : {a, r}) scale_into(m + c * n, scale, m + c * n, n);
    for (long long i = 0; i < n; ++i) {
      const double f = -a[i * n + c];
      if (i == c) continue;
      axpy(a + i * n + c, f, a + c * n + c, n - c);
      axpy(r + i * n, f, r + c * n, n);
    }
  }
  return result;
}
template <class Real> void inverse(tensor<Real> out, tensor<Real> a) {
  const long long n = a.d[3];
  for (long long m = 0; m < a.matrices(); ++m) {
    const small_matrix r = inverse_of(to_double_matrix(a.p + m * n * n, n), n);
    for (long long i = 0; i < n * n; ++i) out.p[m * n * n + i] = static_cast<Real>(r[static_cast<std::size_t>(i)]);
  }
}

// The signs that LAPACK's Householder QR gives the columns of an orthonormal basis, from its first n rows q: the sign
// is opposite to that of the diagonal of the LU factorization of q less the signs (Ballard et al. 2014, Reconstructing
// Householder vectors from TSQR). The last column of a square matrix has nothing to reflect, so its sign is not
// changed.
inline std::vector<double> householder_signs(small_matrix q, long long n, bool square) {
  std::vector<double> signs(static_cast<std::size_t>(n));
  for (long long j = 0; j < n; ++j) {
    double* const from = q.data() + j * n;
    const double sign = (from[j] >= 0) == (square && j + 1 == n) ? 1 : -1, scale = 1 / (from[j] - sign);
    signs[static_cast<std::size_t>(j)] = sign;
    for (long long i = j + 1; i < n; ++i)
      axpy(from + (i - j) * n + j + 1, -scale * from[(i - j) * n + j], from + j + 1, n - j - 1);
  }
  return signs;
}
// Q of a = Q R, for a with at least as many rows as columns: a times the inverse of the Cholesky factor of aᵀ a. It is
// computed in double, so that Q is orthonormal to the precision of its type also for nearly dependent columns.
template <class Real> void orthonormal(tensor<Real> out, tensor<Real> a) {
  const long long rows = a.d[2], n = a.d[3];
  for (long long m = 0; m < a.matrices(); ++m) {
    std::vector<double> basis(a.p + m * rows * n, a.p + (m + 1) * rows * n);
    small_matrix factor(static_cast<std::size_t>(n * n));
    double *const q = basis.data(), *const r = factor.data();
    for (long long i = 0; i < rows; ++i)
      for (long long j = 0; j < n; ++j) axpy(r + j * n + j, q[i * n + j], q + i * n + j, n - j);
    for (long long j = 0; j < n; ++j) {
      scale_into(r + j * n + j, 1 / std::sqrt(r[j * n + j]), r + j * n + j, n - j);
      for (long long i = j + 1; i < n; ++i) axpy(r + i * n + i, -r[j * n + i], r + j * n + i, n - i);
    }
    for (long long i = 0; i < rows; ++i)
      for (long long j = 0; j < n; ++j) {
        q[i * n + j] /= r[j * n + j];
        axpy(q + i * n + j + 1, -q[i * n + j], r + j * n + j + 1, n - j - 1);
      }
    const std::vector<double> signs = householder_signs({q, q + n * n}, n, rows == n);
    for (long long i = 0; i < rows * n; ++i)
      out.p[m * rows * n + i] = static_cast<Real>(signs[static_cast<std::size_t>(i % n)] * q[i]);
  }
}

// The coefficients of I + 2Q + 2Q² + … + Q^(K-1). As in PEFT, K = 2 is I + 2Q, and K = 3 equals K = 4.
inline std::vector<double> neumann_coefficients(long long terms) {
  if (terms <= 1) return {1};
  if (terms == 2) return {1, 2};
  if (terms == 3) terms = 4;
  std::vector<double> c(static_cast<std::size_t>(terms), 2.0);
  c.front() = c.back() = 1;
  return c;
}
// All partial sums R_k of Horner's scheme, R_k = c_k I + Q R_{k+1}, in one array.
inline small_matrix neumann_partial_sums(const small_matrix& q, long long n, const std::vector<double>& c) {
  small_matrix steps(q.size() * c.size());
  for (auto k = c.size(); k-- > 0;) {
    double* const r = steps.data() + k * q.size();
    for (long long i = 0; i < n; ++i) r[i * n + i] = c[k];
    if (k + 1 < c.size()) add_matmul(r, q.data(), n, 1, r + n * n, n);
  }
  return steps;
}
template <class Real> void neumann(tensor<Real> out, tensor<Real> a, long long terms) {
  const long long n = a.d[3];
  for (long long m = 0; m < a.matrices(); ++m) {
    const small_matrix r = neumann_partial_sums(to_double_matrix(a.p + m * n * n, n), n, neumann_coefficients(terms));
    for (long long i = 0; i < n * n; ++i) out.p[m * n * n + i] = static_cast<Real>(r[static_cast<std::size_t>(i)]);
  }
}
// The adjoint of neumann: dQ = Σ_k G_k R_{k+1}ᵀ with G_{k+1} = Qᵀ G_k.
template <class Real> void neumann_grad(tensor<Real> out, tensor<Real> a, tensor<Real> t, long long terms) {
  const long long n = a.d[3];
  const std::vector<double> c = neumann_coefficients(terms);
  for (long long m = 0; m < a.matrices(); ++m) {
    const small_matrix q = to_double_matrix(a.p + m * n * n, n), r = neumann_partial_sums(q, n, c);
    small_matrix g = to_double_matrix(t.p + m * n * n, n), next(g.size()), d(g.size()), transposed_step(g.size());
    for (std::size_t k = 1; k < c.size(); ++k) {
      const double* const step = r.data() + k * q.size();
      for (long long i = 0; i < n; ++i)
        for (long long j = 0; j < n; ++j) transposed_step[static_cast<std::size_t>(j * n + i)] = step[i * n + j];
      add_matmul(d.data(), g.data(), n, 1, transposed_step.data(), n);
      if (k + 1 == c.size()) break;
      next.assign(g.size(), 0.0);
      add_matmul(next.data(), q.data(), 1, n, g.data(), n);
      g.swap(next);
    }
    for (long long i = 0; i < n * n; ++i) out.p[m * n * n + i] = static_cast<Real>(d[static_cast<std::size_t>(i)]);
  }
}

}  // namespace graft::cpu
