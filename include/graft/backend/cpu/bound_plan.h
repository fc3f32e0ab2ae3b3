// SPDX-License-Identifier: Apache-2.0
// A plan bound to tensors on the CPU. What does not depend on the data is computed once per change and kept; a call runs
// the launches of the plan in their order and allocates nothing, unless it brings more rows than any call before it.
// One call at a time; layers are independent of each other.
#pragma once
#include <graft/backend/cpu/launch_clock.h>
#include <graft/backend/cpu/row_worker.h>
#include <graft/derive/cost.h>
#include <graft/derive/keep.h>
#include <graft/plan/fuse.h>

namespace graft::cpu {

// Rows per piece: few enough to stay in the cache, and enough to amortise the packing of the weight inside the product,
// which is faster with 512 rows than with 128 and hardly any faster with more (bench/results/cpu-products.json).
inline constexpr long long piece_rows = 512, least_piece_rows = 16, piece_elements = 1LL << 23;

template <class Real> class bound_plan {
 public:
  bound_plan(const graph& g, const target& to) : g_(g), p_(fuse(g, to)), where_(assign_buffers(g_, p_)) {
    for (id i = 0; i < g_.size; ++i) whole_leaf_.push(read_whole(i));
  }
  const graph& value() const { return g_; }
  const plan& launches() const { return p_; }
  bool bound() const { return bound_; }
  void unbind() { bound_ = false; }

  // Binds sizes and leaves and forgets everything kept. `tokens`: room for calls with so many rows; `decode`: as
  // operations have it.
  [[gnu::cold]] void bind(const size_values& s, const leaf_views& leaves, long long tokens,
                          code_function<Real> decode) {
    sizes_ = now_.sizes = s;
    known_ = values<Real>(g_, sizes_, leaves, decode);
    now_.data = leaf_views(g_.size), now_.outputs = sequence<mutable_view>(g_.outs);
    has_ = {.made = has_.made}, bound_ = true, room_ = -1, mixed_ = nullptr;
    if (tokens > 0) reserve(tokens);
  }
  void parameters_changed() { has_.ready = false; }
  // What both plans compute from the parameters is taken from one that has just run with the same tensors. To be said
  // before every run: the values stay where they are.
  [[gnu::cold]] void borrow(const bound_plan& from) {
    if (same_.size() != g_.size) same_ = same_nodes(from.g_, g_);
    lender_ = from.has_.ready ? &from : nullptr;
    for (id i = 0; i < g_.size && has_.ready; ++i)
      if (borrowed(i) && known_.has(i)) has_.ready = known_.is_at(i, from.known_, same_[i]);
  }
  void weight_changed() { has_.loaded = has_.ready = false; }

  // What one of several layers brings that share this plan: its sizes, its tensors and the values that follow from them.
  // Their sizes are the same, so that the workspace fits all of them.
  struct preparation {
    bool loaded = false, ready = false;
    long long made = 0;  // how often values were computed: addresses of them may be others each time
  };
  struct binding {
    size_values sizes;
    values<Real> known;
    preparation has;
    mixed_rows<Real>* mixed = nullptr;  // rows of its calls have adapters of their own
  };
  // The tensors of another layer come in, those that were here go out.
  void exchange(binding& other) {
    std::swap(sizes_, other.sizes), std::swap(known_, other.known);
    std::swap(has_, other.has), std::swap(mixed_, other.mixed);
  }
  // Computes what follows from the tensors of a layer, for somebody who reads it there.
  void make_ready(binding& b, node_function<Real> by, const host_function<Real>* host) const {
    prepare(b.known, b.has, {g_, b.sizes, by, rotations::blockwise, host});
  }
  // What the next call brings, to be filled in.
  call& next_call() {
    now_.sizes = sizes_;
    for (mutable_view& v : now_.outputs) v = {};
    return now_;
  }

  call& this_call() { return now_; }
  const call& this_call() const { return now_; }

  // Runs the call that was filled in. `how` and `host` are the oracle's.
  void run(node_function<Real> by, rotations how = rotations::blockwise, const host_function<Real>* host = nullptr,
           launch_clock* clock = nullptr) {
    prepare(known_, has_, {g_, sizes_, by, how, host});
    const long long tokens = std::max(0LL, g_.sizes.tokens(now_.sizes));
    if (tokens > room_) reserve(tokens);
    const frame<Real> f{g_, p_, where_, known_, now_, stored_, tokens, by, mixed_};
    for (id i = 0; i < g_.size; ++i) {  // inputs that are read as a whole, and cannot be where they lie
      if (g_[i].what != op::input || !whole_leaf_[i]) continue;
      const view& v = f.data(i);
      stored_[i] = in_place<Real>(v) ? nullptr : arena_.data() + offset_[i];
      if (stored_[i] != nullptr) read_numbers(v, 0, v.count(), stored_[i]);
    }
    for (int k = 0; k < p_.launches.size(); ++k) {
      const launch& l = p_.launches[k];
      ++launched_;
      if (clock != nullptr) clock->note(p_, k);
      if (l.by_rows) {
        by_rows_.run(f, l, piece_);
        continue;
      }
      const evaluator<Real> evaluate{g_, now_.sizes, by, how, host};
      for (int n = 0; n < l.count; ++n) f.compute_whole(p_.nodes[l.first + n], evaluate);
    }
    if (clock != nullptr) clock->note(p_, p_.launches.size());
    for (int k = 0; k < g_.outs; ++k)
      if (const id i = g_.out[k].at; p_.rows.how[i] != reach::piece && f.output(k).data != nullptr) {
        const tensor<Real> v = f.whole(i);
        write(v.p, 0, v.count(), f.output(k));
      }
  }
  // How many launches have run since the plan was made: what a test compares with the plan.
  long long launched() const { return launched_; }
  // Bytes of workspace for calls with so many rows, known before the call.
  long long workspace_bytes(long long tokens) {
    reserve(tokens);
    return (arena_.size() + by_rows_.elements()) * static_cast<long long>(sizeof(Real));
  }

 private:
  // An input that somebody reads as a whole.
  [[gnu::cold]] bool read_whole(id i) const {
    for (id r = i + 1; r < g_.size; ++r)
      for (int k = 0; k < 3; ++k)
        if (unshaped(g_, g_[r].operand(k)) == i && p_.live[r] && g_[r].what != op::reshape &&
            !reads_by_piece(g_, p_, r, k))
          return true;
    return is_output(g_, i);
  }
  // Elements for each token of the largest value that lives a piece at a time: the logits of a vocabulary are wide.
  [[gnu::cold]] long long widest_row(const size_values& s, long long tokens) const {
    long long most = 1;
    for (id i = 0; i < g_.size; ++i)
      if (where_.cell[i] >= 0) most = std::max(most, count(g_, i, s) / std::max(1LL, tokens));
    return most;
  }
  [[gnu::cold]] void reserve(long long tokens) {
    room_ = tokens;
    size_values s = now_.sizes;
    g_.sizes.set_tokens(s, tokens);
    piece_ = std::clamp(piece_elements / widest_row(s, tokens), least_piece_rows, piece_rows);
    by_rows_.reserve(g_, p_, where_, s, tokens, std::min(tokens, piece_));
    stored_ = sequence<Real*>(g_.size), offset_ = sequence<long long>(g_.size, -1);
    long long total = 0;
    for (id i = 0; i < g_.size; ++i) {
      const bool mine =
          where_.stored[i] || p_.rows.how[i] == reach::whole || (g_[i].what == op::input && whole_leaf_[i]);
      if (!mine || !p_.live[i] || (g_[i].what == op::reshape && !where_.stored[i])) continue;
      offset_[i] = total;
      total += aligned_count(count(g_, i, s));
    }
    arena_.reserve(std::max(1LL, total));
    for (id i = 0; i < g_.size; ++i) {
      if (offset_[i] >= 0 && g_[i].what != op::input) stored_[i] = arena_.data() + offset_[i];
      if (p_.rows.how[i] == reach::sum) stored_[i] = by_rows_.sum(i);
      if (g_[i].what == op::reshape && p_.rows.how[i] == reach::whole) stored_[i] = stored_[unshaped(g_, i)];
    }
  }

  // Computes what does not depend on the data; values that were only needed to get there are dropped again.
  [[gnu::cold]] void prepare(values<Real>& known, preparation& has, const evaluator<Real>& evaluate) const {
    if (has.ready) return;
    const node_set needed = needed_before_the_data();
    for (id i = 0; i < g_.size; ++i) {
      if (!needed[i] || p_.when.of[i] == stage::data) continue;
      if (p_.when.of[i] == stage::load && has.loaded) continue;
      if (borrowed(i)) {
        known.take(i, lender_->known_, same_[i]);
        continue;
      }
      if (is_leaf(g_[i].what)) known.forget(i);  // the tensor behind it may have changed
      known.compute(i, evaluate);
    }
    for (id i = 0; i < g_.size; ++i) {
      if (!p_.live[i] || p_.when.of[i] == stage::data || row(g_[i].what).from == source::integers) continue;
      const id leaf = base_leaf(g_, i);
      if (leaf >= 0 && read_stored_only(i) && known.stays_stored(known.leaf(leaf)))
        known.leave_stored(i, leaf);
      else if (!kept(i) && !is_leaf(g_[i].what) && !read_again(i))
        known.forget(i);
      else if (known.has(i) && lies_better_by_columns(i))
        known.lay_by_columns(i);
      else if (kept(i))
        static_cast<void>(known[i]);  // widened now, not by several threads at once
    }
    has.ready = has.loaded = true, ++has.made;
  }
  [[gnu::cold]] bool borrowed(id i) const {
    return lender_ != nullptr && p_.when.of[i] == stage::parameter && !is_leaf(g_[i].what) && same_[i] >= 0 &&
           lender_->p_.when.of[same_[i]] == stage::parameter && lender_->known_.has(same_[i]);
  }
  // All that is known before the data, but for what only leads to borrowed values.
  [[gnu::cold]] node_set needed_before_the_data() const {
    node_set needed(g_.size);
    for (int k = 0; k < g_.outs; ++k) needed.add(g_.out[k].at);
    for (id i = g_.size - 1; i >= 0; --i) {
      if (p_.when.of[i] == stage::load && p_.live[i]) needed.add(i);
      if (!p_.live[i] || (p_.when.of[i] != stage::data && (!needed[i] || borrowed(i)))) continue;
      for (int k = 0; k < 3; ++k)
        if (const id o = g_[i].operand(k); o >= 0) needed.add(o);
    }
    return needed;
  }
  // Is it read by the data-time work, or an output? A reshaped value is the memory of what it reshapes.
  [[gnu::cold]] bool kept(id i) const {
    if (is_output(g_, i)) return true;
    for (id r = i + 1; r < g_.size; ++r) {
      const node& v = g_[r];
      if (!p_.live[r] || (v.a != i && v.b != i && v.c != i)) continue;
      if (p_.when.of[r] == stage::data || (v.what == op::reshape && kept(r))) return true;
    }
    return false;
  }
  // A base tensor that only products and look-ups of the data-time work read: it may stay as it is stored.
  [[gnu::cold]] bool read_stored_only(id i) const {
    if (is_output(g_, i)) return false;
    for (id r = i + 1; r < g_.size; ++r)
      for (int k = 0; p_.live[r] && k < 3; ++k) {
        if (g_[r].operand(k) != i || (p_.when.of[r] != stage::data && g_[r].what != op::reshape)) continue;
        const node& v = g_[r];
        if (v.what == op::reshape ? !read_stored_only(r) : !reads_stored(g_, v, k)) return false;
      }
    return true;
  }
  // A large W'ᵀ of a forward pass (RoAd turns the outputs): few tokens are multiplied sooner with rows of W' than with
  // columns, 1.06 to 1.25 of the bare layer's time with 16. A backward pass follows each change of the parameters, and
  // would turn its own round every time.
  [[gnu::cold]] bool lies_better_by_columns(id i) const {
    if (g_.outs != 1 || p_.to.gathers != target::work::by_rows || is_leaf(g_[i].what) || is_output(g_, i)) return false;
    if (g_[i].d[3] != g_[g_.out[0].at].d[3]) return false;  // a factor of a branch
    bool read = false;
    for (id r = i + 1; r < g_.size; ++r)
      for (int k = 0; p_.live[r] && k < 3; ++k) {
        const node& v = g_[r];
        if (v.operand(k) != i) continue;
        if (v.what != op::matmul || k != 1 || v.tb || !reads_stored(g_, v, k) || p_.when.of[r] != stage::data)
          return false;
        read = true;
      }
    return read && count(g_, i, sizes_) >= large_weight;
  }
  // Is a value of the load read whenever the parameters change, directly or reshaped?
  [[gnu::cold]] bool read_again(id i) const {
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
  sequence<bool> whole_leaf_;
  sequence<id> same_;  // by node: the equal one of the plan that values are borrowed from
  const bound_plan* lender_ = nullptr;
  size_values sizes_;
  values<Real> known_;
  call now_;
  memory<Real> arena_;          // what is stored for all rows
  sequence<Real*> stored_;      // by node
  sequence<long long> offset_;  // in the arena
  row_worker<Real> by_rows_;
  long long piece_ = piece_rows, room_ = -1, launched_ = 0;
  preparation has_;
  bool bound_ = false;
  mixed_rows<Real>* mixed_ = nullptr;
};

}  // namespace graft::cpu
