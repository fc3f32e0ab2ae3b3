// SPDX-License-Identifier: Apache-2.0
// buffers: memory planning for launches that run in chunks of rows (the CPU). A pointwise op overwrites an operand that
// nothing else reads; a product that is only added to something accumulates into that sum, and two products that are
// added accumulate into one; all other values share the cells of a workspace by lifetime. A value that another launch
// reads is stored for all rows. The whole assignment is computed before the first call.
#pragma once
#include <graft/plan/plan.h>

#include <initializer_list>

namespace graft {

struct buffers {
  sequence<int> cell;  // cell of the workspace that holds one chunk of the value; -1: none
  sequence<id> into;   // the later sum that this product accumulates into; -1: none
  sequence<id>
      // the later sum in whose GEMM this shrink result is computed, because its branch reads it; -1: none
      computed_with;
  sequence<id> inplace;     // the operand that the node overwrites; -1: none
  sequence<id> same_as;     // for a reshape: the leaf or stored value whose memory it has; -1: none
  sequence<int> writes_to;  // output tensor that the value is written to; -1: none
  node_set stored;          // stored for all rows, because another launch reads it
  int cells = 0;
};

namespace detail {

struct buffer_planner {
  const graph& g;
  const launch_plan& p;
  sequence<int> readers;
  buffers b;

  [[gnu::cold]] constexpr buffer_planner(const graph& of, const launch_plan& by)
      : g(of),
        p(by),
        readers(count_readers(of, by.live)),
        b{sequence<int>(of.size, -1),
          sequence<id>(of.size, none_id),
          sequence<id>(of.size, none_id),
          sequence<id>(of.size, none_id),
          sequence<id>(of.size, none_id),
          sequence<int>(of.size, -1),
          node_set(of.size)} {}

  constexpr bool is_chunked(id i) const {
    return i >= 0 && p.live[i] && p.rows.dependence_of[i] == row_dependence::chunk;
  }
  constexpr bool has_buffer(id i) const { return is_chunked(i) && b.same_as[i] < 0; }
  // A value with one reader in its launch, whose storage the reader may take over.
  constexpr bool is_transient(id i) const {
    return has_buffer(i) && readers[i] == 1 && !is_output(g, i) && !b.stored[i];
  }

  [[gnu::cold]] constexpr void find_stored() {
    for (id i = 0; i < g.size; ++i) {
      if (!p.live[i] || p.when.of[i] != stage::call) continue;
      // A reshape shares the memory of its operand.
      if (g[i].what == op::reshape) {
        const id from = b.same_as[g[i].a] >= 0 ? b.same_as[g[i].a] : g[i].a;
        if (is_leaf(g[from].what) || (is_chunked(i) && b.stored[from])) b.same_as[i] = from;
      }
      if (!is_chunked(i)) continue;
      if (b.same_as[i] < 0 && crosses_launches(g, p, i)) b.stored.add(i);
    }
  }
  // A product of rows with one matrix; a backend can compute two of these at a time.
  constexpr bool is_row_gemm(id m) const { return !g[m].ta && g[g[m].b].d[0] == dim{1} && g[g[m].b].d[1] == dim{1}; }
  // Finds products that can accumulate into the sum that reads them: both operands where these are products of rows
  // with one matrix, else one operand if the other has the sum's shape and rows.
  [[gnu::cold]] constexpr void find_accumulated() {
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      if (!has_buffer(i) || (v.what != op::add && v.what != op::sub)) continue;
      auto deferrable = [&](id m) {
        return is_transient(m) && g[m].what == op::matmul && !g[m].sum && same_shape(g[m], v) &&
               p.launch_of[m] == p.launch_of[i];
      };
      auto takes = [&](id o) {
        return o >= 0 && g.sizes.has_token_rows(g[o].d[p.rows.axis[i]]) && same_shape(g[o], v);
      };
      if (deferrable(v.a) && deferrable(v.b) && is_row_gemm(v.a) && is_row_gemm(v.b)) {
        b.into[v.a] = b.into[v.b] = i;
        for (const id o : {g[v.a].a, g[v.b].a})
          if (is_transient(o) && g[o].what == op::matmul && !g[o].sum && is_row_gemm(o) &&
              p.launch_of[o] == p.launch_of[i])
            b.computed_with[o] = i;
      } else if (deferrable(v.b) && takes(v.a))
        b.into[v.b] = i;
      else if (v.what == op::add && deferrable(v.a) && takes(v.b))
        b.into[v.a] = i;
    }
  }
  [[gnu::cold]] constexpr void find_inplace() {
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      if (!has_buffer(i) || b.stored[i] || (!is_pointwise(v.what) && v.what != op::reshape)) continue;
      for (const id o : {v.a, v.b}) {
        const bool fits = o >= 0 && is_transient(o) && b.into[o] < 0 && p.launch_of[o] == p.launch_of[i] &&
                          (v.what == op::reshape || same_shape(g[o], v));
        if (fits && b.inplace[i] < 0) b.inplace[i] = o;
      }
    }
  }
  // An output's memory also holds the chain of values that are overwritten in place to compute it.
  [[gnu::cold]] constexpr void find_outputs() {
    for (int k = 0; k < g.outs; ++k)
      for (id i = g.out[k].at; has_buffer(i) && !b.stored[i] && b.writes_to[i] < 0; i = b.inplace[i]) {
        b.writes_to[i] = k;
        if (b.inplace[i] < 0) break;
      }
  }
  // Assigns cells by lifetime: a cell is free after the last reader of all values that it held.
  [[gnu::cold]] constexpr void assign_cells() {
    sequence<id> last(g.size, none_id);
    for (id i = 0; i < g.size; ++i) {
      if (!p.live[i]) continue;
      const id at = b.into[i] >= 0            ? b.into[i]
                    : b.computed_with[i] >= 0 ? b.computed_with[i]
                                              : i;  // when the node is computed
      for (int k = 0; k < 3; ++k)
        for (id o = g[i].operand(k); o >= 0; o = b.inplace[o])
          if (last[o] < at) last[o] = at;
    }
    sequence<id> busy_until;
    for (id i = 0; i < g.size; ++i) {
      if (!has_buffer(i) || b.stored[i] || b.into[i] >= 0 || b.writes_to[i] >= 0) continue;
      const id until = last[i] > i ? last[i] : i;
      if (b.inplace[i] >= 0) {
        b.cell[i] = b.cell[b.inplace[i]];
        if (b.cell[i] >= 0 && busy_until[b.cell[i]] < until) busy_until[b.cell[i]] = until;
        continue;
      }
      int c = 0;
      while (c < busy_until.size() && busy_until[c] >= i) ++c;
      if (c == busy_until.size()) busy_until.push(none_id);
      b.cell[i] = c;
      busy_until[c] = until;
    }
    b.cells = busy_until.size();
  }
};

}  // namespace detail

[[gnu::cold]] constexpr buffers assign_buffers(const graph& g, const launch_plan& p) {
  detail::buffer_planner m(g, p);
  m.find_stored();
  m.find_accumulated();
  m.find_inplace();
  m.find_outputs();
  m.assign_cells();
  return static_cast<buffers&&>(m.b);
}

}  // namespace graft
