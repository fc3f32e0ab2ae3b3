// SPDX-License-Identifier: Apache-2.0
// Rows by their number, elements by their place, and the adjoints of both, which add to what is there. One owner for each
// element that is added to, and a fixed order: no atomics.
#pragma once
#include <graft/backend/cuda/tensor.cuh>

#include <bit>

namespace graft::cuda {

template <class Real> struct gathered {
  tensor<Real> out, w;
  const std::int64_t* ids;
  bool by_column;
  table_part part{};
  __host__ __device__ void operator()(long long i) const {
    const long long c = i % out.d[3], row = ids[i / out.d[3]] - part.first, rows = by_column ? w.d[3] : w.d[2];
    // The host cannot look at the ids without waiting for them: one outside the table gives no number.
    const bool inside = row >= 0 && row < rows;
    const Real outside = part.is ? Real(0) : static_cast<Real>(nan(""));
    out.p.put(i, inside ? w.p[by_column ? c * w.d[3] + row : row * out.d[3] + c] : outside);
  }
};
// A team per row (or column) of the table: it walks all ids and adds the rows that are its own, in their order.
template <class Real> struct scattered {
  tensor<Real> w, rows;
  const std::int64_t* ids;
  bool by_column;
  template <class Team> __host__ __device__ void operator()(long long own, Team team) const {
    const long long n = rows.d[3];
    for (long long t = 0; t < rows.d[2]; ++t) {
      if (ids[t] != own) continue;
      for (long long c = team.rank; c < n; c += team.size)
        w.p.add(by_column ? c * w.d[3] + own : own * n + c, rows.p[t * n + c]);
    }
  }
};

// A team per row of the result: together they look through the rows of the index, and each adds the entries of its own
// columns in the order of the index. An entry given twice is thus added in a fixed order by one thread, whatever the
// order of the index, and nothing has to be sorted: looking costs rows * entries / 32 steps of a warp, less than a
// comparison of all entries as soon as there are fewer rows than entries.
// The position of the lowest bit that is set.
__host__ __device__ inline int lowest_bit(unsigned bits) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(bits)) - 1;  // the host's builtin behind std::countr_zero is none of the device's
#else
  return std::countr_zero(bits);
#endif
}
template <class Real> struct placed {
  tensor<Real> out, a;
  const std::int64_t* index;  // [2, entries]: rows, then columns
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long entries = a.d[2];
    for (long long first = 0; first < entries; first += t.size) {
      const long long mine = first + t.rank;
      for (auto found = t.votes(mine < entries && index[mine] == row); found != 0; found &= found - 1) {
        const long long e = first + lowest_bit(found), col = index[entries + e];
        if (col >= 0 && col < out.d[3] && col % t.size == t.rank) out.p.add(row * out.d[3] + col, a.p[e]);
      }
    }
  }
};
template <class Real> struct picked {
  tensor<Real> out, a;
  const std::int64_t* index;
  __host__ __device__ void operator()(long long i) const {
    const long long row = index[i], col = index[out.d[2] + i];
    const bool inside = row >= 0 && row < a.d[2] && col >= 0 && col < a.d[3];
    out.p.put(i, inside ? a.p[row * a.d[3] + col] : static_cast<Real>(nan("")));
  }
};

}  // namespace graft::cuda
