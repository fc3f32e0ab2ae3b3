// SPDX-License-Identifier: Apache-2.0
// The fused CPU backend. Parameter-time values are computed once and cached. Data-time values are computed for a tile of
// tokens at a time, all nodes of the graph on one tile before the next, so they stay in the cache; the base product
// writes straight into y, the side branch is accumulated into it, elementwise work happens in place. Sums over tokens
// (gradients) are accumulated per thread and added up at the end.
#pragma once
#include <graft/backend/cpu/threads.h>
#include <graft/backend/cpu/values.h>
#include <graft/core/result.h>
#include <graft/plan/buffers.h>

#include <memory>
#include <numeric>

namespace graft::cpu {

// Tokens per tile: enough to amortise the packing of the weight inside the product, few enough to stay in the cache.
inline constexpr long long tile_tokens = 256;
// Below this many tokens per thread one tile with threads inside the product is faster than a tile per thread.
inline constexpr long long split_tokens = 32;

template <class Real> class fused {
 public:
  explicit fused(const graph& g) : g_(g), when_(schedule(g)), where_(assign_buffers(g, when_)), live_(reachable(g)) {}

  // Binds sizes and leaves and forgets everything cached.
  void bind(const size_values& s, const leaf_views& leaves) {
    sizes_ = s;
    leaves_ = leaves;
    cached_.reset(new values<Real>(g_, sizes_, leaves_));
    loaded_ = ready_ = false;
  }
  void parameters_changed() { ready_ = false; }

  // Computes what does not depend on the data; values that were only needed to get there are dropped again.
  void prepare() {
    if (ready_) return;
    const evaluator<Real> evaluate{g_, sizes_};
    for (int k = 0; k < g_.size; ++k) {
      const id i = static_cast<id>(k);
      if (!live_.in[k] || when_.of[k] == stage::data) continue;
      if (when_.of[k] == stage::load && loaded_ && cached_->has(i)) continue;
      if (is_leaf(g_[i].what)) cached_->forget(i);  // the tensor behind it may have changed
      cached_->compute(i, evaluate);
    }
    for (int k = 0; k < g_.size; ++k) {
      const id i = static_cast<id>(k);
      const bool widened_base = root_leaf(i) >= 0 && stays_narrow(root_leaf(i)) && !feeds(i, false);
      if (live_.in[k] && (widened_base || (when_.of[k] == stage::parameter && !outlives(i)))) cached_->forget(i);
    }
    ready_ = loaded_ = true;
  }

  // Data-time leaves come with the call, named as in the graph; outputs in the graph's order, empty ones are skipped.
  void run(const size_values& sizes, const leaf_views& data, const std::vector<mutable_view>& outputs) {
    prepare();
    const long long tokens = sizes.v[g_.sizes.find("tokens")];
    const int threads = can_tile() && tokens >= 2 * split_tokens ? thread_count() : 1;
    const long long share = (tokens + threads - 1) / threads;
    const long long tile = can_tile() && tokens > 0 ? std::min(tile_tokens, share) : tokens;
    std::vector<worker> crew(static_cast<std::size_t>(threads));
    for (worker& w : crew) start(w, sizes, tile, data, outputs);
    on_threads(threads, [&](int t) {
      worker& w = crew[static_cast<std::size_t>(t)];
      const long long end = std::min(tokens, (t + 1) * share);
      for (long long from = t * share; from < end; from += tile)
        run_tile(w, from, std::min(tile, end - from), data, outputs);
    });
    finish(crew, sizes, data, outputs);
  }

  // Per thread, known before the call.
  long long workspace_bytes(size_values s) const {
    long long& tokens = s.v[g_.sizes.find("tokens")];
    if (can_tile()) tokens = std::min(tile_tokens, tokens);
    const std::vector<long long> need = slot_sizes(s);
    return std::accumulate(need.begin(), need.end(), 0LL) * static_cast<long long>(sizeof(Real));
  }

 private:
  struct worker {
    std::vector<Real> arena;
    std::vector<Real*> slot;
    std::vector<std::vector<Real>> sum;   // per node that sums over tokens
    std::vector<std::vector<Real>> side;  // outputs and inputs whose stored type is not Real, one tile
    size_values sizes;
  };

  // Does a data-time node read i: one per token, or one that follows from sums over tokens?
  bool feeds(id i, bool per_token) const {
    for (int k = 0; k < g_.size; ++k) {
      const node& v = g_.n[k];
      if (live_.in[k] && when_.of[k] == stage::data && when_.by_token[k] == per_token &&
          (v.a == i || v.b == i || v.c == i))
        return true;
    }
    return false;
  }
  bool is_output(id i) const {
    for (int k = 0; k < g_.outs; ++k)
      if (g_.out[k].at == i) return true;
    return false;
  }
  bool outlives(id i) const {
    if (is_output(i)) return true;
    for (int k = 0; k < g_.size; ++k)  // a reshaped value is the same memory
      if (live_.in[k] && g_.n[k].what == op::reshape && g_.n[k].a == i && outlives(static_cast<id>(k))) return true;
    return feeds(i, true) || feeds(i, false);
  }
  id root_leaf(id i) const {
    while (g_[i].what == op::reshape) i = g_[i].a;
    return g_[i].what == op::base ? i : none_id;
  }
  // A bf16 base weight stays in storage and is widened inside the product.
  bool stays_narrow(id leaf) const {
    return leaves_[static_cast<std::size_t>(leaf)].type == dtype::bf16 && real_type<Real> == dtype::f32 &&
           g_[leaf].rank > 1;
  }

  // A tile is a range of tokens: they must be the outermost axis everywhere, and sums over them must add up.
  bool can_tile() const {
    for (int i = 0; i < g_.size; ++i) {
      if (!live_.in[i] || when_.of[i] != stage::data) continue;
      const node& v = g_.n[i];
      if (when_.by_token[i]) {
        int first = 0;
        while (first < 3 && v.d[first] == dim{1}) ++first;
        if (!depends(g_.sizes, v.d[first], g_.sizes.find("tokens"))) return false;
      } else if (sums_tokens(static_cast<id>(i)) && v.what != op::matmul && !adds_up(v)) {
        return false;
      }
    }
    return true;
  }
  bool sums_tokens(id i) const {
    const node& v = g_[i];
    auto per_token = [&](id o) { return o >= 0 && when_.by_token[o]; };
    return when_.of[i] == stage::data && !when_.by_token[i] && (per_token(v.a) || per_token(v.b) || per_token(v.c));
  }
  std::vector<long long> slot_sizes(const size_values& s) const {
    std::vector<long long> need(static_cast<std::size_t>(where_.slots), 0);
    for (int i = 0; i < g_.size; ++i) {
      if (where_.slot[i] < 0) continue;
      long long& n = need[static_cast<std::size_t>(where_.slot[i])];
      n = std::max(n, count(g_, static_cast<id>(i), s));
    }
    return need;
  }

  void start(worker& w, const size_values& sizes, long long tile, const leaf_views& data,
             const std::vector<mutable_view>& outputs) {
    w.sizes = sizes;
    w.sizes.v[g_.sizes.find("tokens")] = tile;
    const std::vector<long long> need = slot_sizes(w.sizes);
    w.arena.resize(static_cast<std::size_t>(std::accumulate(need.begin(), need.end(), 0LL)));
    Real* p = w.arena.data();
    for (const long long n : need) w.slot.push_back(p), p += n;
    w.sum.resize(static_cast<std::size_t>(g_.size));
    w.side.resize(static_cast<std::size_t>(g_.size));
    for (int i = 0; i < g_.size; ++i) {
      const id at = static_cast<id>(i);
      const auto k = static_cast<std::size_t>(i);
      if (!live_.in[i] || when_.of[i] != stage::data) continue;
      if (sums_tokens(at)) w.sum[k].assign(static_cast<std::size_t>(count(g_, at, w.sizes)), Real(0));
      const bool converted_leaf = g_[at].what == op::input && data[k].type != real_type<Real>;
      const int out = where_.writes_to[i];
      const bool converted_output =
          out >= 0 && where_.inplace[i] < 0 && !direct(outputs[static_cast<std::size_t>(out)]);
      if (converted_leaf || converted_output) w.side[k].resize(static_cast<std::size_t>(count(g_, at, w.sizes)));
    }
  }
  static bool direct(const mutable_view& v) { return v.data != nullptr && v.type == real_type<Real>; }

  void run_tile(worker& w, long long from, long long n, const leaf_views& data,
                const std::vector<mutable_view>& outputs) {
    w.sizes.v[g_.sizes.find("tokens")] = n;
    const evaluator<Real> evaluate{g_, w.sizes};
    auto value = [&](id i) { return tile_value(w, i, from, n, data, outputs); };
    auto gather_operands = [&](const node& v) {
      operands<Real> x;
      if (v.a >= 0) x.a = value(v.a);
      if (v.b >= 0 && g_[v.b].what == op::ids)
        x.ids = static_cast<const std::int64_t*>(data[static_cast<std::size_t>(v.b)].data) + from;
      else if (v.b >= 0)
        x.b = v.what == op::matmul && when_.of[v.b] != stage::data ? weight(v.b) : value(v.b);
      if (v.c >= 0) x.c = value(v.c);
      return x;
    };
    for (int k = 0; k < g_.size; ++k) {
      const id i = static_cast<id>(k);
      const node& v = g_[i];
      if (!live_.in[k] || when_.of[k] != stage::data) continue;
      if (v.what == op::input && !w.side[static_cast<std::size_t>(k)].empty()) {
        const long long each = count(g_, i, w.sizes) / n;
        const view& stored = data[static_cast<std::size_t>(k)];
        decode(stored.data, stored.type, from * each, n * each, w.side[static_cast<std::size_t>(k)].data());
      }
      if (is_leaf(v.what) || where_.into[k] >= 0 || where_.same_as[k] >= 0) continue;
      if (!when_.by_token[k]) {
        if (sums_tokens(i))
          evaluate(i, shaped(g_, i, w.sizes, w.sum[static_cast<std::size_t>(k)].data()), gather_operands(v), 1);
        continue;
      }
      const tensor<Real> out = value(i);
      const id product = where_.into[std::max(v.a, id{0})] == i ? v.a
                         : v.b >= 0 && where_.into[v.b] == i    ? v.b
                                                                : none_id;
      if (product >= 0) {
        const id start_from = product == v.a ? v.b : v.a;
        const tensor<Real> begin = value(start_from);
        if (begin.p != out.p) std::copy_n(begin.p, out.count(), out.p);
        evaluate(product, out, gather_operands(g_[product]), v.what == op::sub ? -1 : 1);
      } else if (v.what != op::reshape || value(v.a).p != out.p) {
        if (adds_up(v)) std::fill_n(out.p, out.count(), Real(0));
        evaluate(i, out, gather_operands(v));
      }
    }
    for (int k = 0; k < g_.outs; ++k) write_tile(w, k, from, n, data, outputs);
  }

  tensor<Real> tile_value(worker& w, id i, long long from, long long n, const leaf_views& data,
                          const std::vector<mutable_view>& outputs) {
    const auto k = static_cast<std::size_t>(i);
    if (when_.of[k] != stage::data) return (*cached_)[i];
    const id leaf = where_.same_as[k] >= 0 ? where_.same_as[k] : i;
    if (is_leaf(g_[leaf].what)) {
      const auto l = static_cast<std::size_t>(leaf);
      if (!w.side[l].empty()) return shaped(g_, i, w.sizes, w.side[l].data());
      const long long each = count(g_, leaf, w.sizes) / n;
      return shaped(g_, i, w.sizes, static_cast<Real*>(const_cast<void*>(data[l].data)) + from * each);
    }
    if (where_.writes_to[k] >= 0) {
      const mutable_view& out = outputs[static_cast<std::size_t>(where_.writes_to[k])];
      if (!direct(out)) return shaped(g_, i, w.sizes, w.side[root(i)].data());
      return shaped(g_, i, w.sizes, static_cast<Real*>(out.data) + from * (count(g_, i, w.sizes) / n));
    }
    return shaped(g_, i, w.sizes, w.slot[static_cast<std::size_t>(where_.slot[k])]);
  }
  std::size_t root(id i) const {
    while (where_.inplace[i] >= 0) i = where_.inplace[i];
    return static_cast<std::size_t>(i);
  }
  tensor<Real> weight(id i) {
    const id leaf = root_leaf(i);
    if (leaf < 0 || !stays_narrow(leaf)) return (*cached_)[i];
    tensor<Real> t = shaped<Real>(g_, i, sizes_, nullptr);
    t.narrow = static_cast<const bf16*>(leaves_[static_cast<std::size_t>(leaf)].data);
    return t;
  }
  void write_tile(worker& w, int k, long long from, long long n, const leaf_views& data,
                  const std::vector<mutable_view>& outputs) {
    const id i = g_.out[k].at;
    const mutable_view& to = outputs[static_cast<std::size_t>(k)];
    if (!when_.by_token[i] || to.data == nullptr) return;
    const tensor<Real> v = tile_value(w, i, from, n, data, outputs);
    const long long each = v.count() / n;
    if (!direct(to))
      encode(v.p, v.count(), to.data, to.type, from * each);
    else if (v.p != static_cast<Real*>(to.data) + from * each)
      std::copy_n(v.p, v.count(), static_cast<Real*>(to.data) + from * each);
  }

  // Adds up the threads' sums and computes what follows from them.
  void finish(std::vector<worker>& crew, const size_values& s, const leaf_views& data,
              const std::vector<mutable_view>& outputs) {
    values<Real> rest(g_, s, data);
    const evaluator<Real> evaluate{g_, s};
    for (int k = 0; k < g_.size; ++k) {
      const id i = static_cast<id>(k);
      if (!live_.in[k] || when_.by_token[k]) continue;
      if (when_.of[k] != stage::data) {
        if (feeds(i, false) || is_output(i)) rest.put(i, (*cached_)[i].p);
      } else if (sums_tokens(i)) {
        auto& total = crew[0].sum[static_cast<std::size_t>(k)];
        for (std::size_t t = 1; t < crew.size(); ++t)
          for (std::size_t e = 0; e < total.size(); ++e) total[e] += crew[t].sum[static_cast<std::size_t>(k)][e];
        rest.put(i, total.data());
      } else if (!is_leaf(g_[i].what)) {
        rest.compute(i, evaluate);
      }
    }
    for (int k = 0; k < g_.outs; ++k) {
      const id i = g_.out[k].at;
      const mutable_view& to = outputs[static_cast<std::size_t>(k)];
      if (when_.by_token[i] || to.data == nullptr) continue;
      const tensor<Real> v = rest[i];
      encode(v.p, v.count(), to.data, to.type, 0);
    }
  }

  graph g_;
  stages when_;
  buffers where_;
  node_set live_;
  size_values sizes_;
  leaf_views leaves_;
  std::unique_ptr<values<Real>> cached_;
  bool loaded_ = false, ready_ = false;
};

}  // namespace graft::cpu
