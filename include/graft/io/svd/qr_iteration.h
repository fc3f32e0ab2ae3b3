// SPDX-License-Identifier: Apache-2.0
// Left singular vectors of a small bidiagonal matrix with the signs of LAPACK's QR iteration (xLASDQ and xBDSQR; Demmel
// and Kahan 1990). Every rotation has c >= 0, so late rotations are close to the identity and the signs depend on the
// first sweeps only; these are reproduced with the tolerances of float. LAPACK makes negative values positive by
// negating right vectors, so left vectors are not affected.
#pragma once
#include <graft/io/svd/tridiagonal.h>

#include <limits>

namespace graft::io::svd {

class qr_iteration {
 public:
  matrix u;  // one left vector per column, unsorted

  qr_iteration(const bidiagonal& b, const part& p) : u(p.n, p.n), n_(p.n) {
    for (std::size_t i = 0; i < n_; ++i) u(i, i) = 1, d_.push_back(b.d[p.first + i]);
    for (std::size_t i = 0; i + 1 < n_ || (p.beyond && i < n_); ++i) e_.push_back(b.e[p.first + i]);
    if (p.beyond) make_square();
    iterate();
  }

 private:
  static constexpr double eps = 0x1p-24;

  void rotate_rows(std::size_t i, std::size_t k, double c, double s) {  // rotates columns i and k of u
    for (std::size_t r = 0; r < n_; ++r) {
      const double x = u(r, i), y = u(r, k);
      u(r, i) = c * x + s * y, u(r, k) = c * y - s * x;
    }
  }
  // Removes the additional column of B: rotations from the right make B square and lower bidiagonal, rotations from the
  // left make it upper bidiagonal.
  void make_square() {
    const auto swap_diagonals = [&](auto each) {
      for (std::size_t i = 0; i + 1 < n_; ++i) {
        const rotation g = rotation_of(d_[i], e_[i]);
        d_[i] = g.r, e_[i] = g.s * d_[i + 1], d_[i + 1] *= g.c;
        each(i, g);
      }
    };
    swap_diagonals([](std::size_t, const rotation&) {});
    d_[n_ - 1] = rotation_of(d_[n_ - 1], e_[n_ - 1]).r;
    e_.pop_back();
    swap_diagonals([&](std::size_t i, const rotation& g) { rotate_rows(i, i + 1, g.c, g.s); });
  }

  // Returns the smaller singular value of [f g; 0 h] (xLAS2).
  static double smaller_value(double f, double g, double h) {
    const double fa = std::abs(f), ga = std::abs(g), ha = std::abs(h), low = std::min(fa, ha), high = std::max(fa, ha);
    if (low == 0) return 0;
    const double sum = 1 + low / high, gap = (high - low) / high;
    if (ga < high) {
      const double q = (ga / high) * (ga / high);
      return low * (2 / (std::sqrt(sum * sum + q) + std::sqrt(gap * gap + q)));
    }
    const double q = high / ga;
    const double c = 1 / (std::sqrt(1 + sum * q * sum * q) + std::sqrt(1 + gap * q * gap * q));
    return low * c * q * 2;
  }
  // Returns the left rotation that diagonalizes [f g; 0 h] (xLASV2).
  static rotation diagonalize(double f, double g, double h) {
    const bool swapped = std::abs(h) > std::abs(f);
    const double ft = swapped ? h : f, ht = swapped ? f : h, fa = std::abs(ft), ha = std::abs(ht);
    double clt = 1, crt = 1, slt = 0, srt = 0;
    if (g != 0 && std::abs(g) > fa && fa / std::abs(g) < eps) {
      slt = ht / g, srt = 1, crt = ft / g;
    } else if (g != 0) {
      const double gap = fa - ha, l = gap == fa ? 1 : gap / fa, m = g / ft, t = 2 - l, s = std::sqrt(t * t + m * m);
      const double r = l == 0 ? std::abs(m) : std::sqrt(l * l + m * m), a = 0.5 * (s + r);
      const double tangent =
          m == 0 ? (l == 0 ? std::copysign(2.0, ft) * std::copysign(1.0, g) : g / std::copysign(gap, ft) + m / t)
                 : (m / (s + t) + m / (r + l)) * (1 + a);
      const double root = std::sqrt(tangent * tangent + 4);
      crt = 2 / root, srt = tangent / root;
      clt = (crt + srt * m) / a, slt = (ht / ft) * srt / a;
    }
    return swapped ? rotation{srt, crt, 0} : rotation{clt, slt, 0};
  }

