// SPDX-License-Identifier: Apache-2.0
// pack_functions: packing kernels that only some GEMMs need, as function pointers. To name one is to compile its
// kernel, so a layer type names those of its own plans (dispatch/launchers.cuh). U = x Aᵀ is the shrink result.
#pragma once
#include <graft/backend/gpu/kernels/gemm/pack.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90_fused_rotation.cuh>
#include <graft/backend/gpu/kernels/rotation/mma_operand.cuh>

namespace graft::gpu {

// The B that repeats U along the outputs: [rows, cols], beginning at column `first` of a matrix with rows of `pitch`.
struct repeated_branch {
  void* to;
  long long rows, cols, first, pitch;
  element_ptr<float> factor;
  bool minus;
};
// Row-major A [rank, k] and B [n, rank], and the destinations of their tiled copies.
struct branch_tiles {
  const void *a, *b;
  void *a_tiles, *b_tiles;
  int rank;
  long long n, k;
};
// Copies `cols` columns into rows of another pitch, which end with zeros.
struct padded_rows_of {
  const void* from;
  void* to;
  long long rows, cols, from_pitch, to_pitch;
};
struct pack_functions {
  // For branches whose A and B are not both matrices of the adapter (packs_plainly() in branch_sources.h).
  status (*fold)(cudaStream_t, void* to, long long rank, long long first, long long k) = nullptr;
  status (*repeat)(cudaStream_t, const repeated_branch&) = nullptr;
  status (*tile)(cudaStream_t, const branch_tiles&) = nullptr;
  // Packs the output rotation of sm90_fused_rotation.cuh, [columns][32].
  status (*fused_rotation)(cudaStream_t, const element_ptr<float>& q, const rotation& r, void* to,
                           long long columns) = nullptr;
  // Copies U between rows of the padded rank, which kernels use, and rows without padding, which other launches use.
  status (*pad)(cudaStream_t, const padded_rows_of&) = nullptr;
};

template <class T> status fold_branch(cudaStream_t stream, void* to, long long rank, long long first, long long k) {
  return each(stream, rank * k, pack_fold<T>{static_cast<T*>(to), rank, first, k}, "fold");
}
template <class T> status repeat_branch(cudaStream_t stream, const repeated_branch& s) {
  const pack_matrix<T> as{{}, s.factor, static_cast<T*>(s.to), s.rows, s.cols, 0, s.first, s.pitch, false, s.minus};
  return each(stream, s.rows * s.cols, pack_repeat<T>{as}, "repeat");
}
template <class T> status tile_branch(cudaStream_t stream, const branch_tiles& s) {
  static_assert(sizeof(T) == 2, "no kernel would read tiles of another type");
  const long long columns = (s.k + 63) / 64 * 64LL;
  const tile_a<T> a{static_cast<const T*>(s.a), static_cast<T*>(s.a_tiles), s.rank, s.k};
  if (status done = each(stream, columns * s.rank, a, "tiles of A"); !done) return done;
  const tile_b<T> b{static_cast<const T*>(s.b), static_cast<T*>(s.b_tiles), s.rank, padded_rows(static_cast<int>(s.n))};
  return each(stream, s.n * s.rank, b, "tiles of B");
}
template <class T>
status pack_rotation_rows(cudaStream_t stream, const element_ptr<float>& q, const rotation& r, void* to,
                          long long columns) {
  return each(stream, columns * rotation_tile_width, pack_rotation<T>{q, r, static_cast<T*>(to)}, "pack");
}
template <class T> status pad_shrink(cudaStream_t stream, const padded_rows_of& p) {
  const pad_rows<T> as{static_cast<const T*>(p.from), static_cast<T*>(p.to), p.cols, p.from_pitch, p.to_pitch};
  return each(stream, p.rows * p.to_pitch, as, "pad shrink");
}

}  // namespace graft::gpu
