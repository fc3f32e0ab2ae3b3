// SPDX-License-Identifier: Apache-2.0
// From parameter-time values in float to what the kernels read: A and B in the layer's type with their scaling inside,
// zeros up to the padded rank, the pre slot in the layer's type, and the post slot as one factor and one summand per
// output. Runs once per change of a parameter.
#pragma once
#include <graft/backend/cuda/cells.cuh>
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/post.cuh>
#include <graft/backend/cuda/wgmma.cuh>

namespace graft::cuda {

// to[row0 + r][col0 + c] = ± factor * from[r][c], for a `from` of [rows, cols] or, transposed, of [cols, rows].
template <class T> struct pack_matrix {
  cells<float> from, factor;  // no factor: 1
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
// The A that adds up every rank-th column: fold(x) = x Aᵀ.
template <class T> struct pack_fold {
  T* to;
  long long rank, row0, cols;

  __device__ void operator()(long long i) const {
    const long long r = i / cols, c = i % cols;
    to[(row0 + r) * cols + c] = from_float<T>(c % rank == r ? 1.0F : 0.0F);
  }
};
// The B that repeats S along the outputs: ± factor where the output is a copy of this column.
template <class T> struct pack_repeat {
  pack_matrix<T> as;

  __device__ void operator()(long long i) const {
    const long long r = i / as.cols, c = i % as.cols;
    const float v = as.factor.at != nullptr ? as.factor[0] : 1.0F;
    as.to[(as.row0 + r) * as.pitch + as.col0 + c] = from_float<T>(r % as.cols != c ? 0.0F : as.minus ? -v : v);
  }
};
// A [rank, cols] as tiles of [rank][64], each as it lies in shared memory; zeros beyond the last column.
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
// B [rows, rank] as it lies in shared memory, in slabs of at most 64 columns.
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
// A and B of a side branch at once, each as rows and as those tiles. Zeros of padding are there already.
template <class T> struct pack_side {
  cells<float> a, b, factor;           // no factor: 1
  T *a_to, *b_to, *a_tiles, *b_tiles;  // no tiles: null
  int rank, first, all;                // rows of A, where they begin among those of all sides, and how many those are
  long long in, out, slab_rows;
  bool a_across, b_across, minus;
  cells<float> a_factor{};

  __host__ __device__ long long count() const { return rank * (in + out); }
  // In 32 bits: both matrices together have fewer elements, and a division in 64 bits takes longer than all the rest.
  __device__ void operator()(unsigned i) const {
    const auto wide = static_cast<unsigned>(in), high = static_cast<unsigned>(out), deep = static_cast<unsigned>(rank);
    if (i < deep * wide) {
      const unsigned r = i / wide, c = i - r * wide;
      const int row = first + static_cast<int>(r);
      float number = a[a_across ? c * deep + r : i];
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
    float v = b[b_across ? c * high + r : i];
    if (factor.at != nullptr) v *= factor[0];
    const T stored = from_float<T>(minus ? -v : v);
    b_to[static_cast<long long>(row) * all + col] = stored;
    if (b_tiles != nullptr)
      b_tiles[col / 64 * slab_rows * 64 + tile_offset(row, col % 64, static_cast<std::uint32_t>(2 * width)) / 2] =
          stored;
  }
};
// Several of them in one launch.
template <class T> struct pack_many_sides {
  static constexpr int most = 8;
  pack_side<T> side[most];
  int sides = 0;

  long long count() const {
    long long n = 0;
    for (int k = 0; k < sides; ++k) n += side[k].count();
    return n;
  }
  __device__ void operator()(long long i) const {
    int k = 0;
    for (; i >= side[k].count(); ++k) i -= side[k].count();
    side[k](static_cast<unsigned>(i));
  }
};
// Gathers side branches, and packs them when there are enough of them or when all have come.
template <class T> class side_packer {
 public:
  explicit side_packer(cudaStream_t stream) : stream_(stream) {}
  status add(const pack_side<T>& one) {
    if (now_.sides == pack_many_sides<T>::most)
      if (status s = flush(); !s) return s;
    now_.side[now_.sides++] = one;
    return ok;
  }
  status flush() {
    const status s = each(stream_, now_.count(), now_, "sides");
    now_.sides = 0;
    return s;
  }

 private:
  cudaStream_t stream_;
  pack_many_sides<T> now_;
};
template <class T> struct fill_vector {
  T* to;
  float value;
  __device__ void operator()(long long i) const { to[i] = from_float<T>(value); }
};
// The first `cols` elements of every row, in rows of another length, which end with zeros.
template <class T> struct pad_rows {
  const T* from;
  T* to;
  long long cols, from_pitch, to_pitch;
  __device__ void operator()(long long i) const {
    const long long row = i / to_pitch, col = i % to_pitch;
    to[i] = col < cols ? from[row * from_pitch + col] : T(0.0F);
  }
};
// v -> v ∘ operand, applied to v = scale * acc + shift.
struct apply_post {
  float* scale;
  float* shift;
  cells<float> operand;
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

}  // namespace graft::cuda
