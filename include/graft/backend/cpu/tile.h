// SPDX-License-Identifier: Apache-2.0
// One thread's share of a call: all data-time nodes of the graph on one tile of tokens, then the next tile. The values
// of a tile stay in the cache; the base product writes straight into y, the side branch is accumulated into it,
// elementwise work happens in place.
#pragma once
#include <graft/backend/cpu/values.h>
#include <graft/plan/tiling.h>

#include <numeric>

namespace graft::cpu {

// What a call brings: its sizes, its data-time leaves by node, its outputs in the graph's order (empty ones unwanted).
struct call {
  const size_values& sizes;
  const leaf_views& data;
  const std::vector<mutable_view>& outputs;
};

// Elements of each workspace slot for a tile.
inline std::vector<long long> slot_sizes(const graph& g, const buffers& where, const size_values& s) {
  std::vector<long long> need(static_cast<std::size_t>(where.slots), 0);
  for (int k = 0; k < g.size; ++k) {
    if (where.slot[k] < 0) continue;
    long long& n = need[static_cast<std::size_t>(where.slot[k])];
    n = std::max(n, count(g, static_cast<id>(k), s));
  }
  return need;
}

template <class Real> class tile_worker {
 public:
  tile_worker(const graph& g, const tiling& t, values<Real>& earlier, const leaf_views& stored, const call& c,
              long long tile)
      : g_(g), t_(t), earlier_(earlier), stored_(stored), call_(c), sizes_(c.sizes) {
    tokens() = tile;
    const std::vector<long long> need = slot_sizes(g, t.where, sizes_);
    arena_.resize(static_cast<std::size_t>(std::accumulate(need.begin(), need.end(), 0LL)));
    Real* p = arena_.data();
    for (const long long n : need) slot_.push_back(p), p += n;
    sum_.resize(static_cast<std::size_t>(g.size));
    converted_.resize(sum_.size());
    for (int k = 0; k < g.size; ++k) {
      const id i = static_cast<id>(k);
      if (!t.live.in[k] || t.when.of[k] != stage::data) continue;
      if (t.sums[i]) at(sum_, i).assign(elements(i), Real(0));
      const int out = t.where.writes_to[k];
      const bool leaf = g[i].what == op::input && at(c.data, i).type != real_type<Real>;
      const bool output = out >= 0 && t.where.inplace[k] < 0 && !direct(c.outputs[static_cast<std::size_t>(out)]);
      if (leaf || output) at(converted_, i).resize(elements(i));
    }
  }

  void run(long long from, long long n) {
    from_ = from;
    tokens() = n;
    const evaluator<Real> evaluate{g_, sizes_};
    for (int k = 0; k < g_.size; ++k)
      if (t_.live.in[k] && t_.when.of[k] == stage::data) compute(static_cast<id>(k), evaluate);
    for (int k = 0; k < g_.outs; ++k) write(k);
  }
  std::vector<Real>& sum(id i) { return at(sum_, i); }

 private:
  template <class Vector> static auto& at(Vector& v, id i) { return v[static_cast<std::size_t>(i)]; }
  static bool direct(const mutable_view& v) { return v.data != nullptr && v.type == real_type<Real>; }
  long long& tokens() { return sizes_.v[g_.sizes.find("tokens")]; }
  std::size_t elements(id i) const { return static_cast<std::size_t>(count(g_, i, sizes_)); }
  // Where the tile begins in a tensor that holds all tokens.
  long long offset(id i) { return tokens() == 0 ? 0 : from_ * (count(g_, i, sizes_) / tokens()); }

  void compute(id i, const evaluator<Real>& evaluate) {
    const node& v = g_[i];
    if (v.what == op::input && !at(converted_, i).empty()) {
      const view& stored = at(call_.data, i);
      decode(stored.data, stored.type, offset(i), count(g_, i, sizes_), at(converted_, i).data());
    }
    if (is_leaf(v.what) || t_.where.into[i] >= 0 || t_.where.same_as[i] >= 0) return;
    if (!t_.when.by_token[i]) {
      if (t_.sums[i]) evaluate(i, shaped(g_, i, sizes_, at(sum_, i).data()), operands_of(v), 1);
      return;
    }
    const tensor<Real> out = value(i);
    if (const id product = accumulated(v, i); product >= 0) {
      const tensor<Real> begin = value(product == v.a ? v.b : v.a);
      if (begin.p != out.p) std::copy_n(begin.p, out.count(), out.p);
      evaluate(product, out, operands_of(g_[product]), v.what == op::sub ? -1 : 1);
    } else if (v.what != op::reshape || value(v.a).p != out.p) {
      if (adds_up(v)) std::fill_n(out.p, out.count(), Real(0));
      evaluate(i, out, operands_of(v));
    }
  }
  // The product that is accumulated into the sum i, if any.
  id accumulated(const node& v, id i) const {
    for (const id o : {v.a, v.b})
      if (o >= 0 && t_.where.into[o] == i) return o;
    return none_id;
  }
  operands<Real> operands_of(const node& v) {
    operands<Real> x;
    if (v.a >= 0) x.a = v.what == op::gather ? weight(v.a) : value(v.a);
    if (v.b >= 0 && g_[v.b].what == op::ids)
      x.ids = static_cast<const std::int64_t*>(at(call_.data, v.b).data) + from_;
    else if (v.b >= 0)
      x.b = v.what == op::matmul && t_.when.of[v.b] != stage::data ? weight(v.b) : value(v.b);
    if (v.c >= 0) x.c = value(v.c);
    return x;
  }
  tensor<Real> value(id i) {
    if (t_.when.of[i] != stage::data) return earlier_[i];
    const id leaf = t_.where.same_as[i] >= 0 ? t_.where.same_as[i] : i;
    if (is_leaf(g_[leaf].what)) {
      if (!at(converted_, leaf).empty()) return shaped(g_, i, sizes_, at(converted_, leaf).data());
      return shaped(g_, i, sizes_, static_cast<Real*>(const_cast<void*>(at(call_.data, leaf).data)) + offset(leaf));
    }
    if (const int k = t_.where.writes_to[i]; k >= 0) {
      const mutable_view& out = call_.outputs[static_cast<std::size_t>(k)];
      if (direct(out)) return shaped(g_, i, sizes_, static_cast<Real*>(out.data) + offset(i));
      id first = i;
      while (t_.where.inplace[first] >= 0) first = t_.where.inplace[first];
      return shaped(g_, i, sizes_, at(converted_, first).data());
    }
    return shaped(g_, i, sizes_, slot_[static_cast<std::size_t>(t_.where.slot[i])]);
  }
  // A base weight that is not stored as Real is widened inside the product.
  tensor<Real> weight(id i) {
    const id leaf = base_leaf(g_, i);
    if (!t_.streamed[i] || !stays_narrow<Real>(at(stored_, leaf))) return earlier_[i];
    tensor<Real> t = shaped<Real>(g_, i, sizes_, nullptr);
    t.narrow = static_cast<const bf16*>(at(stored_, leaf).data);
    return t;
  }
  void write(int k) {
    const id i = g_.out[k].at;
    const mutable_view& to = call_.outputs[static_cast<std::size_t>(k)];
    if (!t_.when.by_token[i] || to.data == nullptr) return;
    const tensor<Real> v = value(i);
    if (direct(to) && v.p == static_cast<Real*>(to.data) + offset(i)) return;
    encode(v.p, v.count(), to.data, to.type, offset(i));
  }

  graph g_;
  const tiling& t_;
  values<Real>& earlier_;
  const leaf_views& stored_;
  call call_;
  size_values sizes_;
  long long from_ = 0;
  std::vector<Real> arena_;
  std::vector<Real*> slot_;
  std::vector<std::vector<Real>> sum_;        // per node that sums over tokens
  std::vector<std::vector<Real>> converted_;  // a tile of inputs and outputs that are not stored as Real
};

}  // namespace graft::cpu
