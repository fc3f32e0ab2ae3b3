// SPDX-License-Identifier: Apache-2.0
// Routing of a mixture of experts (top-k routing, gating): the table of sorted rows (graph/rules_experts.h), dispatch
// (the permutation of tokens into the order of the experts) and combine (unpermute: their sums per token).
//
// route        Two kernels. The first one chooses the experts of each token. The second one is a stable counting sort:
//              the CTA of an expert counts the (token, expert) pairs of smaller experts, and gives its own
//              pairs their rows in order. Neither needs a number of rows on the host, so a captured graph stays valid.
// Sums         Each element has one owner, which adds in the order of the table: deterministic, and no atomics.
//
// The sort is not cub::DeviceRadixSort: a plan states the kernels and the scratch memory of every node while it
// compiles, without a device, and that sort asks the device for both.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/rowwise/rowwise.cuh>
#include <graft/backend/gpu/tile/tensor.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>
#include <graft/graph/rules_experts.h>

namespace graft::gpu {

// The experts that a rank has; `end` is 0 where it has all of them.
struct expert_range {
  long long first = 0, end = 0;
  __host__ __device__ bool has(long long e) const { return end == 0 || (e >= first && e < end); }
};

// The routing of a call: whole numbers, which are exact in float below 2^24.
template <class Real> struct routing_table {
  element_ptr<Real> p;
  long long rows = 0;

  routing_table() = default;
  explicit routing_table(const tensor<Real>& t) : p(t.p), rows(t.d[2]) {}
  __host__ __device__ long long token(long long row) const { return static_cast<long long>(p[3 * row]); }
  __host__ __device__ long long expert(long long row) const { return static_cast<long long>(p[3 * row + 1]); }
  __host__ __device__ long long row_of(long long pair) const { return static_cast<long long>(p[3 * pair + 2]); }
  // The first sorted row of an expert.
  __host__ __device__ long long begin(long long e) const {
    long long first = 0, count = rows;
    while (count > 0) {
      const long long half = count / 2;
      const bool before = expert(first + half) < e;
      first = before ? first + half + 1 : first, count = before ? count - half - 1 : half;
    }
    return first;
  }
};

// ---- route

// One team per token: chosen[t * k + j] is the j-th of the k columns with the largest scores, in the order of columns.
// Of equal scores the first is taken, and NaN counts as the smallest score, as on the CPU.
template <class Real> struct chosen_experts {
  tensor<Real> scores;
  long long k;
  int* chosen;

  template <class Team> __host__ __device__ void operator()(long long token, Team t) const {
    const long long n = scores.d[3];
    const element_ptr<Real> z = scores.p + token * n;
    const largest_entries<Real> largest(z, n, k, t);
    long long taken = 0;
    for (long long first = 0; first < n; first += t.size) {
      const long long c = first + t.rank;
      const bool is_chosen = c < n && largest.contains(z[c], c);
      const unsigned all = t.ballot(is_chosen), before = all & ((1U << t.rank) - 1);
      if (is_chosen) chosen[token * k + taken + bits_of_word(before)] = static_cast<int>(c);
      taken += bits_of_word(all);
    }
  }

 private:
  __host__ __device__ static int bits_of_word(unsigned word) {
#if defined(__CUDA_ARCH__)
    return __popc(word);  // std::popcount calls a host builtin
#else
    return std::popcount(word);
#endif
  }
};
// One team per expert. A thread has a range of consecutive pairs, so that the order of pairs is that of the threads.
template <class Real> struct sorted_rows {
  tensor<Real> table;
  const int* chosen;
  long long k;

  template <class Team> __host__ __device__ void operator()(long long expert, Team t) const {
    const long long pairs = table.d[2], from = pairs * t.rank / t.size, to = pairs * (t.rank + 1) / t.size;
    int smaller = 0, own = 0;
    for (long long p = from; p < to; ++p) smaller += chosen[p] < expert ? 1 : 0, own += chosen[p] == expert ? 1 : 0;
    long long row = t.sum(smaller) + t.sum_of_lower_ranks(own);
    for (long long p = from; p < to; ++p) {
      if (chosen[p] != expert) continue;
      table.p.put(3 * row, static_cast<Real>(p / k)), table.p.put(3 * row + 1, static_cast<Real>(expert));
      table.p.put(3 * p + 2, static_cast<Real>(row)), ++row;
    }
  }
};
template <class On, class Real>
status route(const On& on, const tensor<Real>& table, const tensor<Real>& scores, long long k, int* chosen) {
  const long long tokens = scores.d[2];
  if (status s = on.rows(tokens, chosen_experts<Real>{scores, k, chosen}, "route"); !s) return s;
  return on.matrices(scores.d[3], table.d[2], sorted_rows<Real>{table, chosen, k}, "route");
}

// ---- dispatch and combine

template <class Real> struct dispatch_functor {
  tensor<Real> out, from;
  routing_table<Real> routing;
  routed_by by;
  expert_range mine;

  // Returns the source row in `from` of sorted row p; -1: the expert is on another rank, and the row is zero.
  __host__ __device__ long long source(long long p) const {
    const long long e = routing.expert(p);
    if (by == routed_by::both) return routing.token(p) * from.d[3] + e;
    if (!mine.has(e)) return -1;
    return by == routed_by::token ? routing.token(p) : by == routed_by::expert ? e - mine.first : p;
  }
  __host__ __device__ void operator()(long long i) const {
    const long long n = out.d[3], row = source(i / n);
    out.p.put(i, row < 0 ? Real(0) : from.p[row * n + i % n]);
  }
};
// dispatch_functor with 16-byte copies of eight columns.
struct dispatched_vec8 {
  dispatch_functor<float> f;
  long long vectors;  // per row

