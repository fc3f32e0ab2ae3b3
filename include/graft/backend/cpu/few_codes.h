// SPDX-License-Identifier: Apache-2.0
// A product with few columns of a weight that is codes: a piece of four rows is decoded into the nearest cache, and
// multiplied there before the next piece comes, so that what goes through memory is the codes. The sums are those of
// few.h, in the same order: as if the weight had been decoded whole.
#pragma once
#include <graft/backend/cpu/decode.h>
#include <graft/backend/cpu/few.h>

namespace graft::cpu {

namespace detail {

inline constexpr long long code_piece = 512;  // elements of a row: four rows of floats are 8 KiB

// Four rows from `row` on of w, which are rows i and further of c, with some columns of right.
template <int Cols, class Real>
void code_tile(const by_columns<Real>& c, const weight_view& w, long long row, long long i, long long j) {
  constexpr long long width = packet_width<Real>;
  const long long rows = std::min(4LL, c.rows - i);
  Real decoded[4][code_piece], last[4][width];
  four_rows<Real> left{decoded[0], decoded[1], decoded[2], decoded[3]}, right, last_right;
  const packet<Real> zero = all(Real(0));
  four_packets<Real> s0{zero, zero, zero, zero}, s1 = s0, s2 = s0, s3 = s0;
  auto step = [&](const four_rows<Real>& r_rows, long long in_left, long long in_right) {
    const four_packets<Real> l = load_four<Real>(left, in_left);
    add_products<Real>(s0, l, load(r_rows[0] + in_right));
    if constexpr (Cols > 1) add_products<Real>(s1, l, load(r_rows[1] + in_right));
    if constexpr (Cols > 2) add_products<Real>(s2, l, load(r_rows[2] + in_right));
    if constexpr (Cols > 2) add_products<Real>(s3, l, load(r_rows[3] + in_right));
  };
  for (int a = 0; a < 4; ++a) right[a] = c.right.p + (j + std::min(a, Cols - 1)) * c.right.col, last_right[a] = last[a];
  for (long long k = 0; k < c.depth; k += code_piece) {
    const long long n = std::min(code_piece, c.depth - k), whole = n / width * width;
    for (int a = 0; a < 4; ++a) {
      decode_elements(w, (row + std::min<long long>(a, rows - 1)) * w.cols + k, n, decoded[a]);
      if (whole < n) std::fill(decoded[a] + n, decoded[a] + whole + width, Real(0));
    }
    for (long long at = 0; at < whole; at += width) step(right, at, k + at);
    if (whole == n) continue;
    for (int a = 0; a < 4; ++a)
      std::fill(std::copy_n(right[a] + k + whole, n - whole, last[a]), last[a] + width, Real(0));
    step(last_right, whole, 0);
  }
  Real* const out = c.out + i + j * c.stride;
  if constexpr (has_tile_sums && Cols == 4 && std::is_same_v<Real, float>)
    return give_tile(s0, s1, s2, s3, c.sign, out, c.stride, rows);
  give(s0, c.sign, out, rows);
  if constexpr (Cols > 1) give(s1, c.sign, out + c.stride, rows);
  if constexpr (Cols > 2) give(s2, c.sign, out + 2 * c.stride, rows);
  if constexpr (Cols > 2) give(s3, c.sign, out + 3 * c.stride, rows);
}

}  // namespace detail

// c.left are the rows of w from `first` on; its pointer is not read. The columns of right lie together.
template <class Real> void dot_codes(const by_columns<Real>& c, const weight_view& w, long long first) {
  for (long long i = 0; i < c.rows; i += 4) {
    long long j = 0;
    for (; j + few_at_once <= c.cols; j += few_at_once) detail::code_tile<few_at_once>(c, w, first + i, i, j);
    for (; j < c.cols; ++j) detail::code_tile<1>(c, w, first + i, i, j);
  }
}

}  // namespace graft::cpu
