// SPDX-License-Identifier: Apache-2.0
// Products of many rows with one small square block of b columns inside wider matrices, for OFT and BOFT: y = x m, and
// the wgrad m += xᵀ d over the rows. The register tile has enough sums to hide the latency of a multiply-add. Only what
// is read with a large stride is copied, because rows at a power of two apart would evict each other from the L1 cache.
#pragma once
#include <graft/backend/cpu/runtime/packets.h>
#include <graft/core/array_size.h>

#include <algorithm>
#include <type_traits>

namespace graft::cpu {

namespace detail {

// How B columns divide into packets, and the rows of a register tile.
template <int B, class Real> struct block_lanes {
  using part = typename Eigen::internal::find_best_packet<Real, B>::type;
  static constexpr int part_size = Eigen::internal::unpacket_traits<part>::size;
  static constexpr int width = B % part_size == 0 ? part_size : 1;
  using lane = std::conditional_t<width == 1, Real, part>;
  static constexpr int lanes = B / width, rows_per_tile = std::max(1, 8 / lanes);
};
// to(k, i) = left(i, k) for `Rows` rows and k up to depth: squares of Rows are transposed in registers, the remainder
// with half as many rows at a time, and the last elements one by one.
template <int Rows, class Real>
void transpose_rows(const Real* left, long long row_stride, long long k, long long depth, Real* to,
                    long long to_stride) {
  using namespace Eigen::internal;
  using lane = block_lanes<Rows, Real>;
  if constexpr (lane::width == Rows && Rows > 1) {
    PacketBlock<typename lane::part, Rows> square;
    for (; k + Rows <= depth; k += Rows) {
      for (int i = 0; i < Rows; ++i) square.packet[i] = ploadu<typename lane::part>(left + i * row_stride + k);
      ptranspose(square);
      for (int i = 0; i < Rows; ++i) pstoreu(to + (k + i) * to_stride, square.packet[i]);
    }
    for (int i = 0; k < depth && i < Rows; i += Rows / 2)
      transpose_rows<Rows / 2>(left + i * row_stride, row_stride, k, depth, to + i, to_stride);
  } else {
    for (; k < depth; ++k)
      for (int i = 0; i < Rows; ++i) to[k * to_stride + i] = left[i * row_stride + k];
  }
}

// y = x m for Rows rows; the block m is contiguous.
template <int B, int Rows, class Real>
[[gnu::always_inline]] inline void block_tile(const Real* x, long long x_stride, const Real* m, Real* y,
                                              long long y_stride) {
  using namespace Eigen::internal;
  using by = block_lanes<B, Real>;
  using lane = typename by::lane;
  lane sum[array_size(Rows)][array_size(by::lanes)];
  for (int t = 0; t < Rows; ++t)
    for (int j = 0; j < by::lanes; ++j) sum[t][j] = pmul(pset1<lane>(x[t * x_stride]), ploadu<lane>(m + j * by::width));
  for (int i = 1; i < B; ++i)
    for (int j = 0; j < by::lanes; ++j) {
      const lane of_m = ploadu<lane>(m + i * B + j * by::width);
      for (int t = 0; t < Rows; ++t) sum[t][j] = pmadd(pset1<lane>(x[t * x_stride + i]), of_m, sum[t][j]);
    }
  for (int t = 0; t < Rows; ++t)
    for (int j = 0; j < by::lanes; ++j) pstoreu(y + t * y_stride + j * by::width, sum[t][j]);
}

}  // namespace detail

// y = x m or x mᵀ; the rows of x and of y have the stride row_stride.
template <int B, class Real>
void block_product(const Real* x, Real* y, long long rows, long long row_stride, const Real* block,
                   bool transposed_block) {
  constexpr int rows_per_tile = detail::block_lanes<B, Real>::rows_per_tile;
  constexpr int transpose_width = std::min<int>(B, packet_width<Real>);
  Real transposed[array_size(B * B)];
  for (int i = 0; transposed_block && i < B; i += transpose_width)
    detail::transpose_rows<transpose_width>(block + i * B, B, 0, B, transposed + i, B);
  const Real* const m = transposed_block ? transposed : block;
  long long t = 0;
  for (; t + rows_per_tile <= rows; t += rows_per_tile)
    detail::block_tile<B, rows_per_tile>(x + t * row_stride, row_stride, m, y + t * row_stride, row_stride);
  for (; t < rows; ++t) detail::block_tile<B, 1>(x + t * row_stride, row_stride, m, y + t * row_stride, row_stride);
}

// m += xᵀ d; the rows of x and of d have the stride row_stride and are copied 64 at a time into contiguous memory.
template <int B, class Real>
void block_sum(const Real* x, const Real* d, long long rows, long long row_stride, Real* m) {
  using namespace Eigen::internal;
  using by = detail::block_lanes<B, Real>;
  using lane = typename by::lane;
  constexpr long long row_block = 64;
  Real of_x[array_size(row_block * B)], of_d[array_size(row_block * B)];
  for (long long t = 0; t < rows; t += row_block) {
    const long long n = std::min(row_block, rows - t);
    for (long long k = 0; k < n; ++k)
      std::copy_n(x + (t + k) * row_stride, B, of_x + k * B), std::copy_n(d + (t + k) * row_stride, B, of_d + k * B);
    constexpr int rows_per_tile = std::min(B, by::rows_per_tile);
    for (int i = 0; i < B; i += rows_per_tile) {
      lane sum[array_size(rows_per_tile)][by::lanes];
      for (int r = 0; r < rows_per_tile; ++r)
        for (int j = 0; j < by::lanes; ++j) sum[r][j] = ploadu<lane>(m + (i + r) * B + j * by::width);
      for (long long k = 0; k < n; ++k)
        for (int j = 0; j < by::lanes; ++j) {
          const lane right = ploadu<lane>(of_d + k * B + j * by::width);
          for (int r = 0; r < rows_per_tile; ++r) sum[r][j] = pmadd(pset1<lane>(of_x[k * B + i + r]), right, sum[r][j]);
        }
      for (int r = 0; r < rows_per_tile; ++r)
        for (int j = 0; j < by::lanes; ++j) pstoreu(m + (i + r) * B + j * by::width, sum[r][j]);
    }
  }
}

// Calls f.template operator()<B>() if b is a compiled block size; else returns false.
template <class F> bool with_block(long long b, F f) {
  switch (b) {
    case 2: return f.template operator()<2>(), true;
    case 4: return f.template operator()<4>(), true;
    case 8: return f.template operator()<8>(), true;
    case 16: return f.template operator()<16>(), true;
    case 32: return f.template operator()<32>(), true;
    case 64: return f.template operator()<64>(), true;
    default: return false;
  }
}

}  // namespace graft::cpu
