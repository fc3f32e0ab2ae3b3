// SPDX-License-Identifier: Apache-2.0
// The variants of a training step of one layer, and the values that it saves. All variants compute the same gradients:
//     default        computes what follows from parameters first, as inference does
//     by rows        applies every factor of the adapter to the rows (derive/apply_by_rows.h)
//     reassociated   does so only in the gradients of factors (derive/reassociate_wgrads.h)
//     folded         has the adapter in a copy of the weight (derive/folded_training.h); on GPUs, for all calls or none
// The parameters change before each step, so which of the first three is less work depends on the number of rows: it is
// counted when a number of rows comes for the first time.
#pragma once
#include <graft/derive/reassociate_wgrads.h>
#include <graft/plan/kernel_count.h>
#include <graft/run/pass.h>

namespace graft {

// The interface of training_variants for calls that do not train: a program that never trains does not compile them.
template <class Engine> struct saved_passes {
  virtual ~saved_passes() = default;
  virtual void forget() = 0;
  virtual void list(sequence<pass<Engine>*>& to) = 0;
};

// Forward and backward in training: forward writes what backward would compute a second time to memory of its own,
// which backward reads (derive/saved_tensors.h). The saved values are those of the last forward call.
template <class Engine> class training_passes {
 public:
  using queue = typename Engine::queue;

  training_passes(const graph& fwd, const graph& bwd) : graphs_(select_saved_tensors(fwd, bwd)) {}

  graph forward_graph() const { return graphs_.forward; }
  graph backward_graph() const { return graphs_.backward; }
  pass<Engine> forward;
  backward_passes<Engine> backward;
  void list(sequence<pass<Engine>*>& to) { to.push(&forward), backward.list(to); }
  void forget() { has_saved_ = false; }

  // Runs a forward call that has its x and y already. Memory for saved values is allocated for at least `tokens` rows.
  status run_and_save(queue& q, const view& x, long long tokens) {
    saved_.clear(), has_saved_ = false;
    const graph g = forward.g();
    const program_call& c = forward.in->this_call();
    size_values largest = c.sizes;
    if (g.sizes.tokens(largest) < tokens) g.sizes.set_tokens(largest, tokens);
    long long total = 0;
    for (int k = first_saved(); k < g.outs; ++k) total += bytes(g, k, largest);
    if (total > saved_capacity_) {
      result<typename Engine::memory> fresh = Engine::allocate(q, total);
      if (!fresh) return fresh.failure();
      memory_ = std::make_unique<typename Engine::memory>(std::move(*fresh)), saved_capacity_ = total;
    }
    auto* at = memory_ != nullptr ? static_cast<unsigned char*>(memory_->data()) : nullptr;
    for (int k = first_saved(); k < g.outs; at += bytes(g, k++, largest))
      if (status s = forward.in->request_output(k, shaped(g, k, c.sizes, at)); !s) return s;
    if (status s = forward.run(q); !s) return s;
    for (int k = first_saved(); k < g.outs; ++k) {
      const mutable_view& v = c.outputs[k];
      view saved{v.data, v.type, {}, v.rank};
      for (int i = 0; i < v.rank; ++i) saved.size[i] = v.size[i];
      saved_.push(saved);
    }
    input_ = x, has_saved_ = true;
    return ok;
  }
  // Gives the values that the last forward call saved, for a backward call with the same x.
  result<const leaf_views*> saved(const view& x) const {
    if (!has_saved_ || saved_.size() != graphs_.leaf.size())
      return fail("in training backward() follows a forward() with the same x; call forward() first");
    bool same = x.data == input_.data && x.rank == input_.rank && x.type == input_.type;
    for (int k = 0; same && k < x.rank; ++k) same = x.size[k] == input_.size[k] && x.stride(k) == input_.stride(k);
    if (!same)
      return fail(
          "in training backward() follows a forward() with the same x, and this is another tensor than the last "
          "forward() was given; call forward() with it first");
    return &saved_;
  }
  // Bytes that a call with so many rows saves, given all other sizes.
  long long saved_bytes(size_values sizes, long long tokens) const {
    const graph g = graphs_.forward;
    g.sizes.set_tokens(sizes, tokens);
    long long total = 0;
    for (int k = first_saved(); k < g.outs; ++k) total += bytes(g, k, sizes);
    return total;
  }

 private:
  int first_saved() const { return graph(graphs_.forward).outs - graphs_.leaf.size(); }
  static long long bytes(const graph& g, int output, const size_values& s) {
    return (element_count(g, g.out[output].at, s) * bits_of(Engine::storage_type) / 8 + 255) / 256 * 256;
  }
  static mutable_view shaped(const graph& g, int output, const size_values& s, void* at) {
    const node& v = g[g.out[output].at];
    const int rank = saved_rank(v);
    mutable_view to{at, Engine::storage_type, {}, rank};
    for (int i = 0; i < rank; ++i) to.size[i] = g.sizes.value(v.d[4 - rank + i], s);
    return to;
  }

  saved_pair graphs_;
  std::unique_ptr<typename Engine::memory> memory_;
  long long saved_capacity_ = 0;
  leaf_views saved_;
  view input_{};
  bool has_saved_ = false;
};

template <class Engine> class training_variants final : public saved_passes<Engine> {
 public:
  // Variants other than the default need the layer's formula; by rows and reassociated need a target that runs any
  // graph row by row. `max_rows` is the capacity of a layer without other adapters; 0 where it may have others.
  training_variants(const layer_graphs& graphs, const layer_state& state, const target& to, long long max_rows)
      : default_(graphs.forward, graphs.backward) {
    if (graphs.from.kind.run == nullptr) return;
    if constexpr (!Engine::reads_host_memory)  // a CPU takes any graph row by row
      if (max_rows > 0 && graphs.from.adapter.input_gradient_weight == nullptr)
        consider_folded(graphs, state, to, max_rows);
    if (to.granularity != target::work::by_rows) return;
    auto also = [&](const graph& fwd, const builder& bwd) {
      if (bwd.bad.what == formula_error::none)
        alternatives_.push_back(std::make_unique<training_passes<Engine>>(fwd, bwd));
    };
    also(graphs.forward, reassociate_wgrads(capture_backward(graphs.from)));
    if (const builder fwd = capture_forward_by_rows(graphs.from); fwd.bad.what == formula_error::none)
      also(fwd, capture_backward_by_rows(graphs.from));
  }
  // Chooses the variant for calls with so many rows.
  training_passes<Engine>& variant_for(const layer_state& state, long long rows) {
    if (folded_ != nullptr) return *folded_;
    if (alternatives_.empty() || rows == counted_rows_) return *least_;
    counted_rows_ = rows, least_ = &default_;
    result<double> least = work(default_, state, rows);
    for (auto& form : alternatives_)
      if (const result<double> its = work(*form, state, rows); least && its && *its < min_gain * *least)
        least = its, least_ = form.get();
    return *least_;
  }
  training_passes<Engine>& begin(const layer_state& state, long long rows) {
    return *(current_ = &variant_for(state, rows));
  }
  // The variant of the last forward call, which backward follows.
  training_passes<Engine>& current() { return current_ != nullptr ? *current_ : default_; }
  const training_passes<Engine>& current() const { return current_ != nullptr ? *current_ : default_; }
  void forget() override {
    default_.forget();
    for (auto& form : alternatives_) form->forget();
    if (folded_ != nullptr) folded_->forget();
  }
  void list(sequence<pass<Engine>*>& to) override {
    default_.list(to);
    for (auto& form : alternatives_) form->list(to);
    if (folded_ != nullptr) folded_->list(to);
  }

 private:
  void consider_folded(const layer_graphs& graphs, const layer_state& state, const target& to, long long max_rows) {
    const graph fwd = default_.forward_graph();
    const result<bound_leaves> b = state.bind(fwd);
    if (to.granularity != target::work::by_products || !b || has_quantized(b->leaf)) return;
    const builder whole = capture_forward_folded(graphs.from), bwd = capture_backward_folded(graphs.from);
    if (whole.bad.what != formula_error::none || bwd.bad.what != formula_error::none) return;
    auto other = std::make_unique<training_passes<Engine>>(whole, bwd);
    size_values s = b->sizes;
    fwd.sizes.set_tokens(s, max_rows);
    if (trains_folded(to, {fwd, default_.backward_graph()}, {other->forward_graph(), other->backward_graph()}, s))
      folded_ = std::move(other);
  }
  static constexpr double min_gain = 0.95;  // smaller differences of the counted work are not significant

  static result<double> work(const training_passes<Engine>& of, const layer_state& state, long long rows) {
    const graph fwd = of.forward_graph(), bwd = of.backward_graph();
    const result<bound_leaves> b = state.bind(fwd);
    if (!b) return b.failure();
    size_values s = b->sizes;
    fwd.sizes.set_tokens(s, rows);
    const sequence<id> same = same_nodes(fwd, bwd);
    sequence<bool> reused;
    for (const id i : same) reused.push(i >= 0);
    return training_step_work(fwd, s) + training_step_work(bwd, sizes_for(bwd, fwd, s), reused);
  }

  training_passes<Engine> default_;
  std::unique_ptr<training_passes<Engine>> folded_;
  std::vector<std::unique_ptr<training_passes<Engine>>> alternatives_;
  training_passes<Engine>*current_ = nullptr, *least_ = &default_;
  long long counted_rows_ = -1;
};

}  // namespace graft
