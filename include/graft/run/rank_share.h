// SPDX-License-Identifier: Apache-2.0
// One of several ranks that compute a block together: which sizes are divided among them (derive/shard.h). A rank is given
// the tensors of the whole block and takes its part of the base weights where they lie, so that files stay whole and a
// mapped one is read only as far as the rank needs it; an engine with memory of its own brings that part there.
#pragma once
#include <graft/derive/shard.h>
#include <graft/run/code_part.h>
#include <graft/run/named.h>

namespace graft {

struct rank_share {
  int rank = 0, ranks = 1;
  std::vector<const char*> sizes{};

  bool shares() const { return !sizes.empty(); }
  bool divides(const char* size) const {
    for (const char* s : sizes)
      if (same_text(s, size)) return true;
    return false;
  }
  // Where the tensors do not fit to the whole it stays as it is: binding it says why.
  builder graph_of(builder whole, const named_values& from, const adaptions& rules) const {
    if (!shares()) return whole;
    const result<bound_leaves> bound = bind_named(whole, from, rules);
    if (!bound) return whole;
    sharded made = shard(whole, {sizes.data(), static_cast<int>(sizes.size())}, bound->sizes, ranks, true);
    return made.why.n > 0 ? whole : std::move(made.g);
  }
  // `brings(name, whole, axis)`: the rank's part of a base tensor along one of its axes, or all of it where that is
  // negative, as the engine reads it.
  template <class Brings>
  result<named_values> values_of(const graph& g, const named_values& whole, Brings brings) const {
    named_values mine = whole;
    mine.sizes[ranks_name] = ranks, mine.sizes[rank_name] = rank;
    for (id i = 0; i < g.size; ++i) {
      const auto found = mine.tensors.find(g.name(i).c_str());
      if (g[i].what != op::base || found == mine.tensors.end()) continue;
      const int axis = shared_axis(g, i);
      const result<view> part = brings(found->first, found->second, axis < 0 ? -1 : axis - listed_axes(g[i]).first);
      if (!part) return fail("tensor '", g.name(i), "': ", part.message());
      found->second = *part;
    }
    return mine;
  }
  // The part of a tensor of numbers, where it lies. Without an axis: all of it.
  view part_of(view v, int axis) const {
    if (axis < 0) return v;
    for (int k = 0; k < v.rank; ++k) v.apart[k] = v.stride(k);
    v.size[axis] /= ranks;
    const long long first = rank * v.size[axis] * v.apart[axis] * bits_of(v.type) / 8;
    v.data = static_cast<const std::byte*>(v.data) + first;
    return v;
  }
  // The same for codes too, whose part is memory of its own: it lasts as long as `codes`.
  result<view> part_of(const view& whole, int axis, code_part& codes) const {
    if (whole.beside == nullptr || axis < 0) return part_of(whole, axis);
    if (codes.part().data == nullptr)
      if (status s = codes.cut(whole, axis, rank, ranks); !s) return s.failure();
    return codes.part();
  }
};

}  // namespace graft
