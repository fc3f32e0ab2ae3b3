// SPDX-License-Identifier: Apache-2.0
// quant_format: how a weight is quantized, meaning its element type, block size and scales. A plain weight has none.
//     w = value(q) · scale        value() is a table look-up (NF4, FP4) or the number that q stores (int8, FP8, E2M1)
//     w = (q - zero) · scale      unsigned integers, each group with its own zero point (GPTQ, AWQ)
//     scale = codebook[q_s] · second_scale + offset        with double quantization, per second_block scales
//     scale = value(q_s) · tensor_scale                    8-bit floats as scales (MXFP4, NVFP4)
// One scale covers the tensor, a row, a block within a row, the columns of a group, or a flat block: `block` elements
// in row-major order that may cross rows (bitsandbytes). ggml blocks (GGUF files) store scales between the values. The
// values and the rounding of each format are in a file of core/quant.
#pragma once
#include <graft/core/view.h>

#include <type_traits>

namespace graft {

// Element i of row r reads scale (r · cols + i) / block with flat_block, and r · (cols / block) + i / block with
// row_flat_block, which is what bitsandbytes does on CPUs with AVX-512 where the block size does not divide a row. With
// column_group it reads scale column_group[i] of its row: GPTQ with desc_act, whose g_idx puts columns into groups.
enum class scale_granularity : unsigned char { nothing, tensor, row, block, flat_block, row_flat_block, column_group };

struct quant_format {
  dtype type = dtype::f32;
  scale_granularity scaled = scale_granularity::nothing;
  int block = 0;              // elements that share a scale; 0: `scaled` alone says how many do
  int block_rows = 1;         // rows that share the scale of a block (FP8 in square blocks)
  dtype scales = dtype::f32;  // u8: the scales are quantized (double quantization)
  int second_block = 0;       // scales that share one second scale; 0: no double quantization
  dtype second_scales = dtype::f32;
  int block_bytes = 0;  // ggml: bytes of a block, scale included
  int block_type = 0;   // ggml: type number of the block layout

  constexpr bool plain() const { return scaled == scale_granularity::nothing && is_floating(type); }
  friend constexpr bool operator==(const quant_format&, const quant_format&) = default;
};

// The quantization format of a base weight whose layer type names this storage type.
template <class Storage> constexpr quant_format quant_format_of() { return {storage<Storage>::type}; }
template <class Storage>
requires(storage<Storage>::type == dtype::int8) constexpr quant_format quant_format_of() {
  return {dtype::int8, scale_granularity::row};
}
template <class Storage>
requires(storage<Storage>::type == dtype::nf4) constexpr quant_format quant_format_of() {
  return {dtype::nf4, scale_granularity::flat_block, storage<Storage>::block};
}

// How many scales and second scales a weight [rows, cols] has.
struct scale_counts {
  long long scales = 0, second_scales = 0;
};
constexpr scale_counts scale_counts_of(const quant_format& e, long long rows, long long cols) {
  auto parts = [](long long n, long long of) { return of > 0 ? (n + of - 1) / of : 1; };
  scale_counts n;
  switch (e.scaled) {
    case scale_granularity::nothing: break;
    case scale_granularity::tensor: n.scales = 1; break;
    case scale_granularity::row: n.scales = rows; break;
    case scale_granularity::block:
    case scale_granularity::column_group:
      n.scales = e.block_bytes > 0 ? 0 : parts(rows, e.block_rows) * parts(cols, e.block);
      break;
    case scale_granularity::flat_block:
    case scale_granularity::row_flat_block: n.scales = parts(rows * cols, e.block); break;
  }
  if (e.second_block > 0) n.second_scales = parts(n.scales, e.second_block);
  return n;
}
// Returns true for integers whose groups have a zero point for each scale, one byte each.
constexpr bool has_zero_points(const quant_format& e) {
  return e.type == dtype::u2 || e.type == dtype::u3 || e.type == dtype::u4 || e.type == dtype::u8;
}
constexpr long long quantized_bytes(const quant_format& e, long long rows, long long cols) {
  if (e.block_bytes > 0) return rows * ((cols + e.block - 1) / e.block) * e.block_bytes;
  return (rows * cols * bits_of(e.type) + 7) / 8;
}
// Bytes that one read of the weight moves: values, scales and zero points without the codebooks.
constexpr long long bytes_of(const quant_format& e, long long rows, long long cols) {
  const scale_counts n = scale_counts_of(e, rows, cols);
  return quantized_bytes(e, rows, cols) + n.scales * bits_of(e.scales) / 8 +
         n.second_scales * bits_of(e.second_scales) / 8 + (has_zero_points(e) ? n.scales : 0);
}

// The product of two floats, rounded to float before it is added to anything. Compilers contract a product and a sum
// into an FMA, which rounds once and would not reproduce the values of bitsandbytes and ggml. In double the product is
// exact, which is enough for clang and nvcc; g++ computes it in float again and contracts even vectorized loops, unless
// an empty instruction uses the product.
constexpr float rounded_product(float a, float b) {
  const double exact = static_cast<double>(a) * static_cast<double>(b);
  auto rounded = static_cast<float>(exact);
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) {
#if defined(__x86_64__)
    asm("" : "+x"(rounded));
#elif defined(__aarch64__)
    asm("" : "+w"(rounded));
#else
    asm("" : "+m"(rounded));
#endif
  }
#endif
  return rounded;
}
constexpr float abs_max(const float* from, long long n) {
  float most = 0;
  for (long long i = 0; i < n; ++i) {
    const float size = from[i] < 0 ? -from[i] : from[i];
    most = size > most ? size : most;
  }
  return most;
}

