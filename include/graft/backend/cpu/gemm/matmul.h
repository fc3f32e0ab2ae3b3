// SPDX-License-Identifier: Apache-2.0
// Matrix products of stacks with weights as they are stored: out = a b or out ±= a b for each matrix of a stack. A
// quantized weight or one of a narrower type is dequantized one tile of rows at a time or in registers, so a copy of
// the whole weight in the compute type never exists.
#pragma once
#include <graft/backend/cpu/gemm/bf16_split.h>
#include <graft/backend/cpu/gemm/gemm.h>
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/quantized/block_gemv.h>
#include <graft/backend/cpu/quantized/four_bit_gemv.h>
#include <graft/backend/cpu/quantized/fp8_skinny.h>
#include <graft/backend/cpu/quantized/integer_gemv.h>
#include <graft/backend/cpu/quantized/limb_gemm.h>
#include <graft/backend/cpu/quantized/skinny.h>
#include <graft/backend/cpu/runtime/tensor.h>

namespace graft::cpu {

struct matmul_mode {
  bool ta = false, tb = false, sum = false;
  int accumulate = 0;  // 0: overwrite, +1 or -1: add or subtract
};

// Multiplies one pair of matrices into c [m, n]. matmul_mode says whether the result overwrites c, is added or is
// subtracted; in this file "c = or ±=" stands for these three.
template <class Real>
void product(Real* c, long long m, long long n, const Real* a, const Real* b, long long k, matmul_mode mode,
             const gemm_epilogue<Real>& end = {}) {
  const strided<Real> left{a, mode.ta ? m : k, 1}, right{b, mode.tb ? k : n, 1},
      l = mode.ta ? left.transposed() : left, r = mode.tb ? right.transposed() : right;
  gemm(m, n, k, l, r, c, n, mode.accumulate, choose_kernel(m, n, k, l, r, n), end);
}
// The gemm_problem of out += sign · a b, where a is a stack of rows and b is one matrix.
template <class Real>
gemm_problem<Real> linear_problem(tensor<Real> out, tensor<Real> a, tensor<Real> b, bool by_row, Real sign) {
  const long long n = out.d[3], k = a.d[3];
  const strided<Real> right{b.p, by_row ? k : n, 1};
  return detail::column_major_problem<Real>(out.count() / n, n, k, {a.p, k, 1}, by_row ? right.transposed() : right,
                                            out.p, n, sign);
}

namespace detail {

inline constexpr long long skinny_tile_rows = 16;  // rows of one dequantized tile in a product of few tokens

// Dequantizes rows of a weight on all threads, unless the caller is in a parallel region.
template <class Real> void dequantize_tile(const weight_view& w, long long row, long long rows, Real* to) {
  const int threads = threads_for(rows, w.quant != nullptr ? 4 * rows * w.cols : 0);
  run_on_threads(threads, [&](int t) {
    const long long first = rows * t / threads, end = rows * (t + 1) / threads;
    convert(w, row + first, end - first, to + first * w.cols);
  });
}
// Returns true if the 4-bit GEMV kernels are fastest. Double-quantized scales are recomputed for every few tokens, so
// their limit is lower.
inline bool use_four_bit_gemv(const weight_view& w, long long tokens) {
  if (!has_four_bit_kernel(w.format) || w.cols % w.format.block != 0) return false;
  return tokens <= (w.quant->format.scales == dtype::u8 ? std::min<long long>(skinny_cols, max_four_bit_tokens)
                                                        : max_four_bit_tokens);
}
// Returns true if few rows are multiplied with a quantized weight by reading it as it is stored.
template <class Real> bool reads_quantized(const weight_view& w, long long tokens) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (const auto* k = faster_kernels()) return k->reads_quantized(as_kernel_weight(w), tokens);
    if (use_four_bit_gemv(w, tokens) || use_limb_gemm(w, tokens)) return true;
  }
  return tokens <= skinny_cols;
}
// Computes the part of the product that one thread has: rows of w from `first` on, times the columns of all tokens.
template <class Real> void quantized_share(const gemm_problem<Real>& share, const weight_view& w, long long first) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (const auto* k = faster_kernels())
      return k->multiply_quantized(as_kernel_product(share), as_kernel_weight(w), first);
    const long long n = share.rows, m = share.cols;
    const float* const a = share.right.p;
    if (use_limb_gemm(w, m) && limb_gemm(w, first, n, a, m, share.sign, share.out, share.stride)) return;
    if (use_four_bit_gemv(w, m)) return four_bit_gemv(w, first, n, a, m, share.sign, share.out, share.stride);
    if (fp8_skinny_gemm(w, first, n, a, m, share.sign, share.out, share.stride)) return;
    if (m == 1 && integer_gemv(w, first, n, a, share.sign, share.out)) return;
    if (m == 1 && block_gemv(w, first, n, a, share.sign, share.out)) return;
  }
  skinny_dequantizing_gemm(share, w, first);
}
// c [m, rows of w] = or ±= a wᵀ for few rows of a and a quantized w. A thread's share is a multiple of four rows of w.
template <class Real> void skinny_quantized(Real* c, long long m, const Real* a, const weight_view& w, int accumulate) {
  if (accumulate == 0) std::fill_n(c, m * w.rows, Real(0));
  const long long tiles = (w.rows + 3) / 4;
  const int threads = threads_for(tiles, m * w.rows * w.cols);
  const gemm_problem<Real> all{w.rows,         m, w.cols, {nullptr, w.cols, 1},
                               {a, 1, w.cols}, c, w.rows, accumulate < 0 ? Real(-1) : Real(1)};
  run_on_threads(threads, [&](int t) {
    const long long first = tiles * t / threads * 4, end = std::min(w.rows, tiles * (t + 1) / threads * 4);
    gemm_problem<Real> share = all;
    share.rows = end - first, share.out += first;
    if (first < end) quantized_share(share, w, first);
  });
}

