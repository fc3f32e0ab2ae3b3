// SPDX-License-Identifier: Apache-2.0
// Rows by their number, elements by their place, and the adjoints of both, which add to what is there. One owner for each
// element that is added to, and a fixed order: no atomics.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/eights.cuh>
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
// Whole rows, eight columns at once.
struct gathered_by_eights {
  gathered<float> f;
  unsigned pieces;  // of a row

  static bool fits(const gathered<float>& f) {
    return !f.by_column && f.out.d[3] % 8 == 0 && f.out.count() < 1LL << 32 && by_sixteen_bytes(f.out.p) &&
           by_sixteen_bytes(f.w.p);
  }
  __device__ void operator()(long long i) const {
    const auto at = static_cast<unsigned>(i), token = at / pieces, first = (at - token * pieces) * 8;
    const long long row = f.ids[token] - f.part.first;
    const float outside = f.part.is ? 0.0F : static_cast<float>(nan(""));
    float v[8] = {outside, outside, outside, outside, outside, outside, outside, outside};
    if (row >= 0 && row < f.w.d[2]) load_eight(v, f.w.p, row * f.out.d[3] + first);
    store_eight(v, f.out.p, 8 * i);
  }
};
template <class On, class Real> status gather(const On& on, const gathered<Real>& f) {
  return on.elements(f.out.area(), f, "gather");
}
template <streams On> status gather(const On& on, const gathered<float>& f) {
  if (!gathered_by_eights::fits(f)) return on.elements(f.out.area(), f, "gather");
  return on.elements(f.out.area() / 8, gathered_by_eights{f, static_cast<unsigned>(f.out.d[3] / 8)}, "gather");
}
// The position of the lowest bit that is set.
__host__ __device__ inline int lowest_bit(unsigned bits) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(bits)) - 1;  // the host's builtin behind std::countr_zero is none of the device's
#else
  return std::countr_zero(bits);
#endif
}
// The tokens of one id are a chain in their order, which its first one begins. A team per token looks for its neighbours:
// links[t] is the next token with the same id, or their number; -1 - that where an earlier one begins the chain. To look
// costs tokens² / 32 steps of warps at the most, less than the rows of any table that has some columns; a radix sort by CUB
// would need tokens alone, and eight seconds in every file that nvcc compiles.
struct linked_ids {
  const std::int64_t* ids;
  long long tokens;
  int* links;
  template <class Team> __host__ __device__ bool any_before(long long own, Team t) const {
    for (long long end = own; end > 0; end -= t.size) {
      const long long at = end - 1 - t.rank;
      if (t.votes(at >= 0 && ids[at >= 0 ? at : 0] == ids[own]) != 0) return true;
    }
    return false;
  }
  template <class Team> __host__ __device__ void operator()(long long own, Team t) const {
    long long next = tokens;
    for (long long first = own + 1; first < tokens && next == tokens; first += t.size) {
      const long long at = first + t.rank;
      if (const auto found = t.votes(at < tokens && ids[at < tokens ? at : own] == ids[own]); found != 0)
        next = first + lowest_bit(found);
    }
    const bool begins = !any_before(own, t);
    if (t.leads()) links[own] = static_cast<int>(begins ? next : -1 - next);
  }
};
// A team per token and stretch of columns: the first token of a chain adds up the rows of all, in their order.
template <class Real> struct scattered {
  tensor<Real> w, rows;
  const std::int64_t* ids;
  const int* links;
  bool by_column;
  static constexpr long long stretch = 256;
  static long long needs(const tensor<Real>& rows) { return rows.d[2]; }  // an int is no larger than a Real
  __host__ __device__ long long stretches() const { return (rows.d[3] + stretch - 1) / stretch; }
  template <class Team> __host__ __device__ void operator()(long long i, Team team) const {
    const long long tokens = rows.d[2], n = rows.d[3], first = i / stretches(), from = i % stretches() * stretch;
    const long long own = ids[first], end = from + stretch < n ? from + stretch : n;
    if (links[first] < 0 || own < 0 || own >= (by_column ? w.d[3] : w.d[2])) return;
    constexpr int at_once = 8;
    for (long long begin = from + team.rank; begin < end; begin += at_once * team.size) {
      Real sum[at_once] = {};
      for (long long t = first; t < tokens; t = links[t] < 0 ? -1 - links[t] : links[t])
        for (int k = 0; k < at_once; ++k)
          if (const long long c = begin + k * team.size; c < end) sum[k] += rows.p[t * n + c];
      for (int k = 0; k < at_once; ++k)
        if (const long long c = begin + k * team.size; c < end)
          w.p.add(by_column ? c * w.d[3] + own : own * n + c, sum[k]);
    }
  }
};
template <class On, class Real> status scatter(const On& on, const scattered<Real>& f, int* links) {
  const long long tokens = f.rows.d[2];
  if (status s = on.rows(tokens, linked_ids{f.ids, tokens, links}, "scatter"); !s) return s;
  return on.rows(tokens * f.stretches(), f, "scatter");
}

// A team per row of the result: together they look through the rows of the index, and each adds the entries of its own
// columns in the order of the index. An entry given twice is thus added in a fixed order by one thread, whatever the
// order of the index, and nothing has to be sorted: looking costs rows * entries / 32 steps of a warp, less than a
// comparison of all entries as soon as there are fewer rows than entries.
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
