// SPDX-License-Identifier: Apache-2.0
// Inverse of matrices up to 32 x 32 (the blocks of OFT and BOFT), out = a⁻¹, a [matrices, n, n]: one warp per matrix,
// one row per lane in registers. `inverses` in dense.cuh handles other sizes.
//
// Gauss-Jordan in place in double with partial pivoting. Rows are not exchanged; each row is the pivot of one column k,
// and is broadcast through shared memory. At the end, row p(k) holds row k of the inverse, and its entry j belongs to
// column p(j).
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/linalg/dense.cuh>

namespace graft::gpu {

struct warp_inverses {
  static constexpr int size = 32;
  inverses<float> f;

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

template <class On, class Real> status invert(const On& on, const inverses<Real>& f, const char* name) {
  return on.matrices(f.a.matrices(), f.a.area(), f, name);
}
template <runs_on_stream On> status invert(const On& on, const inverses<float>& f, const char* name) {
  if (f.a.d[3] > warp_inverses::size) return on.matrices(f.a.matrices(), f.a.area(), f, name);
  return on.blocks(f.a.matrices(), warp_inverses::size, warp_inverses{f}, name);
}

}  // namespace graft::gpu