  void iterate() {
    if (n_ < 2) return;
    const double tol = std::max(10.0, std::min(100.0, std::pow(eps, -0.125))) * eps;
    double mu = std::abs(d_[0]), least = mu;
    for (std::size_t i = 1; i < n_ && least > 0; ++i) {
      mu = std::abs(d_[i]) * (mu / (mu + std::abs(e_[i - 1])));
      least = std::min(least, mu);
    }
    const double n = static_cast<double>(n_);
    const double thresh =
        std::max(tol * least / std::sqrt(n), 6 * n * n * static_cast<double>(std::numeric_limits<float>::min()));
    std::size_t high = n_ - 1, low_before = n_, high_before = n_;
    bool down = true, first = true;
    for (std::size_t step = 0; high > 0 && step < 6 * n_ * n_; ++step) {
      std::size_t low = high;  // rows low … high form an unreduced block
      double largest = std::abs(d_[high]);
      while (low > 0 && std::abs(e_[low - 1]) > thresh) {
        largest = std::max({largest, std::abs(d_[low - 1]), std::abs(e_[low - 1])});
        --low;
      }
      if (low > 0) e_[low - 1] = 0;
      if (low == high) {
        --high;
        continue;
      }
      if (low + 1 == high) {
        const rotation left = diagonalize(d_[low], e_[low], d_[high]);
        rotate_rows(low, high, left.c, left.s);
        e_[low] = 0;
        if (low == 0) return;
        high = low - 1;
        continue;
      }
      if (first || low > high_before || high < low_before) down = std::abs(d_[low]) >= std::abs(d_[high]);
      const double smallest = converged(low, high, down, tol);
      if (smallest < 0) continue;
      first = false, low_before = low, high_before = high;
      sweep(low, high, down, shift_of(low, high, down, smallest, largest, tol));
      double& last = e_[down ? high - 1 : low];
      if (std::abs(last) <= thresh) last = 0;
    }
  }
  // Returns a lower bound of the block's smallest singular value, or -1 if an off-diagonal entry was set to zero.
  double converged(std::size_t low, std::size_t high, bool down, double tol) {
    double& end = e_[down ? high - 1 : low];
    if (std::abs(end) <= tol * std::abs(d_[down ? high : low])) return end = 0, -1;
    double mu = std::abs(d_[down ? low : high]), smallest = mu;
    for (std::size_t k = 0; k < high - low; ++k) {
      const std::size_t at = down ? low + k : high - 1 - k;
      if (std::abs(e_[at]) <= tol * mu) return e_[at] = 0, -1;
      mu = std::abs(d_[down ? at + 1 : at]) * (mu / (mu + std::abs(e_[at])));
      smallest = std::min(smallest, mu);
    }
    return smallest;
  }
  double shift_of(std::size_t low, std::size_t high, bool down, double smallest, double largest, double tol) const {
    if (static_cast<double>(n_) * tol * (smallest / largest) <= std::max(eps, 0.01 * tol)) return 0;
    const double shift =
        down ? smaller_value(d_[high - 1], e_[high - 1], d_[high]) : smaller_value(d_[low], e_[low], d_[low + 1]);
    const double start = std::abs(d_[down ? low : high]);
    return start > 0 && (shift / start) * (shift / start) < eps ? 0 : shift;
  }
  // Chases the bulge down or up the block; upward, left and right rotations exchange roles. Right vectors are not
  // updated.
  void sweep(std::size_t low, std::size_t high, bool down, double shift) {
    const std::size_t steps = high - low;
    const auto diagonal = [&](std::size_t k) -> double& { return d_[down ? low + k : high - k]; };
    const auto above = [&](std::size_t k) -> double& { return e_[down ? low + k : high - 1 - k]; };
    const auto keep = [&](std::size_t k, const rotation& right, const rotation& left) {
      if (down)
        rotate_rows(low + k, low + k + 1, left.c, left.s);
      else
        rotate_rows(high - k - 1, high - k, right.c, -right.s);
    };
    if (shift == 0) {
      rotation right{}, left{};
      for (std::size_t k = 0; k < steps; ++k) {
        right = rotation_of(diagonal(k) * right.c, above(k));
        if (k > 0) above(k - 1) = left.s * right.r;
        left = rotation_of(left.c * right.r, diagonal(k + 1) * right.s);
        diagonal(k) = left.r;
        keep(k, right, left);
      }
      const double h = diagonal(steps) * right.c;
      diagonal(steps) = h * left.c, above(steps - 1) = h * left.s;
      return;
    }
    const double start = diagonal(0);
    double f = (std::abs(start) - shift) * (std::copysign(1.0, start) + shift / start), g = above(0);
    for (std::size_t k = 0; k < steps; ++k) {
      const rotation right = rotation_of(f, g);
      if (k > 0) above(k - 1) = right.r;
      f = right.c * diagonal(k) + right.s * above(k);
      above(k) = right.c * above(k) - right.s * diagonal(k);
      g = right.s * diagonal(k + 1);
      diagonal(k + 1) *= right.c;
      const rotation left = rotation_of(f, g);
      diagonal(k) = left.r;
      f = left.c * above(k) + left.s * diagonal(k + 1);
      diagonal(k + 1) = left.c * diagonal(k + 1) - left.s * above(k);
      if (k + 1 < steps) g = left.s * above(k + 1), above(k + 1) *= left.c;
      keep(k, right, left);
    }
    above(steps - 1) = f;
  }
  std::size_t n_;
  std::vector<double> d_, e_;
};

}  // namespace graft::io::svd
