// SPDX-License-Identifier: Apache-2.0
// Matrix products of stacks: out = a b, or out += sign a b when accumulating, for each matrix of a stack. A weight in
// storage is decoded one panel of rows at a time, so the full-width copy never exists.
#pragma once
#include <graft/backend/cpu/bf16_parts.h>
#include <graft/backend/cpu/digit_dots.h>
#include <graft/backend/cpu/few_codes.h>
#include <graft/backend/cpu/four_bit_dots.h>
#include <graft/backend/cpu/fp8_dots.h>
#include <graft/backend/cpu/gemm.h>
#include <graft/backend/cpu/sums.h>
#include <graft/backend/cpu/tensor.h>
#include <graft/backend/cpu/whole_dots.h>

namespace graft::cpu {

struct product_mode {
  bool ta = false, tb = false, sum = false;
  int accumulate = 0;  // 0: overwrite, +1 or -1: add or subtract
};

// c [m, n] by a and b as they are stored, one matrix each.
template <class Real>
void product(Real* c, long long m, long long n, const Real* a, const Real* b, long long k, product_mode how,
             const product_end<Real>& end = {}) {
  const strided<Real> left{a, how.ta ? m : k, 1}, right{b, how.tb ? k : n, 1}, l = how.ta ? left.transposed() : left,
                                                                               r = how.tb ? right.transposed() : right;
  gemm(m, n, k, l, r, c, n, how.accumulate, way_of(m, n, k, l, r, n), end);
}
// The same in the roles of the kernels: out = or += ± a b, a stack of rows times one matrix.
template <class Real>
by_columns<Real> rows_times(tensor<Real> out, tensor<Real> a, tensor<Real> b, bool by_row, Real sign) {
  const long long n = out.d[3], k = a.d[3];
  const strided<Real> right{b.p, by_row ? k : n, 1};
  return detail::transposed_roles<Real>(out.count() / n, n, k, {a.p, k, 1}, by_row ? right.transposed() : right, out.p,
                                        n, sign);
}

namespace detail {

inline constexpr long long few_rows = 16;  // of a panel for few tokens

// Rows of a weight, shared out to the threads where there are any to spare.
template <class Real> void decode_panel(const weight_view& w, long long row, long long rows, Real* to) {
  const int threads = threads_for(rows, w.beside != nullptr ? 4 * rows * w.cols : 0);
  on_threads(threads, [&](int t) {
    const long long first = rows * t / threads, end = rows * (t + 1) / threads;
    decode(w, row + first, end - first, to + first * w.cols);
  });
}
// Scales that are codes themselves take too long to be made anew for every few tokens.
inline bool by_four_bits(const weight_view& w, long long tokens) {
  if (!has_four_bits(w.how) || w.cols % w.how.block != 0) return false;
  return tokens <=
         (w.beside->how.scales == dtype::u8 ? std::min<long long>(few_at_once, four_bit_tokens) : four_bit_tokens);
}
// c [m, rows of w] = a wᵀ for a few rows of a. A thread's share is a number of rows that are multiplied at a time.
template <class Real>
void few_tokens_of_codes(Real* c, long long m, const Real* a, const weight_view& w, int accumulate) {
  if (accumulate == 0) std::fill_n(c, m * w.rows, Real(0));
  const long long tiles = (w.rows + 3) / 4;
  const int threads = threads_for(tiles, m * w.rows * w.cols);
  const by_columns<Real> all{w.rows,         m, w.cols, {nullptr, w.cols, 1},
                             {a, 1, w.cols}, c, w.rows, accumulate < 0 ? Real(-1) : Real(1)};
  on_threads(threads, [&](int t) {
    const long long first = tiles * t / threads * 4, end = std::min(w.rows, tiles * (t + 1) / threads * 4);
    by_columns<Real> share = all;
    share.rows = end - first, share.out += first;
    if (first >= end) return;
    if constexpr (sizeof(Real) == sizeof(float)) {
      const long long n = end - first;
      if (by_digits(w, m) && digit_dots(w, first, n, a, m, share.sign, share.out, share.stride)) return;
      if (has_four_bit_dots && by_four_bits(w, m))
        return four_bit_dots(w, first, n, a, m, share.sign, share.out, share.stride);
      if (fp8_dots(w, first, n, a, m, share.sign, share.out, share.stride)) return;
      if (m == 1 && whole_dots(w, first, n, a, share.sign, share.out)) return;
    }
    dot_codes(share, w, first);
  });
}

// The same of a weight that is bf16, whose rows become floats in registers. The sums are those of few.h.
inline constexpr long long few_of_bf16 = few_at_once;
template <class Real>
void few_tokens_of_bf16(Real* c, long long m, const Real* a, const weight_view& w, int accumulate,
                        const product_end<Real>& end) {
  if (accumulate == 0) std::fill_n(c, m * w.rows, Real(0));
  const by_columns<Real, bf16> all{w.rows,         m, w.cols, {static_cast<const bf16*>(w.codes), w.row_stride, 1},
                                   {a, 1, w.cols}, c, w.rows, accumulate < 0 ? Real(-1) : Real(1)};
  in_shares_to_the_end(all, end, [](const by_columns<Real, bf16>& share) { dot_product(share); });
}

// c = a op(W) where a BLAS multiplies bf16. Only gradients are multiplied with W as it is.
inline bool by_matrix_instructions(float* c, long long m, long long n, const float* a, const weight_view& w,
                                   product_mode how) {
  if (w.row_stride != 1 && w.col_stride != 1) return false;
  const long long k = how.tb ? w.cols : w.rows;
  const strided<bf16> all{static_cast<const bf16*>(w.codes), w.row_stride, w.col_stride};
  return product_in_parts(
      {n, m, k, how.tb ? all : all.transposed(), {a, 1, k}, c, n, how.accumulate < 0 ? -1.0F : 1.0F}, how.tb ? 2 : 1,
      how.accumulate == 0);
}

// c = a op(W), decoded in panels of rows, which are columns of c (tb), shared out to the threads, or slices of the inner
// sum. A panel is a multiple of what the kernels do at a time, so that the sums are those of a weight that was decoded
// whole.
template <class Real> void decoded_product(tensor<Real> c, tensor<Real> a, const weight_view& w, product_mode how) {
  const long long m = a.matrices() * a.d[2], k = a.d[3], n = how.tb ? w.rows : w.cols;
  const strided<Real> left{a.p, k, 1};
  const bool from_codes =
      m <= few_at_once || (sizeof(Real) == sizeof(float) && (by_four_bits(w, m) || by_digits(w, m)));
  if (w.beside != nullptr && how.tb && from_codes) return few_tokens_of_codes(c.p, m, a.p, w, how.accumulate);
  if constexpr (sizeof(Real) == sizeof(float))
    if (w.how == encoding{dtype::bf16} && by_matrix_instructions(c.p, m, n, a.p, w, how)) return;
  const bool few = m <= few_dots;  // then a panel that stays in a cache beside what it is multiplied with
  const long long panel = !how.tb ? usual_blocking.depth : few ? few_rows : 2 * share_unit;
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
      decode_panel(w, r, rows, wide.data());
      if (how.tb)
        gemm(m, rows, k, left, part.transposed(), c.p + r, n, how.accumulate, by);
      else
        gemm(m, n, rows, {a.p + r, k, 1}, part, c.p, n, r > 0 && how.accumulate == 0 ? 1 : how.accumulate, by);
    }
  });
}

}  // namespace detail

