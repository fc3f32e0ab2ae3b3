// SPDX-License-Identifier: Apache-2.0
// Small dense algebra, one team of threads per matrix: inverses and PEFT's truncated Cayley series, in double whatever
// the layer's type, as on the CPU; and Kronecker products, element by element. The matrices in double lie in scratch
// memory of the caller: as many elements of Real as needs() says, beginning at a multiple of 8 bytes.
#pragma once
#include <graft/backend/cuda/tensor.cuh>

#include <cmath>

namespace graft::cuda {

template <class Real> constexpr long long as_reals(long long doubles) {
  return doubles * static_cast<long long>(sizeof(double) / sizeof(Real));
}

// Gauss-Jordan in place with partial pivoting; a column of pivot rows follows the matrix.
template <class Real> struct inverses {
  tensor<Real> out, a;
  double* scratch;

  static long long needs(const tensor<Real>& a) { return as_reals<Real>(a.matrices() * (a.area() + a.d[3])); }

  template <class Team> __host__ __device__ void operator()(long long m, Team t) const {
    const long long b = a.d[3], area = b * b;
    double *const x = scratch + m * (area + b), *const pivots = x + area;
    for (long long e = t.rank; e < area; e += t.size) x[e] = static_cast<double>(a.p[m * area + e]);
    t.sync();
    for (long long k = 0; k < b; ++k) {
      const long long p = pivot(x, k, t);
      if (t.leads()) pivots[k] = static_cast<double>(p);
      for (long long c = t.rank; c < b && p != k; c += t.size) swap_places(x[k * b + c], x[p * b + c]);
      t.sync();
      const double scale = 1 / x[k * b + k];
      for (long long c = t.rank; c < b; c += t.size)
        if (c != k) x[k * b + c] *= scale;
      t.sync();
      for (long long e = t.rank; e < area; e += t.size) {
        const long long r = e / b, c = e % b;
        if (r != k && c != k) x[e] -= x[r * b + k] * x[k * b + c];
      }
      t.sync();
      for (long long r = t.rank; r < b; r += t.size) x[r * b + k] = r == k ? scale : -x[r * b + k] * scale;
      t.sync();
    }
    // Rows were exchanged on the way in: columns are exchanged back, last one first. A thread has rows of its own.
    for (long long r = t.rank; r < b; r += t.size)
      for (long long k = b; k-- > 0;) swap_places(x[r * b + k], x[r * b + static_cast<long long>(pivots[k])]);
    t.sync();
    for (long long e = t.rank; e < area; e += t.size) out.p.put(m * area + e, static_cast<Real>(x[e]));
  }
  template <class Team> __host__ __device__ long long pivot(const double* x, long long k, Team t) const {
    const long long b = a.d[3];
    double most = -1;
    long long at = k;
    for (long long r = k + t.rank; r < b; r += t.size)
      if (const double v = std::fabs(x[r * b + k]); v > most) most = v, at = r;
    return t.largest(most, at);
  }
  __host__ __device__ static void swap_places(double& p, double& q) {
    const double held = p;
    p = q, q = held;
  }
};

// Coefficients of I + 2Q + 2Q² + … + Q^(K-1); PEFT's K = 3 is its K = 4, and K = 2 is I + 2Q.
struct neumann_series {
  long long count;
  explicit neumann_series(long long terms) : count(terms <= 1 ? 1 : terms == 3 ? 4 : terms) {}
  __host__ __device__ double operator[](long long k) const { return k == 0 || (k == count - 1 && count > 2) ? 1 : 2; }
};
// One step of Horner's scheme: to = c I + Q r.
template <class Real, class Team>
__host__ __device__ void horner(double* to, double c, const cells<Real>& q, const double* r, long long b, Team t) {
  for (long long e = t.rank; e < b * b; e += t.size) {
    const long long row = e / b, col = e % b;
    double sum = row == col ? c : 0;
    for (long long k = 0; k < b; ++k) sum += static_cast<double>(q[row * b + k]) * r[k * b + col];
    to[e] = sum;
  }
  t.sync();
}
template <class Team> __host__ __device__ void scaled_identity(double* to, double c, long long b, Team t) {
  for (long long e = t.rank; e < b * b; e += t.size) to[e] = e / b == e % b ? c : 0;
  t.sync();
}

template <class Real> struct neumanns {
  tensor<Real> out, a;
  neumann_series c;
  double* scratch;

  static long long needs(const tensor<Real>& a) { return as_reals<Real>(2 * a.count()); }

  template <class Team> __host__ __device__ void operator()(long long m, Team t) const {
    const long long b = a.d[3], area = b * b;
    double* const buffers[2] = {scratch + 2 * m * area, scratch + (2 * m + 1) * area};
    scaled_identity(buffers[(c.count - 1) % 2], c[c.count - 1], b, t);
    for (long long k = c.count - 1; k-- > 0;) horner(buffers[k % 2], c[k], a.p + m * area, buffers[(k + 1) % 2], b, t);
    for (long long e = t.rank; e < area; e += t.size) out.p.put(m * area + e, static_cast<Real>(buffers[0][e]));
  }
};
// The adjoint of Horner's scheme: with R_k = c_k I + Q R_{k+1}, dQ = Σ_k G_k R_{k+1}ᵀ and G_{k+1} = Qᵀ G_k. The scratch
// memory holds R_1 … R_{K-1}, then G of even and of odd steps, then dQ.
template <class Real> struct neumann_grads {
  tensor<Real> out, a, t;
  neumann_series c;
  double* scratch;

  static long long needs(const tensor<Real>& a, neumann_series c) { return as_reals<Real>((c.count + 2) * a.count()); }

  template <class Team> __host__ __device__ void operator()(long long m, Team team) const {
    const long long b = a.d[3], area = b * b, last = c.count - 1;
    const cells<Real> q = a.p + m * area;
    double *const r = scratch + (c.count + 2) * m * area, *const g = r + last * area, *const d = g + 2 * area;
    for (long long e = team.rank; e < area; e += team.size) d[e] = 0, g[e] = static_cast<double>(t.p[m * area + e]);
    team.sync();
    if (last > 0) scaled_identity(r + (last - 1) * area, c[last], b, team);
    for (long long k = last; k-- > 1;) horner(r + (k - 1) * area, c[k], q, r + k * area, b, team);
    for (long long k = 0; k < last; ++k) {
      const double *const now = g + k % 2 * area, *const next_r = r + k * area;
      double* const next = g + (k + 1) % 2 * area;
      for (long long e = team.rank; e < area; e += team.size) {
        const long long row = e / b, col = e % b;
        double sum = 0, turned = 0;
        for (long long l = 0; l < b; ++l) {
          sum += now[row * b + l] * next_r[col * b + l];
          turned += static_cast<double>(q[l * b + row]) * now[l * b + col];
        }
        d[e] += sum;
        next[e] = turned;
      }
      team.sync();
    }
    for (long long e = team.rank; e < area; e += team.size) out.p.put(m * area + e, static_cast<Real>(d[e]));
  }
};

template <class Real> struct kronecker {
  tensor<Real> out, a, b;
  __host__ __device__ void operator()(long long i) const {
    const long long r = i / out.d[3], c = i % out.d[3];
    out.p.put(i, a.p[r / b.d[2] * a.d[3] + c / b.d[3]] * b.p[r % b.d[2] * b.d[3] + c % b.d[3]]);
  }
};
template <class Real> struct row_kronecker {
  tensor<Real> out, a, b;
  __host__ __device__ void operator()(long long i) const {
    const long long width = a.d[3] * b.d[3], r = i / width, c = i % width;
    out.p.put(i, a.p[r * a.d[3] + c / b.d[3]] * b.p[r * b.d[3] + c % b.d[3]]);
  }
};

}  // namespace graft::cuda