// c = or ±= a wᵀ for few rows of a and a bf16 or f16 weight, which is widened in registers. Sums have the order of
// skinny.h.
inline constexpr long long skinny_half_rows = skinny_cols;
template <class Stored, class Real>
void skinny_half(Real* c, long long m, const Real* a, const weight_view& w, int accumulate,
                 const gemm_epilogue<Real>& end) {
  if (accumulate == 0) std::fill_n(c, m * w.rows, Real(0));
  const gemm_problem<Real, Stored> all{w.rows,         m, w.cols, {static_cast<const Stored*>(w.data), w.row_stride, 1},
                                       {a, 1, w.cols}, c, w.rows, accumulate < 0 ? Real(-1) : Real(1)};
  for_each_share_with_epilogue(
      all, end, [](const gemm_problem<Real, Stored>&) {},
      [](const gemm_problem<Real, Stored>& share) {
        if constexpr (sizeof(Real) == sizeof(float))
          if (const auto* k = faster_kernels())
            return (std::is_same_v<Stored, bf16> ? k->multiply_bf16 : k->multiply_f16)(as_kernel_product(share));
        skinny_nt_gemm(share);
      });
}

// c = or ±= a op(W) if a BLAS multiplies bf16. Only a dgrad multiplies with W itself (tb is false), so it uses one
// term.
inline bool amx_bf16_gemm(float* c, long long m, long long n, const float* a, const weight_view& w, matmul_mode mode) {
  if (w.row_stride != 1 && w.col_stride != 1) return false;
  const long long k = mode.tb ? w.cols : w.rows;
  const strided<bf16> all{static_cast<const bf16*>(w.data), w.row_stride, w.col_stride};
  return split_bf16_gemm(
      {n, m, k, mode.tb ? all : all.transposed(), {a, 1, k}, c, n, mode.accumulate < 0 ? -1.0F : 1.0F}, mode.tb ? 2 : 1,
      mode.accumulate == 0);
}

