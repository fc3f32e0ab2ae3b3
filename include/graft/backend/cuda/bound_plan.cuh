// SPDX-License-Identifier: Apache-2.0
// A plan bound to tensors on the GPU. What does not depend on the data is computed and packed when the plan is bound, and
// again when parameters changed; a call launches the kernels of the plan in their order and does nothing else: no
// allocation, no look-up, no synchronisation. It may be captured in a CUDA graph. How it is bound is in
// bound_plan_bind.cuh, where the values of a call lie in bound_plan_memory.cuh, what it does in bound_plan_run.cuh.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/cuda/bound_attention.cuh>
#include <graft/backend/cuda/bound_product_pack.cuh>
#include <graft/backend/cuda/bound_sum.cuh>
#include <graft/backend/cuda/bound_together.cuh>
#include <graft/backend/cuda/call_memory.cuh>
#include <graft/backend/cuda/launch_clock.cuh>
#include <graft/backend/cuda/parameter_expressions.cuh>
#include <graft/backend/mode.h>

namespace graft::cuda {

// The kernels that a layer may launch. To name one is to compile it.
struct kernel_set {
  linear_kernels linear;
  node_function evaluate = nullptr;
  launchers launches{};
  attention_table attention = nullptr;
  mixed_kernels mixed{};  // none: rows of a call cannot have adapters of their own
  rank_exchange ranks{};  // none: this process computes alone
};

template <class T> class bound_plan {
 public:
  bound_plan(const graph& g, const target& to);
  bound_plan(const bound_plan&) = delete;
  bound_plan& operator=(const bound_plan&) = delete;

  const graph& value() const { return g_; }
  const plan& launches() const { return p_; }
  const size_values& sizes() const { return sizes_; }
  // One product and nothing else: what layers with one input can launch together, and adapters be switched below.
  bool one_product() const {
    return p_.launches.size() == 1 && p_.products.size() == 1 && g_[p_.products[0].x].what == op::input &&
           p_.products[0].weight_by_row && p_.products[0].turn < 0;
  }
  bound_product<T>& product() { return products_[0]; }
  const bound_product<T>& product(int k = 0) const { return products_[k]; }

  status bind(cudaStream_t stream, const kernel_set& kernels, const size_values& s, const leaf_views& leaves,
              const capacity& room, shared_slots<T>& shared, code_panel& panel, call_room* of_model);
  // What one of several layers brings that share this plan: its tensors, the values that follow from them, and its
  // launches. Sizes are the same, so that the memory of calls fits all of them.
  struct binding {
    size_values sizes;
    leaf_views leaves;
    values known;
    node_set before, changing;
    node_set taken{};  // of what was changing: what another plan computes
    sequence<bound_product<T>> products;
    sequence<bound_sum<T>> sums;
    sequence<bound_together<T>> together;
    cells<float> next_gain{};  // of the norm that the block behind begins with
    mixed_launches mixed;
    long long aimed = -1;
  };
  // The tensors of another layer come in, those that were here go out.
  void exchange(binding& other) {
    std::swap(sizes_, other.sizes), std::swap(leaves_, other.leaves), std::swap(values_, other.known);
    std::swap(known_, other.before), std::swap(changing_, other.changing);
    std::swap(products_, other.products), std::swap(sums_, other.sums), std::swap(together_, other.together);
    std::swap(aimed_, other.aimed);
    std::swap(mixed_, other.mixed), std::swap(next_gain_, other.next_gain);
  }
  // This block reads what the one before gives: where it begins with a norm that only products read, the launch that
  // writes the result there may do it.
  void follows(binding& before, const binding& mine) const {
    const int r = p_.norm_of_input;
    before.next_gain = r < 0 ? cells<float>{} : mine.known.place(unshaped(g_, p_.row_launches[r].scale));
  }
  // What follows from parameters alone is computed by another plan of the same layer, whose parameters_changed() comes
  // first: `equal` is its node for each of ours, or none.
  static void take_known(binding& mine, const binding& from, const sequence<id>& equal) {
    if (mine.taken.in.size() != equal.size()) mine.taken = node_set(equal.size());
    for (id i = 0; i < equal.size(); ++i) {
      if (!mine.changing[i] && !mine.taken[i]) continue;
      if (equal[i] < 0 || !from.changing[equal[i]] || from.known.place(equal[i]).at == nullptr) continue;
      mine.known.lies_at(i, from.known.place(equal[i]));
      mine.taken.add(i), mine.changing.in[i] = mine.before.in[i] = false;
    }
    for (bound_product<T>& p : mine.products)
      for (const bound_product<T>& other : from.products)
        if (p.makes_weight() && other.makes_weight() && equal[p.slots().weight] == other.slots().weight)
          p.borrow_weight(other);
  }
  // The same for the tensors that are here: those of a layer by itself.
  void take_known(bound_plan& from, const sequence<id>& equal) {
    binding mine, other;
    exchange(mine), from.exchange(other);
    take_known(mine, other, equal);
    exchange(mine), from.exchange(other);
  }
  // How often the addresses that launches use have changed: what was captured before is void.
  long long moves() const {
    return moved_ + memory_.made() + (panel_ != nullptr ? panel_->moves() : 0) +
           (of_adapters_ != nullptr ? of_adapters_->moves() : 0) + (room_ != nullptr ? room_->normed_rows.moves() : 0);
  }
  // Parameter-time values again, from tensors that were written; nothing is allocated.
  // `scratch`: where other plans may use the memory of calls meanwhile.
  status parameters_changed(cudaStream_t stream, buffer* scratch = nullptr);
  // The same for all that is known before the data, from a weight that was written.
  status weight_changed(cudaStream_t stream);
  status publish(cudaStream_t stream);
  call& next_call() {
    now_.sizes = sizes_;
    for (mutable_view& v : now_.outputs) v = {};
    return now_;
  }
  call& this_call() { return now_; }
  const call& this_call() const { return now_; }

  status run(cudaStream_t stream, const target& to, bool alone, launch_clock* clock = nullptr);
  // How many launches of the plan have run.
  long long launched() const { return launched_ * p_.launches.size(); }
  void unchain() {
    for (bound_product<T>& b : products_) b.unchain();
  }

 private:
  void make_launches();
  // Products of one launch, whose adapters may have different ranks or none; codes run one after the other as they are.
  void join_ranks(const size_values& s);
  // Which values are computed when, by nodes of their own.
  void collect();
  void need_known(id i) {
    i = unshaped_data(i);
    if (i >= 0 && p_.when.of[i] != stage::data) need(i);
  }
  id unshaped_data(id i) const {  // a reshape of data is no launch; what it reads is
    while (i >= 0 && g_[i].what == op::reshape && p_.when.of[i] == stage::data) i = g_[i].a;
    return i;
  }
  void need(id i) {
    if (i < 0 || known_[i]) return;
    known_.add(i);
    for (int o = 0; o < 3; ++o) need(g_[i].operand(o));
  }
  status pack(cudaStream_t stream);
  status reserve_values(const size_values& largest);
  void keep_narrow(id i) {
    if (i >= 0 && p_.when.by_token[i] && !is_leaf(g_[i].what)) narrow_.add(i);
  }
  // An output that lies in the caller's memory: a layer by itself has no room for it. Blocks of a model share theirs.
  bool is_brought(id i) const {
    if (in_model_ || lacking_[i]) return false;
    for (int k = 0; k < g_.outs; ++k)
      if (unshaped(g_, g_.out[k].at) == i) return true;
    return false;
  }
  // Nodes that a launch computes, or may have to compute one by one.
  template <class F> void each_computed(const graft::launch& l, F f) const {
    for (const int sum : {l.sum, l.beside[0], l.beside[1], l.summed[0], l.summed[1]})
      if (sum >= 0) f(p_.sums[sum].result);
    if (l.norm >= 0) f(p_.row_launches[l.norm].norm);
    for (int k = l.product; l.product >= 0 && k <= l.product + l.together; ++k) {
      if (p_.products[k].turn >= 0) f(p_.products[k].turn);
      if (p_.products[k].turned >= 0) f(p_.products[k].result);
    }
    if (l.product >= 0 || l.sum >= 0) return;
    f(l.anchor);
    if (l.chained >= 0 || l.stack >= 0)
      for (int n = l.first; n < l.first + l.count; ++n) f(p_.nodes[n]);
  }
  long long scratch_of(const graft::launch& l, const size_values& s) const;
  status make_room();
  void aim();
  void* workspace() const { return of_adapters_ != nullptr ? of_adapters_->data() : memory_.workspace(); }
  // Node i as a product over the tokens reads it: what products stored for it has rows with padding.
  sum_operand operand_of(id raw) const {
    const id i = unshaped(g_, raw);
    const auto columns = static_cast<int>(g_.sizes.value(g_[raw].d[3], now_.sizes));
    for (const bound_product<T>& b : products_) {
      if (b.kept_side() == i) return {b.kept(), columns, b.rank(), dtype_of<T>};
      if (b.slots().result == i && i == raw) return {tensor_at(i), columns, b.out_size(), dtype_of<T>};
    }
    if (i == raw && is_padded(i)) return {values_.room(i).at, columns, padded_columns(i), dtype_of<T>};
    return {tensor_at(i), columns, columns, comes_with_call(i) ? dtype_of<T> : values_[i].p.type};
  }
  int padded_columns(id i) const { return padded_rank(static_cast<int>(g_.sizes.value(g_[i].d[3], sizes_))); }
  bool is_padded(id i) const {
    for (const padded_operand& p : pads_)
      if (p.what == i) return true;
    return false;
  }
  // A value of a call without tokens that is wider than any rank, both ways. Sums in f16 may not fit into it.
  bool is_as_a_weight(id i) const {
    const node& v = g_[i];
    auto wide = [&](int axis) { return g_.sizes.value(v.d[axis], sizes_) > wide_rank; };
    return dtype_of<T> != dtype::f16 && p_.when.of[i] == stage::data && !p_.when.by_token[i] && !is_output(g_, i) &&
           wide(2) && wide(3);
  }
  bool comes_with_call(id i) const { return is_leaf(g_[i].what) && row(g_[i].what).known == stage::data; }
  const void* tensor_at(id i) const {
    i = unshaped(g_, i);
    return comes_with_call(i) ? now_.data[i].data : values_[i].p.at;
  }
  status check_type(id raw) const {
    const id i = unshaped(g_, raw);
    if (i < 0 || !comes_with_call(i) || now_.data[i].type == dtype_of<T>) return ok;
    return fail("tensor '", g_.name(i), "' is ", name_of(now_.data[i].type), ", this layer computes in ",
                name_of(dtype_of<T>));
  }
  status check_types() const;
  // What products read and write is T: an output of another type is a copy of it.
  bool converts(int k) const {
    return launched(k) && narrow_[unshaped(g_, g_.out[k].at)] && now_.outputs[k].type != dtype_of<T>;
  }
  // The output that the launch of node i writes to; -1: memory of the plan.
  int written_output(id i) const {
    const int k = output_of(i);
    return k >= 0 && converts(k) ? -1 : k;
  }
  int output_of(id i) const {
    for (int k = 0; k < g_.outs; ++k)
      if (unshaped(g_, g_.out[k].at) == i && now_.outputs[k].data != nullptr) return k;
    return -1;
  }
  dtype output_type(int k) const { return now_.outputs[k].type; }
  void* output_at(id i) const {
    const int k = i < 0 ? -1 : output_of(i);
    return k < 0 ? nullptr : now_.outputs[k].data;
  }
  bool launched(int k) const { return p_.launch_of[unshaped(g_, g_.out[k].at)] >= 0; }

  bool mixes(const graft::launch& l) const;
  result<bool> run_mixed_together(cudaStream_t stream, const target& to, const graft::launch& l, bool alone);
  // ---- norms inside products (bound_plan_norms.cuh)
  long long bytes_of_squares(id x) const {
    return most_normed_tokens * g_.sizes.value(g_[x].d[3], sizes_) / 16 * static_cast<long long>(sizeof(float));
  }
  bool takes_norm(id x, long long m, const target& to) const;
  norm_behind norm_behind_of(const graft::launch& l, long long m, const target& to);
  norm_ahead norm_ahead_of(id x, long long m) const;
  bool take_normed_input(const row_launch& r);
  result<bool> look_up_for_norm(cudaStream_t stream, id i);
  status run_products(cudaStream_t stream, const target& to, const graft::launch& l, bool alone);
  status run_product(cudaStream_t stream, const target& to, const graft::launch& l, int index, bool alone);
  void* place_of(id i);
  status turn_inputs(cudaStream_t stream, const graft::launch& l);
  // Is the rotation of a product's result part of its kernel in this call?
  bool turns_inside_of(const bound_product<T>& b, long long m, const target& to) const {
    const product_slots& s = b.slots();
    bool aligned = true;
    for (const id i : {s.x, s.result, s.turned}) {
      const int k = written_output(i);
      const void* const at = k >= 0 ? now_.outputs[k].data : tensor_at(i);
      aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
    }
    return aligned && b.turns(m, kernels_->linear, to);
  }
  // What the kernels of a product read as x.
  const void* input_of(const product_slots& s) const { return tensor_at(s.turn >= 0 ? s.turn : s.x); }
  // A sum before post that other launches of the plan read.
  bool is_read_later(id i) const {
    int outputs = 0;
    for (int k = 0; k < g_.outs; ++k) outputs += g_.out[k].at == i ? 1 : 0;
    return i >= 0 && readers_[i] > outputs + 1;
  }
  // A gradient that nobody asked for is computed nowhere.
  bool is_asked_for(id i) const { return output_of(i) >= 0 || !is_output(g_, i) || readers_[i] > 1; }
  cells<float> place_of(const token_sum& s);
  beside_sum sum_beside(int index, const bound_product<T>& product, void* side);
  status run_sum(cudaStream_t stream, const target& to, int index);
  status run_rows(cudaStream_t stream, const row_launch& r);
  status run_dropped(cudaStream_t stream, const dropped_product& d);
  status run_chain(cudaStream_t stream, const chained_product& c);
  status run_small(cudaStream_t stream, const small_stack& s);
  // Does something outside of the stack read what it makes?
  bool is_read_outside(const small_stack& s, id i) const {
    int inside = 0;
    for (const id reader : s.inside)
      for (int k = 0; k < 3; ++k) inside += g_[reader].operand(k) == i ? 1 : 0;
    return readers_[i] > inside;
  }
  // Of the sums of a chain, as the blocks of its kernel leave them.
  long long bytes_of_parts(const chained_product& c, const size_values& s) const {
    const long long tokens = g_.sizes.value(g_[c.z].d[1], s),
                    each = count(g_, c.left_sum, s) + count(g_, c.right_sum, s);
    return chain_blocks(tokens) * each * static_cast<long long>(sizeof(float));
  }
  status run_node(cudaStream_t stream, id i);
  status pad(cudaStream_t stream, const padded_rows_of& rows);
  status pad_operands(cudaStream_t stream, int launch);
  status run_attention(cudaStream_t stream, const target& to, const graft::launch& l);
  status run_expression(cudaStream_t stream, const target& to, const graft::launch& l);

  graph g_;
  plan p_;
  sequence<id> inputs_;
  sequence<bound_product<T>> products_;
  sequence<bound_sum<T>> sums_;
  sequence<bound_together<T>> together_;  // one for each launch of several products
  mixed_launches mixed_;
  cells<float> next_gain_{};
  normed_result normed_input_{};
  node_set normed_;  // results of norms that lie as h ⊙ gain in this call
  sequence<bound_attention<T>> attentions_;
  sequence<int> readers_;
  sequence<id> read_;  // by products of either kind: stored as T
  const kernel_set* kernels_ = nullptr;
  size_values sizes_, reserved_;  // of the layer; the largest that the memory of calls was laid out for
  leaf_views leaves_;
  values values_;
  call now_;
  node_set known_, changing_, computed_;  // before the data; of these what follows from parameters; launches of a call
  node_set narrow_;                       // values of a call that are stored as T
  struct padded_operand {
    int before;  // which launch
    id what;
  };
  sequence<padded_operand> pads_;  // what is copied with padding
  parameter_expressions joined_;   // of what is known before
  node_set lacking_;               // outputs that a caller did not bring as they are written
  call_memory memory_;
  const code_panel* panel_ = nullptr;
  long long aimed_ = -1, moved_ = 0, launched_ = 0;
  call_room* room_ = nullptr;  // of all plans of the layer, or of the model
  bool in_model_ = false;
  buffer own_counters_;
  long long workspace_bytes_ = 0;
  common_memory* of_adapters_ = nullptr;  // the workspace that the adapters of a layer share
  std::uint32_t* counters_ = nullptr;
  bool only_product_ = false;
};

}  // namespace graft::cuda