// Scales, zero points and codebook of a quantized weight; the caller owns the memory.
struct quant_state {
  quant_format format{};
  const void* scales = nullptr;
  const float* second_scales = nullptr;
  const float* second_codebook = nullptr;      // value of each of the 256 quantized scales
  float offset = 0;                            // added to each dequantized scale
  float tensor_scale = 1;                      // multiplies each scale that is an 8-bit float (NVFP4)
  const unsigned char* zeros = nullptr;        // one per scale, in the same order
  const std::int32_t* column_group = nullptr;  // the group of each column (GPTQ's g_idx)
};
// A weight matrix in memory that the caller owns. Quantized values are stored row after row.
struct weight_view {
  quant_format format{};
  long long rows = 0, cols = 0;
  long long row_stride = 0, col_stride = 1;  // strides of plain weights, in elements
  const void* data = nullptr;
  const quant_state* quant = nullptr;

  constexpr weight_view transposed() const {  // requires a plain weight
    weight_view t = *this;
    t.rows = cols, t.cols = rows, t.row_stride = col_stride, t.col_stride = row_stride;
    return t;
  }
};
// Views a tensor as a matrix [rows, cols]. A tensor that is not contiguous must be plain and have these last two sizes.
constexpr weight_view weight_of(const view& v, long long rows, long long cols) {
  weight_view w{{v.type}, rows, cols, cols, 1, v.data, v.quant};
  if (v.quant != nullptr)
    w.format = v.quant->format;
  else if (!v.contiguous())
    w.row_stride = v.stride(v.rank - 2), w.col_stride = v.stride(v.rank - 1);
  return w;
}
// Views the matrices of a contiguous tensor as one, each below the one before: experts [experts, out, in] as
// [experts out, in].
constexpr weight_view weight_of(const view& v) {
  const long long cols = v.size[v.rank - 1];
  return weight_of(v, cols > 0 ? v.count() / cols : 0, cols);
}
constexpr long long quantized_bytes(const view& v) {
  const weight_view w = weight_of(v);
  return quantized_bytes(w.format, w.rows, w.cols);
}

}  // namespace graft
