// SPDX-License-Identifier: Apache-2.0
// The truncated Neumann series of the Cayley transform and its gradient for blocks of 32 x 32, OFT's default size: the
// formulas of `neumann_functor` and `neumann_grads` in dense.cuh. One CTA of 256 threads per matrix; all
// matrices are in shared memory in float, and a thread computes 2 x 2 entries of every product.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/linalg/dense.cuh>

namespace graft::gpu {

// A 32 x 32 matrix in shared memory. The padded pitch puts neighbors in a column into different banks.
struct smem_matrix {
  static constexpr int edge = 32, pitch = 36, size = edge * pitch, threads = 256;
  float* p;
  __device__ float& operator()(int row, int col) const { return p[row * pitch + col]; }
  __device__ float4 four(int row, int col) const { return *reinterpret_cast<const float4*>(p + row * pitch + col); }
};
// The entries of a matrix that a thread owns: rows `row` and `row` + 16 of columns `col` and `col` + 16.
struct thread_entries {
  int row, col;
  float v[2][2] = {};

  __device__ explicit thread_entries(int thread, float diagonal = 0) : row(thread / 16), col(thread % 16) {
    for (int i = 0; i < 2; ++i) v[i][i] = row == col ? diagonal : 0;
  }
  template <class F> __device__ void each(const F& f) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) f(row + 16 * i, col + 16 * j, v[i][j]);
  }
  __device__ void add(const smem_matrix& a, float times) {
    each([&](int r, int c, float& x) { x += times * a(r, c); });
  }
  __device__ void put(const smem_matrix& to) {
    each([&](int r, int c, float x) { to(r, c) = x; });
  }
  // Adds left · right, or left · rightᵀ.
  template <bool TransB> __device__ void add_product(const smem_matrix& left, const smem_matrix& right) {
#pragma unroll
    for (int l = 0; l < smem_matrix::edge; l += 4) {
      const float4 a[2] = {left.four(row, l), left.four(row + 16, l)};
      float b[4][2];
      if constexpr (TransB) {
        const float4 one = right.four(col, l), other = right.four(col + 16, l);
        b[0][0] = one.x, b[1][0] = one.y, b[2][0] = one.z, b[3][0] = one.w;
        b[0][1] = other.x, b[1][1] = other.y, b[2][1] = other.z, b[3][1] = other.w;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) b[e][0] = right(l + e, col), b[e][1] = right(l + e, col + 16);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          v[i][j] = fmaf(a[i].w, b[3][j], fmaf(a[i].z, b[2][j], fmaf(a[i].y, b[1][j], fmaf(a[i].x, b[0][j], v[i][j]))));
    }
  }
};
inline constexpr long long max_block_terms = 5;  // the kernels support series of 3 to 5 terms
inline bool fits_block_series(const tensor<float>& a, const tensor<float>& out, const neumann_series& c) {
  return a.d[2] == smem_matrix::edge && a.d[3] == smem_matrix::edge && a.p.type == dtype::f32 &&
         out.p.type == dtype::f32 && c.count >= 3 && c.count <= max_block_terms;
}
template <int Count, class Team> __device__ smem_matrix shared_matrix(Team t) {
  return {reinterpret_cast<float*>(t.template team_shared_memory<(Count * smem_matrix::size + 1) / 2>())};
}

// Horner's scheme. Its first step, Q times a multiple of I, needs no matrix product.
struct block_neumanns {
  neumann_functor<float> f;
  template <class Team> __device__ void operator()(long long m, Team t) const {
    const smem_matrix q = shared_matrix<3>(t);
    const smem_matrix r[2] = {{q.p + smem_matrix::size}, {q.p + 2 * smem_matrix::size}};
    const auto* const from = static_cast<const float*>(f.a.p.at) + m * 1024;
    for (int e = t.rank; e < 1024; e += t.size) q(e / 32, e % 32) = from[e];
    t.sync();
    const auto last = static_cast<int>(f.c.count) - 1;
    for (int k = last - 1; k >= 0; --k) {
      thread_entries now(t.rank, static_cast<float>(f.c[k]));
      if (k == last - 1)
        now.add(q, static_cast<float>(f.c[last]));
      else
        now.add_product<false>(q, r[(k + 1) % 2]);
      if (k > 0)
        now.put(r[k % 2]), t.sync();
      else
        now.each([&](int row, int col, float x) { static_cast<float*>(f.out.p.at)[m * 1024 + row * 32 + col] = x; });
    }
  }
};
struct block_neumann_grads {
  neumann_grads<float> f;
  template <class Team> __device__ void operator()(long long m, Team t) const {
    constexpr int others = 4;  // Q, Qᵀ, and G of even and of odd steps
    const smem_matrix q = shared_matrix<others + max_block_terms - 2>(t);
    const auto at = [&](int k) { return smem_matrix{q.p + k * smem_matrix::size}; };
    const smem_matrix q_transposed = at(1);
    const auto *const a = static_cast<const float*>(f.a.p.at) + m * 1024, *const up =
                                                                              static_cast<const float*>(f.t.p.at) +
                                                                              m * 1024;
    for (int e = t.rank; e < 1024; e += t.size)
      q(e / 32, e % 32) = q_transposed(e % 32, e / 32) = a[e], at(2)(e / 32, e % 32) = up[e];
    t.sync();
    const auto last = static_cast<int>(f.c.count) - 1;
    const auto r = [&](int k) { return at(others + k - 1); };  // R_1 … R_{last - 1}
    for (int k = last - 1; k > 0; --k) {
      thread_entries now(t.rank, static_cast<float>(f.c[k]));
      if (k == last - 1)
        now.add(q, static_cast<float>(f.c[last]));
      else
        now.add_product<false>(q, r(k + 1));
      now.put(r(k)), t.sync();
    }
    thread_entries d(t.rank);
    for (int k = 0; k + 1 < last; ++k) {
      d.add_product<true>(at(2 + k % 2), r(k + 1));
      thread_entries next(t.rank);
      next.add_product<false>(q_transposed, at(2 + k % 2));
      next.put(at(2 + (k + 1) % 2)), t.sync();
    }
    d.add(at(2 + (last - 1) % 2), static_cast<float>(f.c[last]));
    d.each([&](int row, int col, float x) { static_cast<float*>(f.out.p.at)[m * 1024 + row * 32 + col] = x; });
  }
};

template <class On, class Real> status run_neumann(const On& on, const neumann_functor<Real>& f) {
  return on.matrices(f.a.matrices(), f.a.area(), f, "neumann");
}
template <runs_on_stream On> status run_neumann(const On& on, const neumann_functor<float>& f) {
  if (!fits_block_series(f.a, f.out, f.c)) return on.matrices(f.a.matrices(), f.a.area(), f, "neumann");
  return on.blocks(f.a.matrices(), smem_matrix::threads, block_neumanns{f}, "neumann");
}
template <class On, class Real> status run_neumann_backward(const On& on, const neumann_grads<Real>& f) {
  return on.matrices(f.a.matrices(), f.a.area(), f, "neumann_grad");
}
template <runs_on_stream On> status run_neumann_backward(const On& on, const neumann_grads<float>& f) {
  if (!fits_block_series(f.a, f.out, f.c) || f.t.p.type != dtype::f32)
    return on.matrices(f.a.matrices(), f.a.area(), f, "neumann_grad");
  return on.blocks(f.a.matrices(), smem_matrix::threads, block_neumann_grads{f}, "neumann_grad");
}

}  // namespace graft::gpu
