// SPDX-License-Identifier: Apache-2.0
// Whole numbers of a call that kernels use as places: ids within their table, labels within the vocabulary or ignored,
// spans within the rows that they speak of. Checked where they lie in host memory; a kernel takes them as they are.
#pragma once
#include <graft/backend/call.h>
#include <graft/core/result.h>

#include <cstdint>

namespace graft {

inline constexpr long long ignored_label = -100;  // as in Hugging Face's losses

inline status check_spans(const std::int64_t* span, long long rows, long long places, bool cached) {
  for (long long r = 0; r < rows; ++r) {
    const long long first = span[r], end = span[rows + r], own = span[2 * rows + r];
    if (first < 0 || end > places || (first > end))
      return fail("row ", r, " looks at rows ", first, " to ", end, ", there are ", places);
    if (cached && (own < -1 || own >= places))
      return fail("row ", r, " is kept at ", own, ", the cache has ", places, " places");
  }
  return ok;
}

// Of all nodes of a graph that read integers of a call.
inline status check_ids(const graph& g, const call& c) {
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    const flow how = row(v.what).axes;
    const bool spans = row(v.what).kind == op_class::attention;
    if (how != flow::look_up && how != flow::add_rows && how != flow::labelled && !spans) continue;
    const auto* const ids = static_cast<const std::int64_t*>(c.data[v.b].data);
    if (ids == nullptr || is_part(v)) continue;  // known before the call; or looked up by the rank that has the row
    const long long n = g.sizes.value(g[v.b].d[3], c.sizes);
    if (spans) {
      const bool cached = v.what == op::cached_attention;
      const long long places = cached ? g.sizes.value(g[v.c].d[2], c.sizes) : n;
      if (status s = check_spans(ids, n, places, cached); !s) return s;
      continue;
    }
    const node& table = how == flow::add_rows ? v : g[v.a];
    const bool columns = how == flow::labelled || v.ta;
    const long long entries = g.sizes.value(table.d[columns ? 3 : 2], c.sizes);
    for (long long t = 0; t < n; ++t) {
      if (ids[t] >= 0 && ids[t] < entries) continue;
      if (how != flow::labelled)
        return fail("id ", static_cast<long long>(ids[t]), " at position ", t, " is outside the table of ", entries,
                    " rows");
      if (ids[t] != ignored_label)
        return fail("label ", static_cast<long long>(ids[t]), " at position ", t, " is outside the vocabulary of ",
                    entries, "; ", ignored_label, " is ignored");
    }
  }
  return ok;
}

// Of all nodes that put numbers at places or read them there, once: an index does not come with calls.
inline status check_index(const graph& g, const size_values& s, const leaf_views& leaves) {
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (v.what != op::place && v.what != op::pick) continue;
    const node& matrix = v.what == op::place ? v : g[v.a];
    const auto* const at = static_cast<const std::int64_t*>(leaves[v.b].data);
    const long long n = g.sizes.value(g[v.b].d[3], s), rows = g.sizes.value(matrix.d[2], s),
                    cols = g.sizes.value(matrix.d[3], s);
    for (long long k = 0; at != nullptr && k < n; ++k)
      if (at[k] < 0 || at[k] >= rows || at[n + k] < 0 || at[n + k] >= cols)
        return fail("tensor '", g.name(v.b), "' names the place [", static_cast<long long>(at[k]), ", ",
                    static_cast<long long>(at[n + k]), "] of a matrix of [", rows, ", ", cols, "]");
  }
  return ok;
}

}  // namespace graft
