// SPDX-License-Identifier: Apache-2.0
// Skinny GEMM and GEMV without packing: left, the weight, is read once, in place, at the speed of memory, while a
// register tile of the result is summed. If both operands are contiguous along the inner axis (NT layout), sums are
// packets along it (skinny_nt_gemm); if left is column-major (NN layout), packets hold rows and k advances
// (skinny_nn_gemm). In both the order of a sum follows from the inner size alone, not from addresses, threads or
// the number of columns.
#pragma once
#include <graft/backend/cpu/gemm/problem.h>
#include <graft/backend/cpu/runtime/packets.h>

#include <algorithm>
#include <type_traits>

namespace graft::cpu::detail {

// Horizontal sums of a register tile: the epilogue of a skinny GEMM, which ends with packets of partial sums. Reducing
// one packet after another takes longer than the multiplications if rows are short, such as the rank of an adapter.
// AVX-512 reduces sixteen packets at once, in the order in which predux reduces one, so the bits are the same.

// Four packets as members: compilers hold members in registers but the elements of an array in memory.
template <class Real> struct four_packets { packet<Real> a, b, c, d; };

// out[i] += sign · (the sum of packet i), for the first `rows` packets.
template <class Real> void store_sums(four_packets<Real> sum, Real sign, Real* out, long long rows) {
  using Eigen::internal::predux;
  const Real all_four[4] = {predux(sum.a), predux(sum.b), predux(sum.c), predux(sum.d)};
  for (long long i = 0; i < rows; ++i) out[i] += sign * all_four[i];
}

#if defined(EIGEN_VECTORIZE_AVX512)
inline constexpr bool has_tile_reduction = true;

// Reduces each of four packets to four partial sums; quarter k of the result has those of packet k.
[[gnu::always_inline]] inline __m512 reduce_quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}
// The sums of sixteen packets in the order s0.a, s0.b, s0.c, s0.d, s1.a, …
[[gnu::always_inline]] inline __m512 reduce_sixteen(const four_packets<float>& s0, const four_packets<float>& s1,
                                                    const four_packets<float>& s2, const four_packets<float>& s3) {
  const __m512 a = reduce_quarters(s0.a, s1.a, s2.a, s3.a), b = reduce_quarters(s0.b, s1.b, s2.b, s3.b),
               c = reduce_quarters(s0.c, s1.c, s2.c, s3.c), d = reduce_quarters(s0.d, s1.d, s2.d, s3.d);
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_ps(c, d, 0x44), _mm512_shuffle_ps(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xDD));
}
// Adds the sums of a tile of four rows and four columns to out.
[[gnu::always_inline]] inline void store_tile(const four_packets<float>& s0, const four_packets<float>& s1,
                                              const four_packets<float>& s2, const four_packets<float>& s3, float sign,
                                              float* out, long long stride, long long rows) {
  alignas(64) float all_sums[16];
  _mm512_store_ps(all_sums, _mm512_mul_ps(_mm512_set1_ps(sign), reduce_sixteen(s0, s1, s2, s3)));
  for (int j = 0; j < 4; ++j, out += stride) {
    if (rows == 4) {
      _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), _mm_load_ps(all_sums + 4 * j)));
      continue;
    }
    for (long long i = 0; i < rows; ++i) out[i] += all_sums[4 * j + i];
  }
}

// GEMV with rows of at most this many elements, sixteen rows at a time. The last packet of a row is padded with zeros.
inline constexpr long long short_row_max = 64;
inline void short_row_gemv(const gemm_problem<float>& c) {
  constexpr long long width = 16;
  const long long pieces = (c.depth + width - 1) / width;
  const auto last = static_cast<__mmask16>(0xFFFFU >> (pieces * width - c.depth));
  for (long long i = 0; i < c.rows; i += 16) {
    const long long rows = std::min(16LL, c.rows - i);
    four_packets<float> s[4] = {};
    for (long long p = 0; p < pieces; ++p) {
      const __mmask16 there = p + 1 < pieces ? __mmask16{0xFFFF} : last;
      const __m512 r = _mm512_maskz_loadu_ps(there, c.right.p + p * width);
      const float* const left = c.left.p + i * c.left.row + p * width;
      auto row = [&](int k) {
        return _mm512_maskz_loadu_ps(there, left + std::min<long long>(k, rows - 1) * c.left.row);
      };
      for (int k = 0; k < 4; ++k)
        s[k] = {_mm512_fmadd_ps(row(4 * k), r, s[k].a), _mm512_fmadd_ps(row(4 * k + 1), r, s[k].b),
                _mm512_fmadd_ps(row(4 * k + 2), r, s[k].c), _mm512_fmadd_ps(row(4 * k + 3), r, s[k].d)};
    }
    const auto some = static_cast<__mmask16>(0xFFFFU >> (16 - rows));
    const __m512 sums = _mm512_mul_ps(_mm512_set1_ps(c.sign), reduce_sixteen(s[0], s[1], s[2], s[3]));
    _mm512_mask_storeu_ps(c.out + i, some, _mm512_add_ps(_mm512_maskz_loadu_ps(some, c.out + i), sums));
  }
}
#else
inline constexpr bool has_tile_reduction = false;
inline constexpr long long short_row_max = 0;
template <class Product> void short_row_gemv(const Product&) = delete;
#endif

}  // namespace graft::cpu::detail

