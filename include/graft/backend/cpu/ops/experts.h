// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: top-k routing, dispatch (tokens permuted into the order of the experts) and combine (unpermute),
// and products of each expert's rows with its own matrix. An expert's rows are one GEMM without padding, and one row is
// a GEMV. Where there are many experts with rows and none of them has most of the work, threads take whole experts,
// else they divide each product. All sums have a fixed order.
#pragma once
#include <graft/backend/cpu/gemm/matmul.h>
#include <graft/graph/rules_experts.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace graft::cpu {

// The routing of a call (graph/rules_experts.h): whole numbers, which are exact in float below 2^24.
template <class Real> struct routing_table {
  const Real* p;
  long long rows;
  explicit routing_table(const tensor<Real>& t) : p(t.p), rows(t.d[2]) {}

  long long token(long long row) const { return static_cast<long long>(p[3 * row]); }
  long long expert(long long row) const { return static_cast<long long>(p[3 * row + 1]); }
  long long row_of(long long pair) const { return static_cast<long long>(p[3 * pair + 2]); }
  // The first sorted row of an expert.
  long long begin(long long e) const {
    long long first = 0, count = rows;
    while (count > 0) {
      const long long half = count / 2;
      if (expert(first + half) < e)
        first += half + 1, count -= half + 1;
      else
        count = half;
    }
    return first;
  }
};

namespace detail {

// Writes the k columns with the largest scores, in the order of the columns. NaN counts as the smallest score.
template <class Real> void largest_columns(const Real* scores, long long n, long long k, Real* chosen) {
  const auto before = [&](long long a, long long b) {  // a is taken before b
    const Real p = scores[a], q = scores[b];
    return std::isnan(q) ? (!std::isnan(p) || a < b) : p > q || (p == q && a < b);
  };
  long long taken = 0;
  for (long long c = 0; c < n; ++c) {
    long long at = taken;
    while (at > 0 && before(c, static_cast<long long>(chosen[3 * (at - 1)]))) --at;
    if (at >= k) continue;
    for (long long i = std::min(taken, k - 1); i > at; --i) chosen[3 * i] = chosen[3 * (i - 1)];
    chosen[3 * at] = static_cast<Real>(c), taken = std::min(taken + 1, k);
  }
  for (long long i = 1; i < k; ++i)  // by column
    for (long long j = i; j > 0 && chosen[3 * j] < chosen[3 * (j - 1)]; --j)
      std::swap(chosen[3 * j], chosen[3 * (j - 1)]);
}

}  // namespace detail

template <class Real> void route(tensor<Real> out, tensor<Real> scores, long long k) {
  const long long tokens = scores.d[2], experts = scores.d[3];
  thread_local std::vector<long long> next;  // the next sorted row of each expert
  next.assign(static_cast<std::size_t>(experts) + 1, 0);
  // The choices of a token are written to the third column, which its sorted rows then replace.
  parallel_for(tokens, tokens * experts * k / 4, [&](long long from, long long to) {
    for (long long t = from; t < to; ++t)
      detail::largest_columns(scores.p + t * experts, experts, k, out.p + 3 * t * k + 2);
  });
  const auto counted = [&](long long pair) -> long long& {
    return next[static_cast<std::size_t>(out.p[3 * pair + 2])];
  };
  for (long long pair = 0; pair < tokens * k; ++pair) ++counted(pair);
  long long first = 0;
  for (long long& n : next) first += std::exchange(n, first);
  for (long long pair = 0; pair < tokens * k; ++pair) {
    const Real expert = out.p[3 * pair + 2];
    const long long row = counted(pair)++, token = pair / k;
    out.p[3 * row] = static_cast<Real>(token), out.p[3 * row + 1] = expert;
    out.p[3 * pair + 2] = static_cast<Real>(row);
  }
}

// The experts of a rank; `end` is 0 where it has all of them.
struct expert_range {
  long long first = 0, end = 0;
  bool has(long long e) const { return end == 0 || (e >= first && e < end); }
};

template <class Real>
void dispatch(tensor<Real> out, tensor<Real> from, tensor<Real> routing, routed_by how, expert_range mine = {}) {
  const routing_table<Real> r(routing);
  const long long n = out.d[3];
  parallel_for(r.rows, out.count(), [&](long long first, long long end) {
    for (long long p = first; p < end; ++p)
      if (how == routed_by::both)
        out.p[p] = from.p[r.token(p) * from.d[3] + r.expert(p)];
      else if (!mine.has(r.expert(p)))
        std::fill_n(out.p + p * n, n, Real(0));
      else
        std::copy_n(from.p + (how == routed_by::token ? r.token(p) : r.expert(p) - mine.first) * n, n, out.p + p * n);
  });
}
// Adds to out. Before the first chunk of tokens out is zero; a result per expert then holds the sums of earlier chunks.
template <class Real>
void combine(tensor<Real> out, tensor<Real> rows, tensor<Real> routing, routed_by how, expert_range mine = {}) {
  const routing_table<Real> r(routing);
  const long long n = how == routed_by::row && r.rows > 0 ? rows.count() / r.rows : rows.d[3];
  if (how == routed_by::both) {
    for (long long p = 0; p < r.rows; ++p)
      if (mine.has(r.expert(p))) out.p[r.token(p) * out.d[3] + r.expert(p)] += rows.p[p];
    return;
  }
  if (how == routed_by::row) {
    parallel_for(r.rows, rows.count(), [&](long long first, long long end) {
      for (long long p = first; p < end; ++p)
        if (mine.has(r.expert(p))) add(out.p + p * n, rows.p + p * n, n);
    });
    return;
  }
  const bool by_token = how == routed_by::token;
  const long long groups = by_token ? out.d[2] : out.d[1], each = by_token && groups > 0 ? r.rows / groups : 0;
  parallel_for(groups, rows.count(), [&](long long first, long long end) {
    for (long long i = first; i < end; ++i) {
      Real* const to = out.p + i * n;
      const long long e = mine.first + i;  // where `groups` are experts
      const long long begin = by_token ? i * each : r.begin(e), stop = by_token ? begin + each : r.begin(e + 1);
      for (long long p = begin; p < stop; ++p) {
        const long long from = by_token ? r.row_of(p) : p;
        if (mine.has(r.expert(from))) add(to, rows.p + from * n, n);
      }
    }
  });
}

