// SPDX-License-Identifier: Apache-2.0
// Bounds checks of the integers of a call that kernels use as indices: ids within their table, labels within the
// vocabulary or ignored, attention ranges within their rows or KV cache slots. They are checked in host memory; kernels
// do not check them.
#pragma once
#include <graft/backend/call.h>
#include <graft/core/result.h>

#include <cstdint>

namespace graft {

inline constexpr long long ignored_label = -100;  // as in Hugging Face's losses

inline status check_attention_ranges(const std::int64_t* attention_range, long long rows, long long slots,
                                     bool cached) {
  for (long long r = 0; r < rows; ++r) {
    const long long first = attention_range[r], end = attention_range[rows + r], slot = attention_range[2 * rows + r];
    if (first < 0 || end > slots || (first > end))
      return fail("row ", r, " attends to rows ", first, " to ", end, ", there are ", slots);
    if (cached && (slot < -1 || slot >= slots))
      return fail("row ", r, " writes slot ", slot, ", the KV cache has ", slots, " slots");
  }
  return ok;
}

// Checks the integers of a call for all nodes of a graph that read them.
inline status check_ids(const graph& g, const program_call& c) {
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    const axis_flow flow = traits_of(v.what).axes;
    const bool is_attention = traits_of(v.what).kind == op_class::attention;
    if (flow != axis_flow::gather && flow != axis_flow::scatter_add && flow != axis_flow::row_labels && !is_attention)
      continue;
    const auto* const ids = static_cast<const std::int64_t*>(c.data[v.b].data);
    if (ids == nullptr || is_shard(v)) continue;  // not from this call; or an id whose row another rank may have
    const long long n = g.sizes.value(g[v.b].d[3], c.sizes);
    if (is_attention) {
      const bool cached = v.what == op::cached_attention;
      const long long slots = cached ? g.sizes.value(g[v.c].d[2], c.sizes) : n;
      if (status s = check_attention_ranges(ids, n, slots, cached); !s) return s;
      continue;
    }
    const node& table = flow == axis_flow::scatter_add ? v : g[v.a];
    const bool columns = flow == axis_flow::row_labels || v.ta;
    const long long entries = g.sizes.value(table.d[columns ? 3 : 2], c.sizes);
    for (long long t = 0; t < n; ++t) {
      if (ids[t] >= 0 && ids[t] < entries) continue;
      if (flow != axis_flow::row_labels)
        return fail("id ", static_cast<long long>(ids[t]), " at position ", t, " is outside the table of ", entries,
                    " rows");
      if (ids[t] != ignored_label)
        return fail("label ", static_cast<long long>(ids[t]), " at position ", t, " is outside the vocabulary of ",
                    entries, "; ", ignored_label, " is ignored");
    }
  }
  return ok;
}

// Checks the index of all nodes that write or read sparse entries (place, pick), once, because calls do not bring it.
inline status check_index(const graph& g, const size_values& s, const leaf_views& leaves) {
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    if (v.what != op::scatter_elements && v.what != op::gather_elements) continue;
    const node& matrix = v.what == op::scatter_elements ? v : g[v.a];
    const auto* const index = static_cast<const std::int64_t*>(leaves[v.b].data);
    const long long n = g.sizes.value(g[v.b].d[3], s), rows = g.sizes.value(matrix.d[2], s),
                    cols = g.sizes.value(matrix.d[3], s);
    for (long long k = 0; index != nullptr && k < n; ++k)
      if (index[k] < 0 || index[k] >= rows || index[n + k] < 0 || index[n + k] >= cols)
        return fail("tensor '", g.name(v.b), "' names the entry [", static_cast<long long>(index[k]), ", ",
                    static_cast<long long>(index[n + k]), "] of a matrix of [", rows, ", ", cols, "]");
  }
  return ok;
}

}  // namespace graft
