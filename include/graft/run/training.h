// SPDX-License-Identifier: Apache-2.0
// Forward and backward of a layer in training: forward writes what backward would compute a second time into memory of
// ours, and backward reads it (derive/keep.h). What is kept belongs to the last forward call.
#pragma once
#include <graft/run/backward_passes.h>

namespace graft {

// What training keeps of a layer, as calls that do not train see it: a program that never trains compiles nothing behind it.
template <class Engine> struct kept_passes {
  virtual ~kept_passes() = default;
  virtual void forget() = 0;
  virtual void list(sequence<pass<Engine>*>& to) = 0;
};

template <class Engine> class training_passes {
 public:
  using queue = typename Engine::queue;

  training_passes(const graph& forth, const graph& back) : graphs_(keep(forth, back)) {}

  graph forward_graph() const { return graphs_.forward; }
  graph backward_graph() const { return graphs_.backward; }
  pass<Engine> forward;
  backward_passes<Engine> backward;
  void list(sequence<pass<Engine>*>& to) { to.push(&forward), backward.list(to); }
  void forget() { filled_ = false; }

  // A forward call whose x and y the pass has been given already; room for at least so many rows is made for what it keeps.
  status run_forward(queue& q, const view& x, long long tokens) {
    kept_.clear(), filled_ = false;
    const graph g = forward.g();
    const call& c = forward.runs().this_call();
    size_values largest = c.sizes;
    if (g.sizes.tokens(largest) < tokens) g.sizes.set_tokens(largest, tokens);
    long long total = 0;
    for (int k = first_kept(); k < g.outs; ++k) total += bytes(g, k, largest);
    if (total > room_) {
      result<typename Engine::block> fresh = Engine::allocate(q, total);
      if (!fresh) return fresh.failure();
      memory_ = std::make_unique<typename Engine::block>(std::move(*fresh)), room_ = total;
    }
    auto* at = memory_ != nullptr ? static_cast<unsigned char*>(memory_->data()) : nullptr;
    for (int k = first_kept(); k < g.outs; at += bytes(g, k++, largest))
      if (status s = forward.want(k, shaped(g, k, c.sizes, at)); !s) return s;
    if (status s = forward.run(q); !s) return s;
    for (int k = first_kept(); k < g.outs; ++k) {
      const mutable_view& v = c.outputs[k];
      view kept{v.data, v.type, {}, v.rank};
      for (int i = 0; i < v.rank; ++i) kept.size[i] = v.size[i];
      kept_.push(kept);
    }
    of_ = x, filled_ = true;
    return ok;
  }
  // The values that the last forward call kept, for a backward call with the same x.
  result<const leaf_views*> kept(const view& x) const {
    bool same = filled_ && x.rank == of_.rank && kept_.size() == graphs_.leaf.size();
    for (int k = 0; same && k < x.rank; ++k) same = x.size[k] == of_.size[k];
    if (!same) return fail("in training backward() follows a forward() with the same x; call forward() first");
    return &kept_;
  }
  // Bytes that calls with so many rows keep, of sizes known but for the tokens.
  long long kept_bytes(size_values sizes, long long tokens) const {
    const graph g = graphs_.forward;
    g.sizes.set_tokens(sizes, tokens);
    long long total = 0;
    for (int k = first_kept(); k < g.outs; ++k) total += bytes(g, k, sizes);
    return total;
  }

 private:
  int first_kept() const { return graph(graphs_.forward).outs - graphs_.leaf.size(); }
  static long long bytes(const graph& g, int output, const size_values& s) {
    return (count(g, g.out[output].at, s) * bits_of(Engine::keeps) / 8 + 255) / 256 * 256;
  }
  static mutable_view shaped(const graph& g, int output, const size_values& s, void* at) {
    const node& v = g[g.out[output].at];
    const int rank = kept_rank(v);
    mutable_view to{at, Engine::keeps, {}, rank};
    for (int i = 0; i < rank; ++i) to.size[i] = g.sizes.value(v.d[4 - rank + i], s);
    return to;
  }

  kept_pair graphs_;
  std::unique_ptr<typename Engine::block> memory_;
  long long room_ = 0;
  leaf_views kept_;
  view of_{};
  bool filled_ = false;
};

}  // namespace graft