  static bool fits(const dispatch_functor<float>& f) {
    return f.by != routed_by::both && f.out.d[3] % 8 == 0 && is_aligned16(f.out.p) && is_aligned16(f.from.p);
  }
  __device__ void operator()(long long i) const {
    const long long p = i / vectors, first = (i - p * vectors) * 8, row = f.source(p);
    float v[8] = {};
    if (row >= 0) load_vec8(v, f.from.p, row * f.out.d[3] + first);
    store_vec8(v, f.out.p, 8 * i);
  }
};
template <class On, class Real> status dispatch_rows(const On& on, const dispatch_functor<Real>& f) {
  return on.elements(f.out.count(), f, "dispatch");
}
template <runs_on_stream On> status dispatch_rows(const On& on, const dispatch_functor<float>& f) {
  if (!dispatched_vec8::fits(f)) return on.elements(f.out.count(), f, "dispatch");
  return on.elements(f.out.count() / 8, dispatched_vec8{f, f.out.d[3] / 8}, "dispatch");
}

// The sum of the rows of a token, or by routed_by::both one element of [tokens, experts].
template <class Real> struct combined_by_token {
  tensor<Real> out, rows;
  routing_table<Real> routing;
  routed_by by;
  expert_range mine;

  __host__ __device__ void operator()(long long i) const {
    const long long n = out.d[3], token = i / n, column = i % n, each = routing.rows / out.d[2];
    Real sum = 0;
    for (long long j = 0; j < each; ++j) {
      const long long p = routing.row_of(token * each + j);
      if (by == routed_by::both) {
        if (const long long e = routing.expert(p); e == column && mine.has(e)) sum += rows.p[p];
      } else if (mine.end == 0 || mine.has(routing.expert(p))) {
        sum += rows.p[p * n + column];
      }
    }
    out.p.put(i, sum);
  }
};
struct combined_by_token_vec8 {
  combined_by_token<float> f;
  long long vectors;  // per row

  static bool fits(const combined_by_token<float>& f) {
    return f.by == routed_by::token && f.out.d[3] % 8 == 0 && is_aligned16(f.out.p) && is_aligned16(f.rows.p);
  }
  __device__ void operator()(long long i) const {
    const long long n = f.out.d[3], token = i / vectors, first = (i - token * vectors) * 8,
                    each = f.routing.rows / f.out.d[2];
    float sum[8] = {};
    for (long long j = 0; j < each; ++j) {
      const long long p = f.routing.row_of(token * each + j);
      if (f.mine.end != 0 && !f.mine.has(f.routing.expert(p))) continue;
      float v[8];
      load_vec8(v, f.rows.p, p * n + first);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[e] += v[e];
    }
    store_vec8(sum, f.out.p, 8 * i);
  }
};
// One team per expert: the sum of its rows. Threads take columns.
template <class Real> struct combined_by_expert {
  tensor<Real> out, rows;
  routing_table<Real> routing;
  long long first_expert;

  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    const long long n = out.matrices() == 0 ? 0 : out.count() / out.d[1], e = first_expert + i;
    const long long begin = routing.begin(e), end = routing.begin(e + 1);
    for (long long c = t.rank; c < n; c += t.size) {
      Real sum = 0;
      for (long long p = begin; p < end; ++p) sum += rows.p[p * n + c];
      out.p.put(i * n + c, sum);
    }
  }
};
// Copies the rows of this rank's experts in place and zeroes the others (routed_by::row).
template <class Real> struct own_expert_rows {
  tensor<Real> out, rows;
  routing_table<Real> routing;
  expert_range mine;

  __host__ __device__ void operator()(long long i) const {
    const long long n = out.count() / routing.rows;
    out.p.put(i, mine.has(routing.expert(i / n)) ? rows.p[i] : Real(0));
  }
};
template <class On, class Real> status combine_by_token(const On& on, const combined_by_token<Real>& f) {
  return on.elements(f.out.count(), f, "combine");
}
template <runs_on_stream On> status combine_by_token(const On& on, const combined_by_token<float>& f) {
  if (!combined_by_token_vec8::fits(f)) return on.elements(f.out.count(), f, "combine");
  return on.elements(f.out.count() / 8, combined_by_token_vec8{f, f.out.d[3] / 8}, "combine");
}
template <class On, class Real>
status combine_rows(const On& on, const tensor<Real>& out, const tensor<Real>& rows, const routing_table<Real>& routing,
                    routed_by by, const expert_range& mine) {
  switch (by) {
    case routed_by::expert:
      return on.matrices(out.d[1], out.count() / (out.d[1] > 0 ? out.d[1] : 1),
                         combined_by_expert<Real>{out, rows, routing, mine.first}, "combine");
    case routed_by::row: return on.elements(out.count(), own_expert_rows<Real>{out, rows, routing, mine}, "combine");
    case routed_by::token:
    case routed_by::both: break;
  }
  return combine_by_token(on, combined_by_token<Real>{out, rows, routing, by, mine});
}

}  // namespace graft::gpu
