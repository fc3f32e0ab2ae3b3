// SPDX-License-Identifier: Apache-2.0
// Gather and scatter: embedding lookups by token id, elements of a matrix by their indices, and the adjoints of both,
// which add to their output (embedding gradients). Deterministic: every element has one owner that adds in a fixed
// order, and there are no atomics.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/tensor.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>

#include <bit>

namespace graft::gpu {

template <class Real> struct gather_functor {
  tensor<Real> out, w;
  const std::int64_t* ids;
  bool by_column;
  table_shard shard{};
  __host__ __device__ void operator()(long long i) const {
    const long long c = i % out.d[3], row = ids[i / out.d[3]] - shard.first, rows = by_column ? w.d[3] : w.d[2];
    // The host cannot check ids without synchronizing, so an id outside the table yields NaN.
    const bool inside = row >= 0 && row < rows;
    const Real outside = shard.is ? Real(0) : static_cast<Real>(nan(""));
    out.p.put(i, inside ? w.p[by_column ? c * w.d[3] + row : row * out.d[3] + c] : outside);
  }
};
// The gather of whole rows with 16-byte accesses, eight columns per thread.
struct gather_vec8 {
  gather_functor<float> f;
  unsigned vectors;  // per row

  static bool fits(const gather_functor<float>& f) {
    return !f.by_column && f.out.d[3] % 8 == 0 && f.out.count() < 1LL << 32 && is_aligned16(f.out.p) &&
           is_aligned16(f.w.p);
  }
  __device__ void operator()(long long i) const {
    const auto at = static_cast<unsigned>(i), token = at / vectors, first = (at - token * vectors) * 8;
    const long long row = f.ids[token] - f.shard.first;
    const float outside = f.shard.is ? 0.0F : static_cast<float>(nan(""));
    float v[8] = {outside, outside, outside, outside, outside, outside, outside, outside};
    if (row >= 0 && row < f.w.d[2]) load_vec8(v, f.w.p, row * f.out.d[3] + first);
    store_vec8(v, f.out.p, 8 * i);
  }
};
template <class On, class Real> status gather(const On& on, const gather_functor<Real>& f) {
  return on.elements(f.out.area(), f, "gather");
}
template <runs_on_stream On> status gather(const On& on, const gather_functor<float>& f) {
  if (!gather_vec8::fits(f)) return on.elements(f.out.area(), f, "gather");
  return on.elements(f.out.area() / 8, gather_vec8{f, static_cast<unsigned>(f.out.d[3] / 8)}, "gather");
}
// The position of the lowest set bit.
__host__ __device__ inline int lowest_bit(unsigned bits) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(bits)) - 1;  // std::countr_zero calls a host builtin
#else
  return std::countr_zero(bits);
#endif
}
// Links the tokens that have the same id into chains in token order. links[t] is the next token with the id of t, or
// the number of tokens at the end of a chain; it is stored as -1 - next for every token that does not begin its chain.
// One team (a warp) per token compares it with its neighbors, tokens² / 32 warp steps at most. The links are our own
// although a stable cub::DeviceRadixSort of (id, token) takes fewer steps: a plan states the kernels and the scratch
// memory of every node while it compiles, without a device (dispatch/targets.h), and the sort has one to six kernels,
// by the number of tokens, and asks the device for the size of its storage. cub::BlockRadixSort is one kernel, but
// sorts no more than the registers of a block hold.
struct equal_id_links {
  const std::int64_t* ids;
  long long tokens;
  int* links;
  template <class Team> __host__ __device__ bool any_before(long long own, Team t) const {
    for (long long end = own; end > 0; end -= t.size) {
      const long long at = end - 1 - t.rank;
      if (t.ballot(at >= 0 && ids[at >= 0 ? at : 0] == ids[own]) != 0) return true;
    }
    return false;
  }
  template <class Team> __host__ __device__ void operator()(long long own, Team t) const {
    long long next = tokens;
    for (long long first = own + 1; first < tokens && next == tokens; first += t.size) {
      const long long at = first + t.rank;
      if (const auto found = t.ballot(at < tokens && ids[at < tokens ? at : own] == ids[own]); found != 0)
        next = first + lowest_bit(found);
    }
    const bool begins = !any_before(own, t);
    if (t.is_leader()) links[own] = static_cast<int>(begins ? next : -1 - next);
  }
};
// One team per token and chunk of columns: the first token of a chain adds the rows of the whole chain in token order.
template <class Real> struct scatter_add {
  tensor<Real> w, rows;
  const std::int64_t* ids;
  const int* links;
  bool by_column;
  static constexpr long long chunk = 256;
  static long long needs(const tensor<Real>& rows) { return rows.d[2]; }  // an int is no larger than a Real
  __host__ __device__ long long chunks() const { return (rows.d[3] + chunk - 1) / chunk; }
  template <class Team> __host__ __device__ void operator()(long long i, Team team) const {
    const long long tokens = rows.d[2], n = rows.d[3], first = i / chunks(), from = i % chunks() * chunk;
    const long long own = ids[first], end = from + chunk < n ? from + chunk : n;
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
template <class On, class Real> status scatter(const On& on, const scatter_add<Real>& f, int* links) {
  const long long tokens = f.rows.d[2];
  if (status s = on.rows(tokens, equal_id_links{f.ids, tokens, links}, "scatter"); !s) return s;
  return on.rows(tokens * f.chunks(), f, "scatter");
}

// Adds entries to a matrix at indexed elements. One team per row of the result scans the row indices together, and each
// thread adds the entries of its own columns in index order, so duplicates are added in a fixed order and nothing is
// sorted. The scan takes rows · entries / 32 warp steps.
template <class Real> struct scatter_elements {
  tensor<Real> out, a;
  const std::int64_t* index;  // [2, entries]: rows, then columns
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long entries = a.d[2];
    for (long long first = 0; first < entries; first += t.size) {
      const long long mine = first + t.rank;
      for (auto found = t.ballot(mine < entries && index[mine] == row); found != 0; found &= found - 1) {
        const long long e = first + lowest_bit(found), col = index[entries + e];
        if (col >= 0 && col < out.d[3] && col % t.size == t.rank) out.p.add(row * out.d[3] + col, a.p[e]);
      }
    }
  }
};
template <class Real> struct gather_elements {
  tensor<Real> out, a;
  const std::int64_t* index;
  __host__ __device__ void operator()(long long i) const {
    const long long row = index[i], col = index[out.d[2] + i];
    const bool inside = row >= 0 && row < a.d[2] && col >= 0 && col < a.d[3];
    out.p.put(i, inside ? a.p[row * a.d[3] + col] : static_cast<Real>(nan("")));
  }
};

}  // namespace graft::gpu
