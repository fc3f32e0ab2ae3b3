// SPDX-License-Identifier: Apache-2.0
// Inverses as in algebra.cuh, of matrices up to 32 x 32 (the blocks of OFT and BOFT): a warp has a matrix, a lane a row of it
// in registers. Gauss-Jordan in place in double, with partial pivoting: rows stay where they are, and a row is the pivot of
// one column. That row is read by all lanes from memory of the processor.
// Row p(k) in the end has row k of the inverse, and its entry j belongs to column p(j).
#pragma once
#include <graft/backend/cuda/algebra.cuh>
#include <graft/backend/cuda/each.cuh>

namespace graft::cuda {

struct near_inverses {
  static constexpr int side = 32;
  inverses<float> f;

  // The lane with the largest number, the first of equal ones.
  __device__ static int largest(double v, int lane) {
    int at = lane;
#pragma unroll
    for (int k = side / 2; k > 0; k /= 2) {
      const double other = __shfl_xor_sync(0xffffffffU, v, k);
      const int from = __shfl_xor_sync(0xffffffffU, at, k);
      if (other > v || (other == v && from < at)) v = other, at = from;
    }
    return at;
  }
  template <class Team> __device__ void operator()(long long m, Team t) const {
    double(*const pivots)[side] = reinterpret_cast<double(*)[side]>(t.template near_memory<2 * side>());
    const int n = static_cast<int>(f.a.d[3]), lane = t.rank;
    const long long at = m * n * n;
    double x[side];
#pragma unroll
    for (int c = 0; c < side; ++c) x[c] = lane < n && c < n ? static_cast<double>(f.a.p[at + lane * n + c]) : 0.0;
    int mine = -1, rows[side];  // the column whose pivot this row is; the row of each
#pragma unroll
    for (int k = 0; k < side; ++k) {
      if (k >= n) break;
      const int p = rows[k] = largest(mine < 0 && lane < n ? std::fabs(x[k]) : -1.0, lane);
      double* const row = pivots[k % 2];
      if (lane == p) {
        mine = k;
#pragma unroll
        for (int c = 0; c < side; ++c) row[c] = x[c];
      }
      __syncwarp();
      const double scale = 1 / row[k], factor = lane == p ? 0.0 : x[k] * scale;
#pragma unroll
      for (int c = 0; c < side; ++c)
        if (c != k) x[c] = lane == p ? x[c] * scale : x[c] - factor * row[c];
      x[k] = lane == p ? scale : -factor;
    }
#pragma unroll
    for (int c = 0; c < side; ++c)
      if (c < n && mine >= 0) f.out.p.put(at + mine * n + rows[c], static_cast<float>(x[c]));
  }
};

template <class On, class Real> status invert(const On& on, const inverses<Real>& f, const char* name) {
  return on.matrices(f.a.matrices(), f.a.area(), f, name);
}
template <streams On> status invert(const On& on, const inverses<float>& f, const char* name) {
  if (f.a.d[3] > near_inverses::side) return on.matrices(f.a.matrices(), f.a.area(), f, name);
  return on.blocks(f.a.matrices(), near_inverses::side, near_inverses{f}, name);
}

}  // namespace graft::cuda
