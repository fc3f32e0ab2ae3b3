// SPDX-License-Identifier: Apache-2.0
// The fused CPU backend: parameter-time values are computed once and cached, data-time values tile by tile on all
// threads (tile.h), sums over tokens are added up at the end. One call at a time; layers are independent of each other.
#pragma once
#include <graft/backend/cpu/threads.h>
#include <graft/backend/cpu/tile.h>

#include <memory>

namespace graft::cpu {

// Tokens per tile: enough to amortise the packing of the weight inside the product, few enough to stay in the cache.
inline constexpr long long tile_tokens = 256;
// Below this many tokens one tile with threads inside its products is faster than tiles on all threads. Where there is
// other work than products (rotations, look-ups), which has no threads inside, tiles pay earlier.
inline constexpr long long split_tokens = 256, split_other_work = 64;

template <class Real> class fused {
 public:
  explicit fused(const graph& g) : g_(g), t_(tile(g)) {
    for (int k = 0; k < g_.size; ++k) {
      const op what = g_.n[k].what;
      const op_class kind = row(what).kind;
      const bool none = kind == op_class::leaf || kind == op_class::pointwise || what == op::reshape;
      if (t_.live.in[k] && t_.when.of[k] == stage::data && !none && what != op::matmul) split_ = split_other_work;
    }
  }

  // Binds sizes and leaves and forgets everything cached.
  void bind(const size_values& s, const leaf_views& leaves) {
    sizes_ = s;
    leaves_ = leaves;
    cached_ = std::make_unique<values<Real>>(g_, sizes_, leaves_);
    loaded_ = ready_ = false;
  }
  void parameters_changed() { ready_ = false; }

  void run(const call& c) {
    prepare();
    const long long tokens = c.sizes.v[g_.sizes.find("tokens")];
    const int threads = t_.possible && tokens >= split_ ? thread_count() : 1;
    const long long share = (tokens + threads - 1) / threads;
    const long long tile = t_.possible ? std::min(tile_tokens, share) : tokens;
    std::vector<tile_worker<Real>> crew;
    for (int t = 0; t < threads; ++t) crew.emplace_back(g_, t_, *cached_, leaves_, c, tile);
    on_threads(threads, [&](int t) {
      const long long end = std::min(tokens, (t + 1) * share);
      for (long long from = t * share; from < end; from += tile)
        crew[static_cast<std::size_t>(t)].run(from, std::min(tile, end - from));
    });
    finish(crew, c);
  }

  // Bytes of workspace per thread, known before the call.
  long long workspace_bytes(size_values s) const {
    long long& tokens = s.v[g_.sizes.find("tokens")];
    if (t_.possible) tokens = std::min(tile_tokens, tokens);
    const std::vector<long long> need = slot_sizes(g_, t_.where, s);
    return std::accumulate(need.begin(), need.end(), 0LL) * static_cast<long long>(sizeof(Real));
  }

 private:
  // Computes what does not depend on the data; values that were only needed to get there are dropped again.
  void prepare() {
    if (ready_) return;
    const evaluator<Real> evaluate{g_, sizes_};
    for (int k = 0; k < g_.size; ++k) {
      const id i = static_cast<id>(k);
      if (!t_.live.in[k] || t_.when.of[k] == stage::data) continue;
      if (t_.when.of[k] == stage::load && loaded_) continue;
      if (is_leaf(g_[i].what)) cached_->forget(i);  // the tensor behind it may have changed
      cached_->compute(i, evaluate);
    }
    for (int k = 0; k < g_.size; ++k) {
      const id i = static_cast<id>(k);
      if (!t_.live.in[k] || t_.when.of[k] == stage::data) continue;
      const id leaf = base_leaf(g_, i);
      const bool narrow = t_.streamed[i] && stays_narrow<Real>(leaves_[static_cast<std::size_t>(leaf)]);
      if (narrow || (!t_.kept[i] && !is_leaf(g_[i].what) && !read_again(i)))
        cached_->forget(i);
      else if (t_.kept[i])
        static_cast<void>((*cached_)[i]);  // widened now, not by several threads at once
    }
    ready_ = loaded_ = true;
  }

  // Is a value of the load read whenever the parameters change, directly or reshaped?
  bool read_again(id i) const {
    for (int k = 0; k < g_.size && t_.when.of[i] == stage::load; ++k) {
      const node& v = g_.n[k];
      const bool reads = t_.live.in[k] && (v.a == i || v.b == i || v.c == i);
      if (reads && (t_.when.of[k] == stage::parameter || v.what == op::reshape)) return true;
    }
    return false;
  }

  // Adds up the threads' sums and computes what follows from them.
  void finish(std::vector<tile_worker<Real>>& crew, const call& c) {
    values<Real> rest(g_, c.sizes, c.data);
    const evaluator<Real> evaluate{g_, c.sizes};
    for (int k = 0; k < g_.size; ++k) {
      const id i = static_cast<id>(k);
      if (!t_.live.in[k] || t_.when.by_token[k]) continue;
      if (t_.when.of[k] != stage::data) {
        if (t_.read_by_rest[i] || is_output(g_, i)) rest.put(i, (*cached_)[i].p);
      } else if (t_.sums[i]) {
        std::vector<Real>& total = crew[0].sum(i);
        for (std::size_t t = 1; t < crew.size(); ++t)
          array_map<Real>(total.data(), static_cast<long long>(total.size())) +=
              const_array_map<Real>(crew[t].sum(i).data(), static_cast<long long>(total.size()));
        rest.put(i, total.data());
      } else if (!is_leaf(g_[i].what)) {
        rest.compute(i, evaluate);
      }
    }
    for (int k = 0; k < g_.outs; ++k) {
      const id i = g_.out[k].at;
      const mutable_view& to = c.outputs[static_cast<std::size_t>(k)];
      if (t_.when.by_token[i] || to.data == nullptr) continue;
      const tensor<Real> v = rest[i];
      encode(v.p, v.count(), to.data, to.type, 0);
    }
  }

  graph g_;
  tiling t_;
  long long split_ = split_tokens;
  size_values sizes_;
  leaf_views leaves_;
  std::unique_ptr<values<Real>> cached_;
  bool loaded_ = false, ready_ = false;
};

}  // namespace graft::cpu
