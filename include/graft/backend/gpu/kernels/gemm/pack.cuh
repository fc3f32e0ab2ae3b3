// SPDX-License-Identifier: Apache-2.0
// Packs an adapter's float values into what GEMM kernels read (adapter_args.h), once per change of a parameter: A and B
// in the layer's type, with their scaling, zero-padded to the padded rank; prologue factors in the layer's type; the
// epilogue as one scale and one shift per output.
//
// The structs are functors for each(): operator()(i) writes element i. U = x Aᵀ is the shrink result.
#pragma once
#include <graft/backend/gpu/arch/wgmma.cuh>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/elements.cuh>
#include <graft/backend/gpu/tile/epilogue.cuh>

namespace graft::gpu {

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

}  // namespace graft::gpu