// A weight of Reals whose rows or columns are contiguous, which is used where it lies.
template <class Real> bool lies_as_numbers(const weight_view& w) {
  return w.how == encoding_of<Real>() && (w.row_stride == 1 || w.col_stride == 1);
}
template <class Real> strided<Real> numbers_of(const weight_view& w, bool transposed) {
  const strided<Real> all{static_cast<const Real*>(w.codes), w.row_stride, w.col_stride};
  return transposed ? all.transposed() : all;
}

// c = a op(W), W in storage, and what follows it.
template <class Real, weights Of = weights::any>
void stored_product(tensor<Real> c, tensor<Real> a, const weight_view& w, product_mode how,
                    const product_end<Real>& end = {}) {
  const long long m = a.matrices() * a.d[2], k = a.d[3], n = how.tb ? w.rows : w.cols;
  const strided<Real> left{a.p, k, 1};
  if (Of == weights::as_wide || lies_as_numbers<Real>(w)) {
    const strided<Real> right = numbers_of<Real>(w, how.tb);
    return gemm(m, n, k, left, right, c.p, n, how.accumulate, way_of(m, n, k, left, right, n), end);
  }
  if constexpr (Of == weights::any) {
    if constexpr (sizeof(Real) == sizeof(float))
      if (w.how == encoding{dtype::bf16} && w.col_stride == 1 && how.tb && m <= detail::few_of_bf16 &&
          k > shallow_depth)  // else summed another way
        return detail::few_tokens_of_bf16(c.p, m, a.p, w, how.accumulate, end);
    detail::decoded_product(c, a, w, how);
    detail::finish(detail::transposed_roles<Real>(m, n, k, left, left, c.p, n, Real(1)), end);
  }
}

