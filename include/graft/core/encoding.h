// SPDX-License-Identifier: Apache-2.0
// How a weight is stored: codes, and what their values are multiplied with. A plain weight is codes alone. Otherwise
//     w = value(code) scale,    value by a table or as a number of the codes' type,
// one scale for a tensor, a row, a block of a row, or a block of the elements in row-major order whatever the rows
// (bitsandbytes). Scales may be codes themselves: scale = table2(code) scale2 + offset, again one scale2 for a number
// of scales (double quantization). ggml's blocks (GGUF files) have their scales between the codes. What the codes of each
// encoding mean, and how numbers become codes, is a file of its own below core/encoding.
#pragma once
#include <graft/core/view.h>

namespace graft {

// run: a block that may cross rows. row_run: the same scales, looked for as if every row began a block; what
// bitsandbytes does on processors with AVX-512 where a row is not a whole number of blocks, and nowhere else.
enum class scaled_by : unsigned char { nothing, tensor, row, block, run, row_run };

struct encoding {
  dtype codes = dtype::f32;
  scaled_by scaled = scaled_by::nothing;
  int block = 0;              // elements that share a scale; 0: none, or as many as `scaled` says
  int block_rows = 1;         // rows whose blocks share it too (fp8 in squares)
  dtype scales = dtype::f32;  // u8: codes of a second level
  int second_block = 0;       // scales that share a second-level scale; 0: there is none
  dtype second_scales = dtype::f32;
  int block_bytes = 0;  // ggml: bytes of a block of codes with all that belongs to it
  int block_type = 0;   // ggml: its number for the layout inside

  constexpr bool plain() const { return scaled == scaled_by::nothing && computes_in(codes); }
  friend constexpr bool operator==(const encoding&, const encoding&) = default;
};

// The encoding of a base weight whose layer names this storage type.
template <class Storage> constexpr encoding encoding_of() { return {storage<Storage>::type}; }
template <class Storage>
requires(storage<Storage>::type == dtype::int8) constexpr encoding encoding_of() {
  return {dtype::int8, scaled_by::row};
}
template <class Storage>
requires(storage<Storage>::type == dtype::nf4) constexpr encoding encoding_of() {
  return {dtype::nf4, scaled_by::run, storage<Storage>::block};
}

// Numbers in each plane of a weight.
struct plane_sizes {
  long long scales = 0, second_scales = 0;
};
constexpr plane_sizes planes_of(const encoding& e, long long rows, long long cols) {
  auto parts = [](long long n, long long of) { return of > 0 ? (n + of - 1) / of : 1; };
  plane_sizes n;
  switch (e.scaled) {
    case scaled_by::nothing: break;
    case scaled_by::tensor: n.scales = 1; break;
    case scaled_by::row: n.scales = rows; break;
    case scaled_by::block: n.scales = e.block_bytes > 0 ? 0 : parts(rows, e.block_rows) * parts(cols, e.block); break;
    case scaled_by::run:
    case scaled_by::row_run: n.scales = parts(rows * cols, e.block); break;
  }
  if (e.second_block > 0) n.second_scales = parts(n.scales, e.second_block);
  return n;
}
constexpr long long bytes_of_codes(const encoding& e, long long rows, long long cols) {
  if (e.block_bytes > 0) return rows * ((cols + e.block - 1) / e.block) * e.block_bytes;
  return (rows * cols * bits_of(e.codes) + 7) / 8;
}
// What reading the weight once costs, but for its tables.
constexpr long long bytes_of(const encoding& e, long long rows, long long cols) {
  const plane_sizes n = planes_of(e, rows, cols);
  return bytes_of_codes(e, rows, cols) + n.scales * bits_of(e.scales) / 8 +
         n.second_scales * bits_of(e.second_scales) / 8;
}

// A product that is rounded before it is used: compilers fuse one with the sum behind it, and the writers of files do not.
// In double it is exact.
constexpr float rounded_product(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}
constexpr float largest_magnitude(const float* from, long long n) {
  float most = 0;
  for (long long i = 0; i < n; ++i) {
    const float size = from[i] < 0 ? -from[i] : from[i];
    most = size > most ? size : most;
  }
  return most;
}

// What lies beside the codes of a weight that somebody else owns.
struct planes {
  encoding how{};
  const void* scales = nullptr;
  const float* second_scales = nullptr;
  const float* second_table = nullptr;  // value of each code of a scale
  float offset = 0;                     // added to scales that are decoded
};
// A weight somebody else owns, as a matrix. Codes lie row after row.
struct weight_view {
  encoding how{};
  long long rows = 0, cols = 0;
  long long row_stride = 0, col_stride = 1;  // plain weights: elements between neighbours
  const void* codes = nullptr;
  const planes* beside = nullptr;

  constexpr weight_view transposed() const {  // of a plain weight
    weight_view t = *this;
    t.rows = cols, t.cols = rows, t.row_stride = col_stride, t.col_stride = row_stride;
    return t;
  }
};
// A tensor as a matrix of rows x cols: contiguous, or, where it is plain, stored as just that matrix with its strides.
constexpr weight_view weight_of(const view& v, long long rows, long long cols) {
  weight_view w{{v.type}, rows, cols, cols, 1, v.data, v.beside};
  if (v.beside != nullptr)
    w.how = v.beside->how;
  else if (!v.contiguous())
    w.row_stride = v.stride(v.rank - 2), w.col_stride = v.stride(v.rank - 1);
  return w;
}

}  // namespace graft
