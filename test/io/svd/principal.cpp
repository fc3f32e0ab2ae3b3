// SPDX-License-Identifier: Apache-2.0
// The largest singular pairs of matrices of every shape: their definition, and the signs of those of wide matrices.
#include <doctest/doctest.h>
#include <graft/core/splitmix64.h>
#include <graft/io/svd/principal.h>

using namespace graft;
using io::svd::matrix;

namespace {

matrix drawn(std::size_t rows, std::size_t cols) {
  matrix a(rows, cols);
  std::uint64_t k = 7;
  for (double& v : a.a) v = static_cast<double>(splitmix64(k++) >> 11) * 0x1p-53 - 0.5;
  return a;
}
matrix lower_factor(const matrix& a) {  // L of a = L Q
  matrix q = io::svd::transposed(a), l(a.rows, a.rows);
  io::svd::factor_qr(q);
  for (std::size_t j = 0; j < a.rows; ++j)
    for (std::size_t i = 0; i <= j; ++i) l(j, i) = q(i, j);
  return l;
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double s = 0;
  for (std::size_t i = 0; i < a.size(); ++i) s += a[i] * b[i];
  return s;
}
int opposite(const io::svd::singular_triplets& p, const io::svd::singular_triplets& q) {
  int n = 0;
  for (std::size_t k = 0; k < p.left.size(); ++k) n += dot(p.left[k], q.left[k]) < 0 ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("singular pairs: A v = sigma u with vectors of unit length, tall, square, wide and very wide") {
  const std::size_t shapes[][2] = {{60, 20}, {23, 20}, {30, 30}, {20, 33}, {8, 48}, {4, 300}, {1, 40}, {40, 1}, {1, 1}};
  for (const auto& shape : shapes) {
    const std::size_t rows = shape[0], cols = shape[1];
    const matrix a = drawn(rows, cols);
    const std::size_t r = std::min<std::size_t>(4, std::min(rows, cols));
    const io::svd::singular_triplets p = io::svd::largest_singular_triplets(a, r);
    for (std::size_t k = 0; k < r; ++k) {
      INFO(rows, " x ", cols, ", pair ", k);
      CHECK(dot(p.left[k], p.left[k]) == doctest::Approx(1).epsilon(1e-10));
      CHECK(dot(p.right[k], p.right[k]) == doctest::Approx(1).epsilon(1e-10));
      double off = 0;
      for (std::size_t i = 0; i < rows; ++i) {
        double s = -p.values[k] * p.left[k][i];
        for (std::size_t j = 0; j < cols; ++j) s += a(i, j) * p.right[k][j];
        off = std::max(off, std::abs(s));
      }
      CHECK(off < 1e-9 * p.values[0]);
    }
  }
}

// The signs of torch 2.11 on x86-64 (MKL), found with random matrices: 16 x 1024 and 16 x 4096 have those of L, 16 x
// 256 and 64 x 256 those of the bidiagonalization of the matrix itself.
TEST_CASE("singular pairs: a matrix with far more columns than rows has the signs of its lower factor") {
  const matrix far = drawn(16, 1024), near = drawn(16, 256);
  CHECK(opposite(io::svd::largest_singular_triplets(far, 16),
                 io::svd::largest_singular_triplets(lower_factor(far), 16)) == 0);
  CHECK(opposite(io::svd::largest_singular_triplets(near, 16),
                 io::svd::largest_singular_triplets(lower_factor(near), 16)) > 0);
}
