// SPDX-License-Identifier: Apache-2.0
// A plan bound to tensors on the CPU. Values of the load and parameter stages are computed once per change (prepare); a
// call runs the launches of the plan in order. It allocates nothing, unless it has more rows than any call before it. A
// plan runs one call at a time; plans of different layers are independent.
#pragma once
#include <graft/backend/cpu/runtime/launch_clock.h>
#include <graft/backend/cpu/runtime/row_executor.h>
#include <graft/derive/cost.h>
#include <graft/derive/saved_tensors.h>
#include <graft/plan/fuse.h>

namespace graft::cpu {

// Rows per chunk of a row-wise launch: few enough to stay in the cache and enough to amortize packing the weight inside
// a GEMM, which is faster with 512 rows than with 128 and hardly faster with more (bench/results/cpu-products.json).
inline constexpr long long chunk_rows = 512, min_chunk_rows = 16, chunk_elements = 1LL << 23;

template <class Real> class plan_binding {
 public:
  plan_binding(const graph& g, const target& to) : g_(g), p_(fuse(g, to)), where_(assign_buffers(g_, p_)) {
    for (id i = 0; i < g_.size; ++i) read_whole_.push(is_read_whole(i));
  }
  const graph& value() const { return g_; }
  const plan& launches() const { return p_; }
  bool bound() const { return bound_; }
  void unbind() { bound_ = false; }

  // Binds sizes and leaves and drops all precomputed values. The workspace is reserved for `tokens` rows if it is
  // positive.
  [[gnu::cold]] void bind(const size_values& s, const leaf_views& leaves, long long tokens,
                          dequantize_function<Real> dequantize) {
    sizes_ = call_.sizes = s;
    precomputed_ = values<Real>(g_, sizes_, leaves, dequantize);
    call_.data = leaf_views(g_.size), call_.outputs = sequence<mutable_view>(g_.outs);
    // No designated initializer: nvcc 13 drops the designator where the type is nested in a class template.
    has_.loaded = has_.ready = false;
    bound_ = true, reserved_tokens_ = -1, multi_lora_ = nullptr;
    if (tokens > 0) reserve(tokens);
  }
  void parameters_changed() { has_.ready = false; }
  // Shares parameter-stage values with `from`, a plan that has just run with the same tensors, instead of computing
  // them again. It has to be called before every run, because the values remain in the memory of `from`.
  [[gnu::cold]] void borrow_precomputed(const plan_binding& from) {
    if (matching_.size() != g_.size) matching_ = same_nodes(from.g_, g_);
    precomputed_from_ = from.has_.ready ? &from : nullptr;
    for (id i = 0; i < g_.size && has_.ready; ++i)
      if (is_borrowed(i) && precomputed_.has(i))
        has_.ready = precomputed_.shares_memory(i, from.precomputed_, matching_[i]);
  }
  void weight_changed() { has_.loaded = has_.ready = false; }

  // Layers of equal sizes share a plan and its workspace. A binding is what belongs to one of them: sizes, tensors and
  // precomputed values.
  struct prepared_state {
    bool loaded = false, ready = false;
    long long made = 0;  // version of the values: their addresses may change with it
  };
  struct binding {
    size_values sizes;
    values<Real> precomputed;
    prepared_state has;
    multi_lora_rows<Real>* multi_lora = nullptr;  // not null: rows of its calls have adapters of their own
  };
  // Exchanges the bound tensors for those of another layer.
  void swap_binding(binding& other) {
    std::swap(sizes_, other.sizes), std::swap(precomputed_, other.precomputed);
    std::swap(has_, other.has), std::swap(multi_lora_, other.multi_lora);
  }
  // Computes the precomputed values of a binding without running it, for a reader such as the multi-LoRA table.
  void precompute(binding& b, node_function<Real> by, const host_function<Real>* host) const {
    prepare(b.precomputed, b.has, {g_, b.sizes, by, rotations::blockwise, host});
  }
  // The next call, for the caller to fill in.
  call& next_call() {
    call_.sizes = sizes_;
    for (mutable_view& v : call_.outputs) v = {};
    return call_;
  }

  call& this_call() { return call_; }
  const call& this_call() const { return call_; }

  // Runs the call. The eager oracle passes dense rotations; `host` runs host functions and all-reduces.
  void run(node_function<Real> by, rotations rotation_form = rotations::blockwise,
           const host_function<Real>* host = nullptr, launch_clock* clock = nullptr) {
    prepare(precomputed_, has_, {g_, sizes_, by, rotation_form, host});
    const long long tokens = std::max(0LL, g_.sizes.tokens(call_.sizes));
    if (tokens > reserved_tokens_) reserve(tokens);
    const call_frame<Real> f{g_, p_, where_, precomputed_, call_, stored_, tokens, by, multi_lora_};
    for (id i = 0; i < g_.size; ++i) {  // converts inputs that a launch reads whole and cannot read in place
      if (g_[i].what != op::input || !read_whole_[i]) continue;
      const view& v = f.data(i);
      stored_[i] = in_place<Real>(v) ? nullptr : arena_.data() + offset_[i];
      if (stored_[i] != nullptr) read_floats(v, 0, v.count(), stored_[i]);
    }
    for (int k = 0; k < p_.launches.size(); ++k) {
      const launch& l = p_.launches[k];
      ++launched_;
      if (clock != nullptr) clock->record_launch(p_, k);
      if (l.is<rows_launch>()) {
        row_executor_.run(f, l, chunk_rows_);
        continue;
      }
      const evaluator<Real> evaluate{g_, call_.sizes, by, rotation_form, host};
      for (int n = 0; n < l.count; ++n) f.compute_whole(p_.nodes[l.first + n], evaluate);
    }
    if (clock != nullptr) clock->record_launch(p_, p_.launches.size());
    for (int k = 0; k < g_.outs; ++k)
      if (const id i = g_.out[k].at; p_.rows.dependence_of[i] != row_dependence::chunk && f.output(k).data != nullptr) {
        const tensor<Real> v = f.whole(i);
        write(v.p, 0, v.count(), f.output(k));
      }
  }
  // The number of launches that have run since the plan was made, which tests compare with the plan.
  long long launched() const { return launched_; }
  // The workspace in bytes for calls with this many rows; it is reserved.
  long long workspace_bytes(long long tokens) {
    reserve(tokens);
    return (arena_.size() + row_executor_.elements()) * static_cast<long long>(sizeof(Real));
  }

 private:
  // True if a node reads all rows of the input at once.
  [[gnu::cold]] bool is_read_whole(id i) const {
    for (id r = i + 1; r < g_.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (unshaped(g_, g_[r].operand(k)) == i && p_.live[r] && g_[r].what != op::reshape &&
            !reads_by_chunk(g_, p_, r, k))
          return true;
    return is_output(g_, i);
  }
  // Elements per token of the widest value that is stored for one chunk: the logits of a vocabulary are wide.
  [[gnu::cold]] long long widest_row(const size_values& s, long long tokens) const {
    long long most = 1;
    for (id i = 0; i < g_.size; ++i)
      if (where_.cell[i] >= 0) most = std::max(most, count(g_, i, s) / std::max(1LL, tokens));
    return most;
  }
  [[gnu::cold]] void reserve(long long tokens) {
    reserved_tokens_ = tokens;
    size_values s = call_.sizes;
    g_.sizes.set_tokens(s, tokens);
    chunk_rows_ = std::clamp(chunk_elements / widest_row(s, tokens), min_chunk_rows, chunk_rows);
    row_executor_.reserve(g_, p_, where_, s, tokens, std::min(tokens, chunk_rows_));
    stored_ = sequence<Real*>(g_.size), offset_ = sequence<long long>(g_.size, -1);
    long long total = 0;
    for (id i = 0; i < g_.size; ++i) {
      const bool mine = where_.stored[i] || p_.rows.dependence_of[i] == row_dependence::whole ||
                        (g_[i].what == op::input && read_whole_[i]);
      if (!mine || !p_.live[i] || (g_[i].what == op::reshape && !where_.stored[i])) continue;
      offset_[i] = total;
      total += aligned_count(count(g_, i, s));
    }
    arena_.reserve(std::max(1LL, total));
    for (id i = 0; i < g_.size; ++i) {
      if (offset_[i] >= 0 && g_[i].what != op::input) stored_[i] = arena_.data() + offset_[i];
      if (p_.rows.dependence_of[i] == row_dependence::sum) stored_[i] = row_executor_.sum(i);
      if (g_[i].what == op::reshape && p_.rows.dependence_of[i] == row_dependence::whole)
        stored_[i] = stored_[unshaped(g_, i)];
    }
  }

  // Computes the values of the load and parameter stages and drops those that no call reads.
  [[gnu::cold]] void prepare(values<Real>& precomputed, prepared_state& has, const evaluator<Real>& evaluate) const {
    if (has.ready) return;
    const node_set needed = needed_precomputed();
    for (id i = 0; i < g_.size; ++i) {
      if (!needed[i] || p_.when.of[i] == stage::call) continue;
      if (p_.when.of[i] == stage::load && has.loaded) continue;
      if (is_borrowed(i)) {
        precomputed.alias_value(i, precomputed_from_->precomputed_, matching_[i]);
        continue;
      }
      if (is_leaf(g_[i].what)) precomputed.forget(i);  // the memory of the tensor may have changed
      precomputed.compute(i, evaluate);
    }
    for (id i = 0; i < g_.size; ++i) {
      if (!p_.live[i] || p_.when.of[i] == stage::call || row(g_[i].what).from == source::integers) continue;
      const id leaf = base_leaf(g_, i);
      if (leaf >= 0 && can_stay_stored(i) && precomputed.stays_stored(precomputed.leaf(leaf)))
        precomputed.keep_stored(i, leaf);
      else if (!is_kept(i) && !is_leaf(g_[i].what) && !is_read_per_update(i))
        precomputed.forget(i);
      else if (precomputed.has(i) && prefers_column_major(i))
        precomputed.make_column_major(i);
      else if (is_kept(i))
        static_cast<void>(precomputed[i]);  // converts it here, so that no two threads do so in a call
    }
    has.ready = has.loaded = true, ++has.made;
  }
  [[gnu::cold]] bool is_borrowed(id i) const {
    return precomputed_from_ != nullptr && p_.when.of[i] == stage::parameter && !is_leaf(g_[i].what) &&
           matching_[i] >= 0 && precomputed_from_->p_.when.of[matching_[i]] == stage::parameter &&
           precomputed_from_->precomputed_.has(matching_[i]);
  }
  // The precomputed values that the call stage needs, without those that lead only to borrowed values.
  [[gnu::cold]] node_set needed_precomputed() const {
    node_set needed(g_.size);
    for (int k = 0; k < g_.outs; ++k) needed.add(g_.out[k].at);
    for (id i = g_.size - 1; i >= 0; --i) {
      if (p_.when.of[i] == stage::load && p_.live[i]) needed.add(i);
      if (!p_.live[i] || (p_.when.of[i] != stage::call && (!needed[i] || is_borrowed(i)))) continue;
      for (int k = 0; k < 3; ++k)
        if (const id o = g_[i].operand(k); o >= 0) needed.add(o);
    }
    return needed;
  }
  // True if a call reads the value or it is an output. A reshaped value shares the memory of its operand.
  [[gnu::cold]] bool is_kept(id i) const {
    if (is_output(g_, i)) return true;
    for (id r = i + 1; r < g_.size; ++r) {
      const node& v = g_[r];
      if (!p_.live[r] || (v.a != i && v.b != i && v.c != i)) continue;
      if (p_.when.of[r] == stage::call || (v.what == op::reshape && is_kept(r))) return true;
    }
    return false;
  }
  // True if only GEMMs and look-ups of a call read the base tensor, so that they can read it as it is stored.
  [[gnu::cold]] bool can_stay_stored(id i) const {
    if (is_output(g_, i)) return false;
    for (id r = i + 1; r < g_.size; ++r)
      for (int k = 0; p_.live[r] && k < 3; ++k) {
        if (g_[r].operand(k) != i || (p_.when.of[r] != stage::call && g_[r].what != op::reshape)) continue;
        const node& v = g_[r];
        if (v.what == op::reshape ? !can_stay_stored(r) : !reads_stored(g_, v, k)) return false;
      }
    return true;
  }
  // True for a large precomputed W'ᵀ of a forward pass (RoAd rotates the outputs), which is stored column-major so that
  // GEMMs read it in NT layout: in NN layout 16 tokens take 1.06 to 1.25 of the bare layer's time. A backward pass
  // would have to transpose its copy after every parameter change.
  [[gnu::cold]] bool prefers_column_major(id i) const {
    if (g_.outs != 1 || p_.to.granularity != target::work::by_rows || is_leaf(g_[i].what) || is_output(g_, i))
      return false;
    if (g_[i].d[3] != g_[g_.out[0].at].d[3]) return false;  // a factor of a low-rank branch
    bool read = false;
    for (id r = i + 1; r < g_.size; ++r)
      for (int k = 0; p_.live[r] && k < 3; ++k) {
        const node& v = g_[r];
        if (v.operand(k) != i) continue;
        if (v.what != op::matmul || k != 1 || v.tb || !reads_stored(g_, v, k) || p_.when.of[r] != stage::call)
          return false;
        read = true;
      }
    return read && count(g_, i, sizes_) >= large_weight;
  }
  // True if a value of the load stage is read after every parameter change, directly or reshaped.
  [[gnu::cold]] bool is_read_per_update(id i) const {
    for (id r = 0; r < g_.size && p_.when.of[i] == stage::load; ++r) {
      const node& v = g_[r];
      const bool reads = p_.live[r] && (v.a == i || v.b == i || v.c == i);
      if (reads && (p_.when.of[r] == stage::parameter || v.what == op::reshape)) return true;
    }
    return false;
  }

  graph g_;
  plan p_;
  buffers where_;
  sequence<bool> read_whole_;
  sequence<id> matching_;  // by node: the equal node of the plan that values are borrowed from
  const plan_binding* precomputed_from_ = nullptr;
  size_values sizes_;
  values<Real> precomputed_;
  call call_;
  memory<Real> arena_;          // values that are stored for all rows
  sequence<Real*> stored_;      // by node: all rows of its value; null: not stored
  sequence<long long> offset_;  // by node: element offset in the arena; -1: none
  row_executor<Real> row_executor_;
  long long chunk_rows_ = chunk_rows, reserved_tokens_ = -1, launched_ = 0;
  prepared_state has_;
  bool bound_ = false;
  multi_lora_rows<Real>* multi_lora_ = nullptr;
};

}  // namespace graft::cpu