namespace detail {

// Calls f(expert, first row, rows) for all `experts` with rows, which are numbered from `offset` on in the table and
// from 0 on here. `work` is the number of multiplications per row.
template <class Real, class F>
void for_each_expert(const routing_table<Real>& r, long long offset, long long experts, long long work, F f) {
  thread_local std::vector<long long> with_rows, begins;
  with_rows.clear(), begins.resize(static_cast<std::size_t>(experts) + 1);
  long long most = 0;
  for (long long e = 0, at = r.begin(offset); e <= experts; ++e) {
    while (at < r.rows && r.expert(at) < offset + e) ++at;
    begins[static_cast<std::size_t>(e)] = at;
  }
  const auto rows_of = [](const std::vector<long long>& all_begins, long long e) {
    return all_begins[static_cast<std::size_t>(e) + 1] - all_begins[static_cast<std::size_t>(e)];
  };
  for (long long e = 0; e < experts; ++e)
    if (rows_of(begins, e) > 0) with_rows.push_back(e), most = std::max(most, rows_of(begins, e));
  const long long rows = begins.back() - begins.front();
  const int parts = static_cast<int>(with_rows.size()), threads = threads_for(parts, rows * work);
  const bool by_expert = threads > 1 && parts >= 2 * threads && most * threads <= 2 * rows;
  const std::vector<long long>&list = with_rows, &first_rows = begins;  // the lists of this thread, for all threads
  const auto run = [&](int i) {
    const long long e = list[static_cast<std::size_t>(i)];
    f(e, first_rows[static_cast<std::size_t>(e)], rows_of(first_rows, e));
  };
  parallel_dynamic(
      by_expert ? threads : 1, [] {}, 0, [](int) {}, parts, run);
}

// The matrix of expert e in the stack of all experts. Quantized matrices have scales per block of a row, stored in a
// second tensor or inside the blocks (check_quantized).
struct expert_matrix {
  quant_state scales{};
  weight_view weight;

  expert_matrix(const weight_view& all, long long e, long long rows) : weight(all) {
    weight.rows = rows;
    const auto moved = [](const void* from, long long bytes) { return static_cast<const char*>(from) + bytes; };
    if (all.quant == nullptr) {
      weight.data = moved(all.data, e * rows * all.row_stride * bits_of(all.format.type) / 8);
      return;
    }
    weight.data = moved(all.data, quantized_bytes(all.format, e * rows, all.cols));
    if (all.quant->scales == nullptr) return;
    scales = *all.quant;
    const long long before = scale_counts_of(all.format, e * rows, all.cols).scales;
    scales.scales = moved(scales.scales, before * bits_of(all.format.scales) / 8);
    weight.quant = &scales;
  }
  expert_matrix(const expert_matrix&) = delete;
  expert_matrix& operator=(const expert_matrix&) = delete;
};

}  // namespace detail

// Each expert's rows of x times its matrix, or the transpose. w has the matrices of the experts of `mine`; the rows of
// other ones are zero.
template <class Real, weights Of = weights::any>
void grouped_matmul(tensor<Real> out, tensor<Real> x, tensor<Real> w, tensor<Real> routing, bool tb,
                    expert_range mine = {}) {
  const routing_table<Real> r(routing);
  const long long rows = w.d[2], cols = w.d[3], k = x.d[3], n = out.d[3];
  if (mine.end != 0) {
    std::fill_n(out.p, r.begin(mine.first) * n, Real(0));
    std::fill(out.p + r.begin(mine.end) * n, out.p + r.rows * n, Real(0));
  }
  detail::for_each_expert(r, mine.first, w.d[1], k * n, [&](long long e, long long first, long long count) {
    const matmul_mode mode{false, tb};
    if (w.stored == nullptr)
      return product(out.p + first * n, count, n, x.p + first * k, w.p + e * rows * cols, k, mode);
    const detail::expert_matrix one(*w.stored, e, rows);
    tensor<Real> to, from;
    to.p = out.p + first * n, to.d[2] = count, to.d[3] = n;
    from.p = x.p + first * k, from.d[2] = count, from.d[3] = k;
    weight_gemm<Real, Of>(to, from, one.weight, mode);
  });
}
// Adds aᵀ b over the rows of each expert to out.
template <class Real>
void grouped_wgrad(tensor<Real> out, tensor<Real> a, tensor<Real> b, tensor<Real> routing, expert_range mine = {}) {
  const routing_table<Real> r(routing);
  const long long m = a.d[3], n = b.d[3];
  detail::for_each_expert(r, mine.first, out.d[1], m * n, [&](long long e, long long first, long long count) {
    product(out.p + e * m * n, m, n, a.p + first * m, b.p + first * n, count, {true, false, false, 1});
  });
}

}  // namespace graft::cpu
