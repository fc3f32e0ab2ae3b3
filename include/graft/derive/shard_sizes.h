// SPDX-License-Identifier: Apache-2.0
// Several ranks share a computation by sharing some of its sizes: `out` of a layer, or the heads of a block. What follows
// from a shared size is shared too, out / b as well as 2 out; a rank has one of `ranks` equal parts, the one numbered `rank`.
// Both are sizes of the graph, so that all ranks have the same graph and differ only in one number.
#pragma once
#include <graft/graph/builder.h>

namespace graft {

inline constexpr const char *ranks_name = "ranks", *rank_name = "rank";

struct shared_sizes {
  const char* const* names = nullptr;
  int count = 0;
  constexpr bool has(const graph& g, const size_entry& e) const {
    for (int i = 0; i < count; ++i)
      if (g.paths().is(e.path, e.name, names[i])) return true;
    return false;
  }
};

// What becomes of a size when the shared ones are divided among ranks.
enum class share : unsigned char { all, part, neither };

constexpr share share_of(const graph& g, const shared_sizes& among, dim d) {
  if (d.known()) return share::all;
  const size_entry& e = g.sizes.e[d.entry()];
  if (e.what == size_entry::kind::name) return among.has(g, e) ? share::part : share::all;
  const share a = share_of(g, among, e.a), b = share_of(g, among, e.b);
  if (a == share::neither || b == share::neither) return share::neither;
  if (a == share::all && b == share::all)
    return share_of(g, among, e.c) == share::all && share_of(g, among, e.d) == share::all ? share::all : share::neither;
  switch (e.what) {
    case size_entry::kind::product: return a != b ? share::part : share::neither;
    case size_entry::kind::quotient: return b == share::all ? share::part : share::neither;
    case size_entry::kind::sum:
    case size_entry::kind::difference: return a == b ? share::part : share::neither;
    case size_entry::kind::name:
    case size_entry::kind::triangle:
    case size_entry::kind::window:
    case size_entry::kind::butterfly: break;
  }
  return share::neither;
}

// The axis of a leaf of a shared graph of which a rank has one part; -1: it has all of it.
constexpr int shared_axis(const graph& g, id leaf) {
  for (int k = 0; k < 4; ++k) {
    const dim d = g[leaf].d[k];
    if (d.known() || g.sizes.e[d.entry()].what != size_entry::kind::quotient) continue;
    const dim by = g.sizes.e[d.entry()].b;
    if (!by.known() && same_text(g.sizes.e[by.entry()].name, ranks_name)) return k;
  }
  return -1;
}

}  // namespace graft
