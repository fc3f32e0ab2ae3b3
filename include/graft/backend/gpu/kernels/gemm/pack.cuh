// SPDX-License-Identifier: Apache-2.0
// Packing an adapter for GEMM kernels, once per change of a parameter: the kernels that every GEMM needs, and those
// that only some need, as function pointers.
#pragma once
#include <graft/backend/gpu/arch/wgmma.cuh>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90_fused_rotation.cuh>
#include <graft/backend/gpu/kernels/rotation/mma_operand.cuh>
#include <graft/backend/gpu/tile/elements.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

// ---- Functors

// Packs an adapter's float values into what GEMM kernels read (adapter_args.h), once per change of a parameter: A and B
// in the layer's type, with their scaling, zero-padded to the padded rank; prologue factors in the layer's type; the
// epilogue as one scale and one shift per output.
//
// The structs are functors for each(): operator()(i) writes element i. U = x Aᵀ is the shrink result.

// to[row0 + r][col0 + c] = ± factor * from[r][c], for a `from` of [rows, cols] or, transposed, of [cols, rows].
template <class T> struct pack_matrix {
  element_ptr<float> from, factor;  // no factor: 1
  T* to;
  long long rows, cols, row0, col0, pitch;
  bool transposed, minus;

  __device__ void operator()(long long i) const {
    const long long r = i / cols, c = i % cols;
    float v = from[transposed ? c * rows + r : i];
    if (factor.at != nullptr) v *= factor[0];
    to[(row0 + r) * pitch + col0 + c] = from_float<T>(minus ? -v : v);
  }
};
// The A that adds up every rank-th column of x (MiSS): fold(x) = x Aᵀ.
template <class T> struct pack_fold {
  T* to;
  long long rank, row0, cols;

  __device__ void operator()(long long i) const {
    const long long r = i / cols, c = i % cols;
    to[(row0 + r) * cols + c] = from_float<T>(c % rank == r ? 1.0F : 0.0F);
  }
};
// The B that repeats U along the outputs (MiSS): ± factor where the output is a copy of this column of U.
template <class T> struct pack_repeat {
  pack_matrix<T> as;

  __device__ void operator()(long long i) const {
    const long long r = i / as.cols, c = i % as.cols;
    const float v = as.factor.at != nullptr ? as.factor[0] : 1.0F;
    as.to[(as.row0 + r) * as.pitch + as.col0 + c] = from_float<T>(r % as.cols != c ? 0.0F : as.minus ? -v : v);
  }
};
// Stores A [rank, cols] as tiles of [rank][64], swizzled as in shared memory, with zeros beyond the last column.
template <class T> struct tile_a {
  const T* from;
  T* to;
  int rank;
  long long cols;

  __device__ void operator()(long long i) const {
    const long long tile = i / (rank * 64LL), col = tile * 64 + i % 64;
    const int r = static_cast<int>(i / 64 % rank);
    to[tile * rank * 64 + tile_offset(r, static_cast<int>(i % 64), 128) / 2] =
        col < cols ? from[r * cols + col] : T(0.0F);
  }
};
// Stores B [rows, rank] swizzled as in shared memory, in slabs of at most 64 columns.
template <class T> struct tile_b {
  const T* from;
  T* to;
  int rank;
  long long slab_rows;

  __device__ void operator()(long long i) const {
    const int row = static_cast<int>(i / rank), col = static_cast<int>(i % rank), width = rank < 64 ? rank : 64;
    to[col / 64 * slab_rows * 64 + tile_offset(row, col % 64, static_cast<std::uint32_t>(2 * width)) / 2] = from[i];
  }
};
// Packs A and B of one low-rank branch, each row-major and tiled. The padding has been cleared before.
template <class T> struct pack_branch {
  element_ptr<float> a, b, factor;     // factor of B; null: 1
  T *a_to, *b_to, *a_tiles, *b_tiles;  // tiles may be null
  int rank, first, all;                // rows of A; their first row in, and the rank of, all branches together
  long long in, out, slab_rows;
  bool a_transposed, b_transposed, minus;
  element_ptr<float> a_factor{};

  __host__ __device__ long long count() const { return rank * (in + out); }
  // 32-bit indices suffice for both matrices; a 64-bit division would take longer than everything else here.
  __device__ void operator()(unsigned i) const {
    const auto wide = static_cast<unsigned>(in), high = static_cast<unsigned>(out), deep = static_cast<unsigned>(rank);
    if (i < deep * wide) {
      const unsigned r = i / wide, c = i - r * wide;
      const int row = first + static_cast<int>(r);
      float number = a[a_transposed ? c * deep + r : i];
      if (a_factor.at != nullptr) number *= a_factor[0];
      const T v = from_float<T>(number);
      a_to[row * in + c] = v;
      if (a_tiles != nullptr) a_tiles[c / 64 * all * 64 + tile_offset(row, static_cast<int>(c % 64), 128) / 2] = v;
      return;
    }
    i -= deep * wide;
    const unsigned r = i / deep, c = i - r * deep;
    const auto row = static_cast<int>(r);
    const int col = first + static_cast<int>(c), width = all < 64 ? all : 64;
    float v = b[b_transposed ? c * high + r : i];
    if (factor.at != nullptr) v *= factor[0];
    const T stored = from_float<T>(minus ? -v : v);
    b_to[static_cast<long long>(row) * all + col] = stored;
    if (b_tiles != nullptr)
      b_tiles[col / 64 * slab_rows * 64 + tile_offset(row, col % 64, static_cast<std::uint32_t>(2 * width)) / 2] =
          stored;
  }
};
// Packs several branches in one launch.
template <class T> struct pack_branches {
  static constexpr int most = 8;
  pack_branch<T> branch[most];
  int branch_count = 0;

  long long count() const {
    long long n = 0;
    for (int k = 0; k < branch_count; ++k) n += branch[k].count();
    return n;
  }
  __device__ void operator()(long long i) const {
    int k = 0;
    for (; i >= branch[k].count(); ++k) i -= branch[k].count();
    branch[k](static_cast<unsigned>(i));
  }
};
// Collects branches and packs `most` of them per launch; flush() packs the rest.
template <class T> class branch_packer {
 public:
  explicit branch_packer(cudaStream_t stream) : stream_(stream) {}
  status add(const pack_branch<T>& one) {
    if (now_.branch_count == pack_branches<T>::most)
      if (status s = flush(); !s) return s;
    now_.branch[now_.branch_count++] = one;
    return ok;
  }
  status flush() {
    const status s = each(stream_, now_.count(), now_, "pack branches");
    now_.branch_count = 0;
    return s;
  }

 private:
  cudaStream_t stream_;
  pack_branches<T> now_;
};
template <class T> struct fill_vector {
  T* to;
  float value;
  __device__ void operator()(long long i) const { to[i] = from_float<T>(value); }
};
// Copies the first `cols` elements of every row into rows of another pitch and fills these up with zeros.
template <class T> struct pad_rows {
  const T* from;
  T* to;
  long long cols, from_pitch, to_pitch;
  __device__ void operator()(long long i) const {
    const long long row = i / to_pitch, col = i % to_pitch;
    to[i] = col < cols ? from[row * from_pitch + col] : T(0.0F);
  }
};
// Composes one epilogue step v -> v ∘ operand with v = scale * acc + shift.
struct apply_epilogue {
  float* scale;
  float* shift;
  element_ptr<float> operand;
  long long n, stride;  // stride 0: one number for all columns
  int what;             // 0 add, 1 subtract, 2 multiply, 3 divide

  __device__ void operator()(long long i) const {
    const float v = i < n ? operand[i * stride] : (what < 2 ? 0.0F : 1.0F);
    if (what == 0) shift[i] += v;
    if (what == 1) shift[i] -= v;
    if (what == 2) scale[i] *= v, shift[i] *= v;
    if (what == 3) scale[i] /= v, shift[i] /= v;
  }
};

// ---- Functions

// pack_functions: packing kernels that only some GEMMs need, as function pointers. To name one is to compile its
// kernel, so a layer type names those of its own plans (dispatch/launchers.cuh). U = x Aᵀ is the shrink result.

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