namespace detail {

// c = op(W) b, decoded in panels of rows.
template <class Real>
void decoded_left_product(tensor<Real> c, const weight_view& w, strided<Real> right, product_mode how) {
  const long long n = c.d[3], inner = how.ta ? w.rows : w.cols;
  const bool few = !how.ta && n <= few_dots;  // then decoding takes as long as the product: each thread decodes
  const long long panel = few ? 2 * share_unit : usual_blocking.depth, panels = (w.rows + panel - 1) / panel;
  const int threads = few ? threads_for(panels, w.rows * w.cols * (n + 8)) : 1;
  on_threads(threads, [&](int t) {
    thread_local memory<Real> wide;
    wide.reserve(std::min(panel, w.rows) * w.cols);
    const strided<Real> part{wide.data(), w.cols, 1};
    for (long long r = panels * t / threads * panel; r < std::min(w.rows, panels * (t + 1) / threads * panel);
         r += panel) {
      const long long rows = std::min(panel, w.rows - r);
      decode_panel(w, r, rows, wide.data());
      if (how.ta)
        gemm(w.cols, n, rows, part.transposed(), {right.p + r * right.row, right.row, right.col}, c.p, n,
             r > 0 && how.accumulate == 0 ? 1 : how.accumulate);
      else
        gemm(rows, n, inner, part, right, c.p + r * n, n, how.accumulate);
    }
  });
}

}  // namespace detail

// c = op(W) b, W in storage: what an adapter computes from the weight before there is any data, and its gradient.
template <class Real, weights Of>
void stored_left_product(tensor<Real> c, const weight_view& w, tensor<Real> b, product_mode how) {
  const long long n = c.d[3], m = how.ta ? w.cols : w.rows, inner = how.ta ? w.rows : w.cols;
  const strided<Real> stored{b.p, how.tb ? inner : n, 1}, right = how.tb ? stored.transposed() : stored;
  if constexpr (Of == weights::any) return detail::decoded_left_product(c, w, right, how);
  gemm(m, n, inner, numbers_of<Real>(w, how.ta), right, c.p, n, how.accumulate);
}
// Sums of squares of the rows of a weight in storage.
template <class Real, weights Of = weights::any> void stored_row_dot(tensor<Real> out, const weight_view& w) {
  thread_local memory<Real> wide;
  wide.reserve(w.cols);
  for (long long r = 0; r < w.rows; ++r) {
    decode_row<Real, Of>(w, r, wide.data());
    out.p[r] = dot(wide.data(), wide.data(), w.cols);
  }
}

// `end`: for a stack of rows times one matrix.
template <class Real, weights Of = weights::any>
void matmul(tensor<Real> out, tensor<Real> a, tensor<Real> b, product_mode how, const product_end<Real>& end = {}) {
  if (b.stored != nullptr) return stored_product<Real, Of>(out, a, *b.stored, how, end);
  if (a.stored != nullptr) return stored_left_product<Real, Of>(out, *a.stored, b, how);
  const long long inner = a.d[how.ta ? 2 : 3];
  const bool flat = !how.ta && !how.sum && b.matrices() == 1;  // one product for the whole stack
  if (flat) return product(out.p, a.matrices() * a.d[2], out.d[3], a.p, b.p, inner, how, end);
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
