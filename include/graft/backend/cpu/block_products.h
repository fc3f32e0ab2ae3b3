// SPDX-License-Identifier: Apache-2.0
// Products of many rows with one small square block, b columns of a wider matrix each: y = x m, and the sum m += xᵀ d over
// the rows. A few rows at a time keep as many sums in registers as hide the latency of a multiplication; nothing is packed
// but what lies at a large power of two apart, where rows would drive each other out of the nearest cache.
#pragma once
#include <graft/backend/cpu/packets.h>

#include <algorithm>
#include <type_traits>

namespace graft::cpu {

namespace detail {

// How b columns are packets, and how many rows are worked on at a time.
template <int B, class Real> struct block_lanes {
  using part = typename Eigen::internal::find_best_packet<Real, B>::type;
  static constexpr int part_size = Eigen::internal::unpacket_traits<part>::size;
  static constexpr int width = B % part_size == 0 ? part_size : 1;
  using lane = std::conditional_t<width == 1, Real, part>;
  static constexpr int lanes = B / width, at_once = std::max(1, 8 / lanes);
};
// to(k, i) = left(i, k) for `Rows` rows and the depth from k on: as far as whole squares go through registers, then by
// half as many rows, and what is left one by one.
template <int Rows, class Real>
void turn_rows(const Real* left, long long apart, long long k, long long depth, Real* to, long long to_apart) {
  using namespace Eigen::internal;
  using lane = block_lanes<Rows, Real>;
  if constexpr (lane::width == Rows && Rows > 1) {
    PacketBlock<typename lane::part, Rows> square;
    for (; k + Rows <= depth; k += Rows) {
      for (int i = 0; i < Rows; ++i) square.packet[i] = ploadu<typename lane::part>(left + i * apart + k);
      ptranspose(square);
      for (int i = 0; i < Rows; ++i) pstoreu(to + (k + i) * to_apart, square.packet[i]);
    }
    for (int i = 0; k < depth && i < Rows; i += Rows / 2)
      turn_rows<Rows / 2>(left + i * apart, apart, k, depth, to + i, to_apart);
  } else {
    for (; k < depth; ++k)
      for (int i = 0; i < Rows; ++i) to[k * to_apart + i] = left[i * apart + k];
  }
}

// Sums of Rows rows of x, `apart` from each other, with a block whose rows lie together.
template <int B, int Rows, class Real>
[[gnu::always_inline]] inline void block_tile(const Real* x, long long x_apart, const Real* m, Real* y,
                                              long long y_apart) {
  using namespace Eigen::internal;
  using by = block_lanes<B, Real>;
  using lane = typename by::lane;
  lane sum[Rows][by::lanes];
  for (int t = 0; t < Rows; ++t)
    for (int j = 0; j < by::lanes; ++j) sum[t][j] = pmul(pset1<lane>(x[t * x_apart]), ploadu<lane>(m + j * by::width));
  for (int i = 1; i < B; ++i)
    for (int j = 0; j < by::lanes; ++j) {
      const lane of_m = ploadu<lane>(m + i * B + j * by::width);
      for (int t = 0; t < Rows; ++t) sum[t][j] = pmadd(pset1<lane>(x[t * x_apart + i]), of_m, sum[t][j]);
    }
  for (int t = 0; t < Rows; ++t)
    for (int j = 0; j < by::lanes; ++j) pstoreu(y + t * y_apart + j * by::width, sum[t][j]);
}

}  // namespace detail

// y = x m, or x mᵀ: `rows` rows of x and of y, `apart` from each other.
template <int B, class Real>
void block_product(const Real* x, Real* y, long long rows, long long apart, const Real* block, bool flip) {
  constexpr int at_once = detail::block_lanes<B, Real>::at_once;
  constexpr int side = std::min<int>(B, packet_width<Real>);
  Real turned[B * B];
  for (int i = 0; flip && i < B; i += side) detail::turn_rows<side>(block + i * B, B, 0, B, turned + i, B);
  const Real* const m = flip ? turned : block;
  long long t = 0;
  for (; t + at_once <= rows; t += at_once)
    detail::block_tile<B, at_once>(x + t * apart, apart, m, y + t * apart, apart);
  for (; t < rows; ++t) detail::block_tile<B, 1>(x + t * apart, apart, m, y + t * apart, apart);
}

// m += xᵀ d: rows of x and of d, `apart` from each other. Some rows at a time, copied together.
template <int B, class Real> void block_sum(const Real* x, const Real* d, long long rows, long long apart, Real* m) {
  using namespace Eigen::internal;
  using by = detail::block_lanes<B, Real>;
  using lane = typename by::lane;
  constexpr long long some = 64;
  Real of_x[some * B], of_d[some * B];
  for (long long t = 0; t < rows; t += some) {
    const long long n = std::min(some, rows - t);
    for (long long k = 0; k < n; ++k)
      std::copy_n(x + (t + k) * apart, B, of_x + k * B), std::copy_n(d + (t + k) * apart, B, of_d + k * B);
    constexpr int at_once = std::min(B, by::at_once);
    for (int i = 0; i < B; i += at_once) {
      lane sum[at_once][by::lanes];
      for (int r = 0; r < at_once; ++r)
        for (int j = 0; j < by::lanes; ++j) sum[r][j] = ploadu<lane>(m + (i + r) * B + j * by::width);
      for (long long k = 0; k < n; ++k)
        for (int j = 0; j < by::lanes; ++j) {
          const lane right = ploadu<lane>(of_d + k * B + j * by::width);
          for (int r = 0; r < at_once; ++r) sum[r][j] = pmadd(pset1<lane>(of_x[k * B + i + r]), right, sum[r][j]);
        }
      for (int r = 0; r < at_once; ++r)
        for (int j = 0; j < by::lanes; ++j) pstoreu(m + (i + r) * B + j * by::width, sum[r][j]);
    }
  }
}

// f.template operator()<B>() for a block of b columns that has been compiled; else nothing, and false.
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
