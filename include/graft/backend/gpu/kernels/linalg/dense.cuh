// SPDX-License-Identifier: Apache-2.0
// Inverses, orthonormal bases, the truncated Neumann series, and Kronecker products of many small matrices.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/tensor.cuh>

#include <cmath>

namespace graft::gpu {

// ---- By teams of any size

// Small dense linear algebra, one team of threads per matrix: inverses (Cayley transform), orthonormal bases (QR),
// PEFT's truncated Neumann series of the Cayley transform and its gradient, and Kronecker products, element by element.
//
// As on the CPU (backend/cpu/ops/algebra.h), these compute in double for every Real. Matrices in double are in shared
// memory if they are small, else in scratch memory of the caller: needs() elements of Real, aligned to 8 bytes.

template <class Real> constexpr long long as_reals(long long doubles) {
  return doubles * static_cast<long long>(sizeof(double) / sizeof(Real));
}

// out = a⁻¹ by Gauss-Jordan in place with partial pivoting; the pivot rows are stored after the matrix. Matrices of up
// to max_shared rows are in shared memory, because every column takes six dependent steps.
template <class Real> struct inverse_functor {
  static constexpr int max_shared = 64;
  tensor<Real> out, a;
  double* scratch;

  static long long needs(const tensor<Real>& a) { return as_reals<Real>(a.matrices() * (a.area() + a.d[3])); }

  template <class Team> __host__ __device__ void operator()(long long m, Team t) const {
    const auto b = static_cast<int>(a.d[3]), size = static_cast<int>(t.size),
               area = b * b;  // 32-bit divisions are faster
    const long long at = m * area;
    double* const in_shared = t.template team_shared_memory<max_shared*(max_shared + 1)>();
    double *const x = in_shared != nullptr && b <= max_shared ? in_shared : scratch + m * (area + b), *const pivots =
                                                                                                          x + area;
    for (int e = t.rank; e < area; e += size) x[e] = static_cast<double>(a.p[at + e]);
    t.sync();
    for (int k = 0; k < b; ++k) {
      const int p = pivot(x, k, t);
      if (t.is_leader()) pivots[k] = p;
      for (int c = t.rank; c < b && p != k; c += size) swap_entries(x[k * b + c], x[p * b + c]);
      t.sync();
      const double scale = 1 / x[k * b + k];
      for (int c = t.rank; c < b; c += size)
        if (c != k) x[k * b + c] *= scale;
      t.sync();
      for (int e = t.rank; e < area; e += size) {
        const int r = e / b, c = e - r * b;
        if (r != k && c != k) x[e] -= x[r * b + k] * x[k * b + c];
      }
      t.sync();
      for (int r = t.rank; r < b; r += size) x[r * b + k] = r == k ? scale : -x[r * b + k] * scale;
      t.sync();
    }
    // Row exchanges of the elimination are undone as column exchanges in reverse order; each thread works on its own
    // rows.
    for (int r = t.rank; r < b; r += size)
      for (int k = b; k-- > 0;) swap_entries(x[r * b + k], x[r * b + static_cast<int>(pivots[k])]);
    t.sync();
    for (int e = t.rank; e < area; e += size) out.p.put(at + e, static_cast<Real>(x[e]));
  }
  template <class Team> __host__ __device__ int pivot(const double* x, int k, Team t) const {
    const auto b = static_cast<int>(a.d[3]), size = static_cast<int>(t.size);
    double most = -1;
    int at = k;
    for (int r = k + t.rank; r < b; r += size)
      if (const double v = std::fabs(x[r * b + k]); v > most) most = v, at = r;
    return static_cast<int>(t.largest(most, at));
  }
  __host__ __device__ static void swap_entries(double& p, double& q) {
    const double held = p;
    p = q, q = held;
  }
};

// The factor Q of a = Q R, as on the CPU: a times the inverse of the Cholesky factor R of aᵀa, with the signs that
// LAPACK's Householder reflections give. Scratch memory: R, Q, the first n rows of Q during the elimination, and the
// signs.
template <class Real> struct orthonormals {
  tensor<Real> out, a;
  double* scratch;

  static constexpr long long held(long long rows, long long n) { return (rows + 2 * n + 1) * n; }
  static long long needs(const tensor<Real>& a) { return as_reals<Real>(a.matrices() * held(a.d[2], a.d[3])); }

  template <class Team> __host__ __device__ void operator()(long long m, Team t) const {
    const long long rows = a.d[2], n = a.d[3], area = n * n;
    double *const r = scratch + m * held(rows, n), *const q = r + area, *const left = q + rows * n,
                  *const sign = left + area;
    const element_ptr<Real> from = a.p + m * rows * n;
    for (long long e = t.rank; e < area; e += t.size) {
      const long long j = e / n, k = e % n;
      double sum = 0;
      for (long long i = 0; j <= k && i < rows; ++i)
        sum += static_cast<double>(from[i * n + j]) * static_cast<double>(from[i * n + k]);
      r[e] = sum;
    }
    t.sync();
    for (long long j = 0; j < n; ++j) {
      const double scale = 1 / std::sqrt(r[j * n + j]);
      t.sync();
      for (long long k = j + t.rank; k < n; k += t.size) r[j * n + k] *= scale;
      t.sync();
      for (long long e = t.rank; e < area; e += t.size)
        if (const long long i = e / n, k = e % n; i > j && k >= i) r[e] -= r[j * n + i] * r[j * n + k];
      t.sync();
    }
    for (long long i = t.rank; i < rows; i += t.size)  // each thread solves its own rows
      for (long long k = 0; k < n; ++k) {
        double sum = static_cast<double>(from[i * n + k]);
        for (long long j = 0; j < k; ++j) sum -= q[i * n + j] * r[j * n + k];
        q[i * n + k] = sum / r[k * n + k];
        if (i < n) left[i * n + k] = q[i * n + k];
      }
    t.sync();
    for (long long j = 0; j < n; ++j) {
      const double on_diagonal = left[j * n + j], s = (on_diagonal >= 0) == (rows == n && j + 1 == n) ? 1 : -1;
      if (t.is_leader()) sign[j] = s;
      for (long long e = t.rank; e < area; e += t.size)
        if (const long long i = e / n, k = e % n; i > j && k > j)
          left[e] -= left[i * n + j] * left[j * n + k] / (on_diagonal - s);
      t.sync();
    }
    for (long long e = t.rank; e < rows * n; e += t.size)
      out.p.put(m * rows * n + e, static_cast<Real>(sign[e % n] * q[e]));
  }
};

// Coefficients of the truncated series I + 2Q + 2Q² + … + Q^(K-1). As in PEFT, K = 3 gives K = 4's series, and K = 2
// gives I + 2Q.
struct neumann_series {
  long long count;
  explicit neumann_series(long long terms) : count(terms <= 1 ? 1 : terms == 3 ? 4 : terms) {}
  __host__ __device__ double operator[](long long k) const { return k == 0 || (k == count - 1 && count > 2) ? 1 : 2; }
};
// Computes the entries Σ_k left(row, k) right(k, col) of a b x b matrix and calls put(entry, sum). If the team's size
// allows it, a thread computes four entries of a column at a time and reads the right operand once for them. With
// `Staggered` each column starts its sum at another k, so that neighbors that read rows of the right operand access
// different banks.
template <bool Staggered = false, class Left, class Right, class Put, class Team>
__host__ __device__ void multiply_small(long long b, Team t, const Left& left, const Right& right, const Put& put) {
  constexpr int at_once = 4;
  const auto n = static_cast<int>(b), size = static_cast<int>(t.size);
  int e = t.rank;
  if (size % n == 0)
    for (; e + (at_once - 1) * size < n * n; e += at_once * size) {
      double sum[at_once] = {};
      const int row = e / n, col = e % n, down = size / n;
      for (int step = 0, k = Staggered ? col : 0; step < n; ++step, k = k + 1 == n ? 0 : k + 1) {
        const double v = right(k, col);
        for (int i = 0; i < at_once; ++i) sum[i] += left(row + i * down, k) * v;
      }
      for (int i = 0; i < at_once; ++i) put(e + i * size, sum[i]);
    }
  for (; e < n * n; e += size) {
    double sum = 0;
    for (int k = 0; k < n; ++k) sum += left(e / n, k) * right(k, e % n);
    put(e, sum);
  }
}
// A step of Horner's scheme: to = c I + Q r.
template <class Real, class Team>
__host__ __device__ void horner(double* to, double c, const element_ptr<Real>& q, const double* r, long long b,
                                Team t) {
  multiply_small(
      b, t, [&](int row, int k) { return static_cast<double>(q[row * b + k]); },
      [&](int k, int col) { return r[k * b + col]; },
      [&](int e, double sum) { to[e] = sum + (e / b == e % b ? c : 0); });
  t.sync();
}
template <class Team> __host__ __device__ void scaled_identity(double* to, double c, long long b, Team t) {
  for (long long e = t.rank; e < b * b; e += t.size) to[e] = e / b == e % b ? c : 0;
  t.sync();
}

// The truncated series of a, by Horner's scheme.
template <class Real> struct neumann_functor {
  static constexpr int max_shared = 32;  // largest number of rows for shared memory
  tensor<Real> out, a;
  neumann_series c;
  double* scratch;

  static long long needs(const tensor<Real>& a) { return as_reals<Real>(2 * a.count()); }

  template <class Team> __host__ __device__ void operator()(long long m, Team t) const {
    const long long b = a.d[3], area = b * b;
    double* const in_shared = t.template team_shared_memory<2 * max_shared * max_shared>();
    double* const at = in_shared != nullptr && b <= max_shared ? in_shared : scratch + 2 * m * area;
    double* const buffers[2] = {at, at + area};
    scaled_identity(buffers[(c.count - 1) % 2], c[c.count - 1], b, t);
    for (long long k = c.count - 1; k-- > 0;) horner(buffers[k % 2], c[k], a.p + m * area, buffers[(k + 1) % 2], b, t);
    for (long long e = t.rank; e < area; e += t.size) out.p.put(m * area + e, static_cast<Real>(buffers[0][e]));
  }
};
// The gradient of the series, the adjoint of Horner's scheme: with R_k = c_k I + Q R_{k+1} and G_0 = t, dQ = Σ_k G_k
// R_{k+1}ᵀ and G_{k+1} = Qᵀ G_k. Scratch memory: dQ, then R_1 … R_{K-1}, then G of even and of odd steps.
template <class Real> struct neumann_grads {
  static constexpr int max_shared = 6 * 32 * 32;  // doubles of R and G that fit shared memory
  tensor<Real> out, a, t;
  neumann_series c;
  double* scratch;

  static long long needs(const tensor<Real>& a, neumann_series c) { return as_reals<Real>((c.count + 2) * a.count()); }

  template <class Team> __host__ __device__ void operator()(long long m, Team team) const {
    const long long b = a.d[3], area = b * b, last = c.count - 1;
    const element_ptr<Real> q = a.p + m * area;
    double* const d = scratch + (c.count + 2) * m * area;
    double* const in_shared = team.template team_shared_memory<max_shared>();
    double *const r = in_shared != nullptr && (last + 2) * area <= max_shared ? in_shared : d + area, *const g =
                                                                                                          r +
                                                                                                          last * area;
    for (long long e = team.rank; e < area; e += team.size) d[e] = 0, g[e] = static_cast<double>(t.p[m * area + e]);
    team.sync();
    if (last > 0) scaled_identity(r + (last - 1) * area, c[last], b, team);
    for (long long k = last; k-- > 1;) horner(r + (k - 1) * area, c[k], q, r + k * area, b, team);
    for (long long k = 0; k < last; ++k) {
      const double *const now = g + k % 2 * area, *const next_r = r + k * area;
      double* const next = g + (k + 1) % 2 * area;
      multiply_small<true>(
          b, team, [&](int row, int l) { return now[row * b + l]; },
          [&](int l, int col) { return next_r[col * b + l]; }, [&](int e, double sum) { d[e] += sum; });
      multiply_small(
          b, team, [&](int row, int l) { return static_cast<double>(q[l * b + row]); },
          [&](int l, int col) { return now[l * b + col]; }, [&](int e, double sum) { next[e] = sum; });
      team.sync();
    }
    for (long long e = team.rank; e < area; e += team.size) out.p.put(m * area + e, static_cast<Real>(d[e]));
  }
};

// out = a ⊗ b.
template <class Real> struct kronecker {
  tensor<Real> out, a, b;
  __host__ __device__ void operator()(long long i) const {
    const long long r = i / out.d[3], c = i % out.d[3];
    out.p.put(i, a.p[r / b.d[2] * a.d[3] + c / b.d[3]] * b.p[r % b.d[2] * b.d[3] + c % b.d[3]]);
  }
};
// Khatri-Rao product by rows: row r of out is a[r] ⊗ b[r].
template <class Real> struct row_kronecker {
  tensor<Real> out, a, b;
  __host__ __device__ void operator()(long long i) const {
    const long long width = a.d[3] * b.d[3], r = i / width, c = i % width;
    out.p.put(i, a.p[r * a.d[3] + c / b.d[3]] * b.p[r * b.d[3] + c % b.d[3]]);
  }
};

// ---- By warps

// Inverse of matrices up to 32 x 32 (the blocks of OFT and BOFT), out = a⁻¹, a [matrices, n, n]: one warp per matrix,
// one row per lane in registers. `inverse_functor` above handles other sizes.
//
// Gauss-Jordan in place in double with partial pivoting. Rows are not exchanged; each row is the pivot of one column k,
// and is broadcast through shared memory. At the end, row p(k) holds row k of the inverse, and its entry j belongs to
// column p(j).

struct warp_inverses {
  static constexpr int size = 32;
  inverse_functor<float> f;