// How threads divide the rows of a weight that they dequantize one tile at a time. The tiles of all threads together
// hold at most 1 / fraction of the weight, so that the workspace does not grow with the machine. A tile has a multiple
// of share_granularity rows, two of them where the threads are few.
struct tile_split {
  long long tile;
  int threads;
  tile_split(long long rows, long long fraction, long long multiplications)
      : tile(2 * share_granularity), threads(threads_for((rows + tile - 1) / tile, multiplications)) {
    if (rows < fraction * tile * threads) tile = share_granularity;
    threads = static_cast<int>(std::clamp<long long>(rows / (fraction * tile), 1, threads));
  }
};
// c = or ±= a op(W), with W dequantized one tile of rows at a time. A tile is columns of c (tb), which the threads
// divide, or a slice of the inner sum. It is a multiple of the register tile, so that sums equal those of a weight that
// is dequantized as a whole.
template <class Real> void dequantized_gemm(tensor<Real> c, tensor<Real> a, const weight_view& w, matmul_mode mode) {
  const long long m = a.matrices() * a.d[2], k = a.d[3], n = mode.tb ? w.rows : w.cols;
  const strided<Real> left{a.p, k, 1};
  // The products that read a quantized weight as it is stored, and those of a BLAS, add in an order of their own.
  const bool batch_invariant = is_batch_invariant();
  if (!batch_invariant && w.quant != nullptr && mode.tb && reads_quantized<Real>(w, m))
    return skinny_quantized(c.p, m, a.p, w, mode.accumulate);
  if constexpr (sizeof(Real) == sizeof(float))
    if (!batch_invariant && w.format == quant_format{dtype::bf16} && amx_bf16_gemm(c.p, m, n, a.p, w, mode)) return;
  const bool is_skinny = m <= skinny_max;  // then the tile and the activations fit a cache together
  const tile_split split(w.rows, 4, m * n * k);
  const long long tile = !mode.tb ? default_blocking.depth : is_skinny ? skinny_tile_rows : split.tile;
  const long long panels = (w.rows + tile - 1) / tile;
  const int threads = !mode.tb ? 1 : is_skinny ? threads_for(panels, m * n * k) : split.threads;
  run_on_threads(threads, [&](int t) {
    thread_local memory<Real> wide;
    wide.reserve(std::min(tile, w.rows) * w.cols);
    const strided<Real> tile_view{wide.data(), w.cols, 1};
    const gemm_kernel by = choose_kernel(m, n, k, left, mode.tb ? tile_view.transposed() : tile_view, n);
    for (long long r = panels * t / threads * tile; r < std::min(w.rows, panels * (t + 1) / threads * tile);
         r += tile) {
      const long long rows = std::min(tile, w.rows - r);
      dequantize_tile(w, r, rows, wide.data());
      if (mode.tb)
        gemm(m, rows, k, left, tile_view.transposed(), c.p + r, n, mode.accumulate, by);
      else
        gemm(m, n, rows, {a.p + r, k, 1}, tile_view, c.p, n, r > 0 && mode.accumulate == 0 ? 1 : mode.accumulate, by);
    }
  });
}

}  // namespace detail

// Returns true if a weight has the type Real and contiguous rows or columns, so that it is read in place.
template <class Real> bool is_plain(const weight_view& w) {
  return w.format == quant_format_of<Real>() && (w.row_stride == 1 || w.col_stride == 1);
}
template <class Real> strided<Real> plain_matrix(const weight_view& w, bool transposed) {
  const strided<Real> all{static_cast<const Real*>(w.data), w.row_stride, w.col_stride};
  return transposed ? all.transposed() : all;
}

// c = or ±= a op(W) for a weight as it is stored, with an epilogue.
template <class Real, weights Of = weights::any>
void weight_gemm(tensor<Real> c, tensor<Real> a, const weight_view& w, matmul_mode mode,
                 const gemm_epilogue<Real>& end = {}) {
  const long long m = a.matrices() * a.d[2], k = a.d[3], n = mode.tb ? w.rows : w.cols;
  const strided<Real> left{a.p, k, 1};
  if (Of == weights::as_wide || is_plain<Real>(w)) {
    const strided<Real> right = plain_matrix<Real>(w, mode.tb);
    return gemm(m, n, k, left, right, c.p, n, mode.accumulate, choose_kernel(m, n, k, left, right, n), end);
  }
  if constexpr (Of == weights::any) {
    if constexpr (sizeof(Real) == sizeof(float))
      // Smaller depths use small_k, which sums in another order.
      if (w.col_stride == 1 && mode.tb && m <= detail::skinny_half_rows && k > small_k_max) {
        if (w.format == quant_format{dtype::bf16})
          return detail::skinny_half<bf16>(c.p, m, a.p, w, mode.accumulate, end);
        if (w.format == quant_format{dtype::f16}) return detail::skinny_half<f16>(c.p, m, a.p, w, mode.accumulate, end);
      }
    detail::dequantized_gemm(c, a, w, mode);
    detail::run_epilogue(detail::column_major_problem<Real>(m, n, k, left, left, c.p, n, Real(1)), end);
  }
}

