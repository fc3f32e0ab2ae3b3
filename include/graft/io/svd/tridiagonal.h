// SPDX-License-Identifier: Apache-2.0
// Single singular values and left singular vectors of a block of rows of a bidiagonal matrix B: eigenvalues of the
// tridiagonal matrix B Bᵀ by bisection with Sturm counts, eigenvectors by inverse iteration.
#pragma once
#include <graft/io/svd/bidiagonal.h>

#include <algorithm>

namespace graft::io::svd {

// Rows first … first + n − 1 of B. `beyond` says that the last of these rows has an entry above the diagonal.
struct part {
  std::size_t first = 0, n = 0;
  bool beyond = false;
};

class tridiagonal {
 public:
  tridiagonal(const bidiagonal& b, const part& p) : a_(p.n), c_(p.n > 0 ? p.n - 1 : 0) {
    for (std::size_t i = 0; i < p.n; ++i) {
      const std::size_t at = p.first + i;
      const bool above = i + 1 < p.n || p.beyond;
      a_[i] = b.d[at] * b.d[at] + (above ? b.e[at] * b.e[at] : 0);
      if (i + 1 < p.n) c_[i] = b.d[at + 1] * b.e[at];
    }
    for (std::size_t i = 0; i < p.n; ++i)
      bound_ = std::max(bound_, a_[i] + (i > 0 ? std::abs(c_[i - 1]) : 0) + (i + 1 < p.n ? std::abs(c_[i]) : 0));
  }
  // Returns the k-th largest eigenvalue, counted from 0.
  double eigenvalue(std::size_t k) const {
    double low = 0, high = bound_;
    for (int step = 0; step < 200 && high - low > 4e-16 * high; ++step) {
      const double middle = 0.5 * (low + high);
      (above(middle) > k ? low : high) = middle;
    }
    return 0.5 * (low + high);
  }
  // Returns the eigenvector of an eigenvalue, orthogonalized against the vectors in `before`.
  std::vector<double> eigenvector(double value, const std::vector<std::vector<double>>& before) const {
    std::vector<double> x(a_.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1 + 0.5 * std::sin(static_cast<double>(3 * i + 1));
    for (int step = 0; step < 5; ++step) {
      solve(value, x);
      for (const std::vector<double>& b : before) {
        double dot = 0;
        for (std::size_t i = 0; i < x.size(); ++i) dot += x[i] * b[i];
        for (std::size_t i = 0; i < x.size(); ++i) x[i] -= dot * b[i];
      }
      double norm = 0;
      for (const double v : x) norm += v * v;
      for (double& v : x) v /= std::sqrt(norm);
    }
    return x;
  }

 private:
  std::size_t above(double x) const {
    std::size_t n = 0;
    double q = 1;
    for (std::size_t i = 0; i < a_.size(); ++i) {
      q = a_[i] - x - (i > 0 ? c_[i - 1] * c_[i - 1] / q : 0);
      if (q == 0) q = -1e-300;
      n += q > 0 ? 1 : 0;
    }
    return n;
  }
  // Solves (T − value) x_new = x in place by elimination with row exchanges, and scales the result.
  void solve(double value, std::vector<double>& x) const {
    const std::size_t n = a_.size();
    const double least = 1e-16 * bound_ + 1e-300;
    std::vector<double> u(n), v(n), w(n);  // the three diagonals of the upper factor
    double d = a_[0] - value, up = n > 1 ? c_[0] : 0, up2 = 0;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      double low = c_[i], low_d = a_[i + 1] - value, low_up = i + 2 < n ? c_[i + 1] : 0;
      if (std::abs(low) > std::abs(d))
        std::swap(d, low), std::swap(up, low_d), std::swap(up2, low_up), std::swap(x[i], x[i + 1]);
      if (d == 0) d = least;
      const double f = low / d;
      u[i] = d, v[i] = up, w[i] = up2;
      d = low_d - f * up, up = low_up - f * up2, up2 = 0;
      x[i + 1] -= f * x[i];
    }
    u[n - 1] = std::abs(d) < least ? std::copysign(least, d) : d;
    for (std::size_t i = n; i-- > 0;) {
      double s = x[i];
      if (i + 1 < n) s -= v[i] * x[i + 1];
      if (i + 2 < n) s -= w[i] * x[i + 2];
      x[i] = s / u[i];
    }
    double most = 0;
    for (const double e : x) most = std::max(most, std::abs(e));
    for (double& e : x) e /= most;
  }
  std::vector<double> a_, c_;
  double bound_ = 0;
};

}  // namespace graft::io::svd
