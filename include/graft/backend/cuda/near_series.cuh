// SPDX-License-Identifier: Apache-2.0
// The truncated Cayley series and its gradient, as in algebra.cuh, for blocks of 32 x 32, OFT's size unless told otherwise:
// all matrices lie in memory of the processor, in float, and a thread makes 2 x 2 entries of every product.
#pragma once
#include <graft/backend/cuda/algebra.cuh>
#include <graft/backend/cuda/each.cuh>

namespace graft::cuda {

// A matrix of 32 x 32; its rows are so far apart that neighbours in a column lie in different banks.
struct near_matrix {
  static constexpr int side = 32, pitch = 36, size = side * pitch, threads = 256;
  float* p;
  __device__ float& operator()(int row, int col) const { return p[row * pitch + col]; }
  __device__ float4 four(int row, int col) const { return *reinterpret_cast<const float4*>(p + row * pitch + col); }
};
// What a thread has of a matrix: rows `row` and `row` + 16 of columns `col` and `col` + 16.
struct near_entries {
  int row, col;
  float v[2][2] = {};

  __device__ explicit near_entries(int thread, float diagonal = 0) : row(thread / 16), col(thread % 16) {
    for (int i = 0; i < 2; ++i) v[i][i] = row == col ? diagonal : 0;
  }
  template <class F> __device__ void each(const F& f) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) f(row + 16 * i, col + 16 * j, v[i][j]);
  }
  __device__ void add(const near_matrix& a, float times) {
    each([&](int r, int c, float& x) { x += times * a(r, c); });
  }
  __device__ void put(const near_matrix& to) {
    each([&](int r, int c, float x) { to(r, c) = x; });
  }
  // + left right, or left rightᵀ.
  template <bool Across> __device__ void add_product(const near_matrix& left, const near_matrix& right) {
#pragma unroll
    for (int l = 0; l < near_matrix::side; l += 4) {
      const float4 a[2] = {left.four(row, l), left.four(row + 16, l)};
      float b[4][2];
      if constexpr (Across) {
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
inline constexpr long long near_terms = 5;  // of a series, at the most; and at least 3
inline bool is_near_series(const tensor<float>& a, const tensor<float>& out, const neumann_series& c) {
  return a.d[2] == near_matrix::side && a.d[3] == near_matrix::side && a.p.type == dtype::f32 &&
         out.p.type == dtype::f32 && c.count >= 3 && c.count <= near_terms;
}
template <int Count, class Team> __device__ near_matrix near_memory_of(Team t) {
  return {reinterpret_cast<float*>(t.template near_memory<(Count * near_matrix::size + 1) / 2>())};
}

// Horner's scheme; its first step, Q times a multiple of I, is no product.
struct near_neumanns {
  neumanns<float> f;
  template <class Team> __device__ void operator()(long long m, Team t) const {
    const near_matrix q = near_memory_of<3>(t);
    const near_matrix r[2] = {{q.p + near_matrix::size}, {q.p + 2 * near_matrix::size}};
    const auto* const from = static_cast<const float*>(f.a.p.at) + m * 1024;
    for (int e = t.rank; e < 1024; e += t.size) q(e / 32, e % 32) = from[e];
    t.sync();
    const auto last = static_cast<int>(f.c.count) - 1;
    for (int k = last - 1; k >= 0; --k) {
      near_entries now(t.rank, static_cast<float>(f.c[k]));
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
struct near_neumann_grads {
  neumann_grads<float> f;
  template <class Team> __device__ void operator()(long long m, Team t) const {
    constexpr int others = 4;  // Q, Qᵀ, G of even and of odd steps
    const near_matrix q = near_memory_of<others + near_terms - 2>(t);
    const auto at = [&](int k) { return near_matrix{q.p + k * near_matrix::size}; };
    const near_matrix across = at(1);
    const auto *const a = static_cast<const float*>(f.a.p.at) + m * 1024, *const up =
                                                                              static_cast<const float*>(f.t.p.at) +
                                                                              m * 1024;
    for (int e = t.rank; e < 1024; e += t.size)
      q(e / 32, e % 32) = across(e % 32, e / 32) = a[e], at(2)(e / 32, e % 32) = up[e];
    t.sync();
    const auto last = static_cast<int>(f.c.count) - 1;
    const auto r = [&](int k) { return at(others + k - 1); };  // R_1 … R_{last - 1}
    for (int k = last - 1; k > 0; --k) {
      near_entries now(t.rank, static_cast<float>(f.c[k]));
      if (k == last - 1)
        now.add(q, static_cast<float>(f.c[last]));
      else
        now.add_product<false>(q, r(k + 1));
      now.put(r(k)), t.sync();
    }
    near_entries d(t.rank);
    for (int k = 0; k + 1 < last; ++k) {
      d.add_product<true>(at(2 + k % 2), r(k + 1));
      near_entries next(t.rank);
      next.add_product<false>(across, at(2 + k % 2));
      next.put(at(2 + (k + 1) % 2)), t.sync();
    }
    d.add(at(2 + (last - 1) % 2), static_cast<float>(f.c[last]));
    d.each([&](int row, int col, float x) { static_cast<float*>(f.out.p.at)[m * 1024 + row * 32 + col] = x; });
  }
};

template <class On, class Real> status sum_series(const On& on, const neumanns<Real>& f) {
  return on.matrices(f.a.matrices(), f.a.area(), f, "neumann");
}
template <streams On> status sum_series(const On& on, const neumanns<float>& f) {
  if (!is_near_series(f.a, f.out, f.c)) return on.matrices(f.a.matrices(), f.a.area(), f, "neumann");
  return on.blocks(f.a.matrices(), near_matrix::threads, near_neumanns{f}, "neumann");
}
template <class On, class Real> status sum_series_back(const On& on, const neumann_grads<Real>& f) {
  return on.matrices(f.a.matrices(), f.a.area(), f, "neumann_grad");
}
template <streams On> status sum_series_back(const On& on, const neumann_grads<float>& f) {
  if (!is_near_series(f.a, f.out, f.c) || f.t.p.type != dtype::f32)
    return on.matrices(f.a.matrices(), f.a.area(), f, "neumann_grad");
  return on.blocks(f.a.matrices(), near_matrix::threads, near_neumann_grads{f}, "neumann_grad");
}

}  // namespace graft::cuda
