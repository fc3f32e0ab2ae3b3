// SPDX-License-Identifier: Apache-2.0
// The sums of stream_codes as tensor cores leave them: 128 numbers, 16 rows of eight tokens, for each unit and eight tokens.
#pragma once

namespace graft::cuda {

// Where in a unit the number e of its sums belongs.
template <int Eights> struct code_element {
  int unit, n, inside;
  // by_rows: sixteen lanes have the rows of one token.
  __device__ explicit code_element(int e, bool by_rows = false)
      : unit(e / (128 * Eights)), n(e / 128 % Eights), inside(by_rows ? row_by_row(e % 128) : e % 128) {}
  __device__ static int row_by_row(int e) { return e % 8 * 16 + e / 32 * 4 + e / 8 % 2 * 2 + e / 16 % 2; }
  __device__ int sum() const { return (unit * Eights + n) * 128 + inside; }
  __device__ int token() const { return n * 8 + inside / 4 % 4 * 2 + (inside & 1); }
  __device__ int row() const { return inside / 16 + 8 * (inside >> 1 & 1); }
};

}  // namespace graft::cuda
