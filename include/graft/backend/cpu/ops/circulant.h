// SPDX-License-Identifier: Apache-2.0
// Circulant matrices from rows (C3A), and the adjoint, which sums the entries that are copies of one number
// (graph/rules.h). Each row of a circulant matrix is a rotated copy of its input row, so it is copied as two
// runs.
#pragma once
#include <graft/backend/cpu/gemm/gemm.h>
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/runtime/tensor.h>

namespace graft::cpu {

namespace detail {
// The index in the input row of the first entry of row i of the matrix.
inline long long first_column(long long i, long long b, bool mirrored) { return mirrored || i == 0 ? i : b - i; }
}  // namespace detail

template <class Real> void circulant(tensor<Real> out, tensor<Real> a, bool mirrored) {
  const long long n = a.d[2], b = a.d[3], rows = out.count() / std::max(1LL, n * b);
  const int threads = threads_for(rows, 2 * out.count());
  run_on_threads(threads, [&](int t) {
    for (long long r = rows * t / threads; r < rows * (t + 1) / threads; ++r) {
      const long long first = detail::first_column(r % b, b, mirrored);
      const Real* from = a.p + r / b * n * b;
      Real* to = out.p + r * n * b;
      for (long long k = 0; k < n; ++k, from += b, to += b) {
        std::copy_n(from + first, b - first, to);
        std::copy_n(from, first, to + b - first);
      }
    }
  });
}
template <class Real> void circulant_sum(tensor<Real> out, tensor<Real> squares, bool mirrored) {
  const long long n = out.d[2], b = out.d[3], sums = out.count() / std::max(1LL, b);
  const int threads = threads_for(sums, 2 * squares.count());
  run_on_threads(threads, [&](int t) {
    for (long long s = sums * t / threads; s < sums * (t + 1) / threads; ++s) {
      Real* const to = out.p + s * b;
      const Real* from = squares.p + (s / n * b * n + s % n) * b;
      std::fill_n(to, b, Real(0));
      for (long long i = 0; i < b; ++i, from += n * b) {
        const long long first = detail::first_column(i, b, mirrored);
        add(to + first, from, b - first);
        add(to, from + b - first, first);
      }
    }
  });
}

}  // namespace graft::cpu