namespace graft::cpu {

// Columns of a register tile: with four rows of left it has as many sums as there are registers.
inline constexpr int skinny_cols = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 4 : 2;

namespace detail {

template <class Real> using four_rows = const Real* [4];

template <class Real, class Left>
[[gnu::always_inline]] inline four_packets<Real> load_four(const four_rows<Left>& rows, long long k) {
  return {load(rows[0] + k), load(rows[1] + k), load(rows[2] + k), load(rows[3] + k)};
}
template <class Real>
[[gnu::always_inline]] inline void add_products(four_packets<Real>& sum, const four_packets<Real>& l, packet<Real> r) {
  using Eigen::internal::pmadd;
  sum = {pmadd(l.a, r, sum.a), pmadd(l.b, r, sum.b), pmadd(l.c, r, sum.c), pmadd(l.d, r, sum.d)};
}
// Copies the last n numbers of a row and pads them with zeros to a packet.
template <class Real, class Stored> void copy_tail(const Stored* from, long long n, Real* to) {
  std::fill(to + n, to + packet_width<Real>, Real(0));
  for (long long k = 0; k < n; ++k)
    if constexpr (requires { widen(*from); })
      to[k] = widen(from[k]);
    else
      to[k] = from[k];
}
// Elements of a cache line.
template <class Stored> inline constexpr long long line = 64 / static_cast<long long>(sizeof(Stored));

// The dot products of four rows of left with Cols columns of right; both are contiguous along k. The remainder after
// the last whole packet is copied and zero-padded before the loop, because a call between the sums would spill them
// from their registers. `next`, if not null, points to the rows of the next tile, which are prefetched in memory order:
// the hardware prefetcher fetches too little if it sees only four short rows at a time.
template <int Cols, class Real, class Left>
void dot_tile(const gemm_problem<Real, Left>& c, long long i, long long j, const Left* next) {
  constexpr long long width = packet_width<Real>;
  const long long whole = c.depth / width * width, rest = c.depth - whole, rows = std::min(4LL, c.rows - i);
  Real last[8][packet_lanes<Real>];
  four_rows<Left> left;
  four_rows<Real> right, last_left, last_right;
  for (int a = 0; a < 4; ++a) {
    left[a] = c.left.p + (i + std::min<long long>(a, rows - 1)) * c.left.row, last_left[a] = last[a];
    right[a] = c.right.p + (j + std::min(a, Cols - 1)) * c.right.col, last_right[a] = last[4 + a];
    if (rest == 0) continue;
    copy_tail(left[a] + whole, rest, last[a]), copy_tail(right[a] + whole, rest, last[4 + a]);
  }
  const packet<Real> zero = all(Real(0));
  four_packets<Real> s0{zero, zero, zero, zero}, s1 = s0, s2 = s0, s3 = s0;
  auto step = [&](const auto& l_rows, const four_rows<Real>& r_rows, long long k) {
    const four_packets<Real> l = load_four<Real>(l_rows, k);
    add_products<Real>(s0, l, load(r_rows[0] + k));
    if constexpr (Cols > 1) add_products<Real>(s1, l, load(r_rows[1] + k));
    if constexpr (Cols > 2) add_products<Real>(s2, l, load(r_rows[2] + k));
    if constexpr (Cols > 2) add_products<Real>(s3, l, load(r_rows[3] + k));
  };
  long long k = 0;
  if (next != nullptr)
    for (; k + line<Left> <= whole; k += line<Left>) {
      for (int a = 0; a < 4; ++a) __builtin_prefetch(next + 4 * k + a * line<Left>, 0, 2);
      for (long long in_line = 0; in_line < line<Left>; in_line += width) step(left, right, k + in_line);
    }
  for (; k < whole; k += width) step(left, right, k);
  if (rest > 0) step(last_left, last_right, 0);
  Real* const out = c.out + i + j * c.stride;
  if constexpr (has_tile_reduction && Cols == 4 && std::is_same_v<Real, float>)
    return store_tile(s0, s1, s2, s3, c.sign, out, c.stride, rows);
  store_sums(s0, c.sign, out, rows);
  if constexpr (Cols > 1) store_sums(s1, c.sign, out + c.stride, rows);
  if constexpr (Cols > 2) store_sums(s2, c.sign, out + 2 * c.stride, rows);
  if constexpr (Cols > 2) store_sums(s3, c.sign, out + 3 * c.stride, rows);
}
// The prefetch distance of a GEMV in cache lines, and its cache level, measured with weights larger than all caches. On
// x86-64 a distance of a page into L2 is a third faster than one KiB into L1.
#if defined(__x86_64__)
inline constexpr long long prefetch_lines = 64;
inline constexpr int prefetch_level = 2;
#else
inline constexpr long long prefetch_lines = 16;
inline constexpr int prefetch_level = 3;
#endif
// GEMV, row by row, because memory is fastest when it is read in order.
template <class Real, class Left> void gemv_rows(const gemm_problem<Real, Left>& c) {
  constexpr long long width = packet_width<Real>, prefetch_distance = prefetch_lines * line<Left>;
  const long long whole = c.depth / width * width, rest = c.depth - whole;
  Real last_left[packet_lanes<Real>], last_right[packet_lanes<Real>];
  if (rest > 0) copy_tail(c.right.p + whole, rest, last_right);
  for (long long i = 0; i < c.rows; ++i) {
    const Left* const left = c.left.p + i * c.left.row;
    packet<Real> sum = all(Real(0));
    auto step = [&](long long k) { sum = Eigen::internal::pmadd(load(left + k), load(c.right.p + k), sum); };
    long long k = 0;
    for (; k + line<Left> <= whole; k += line<Left>) {
      __builtin_prefetch(left + k + prefetch_distance, 0, prefetch_level);
      for (long long in_line = 0; in_line < line<Left>; in_line += width) step(k + in_line);
    }
    for (; k < whole; k += width) step(k);
    if (rest > 0) {
      copy_tail(left + whole, rest, last_left);
      sum = Eigen::internal::pmadd(load(last_left), load(last_right), sum);
    }
    c.out[i] += c.sign * Eigen::internal::predux(sum);
  }
}

}  // namespace detail

// Columns of right that stay in the L2 cache while left is read.
inline constexpr long long skinny_nt_cols = 64;

// out += sign · left · right in NT layout. A few rows or columns of the longer side stay in the L1 cache while the
// shorter side is read.
template <class Real, class Left> void skinny_nt_gemm(const gemm_problem<Real, Left>& c) {
  if (c.cols > skinny_nt_cols && c.rows > skinny_nt_cols) {
    for (long long j = 0; j < c.cols; j += skinny_nt_cols)
      skinny_nt_gemm(c.share(0, c.rows, j, std::min(skinny_nt_cols, c.cols - j)));
    return;
  }
  if constexpr (detail::has_tile_reduction && std::is_same_v<Left, float> && std::is_same_v<Real, float>)
    if (c.depth <= detail::short_row_max && (c.cols == 1 || c.depth % packet_width<Real> != 0)) {
      for (long long j = 0; j < c.cols; ++j)
        detail::short_row_gemv(c.share(0, c.rows, j, 1));  // masks the remainder of a row instead of copying it
      return;
    }
  if (c.cols == 1 && sizeof(Left) == sizeof(Real)) return detail::gemv_rows(c);
  const long long whole_cols = c.cols / skinny_cols * skinny_cols;
  auto column = [&](long long i, long long j, const Left* next) {
    if (j < whole_cols) return detail::dot_tile<skinny_cols>(c, i, j, next);
    for (long long one = j; one < c.cols; ++one) detail::dot_tile<1>(c, i, one, one == 0 ? next : nullptr);
  };
  if (c.rows >= c.cols) {
    const bool in_order = c.left.row == c.depth;
    for (long long i = 0; i < c.rows; i += 4)
      for (long long j = 0; j < c.cols; j += skinny_cols)
        column(i, j, j == 0 && in_order && i + 8 <= c.rows ? c.left.p + (i + 4) * c.left.row : nullptr);
  } else {
    for (long long j = 0; j < c.cols; j += skinny_cols)
      for (long long i = 0; i < c.rows; i += 4) column(i, j, nullptr);
  }
}

namespace detail {

// Up to 16 steps of k of right, times the sign, with the columns of a step contiguous.
template <class Real> struct right_block {
  static constexpr long long max_cols = 4, max_steps = 16;
  Real v[max_steps * max_cols];
  long long cols, steps;

  right_block(const gemm_problem<Real>& c, long long from, long long n) : cols(c.cols), steps(n) {
    for (long long j = 0; j < c.cols; ++j)
      for (long long k = 0; k < n; ++k)
        v[k * c.cols + j] = c.sign * c.right.p[(from + k) * c.right.row + j * c.right.col];
  }
};
template <class Real> [[gnu::always_inline]] inline four_packets<Real> four_packets_at(const Real* p) {
  constexpr long long width = packet_width<Real>;
  return {load(p), load(p + width), load(p + 2 * width), load(p + 3 * width)};
}
template <class Real> [[gnu::always_inline]] inline void store_four(four_packets<Real> s, Real* p) {
  using Eigen::internal::pstoreu;
  constexpr long long width = packet_width<Real>;
  pstoreu(p, s.a), pstoreu(p + width, s.b), pstoreu(p + 2 * width, s.c), pstoreu(p + 3 * width, s.d);
}
// Four packets of rows times Cols columns; `left` points to these rows in the first step.
template <int Cols, class Real>
void column_major_tile(Real* out, long long stride, const Real* left, long long left_stride,
                       const right_block<Real>& right, long long j) {
  four_packets<Real> s0 = four_packets_at(out), s1 = s0, s2 = s0, s3 = s0;
  if constexpr (Cols > 1) s1 = four_packets_at(out + stride);
  if constexpr (Cols > 2) s2 = four_packets_at(out + 2 * stride), s3 = four_packets_at(out + 3 * stride);
  for (long long k = 0; k < right.steps; ++k) {
    __builtin_prefetch(left + k * left_stride + 8 * line<Real>);  // more streams than the hardware prefetcher follows
    const four_packets<Real> l = four_packets_at(left + k * left_stride);
    const Real* const r = right.v + k * right.cols + j;
    add_products<Real>(s0, l, all(r[0]));
    if constexpr (Cols > 1) add_products<Real>(s1, l, all(r[1]));
    if constexpr (Cols > 2) add_products<Real>(s2, l, all(r[2])), add_products<Real>(s3, l, all(r[3]));
  }
  store_four(s0, out);
  if constexpr (Cols > 1) store_four(s1, out + stride);
  if constexpr (Cols > 2) store_four(s2, out + 2 * stride), store_four(s3, out + 3 * stride);
}
// The rows after the last four packets, one zero-padded packet at a time.
template <class Real>
void tail_rows(const gemm_problem<Real>& c, long long i, const Real* left, const right_block<Real>& right) {
  constexpr long long width = packet_width<Real>;
  for (; i < c.rows; i += width) {
    const long long n = std::min(width, c.rows - i);
    for (long long j = 0; j < c.cols; ++j) {
      Real sum[packet_lanes<Real>] = {}, l[packet_lanes<Real>] = {};
      std::copy_n(c.out + i + j * c.stride, n, sum);
      packet<Real> s = load(sum);
      for (long long k = 0; k < right.steps; ++k) {
        const Real* at = left + i + k * c.left.col;
        if (n < width) at = std::copy_n(at, n, l) - n;
        s = Eigen::internal::pmadd(load(at), all(right.v[k * right.cols + j]), s);
      }
      Eigen::internal::pstoreu(sum, s);
      std::copy_n(sum, n, c.out + i + j * c.stride);
    }
  }
}

}  // namespace detail

// out += sign · left · right with a column-major left and at most column_major_cols columns of right. Sixteen columns
// of left are read at a time.
inline constexpr long long column_major_cols = detail::right_block<float>::max_cols;
template <class Real> void skinny_nn_gemm(const gemm_problem<Real>& c) {
  constexpr long long at_once = 4 * packet_width<Real>;
  const long long whole = c.rows / at_once * at_once, whole_cols = c.cols / skinny_cols * skinny_cols;
  for (long long k = 0; k < c.depth; k += detail::right_block<Real>::max_steps) {
    const detail::right_block<Real> right(c, k, std::min(detail::right_block<Real>::max_steps, c.depth - k));
    const Real* const left = c.left.p + k * c.left.col;
    for (long long i = 0; i < whole; i += at_once) {
      for (long long j = 0; j < whole_cols; j += skinny_cols)
        detail::column_major_tile<skinny_cols>(c.out + i + j * c.stride, c.stride, left + i, c.left.col, right, j);
      for (long long j = whole_cols; j < c.cols; ++j)
        detail::column_major_tile<1>(c.out + i + j * c.stride, c.stride, left + i, c.left.col, right, j);
    }
    detail::tail_rows(c, whole, left, right);
  }
}

}  // namespace graft::cpu