  // The lane with the largest value; among equal values the lowest lane.
  __device__ static int largest(double v, int lane) {
    int at = lane;
#pragma unroll
    for (int k = size / 2; k > 0; k /= 2) {
      const double other = __shfl_xor_sync(0xffffffffU, v, k);
      const int from = __shfl_xor_sync(0xffffffffU, at, k);
      if (other > v || (other == v && from < at)) v = other, at = from;
    }
    return at;
  }
  template <class Team> __device__ void operator()(long long m, Team t) const {
    double(*const pivots)[size] = reinterpret_cast<double(*)[size]>(t.template team_shared_memory<2 * size>());
    const int n = static_cast<int>(f.a.d[3]), lane = t.rank;
    const long long at = m * n * n;
    double x[size];
#pragma unroll
    for (int c = 0; c < size; ++c) x[c] = lane < n && c < n ? static_cast<double>(f.a.p[at + lane * n + c]) : 0.0;
    int mine = -1, rows[size];  // the column whose pivot is this lane's row; the pivot row of each column
#pragma unroll
    for (int k = 0; k < size; ++k) {
      if (k >= n) break;
      const int p = rows[k] = largest(mine < 0 && lane < n ? std::fabs(x[k]) : -1.0, lane);
      double* const row = pivots[k % 2];
      if (lane == p) {
        mine = k;
#pragma unroll
        for (int c = 0; c < size; ++c) row[c] = x[c];
      }
      __syncwarp();
      const double scale = 1 / row[k], factor = lane == p ? 0.0 : x[k] * scale;
#pragma unroll
      for (int c = 0; c < size; ++c)
        if (c != k) x[c] = lane == p ? x[c] * scale : x[c] - factor * row[c];
      x[k] = lane == p ? scale : -factor;
    }
#pragma unroll
    for (int c = 0; c < size; ++c)
      if (c < n && mine >= 0) f.out.p.put(at + mine * n + rows[c], static_cast<float>(x[c]));
  }
};

template <class On, class Real> status invert(const On& on, const inverse_functor<Real>& f, const char* name) {
  return on.matrices(f.a.matrices(), f.a.area(), f, name);
}
template <runs_on_stream On> status invert(const On& on, const inverse_functor<float>& f, const char* name) {
  if (f.a.d[3] > warp_inverses::size) return on.matrices(f.a.matrices(), f.a.area(), f, name);
  return on.blocks(f.a.matrices(), warp_inverses::size, warp_inverses{f}, name);
}

}  // namespace graft::gpu
