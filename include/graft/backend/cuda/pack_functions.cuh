// SPDX-License-Identifier: Apache-2.0
// What only some products pack, as pointers: to name one is to compile its kernel, so a layer type names those of its own
// plans (launchers.cuh). Each is a function of a type that its arguments do not show.
#pragma once
#include <graft/backend/cuda/gemm_turn.cuh>
#include <graft/backend/cuda/pack.cuh>
#include <graft/backend/cuda/rotate_right.cuh>

namespace graft::cuda {

// The B that repeats S along the outputs: [rows, cols], from column `first` on, of a matrix with rows of `pitch`.
struct repeated_side {
  void* to;
  long long rows, cols, first, pitch;
  cells<float> factor;
  bool minus;
};
// A and B, and where they go as tiles.
struct side_tiles {
  const void *a, *b;
  void *a_tiles, *b_tiles;
  int rank;
  long long n, k;
};
// The first `cols` columns of rows, where rows are of another length; behind them come zeros.
struct padded_rows_of {
  const void* from;
  void* to;
  long long rows, cols, from_pitch, to_pitch;
};
struct pack_functions {
  // Of sides that are not all matrices of the adapter (side_sources.h).
  status (*fold)(cudaStream_t, void* to, long long rank, long long first, long long k) = nullptr;
  status (*repeat)(cudaStream_t, const repeated_side&) = nullptr;
  status (*tile)(cudaStream_t, const side_tiles&) = nullptr;
  // Of a rotation behind the product, with so many columns.
  status (*turn)(cudaStream_t, const cells<float>& q, const rotation& r, void* to, long long columns) = nullptr;
  // Of an S that is stored for others, in memory that has no padding, and back.
  status (*pad)(cudaStream_t, const padded_rows_of&) = nullptr;
};

template <class T> status fold_side(cudaStream_t stream, void* to, long long rank, long long first, long long k) {
  return each(stream, rank * k, pack_fold<T>{static_cast<T*>(to), rank, first, k}, "fold");
}
template <class T> status repeat_side(cudaStream_t stream, const repeated_side& s) {
  const pack_matrix<T> as{{}, s.factor, static_cast<T*>(s.to), s.rows, s.cols, 0, s.first, s.pitch, false, s.minus};
  return each(stream, s.rows * s.cols, pack_repeat<T>{as}, "repeat");
}
template <class T> status tile_side(cudaStream_t stream, const side_tiles& s) {
  static_assert(sizeof(T) == 2, "no kernel would read tiles of another type");
  const long long columns = (s.k + 63) / 64 * 64LL;
  const tile_a<T> a{static_cast<const T*>(s.a), static_cast<T*>(s.a_tiles), s.rank, s.k};
  if (status done = each(stream, columns * s.rank, a, "tiles of A"); !done) return done;
  const tile_b<T> b{static_cast<const T*>(s.b), static_cast<T*>(s.b_tiles), s.rank, padded_rows(static_cast<int>(s.n))};
  return each(stream, s.n * s.rank, b, "tiles of B");
}
template <class T>
status pack_turned(cudaStream_t stream, const cells<float>& q, const rotation& r, void* to, long long columns) {
  return each(stream, columns * turned_width, pack_turn<T>{q, r, static_cast<T*>(to)}, "pack");
}
template <class T> status pad_side(cudaStream_t stream, const padded_rows_of& p) {
  const pad_rows<T> as{static_cast<const T*>(p.from), static_cast<T*>(p.to), p.cols, p.from_pitch, p.to_pitch};
  return each(stream, p.rows * p.to_pitch, as, "side");
}

}  // namespace graft::cuda
