// SPDX-License-Identifier: Apache-2.0
// Matrix products of stacks: out = a b, or out += sign a b when accumulating, for each matrix of a stack. A weight in
// storage is decoded one panel of rows at a time, so the full-width copy never exists.
#pragma once
#include <graft/backend/cpu/decode.h>
#include <graft/backend/cpu/gemm.h>
#include <graft/backend/cpu/tensor.h>

namespace graft::cpu {

struct product_mode {
  bool ta = false, tb = false, sum = false;
  int accumulate = 0;  // 0: overwrite, +1 or -1: add or subtract
};

// c [m, n] by a and b as they are stored, one matrix each.
template <class Real>
void product(Real* c, long long m, long long n, const Real* a, const Real* b, long long k, product_mode how) {
  const strided<Real> left{a, how.ta ? m : k, 1}, right{b, how.tb ? k : n, 1};
  gemm(m, n, k, how.ta ? left.transposed() : left, how.tb ? right.transposed() : right, c, n, how.accumulate);
}

// c = a op(W), W in storage. A plain weight of Reals is used where it lies; any other is decoded in panels of rows,
// which are columns of c (tb), shared out to the threads, or slices of the inner sum. A panel is a multiple of what the
// kernels do at a time, so that the sums are those of a weight that was decoded whole.
template <class Real> void stored_product(tensor<Real> c, tensor<Real> a, const weight_view& w, product_mode how) {
  const long long m = a.matrices() * a.d[2], k = a.d[3], n = how.tb ? w.rows : w.cols;
  const strided<Real> left{a.p, k, 1};
  if (w.how == encoding_of<Real>() && (w.row_stride == 1 || w.col_stride == 1)) {
    const strided<Real> all{static_cast<const Real*>(w.codes), w.row_stride, w.col_stride};
    return gemm(m, n, k, left, how.tb ? all.transposed() : all, c.p, n, how.accumulate);
  }
  const long long panel = how.tb ? 2 * detail::share_unit : usual_blocking.depth;
  const long long panels = (w.rows + panel - 1) / panel;
  const int threads = how.tb ? threads_for(panels, m * n * k) : 1;
  on_threads(threads, [&](int t) {
    thread_local memory<Real> wide;
    wide.reserve(std::min(panel, w.rows) * w.cols);
    const strided<Real> part{wide.data(), w.cols, 1};
    const way by = way_of(m, n, k, left, how.tb ? part.transposed() : part, n);
    for (long long r = panels * t / threads * panel; r < std::min(w.rows, panels * (t + 1) / threads * panel);
         r += panel) {
      const long long rows = std::min(panel, w.rows - r);
      decode(w, r, rows, wide.data());
      if (how.tb)
        gemm(m, rows, k, left, part.transposed(), c.p + r, n, how.accumulate, by);
      else
        gemm(m, n, rows, {a.p + r, k, 1}, part, c.p, n, r > 0 && how.accumulate == 0 ? 1 : how.accumulate, by);
    }
  });
}

template <class Real> void matmul(tensor<Real> out, tensor<Real> a, tensor<Real> b, product_mode how) {
  if (b.stored != nullptr) return stored_product(out, a, *b.stored, how);
  const long long inner = a.d[how.ta ? 2 : 3];
  const bool flat = !how.ta && !how.sum && b.matrices() == 1;  // one product for the whole stack
  if (flat) return product(out.p, a.matrices() * a.d[2], out.d[3], a.p, b.p, inner, how);
  if (how.sum && how.ta && !how.tb && a.matrices() == b.matrices())  // Σ aᵀ b over a stack is one tall product
    return product(out.p, out.d[2], out.d[3], a.p, b.p, a.matrices() * inner, how);
  const long long n0 = a.d[0] == 1 ? b.d[0] : a.d[0], n1 = a.d[1] == 1 ? b.d[1] : a.d[1];
  if (how.sum && how.accumulate == 0 && n0 * n1 == 0) std::fill_n(out.p, out.count(), Real(0));
  for (long long i = 0; i < n0; ++i)
    for (long long j = 0; j < n1; ++j) {
      const long long in_a = (a.d[0] == 1 ? 0 : i) * a.d[1] + (a.d[1] == 1 ? 0 : j);
      const long long in_b = (b.d[0] == 1 ? 0 : i) * b.d[1] + (b.d[1] == 1 ? 0 : j);
      const long long in_c = how.sum ? 0 : i * n1 + j;
      product(out.p + in_c * out.area(), out.d[2], out.d[3], a.p + in_a * a.area(), b.p + in_b * b.area(), inner, how);
      if (how.sum && how.accumulate == 0) how.accumulate = 1;
    }
}

}  // namespace graft::cpu
