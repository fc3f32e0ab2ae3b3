// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism of a block: which sizes are divided among ranks (derive/shard.h), and a rank's shards of the
// tensors. A rank is given the tensors of the whole block and takes its shards where they are, so that files stay whole
// and a mapped file is read only as far as the rank needs it; an engine with memory of its own copies the shards there.
#pragma once
#include <graft/derive/shard.h>
#include <graft/run/bind_by_name.h>
#include <graft/run/quantized_shard.h>

namespace graft {

struct shard_spec {
  int rank = 0, ranks = 1;
  std::vector<const char*> sizes{};

  bool is_sharded() const { return !sizes.empty(); }
  bool divides(const char* size) const {
    for (const char* s : sizes)
      if (same_text(s, size)) return true;
    return false;
  }
  // Gives the rank's graph. Where the tensors do not fit, the graph is not changed, and binding it reports the error.
  builder graph_of(builder whole, const named_values& from, const adapter_rules& rules) const {
    if (!is_sharded()) return whole;
    const result<bound_leaves> bound = bind_named(whole, from, rules);
    if (!bound) return whole;
    sharded made = shard(whole, {sizes.data(), static_cast<int>(sizes.size())}, bound->sizes, ranks, true);
    return made.why.n > 0 ? whole : std::move(made.g);
  }
  // Gives the rank's values. load_shard(name, whole, axis) gives its shard of a base tensor along an axis, or all of it
  // if the axis is negative, in memory that the engine reads.
  template <class LoadShard>
  result<named_values> local_values(const graph& g, const named_values& whole, LoadShard load_shard) const {
    named_values mine = whole;
    mine.sizes[ranks_name] = ranks, mine.sizes[rank_name] = rank;
    for (id i = 0; i < g.size; ++i) {
      const auto found = mine.tensors.find(g.name(i).c_str());
      if (g[i].what != op::base || found == mine.tensors.end()) continue;
      const int axis = sharded_axis(g, i);
      const result<view> part = load_shard(found->first, found->second, axis < 0 ? -1 : axis - listed_axes(g[i]).first);
      if (!part) return fail("tensor '", g.name(i), "': ", part.message());
      found->second = *part;
    }
    return mine;
  }
  // A view of the rank's shard of a tensor that is not quantized, or of all of it if the axis is negative.
  view shard_of(view v, int axis) const {
    if (axis < 0) return v;
    for (int k = 0; k < v.rank; ++k) v.strides[k] = v.stride(k);
    v.size[axis] /= ranks;
    const long long first = rank * v.size[axis] * v.strides[axis] * bits_of(v.type) / 8;
    v.data = static_cast<const std::byte*>(v.data) + first;
    return v;
  }
  // A view of the rank's shard of any tensor. The shard of a quantized tensor lasts as long as `shard`.
  result<view> shard_of(const view& whole, int axis, quantized_shard& shard) const {
    if (whole.quant == nullptr || axis < 0) return shard_of(whole, axis);
    if (shard.shard_view().data == nullptr)
      if (status s = shard.slice(whole, axis, rank, ranks); !s) return s.failure();
    return shard.shard_view();
  }
};

}  // namespace graft
