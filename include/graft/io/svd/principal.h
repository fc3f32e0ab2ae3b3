// SPDX-License-Identifier: Apache-2.0
// The r largest singular triplets of a matrix with the signs of LAPACK's xGESDD in float, which torch.linalg.svd
// returns on a CPU. Frozen factors that PEFT derives from the base weight (PSOFT's) depend on these signs: (u, v) and
// (−u, −v) are equally valid, so only following the algorithm gives PEFT's. Divide and conquer (Gu and Eisenstat 1995)
// splits B at its middle row and makes the middle entry of every merged left vector negative. A vector whose coupling
// to the middle row is below float accuracy is deflated: it belongs to one half and gets its sign there. Blocks of at
// most 25 rows are solved by QR iteration.
#pragma once
#include <graft/io/svd/qr_iteration.h>

namespace graft::io::svd {

struct singular_triplets {
  std::vector<double> values;
  std::vector<std::vector<double>> left, right;  // one vector per singular value
};

namespace detail {

inline double dot(const double* a, const double* b, std::size_t n) {
  double s = 0;
  for (std::size_t i = 0; i < n; ++i) s += a[i] * b[i];
  return s;
}

// Returns 1 if u, a left vector of block p of B with singular value sigma, has LAPACK's sign, and −1 if −u has it.
inline double sign_of(const bidiagonal& b, const part& p, const std::vector<double>& u, double sigma) {
  constexpr std::size_t leaf = 25;
  if (p.n <= leaf) {
    const qr_iteration solved(b, p);
    double most = 0;
    for (std::size_t k = 0; k < p.n; ++k)
      if (const double s = dot(solved.u.col(k), u.data(), p.n); std::abs(s) > std::abs(most)) most = s;
    return most < 0 ? -1 : 1;
  }
  const std::size_t middle = p.n / 2, row = p.first + middle;
  const double merged = u[middle] < 0 ? 1 : -1;
  if (std::abs(u[middle]) > 1e-3) return merged;
  const bool above = dot(u.data(), u.data(), middle) > 0.5;
  const part half = above ? part{p.first, middle, true} : part{row + 1, p.n - middle - 1, p.beyond};
  const std::vector<double> w = tridiagonal(b, half).eigenvector(sigma * sigma, {});
  // The coupling z of the half's vector to the middle row, by way of its right vector Bᵀ w / sigma.
  const double edge = above ? b.e[row - 1] * w[middle - 1] : b.d[row + 1] * w[0];
  const double coupling = std::abs((above ? b.d[row] : b.e[row]) * edge / sigma);
  const double largest = std::max({std::sqrt(tridiagonal(b, p).eigenvalue(0)), std::abs(b.d[row]), std::abs(b.e[row])});
  if (coupling > 8 * 0x1p-24 * largest) return merged;
  const double same = dot(w.data(), u.data() + (above ? 0 : middle + 1), half.n) < 0 ? -1 : 1;
  return same * sign_of(b, half, w, sigma);
}

}  // namespace detail

// Returns the r largest triplets; the matrix must have at least r rows and r columns.
inline singular_triplets largest_singular_triplets(matrix a, std::size_t r) {
  const reduction q(std::move(a));
  const std::size_t n = q.b.d.size();
  const part whole{0, n, false};
  const tridiagonal t(q.b, whole);
  singular_triplets found;
  std::vector<std::vector<double>> us;
  for (std::size_t k = 0; k < r; ++k) {
    const double square = t.eigenvalue(k), sigma = std::sqrt(square);
    std::vector<double> u = t.eigenvector(square, us), v(n);
    us.push_back(u);
    const double sign = detail::sign_of(q.b, whole, u, sigma);
    for (double& x : u) x *= sign;
    for (std::size_t i = 0; i < n; ++i) v[i] = (q.b.d[i] * u[i] + (i > 0 ? q.b.e[i - 1] * u[i - 1] : 0)) / sigma;
    found.values.push_back(sigma);
    found.left.push_back(q.left(std::move(u)));
    found.right.push_back(q.right(std::move(v)));
  }
  return found;
}

}  // namespace graft::io::svd
