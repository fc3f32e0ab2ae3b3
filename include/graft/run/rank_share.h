// SPDX-License-Identifier: Apache-2.0
// One of several ranks that compute a block together: which sizes are divided among them (derive/shard.h). A rank is given
// the tensors of the whole block and takes its part of the base weights where they lie, so that files stay whole and a
// mapped one is read only as far as the rank needs it.
#pragma once
#include <graft/derive/shard.h>
#include <graft/run/code_part.h>
#include <graft/run/named.h>

namespace graft {

struct rank_share {
  int rank = 0, ranks = 1;
  std::vector<const char*> sizes{};

  bool divides(const char* size) const {
    for (const char* s : sizes)
      if (same_text(s, size)) return true;
    return false;
  }
  // Where the tensors do not fit to the whole it stays as it is: binding it says why.
  builder graph_of(builder whole, const named_values& from, const adaptions& rules) const {
    if (ranks == 1) return whole;
    const result<bound_leaves> bound = bind_named(whole, from, rules);
    if (!bound) return whole;
    sharded made = shard(whole, {sizes.data(), static_cast<int>(sizes.size())}, bound->sizes, ranks, true);
    return made.why.n > 0 ? whole : std::move(made.g);
  }
  // `codes`: memory for parts of weights that are codes, which stays as long as the values.
  using coded_parts = std::map<std::string, code_part>;
  result<named_values> values_of(const graph& g, const named_values& whole, coded_parts& codes) const {
    named_values mine = whole;
    mine.sizes[ranks_name] = ranks, mine.sizes[rank_name] = rank;
    for (id i = 0; i < g.size; ++i) {
      const int axis = g[i].what == op::base ? shared_axis(g, i) : -1;
      const auto found = mine.tensors.find(g.name(i).c_str());
      if (axis < 0 || found == mine.tensors.end()) continue;
      view& v = found->second;
      const int listed = axis - listed_axes(g[i]).first;
      if (v.beside != nullptr) {
        const auto [part, made] = codes.try_emplace(found->first);
        if (made)
          if (status s = part->second.cut(v, listed, rank, ranks); !s) {
            codes.erase(part);
            return fail("tensor '", g.name(i), "': ", s.message());
          }
        v = part->second.part();
        continue;
      }
      for (int k = 0; k < v.rank; ++k) v.apart[k] = v.stride(k);
      v.size[listed] /= ranks;
      const long long first = rank * v.size[listed] * v.apart[listed] * bits_of(v.type) / 8;
      v.data = static_cast<const std::byte*>(v.data) + first;
    }
    return mine;
  }
};

}  // namespace graft