namespace detail {

// c = or ±= op(W) b, with W dequantized one tile of rows at a time.
template <class Real>
void dequantized_left_gemm(tensor<Real> c, const weight_view& w, strided<Real> right, matmul_mode mode) {
  const long long n = c.d[3], inner = mode.ta ? w.rows : w.cols;
  const bool is_skinny =
      !mode.ta && n <= skinny_max;  // then dequantizing takes as long as the product: each thread dequantizes
  const tile_split split(w.rows, 8, w.rows * w.cols * (n + 8));
  const long long tile = is_skinny ? split.tile : default_blocking.depth, panels = (w.rows + tile - 1) / tile;
  const int threads = is_skinny ? split.threads : 1;
  run_on_threads(threads, [&](int t) {
    thread_local memory<Real> wide;
    wide.reserve(std::min(tile, w.rows) * w.cols);
    const strided<Real> tile_view{wide.data(), w.cols, 1};
    for (long long r = panels * t / threads * tile; r < std::min(w.rows, panels * (t + 1) / threads * tile);
         r += tile) {
      const long long rows = std::min(tile, w.rows - r);
      dequantize_tile(w, r, rows, wide.data());
      if (mode.ta)
        gemm(w.cols, n, rows, tile_view.transposed(), {right.p + r * right.row, right.row, right.col}, c.p, n,
             r > 0 && mode.accumulate == 0 ? 1 : mode.accumulate);
      else
        gemm(rows, n, inner, tile_view, right, c.p + r * n, n, mode.accumulate);
    }
  });
}

}  // namespace detail

// c = or ±= op(W) b for a weight as it is stored: the precomputed values of an adapter and their gradients need it.
template <class Real, weights Of>
void weight_left_gemm(tensor<Real> c, const weight_view& w, tensor<Real> b, matmul_mode mode) {
  const long long n = c.d[3], m = mode.ta ? w.cols : w.rows, inner = mode.ta ? w.rows : w.cols;
  const strided<Real> stored{b.p, mode.tb ? inner : n, 1}, right = mode.tb ? stored.transposed() : stored;
  if constexpr (Of == weights::any) return detail::dequantized_left_gemm(c, w, right, mode);
  gemm(m, n, inner, plain_matrix<Real>(w, mode.ta), right, c.p, n, mode.accumulate);
}
// The sums of squares of the rows of a weight as it is stored.
template <class Real, weights Of = weights::any> void weight_row_dot(tensor<Real> out, const weight_view& w) {
  thread_local memory<Real> wide;
  wide.reserve(w.cols);
  for (long long r = 0; r < w.rows; ++r) {
    convert_row<Real, Of>(w, r, wide.data());
    out.p[r] = dot(wide.data(), wide.data(), w.cols);
  }
}

// out = or ±= a b for stacks; `end` applies only to a stack of rows times one matrix.
template <class Real, weights Of = weights::any>
void matmul(tensor<Real> out, tensor<Real> a, tensor<Real> b, matmul_mode mode, const gemm_epilogue<Real>& end = {}) {
  if (b.stored != nullptr) return weight_gemm<Real, Of>(out, a, *b.stored, mode, end);
  if (a.stored != nullptr) return weight_left_gemm<Real, Of>(out, *a.stored, b, mode);
  const long long inner = a.d[mode.ta ? 2 : 3];
  const bool flat = !mode.ta && !mode.sum && b.matrices() == 1;  // one product for the whole stack
  if (flat) return product(out.p, a.matrices() * a.d[2], out.d[3], a.p, b.p, inner, mode, end);
  if (mode.sum && mode.ta && !mode.tb && a.matrices() == b.matrices())  // Σ aᵀ b over a stack is one tall product
    return product(out.p, out.d[2], out.d[3], a.p, b.p, a.matrices() * inner, mode);
  const long long n0 = a.d[0] == 1 ? b.d[0] : a.d[0], n1 = a.d[1] == 1 ? b.d[1] : a.d[1];
  if (mode.sum && mode.accumulate == 0 && n0 * n1 == 0) std::fill_n(out.p, out.count(), Real(0));
  for (long long i = 0; i < n0; ++i)
    for (long long j = 0; j < n1; ++j) {
      const long long in_a = (a.d[0] == 1 ? 0 : i) * a.d[1] + (a.d[1] == 1 ? 0 : j);
      const long long in_b = (b.d[0] == 1 ? 0 : i) * b.d[1] + (b.d[1] == 1 ? 0 : j);
      const long long in_c = mode.sum ? 0 : i * n1 + j;
      product(out.p + in_c * out.area(), out.d[2], out.d[3], a.p + in_a * a.area(), b.p + in_b * b.area(), inner, mode);
      if (mode.sum && mode.accumulate == 0) mode.accumulate = 1;
    }
}

}  // namespace graft::cpu
