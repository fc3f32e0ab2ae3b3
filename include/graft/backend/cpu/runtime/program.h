// SPDX-License-Identifier: Apache-2.0
// program: a graph planned for the CPU with the workspace of its calls, which all layers that run it share; binding:
// the tensors of one of them. Values of the load and parameter stages are computed once per change (prepare); a call
// runs the launches of the plan in order. It allocates nothing, unless it has more rows than any call before it. A
// program runs one call at a time.
#pragma once
#include <graft/backend/cpu/runtime/launch_clock.h>
#include <graft/backend/cpu/runtime/launches.h>
#include <graft/derive/cost.h>
#include <graft/derive/saved_tensors.h>
#include <graft/plan/fuse.h>

namespace graft::cpu {

// Rows per chunk of a row-wise launch: few enough to stay in the cache and enough to amortize packing the weight inside
// a GEMM, which is faster with 512 rows than with 128 and hardly faster with more (bench/results/cpu-products.json).
inline constexpr long long chunk_rows = 512, min_chunk_rows = 16, chunk_elements = 1LL << 23;

template <class Real> class program;

// Sizes, tensors and precomputed values of one layer, and where it reads values that another binding computes.
template <class Real> struct binding {
  size_values sizes;
  values<Real> precomputed;
  bool loaded = false, ready = false;           // whether values of the load stage, and all of them, are computed
  long long made = 0;                           // version of the values: their addresses may change with it
  multi_lora_rows<Real>* multi_lora = nullptr;  // not null: rows of its calls have adapters of their own
  const program<Real>* lender = nullptr;        // the program that owns the binding `lends`
  const binding* lends = nullptr;               // not null: the binding whose parameter-stage values this one reads
  sequence<id> matching;                        // by node: the equal node of the lender
};

template <class Real> class program {
 public:
  program(const graph& g, launch_plan p) : g_(g), p_(std::move(p)), where_(assign_buffers(g_, p_)) {
    for (id i = 0; i < g_.size; ++i) read_whole_.push(is_read_whole(i));
  }
  const graph& value() const { return g_; }
  const launch_plan& launches() const { return p_; }
  // Binds a layer to sizes and leaves, without precomputed values. The workspace is reserved for `tokens` rows if it is
  // positive.
  [[gnu::cold]] void bind(binding<Real>& with, const size_values& s, const leaf_views& leaves, long long tokens,
                          dequantize_function<Real> dequantize) {
    const long long made = with.made;
    with = {};
    with.made = made, with.sizes = s, with.precomputed = values<Real>(g_, s, leaves, dequantize);
    reserved_tokens_ = -1;
    if (tokens > 0) reserve(s, tokens);
  }
  // Lets a binding read parameter-stage values from that of another program with the same tensors, whose calls come
  // first, instead of computing them again.
  [[gnu::cold]] void share_precomputed(binding<Real>& mine, const program& other, const binding<Real>& from) const {
    mine.matching = same_nodes(other.g_, g_), mine.lender = &other, mine.lends = &from;
    mine.ready = false;  // values of an earlier binding of the lender may be gone
  }
  // Computes the precomputed values of a binding without running it, for a reader such as the multi-LoRA table.
  void precompute(binding<Real>& with, node_function<Real> by, const host_function<Real>* host) const {
    prepare(with, {g_, with.sizes, by, rotations::blockwise, host});
  }

  // Runs the call. The eager oracle passes dense rotations; `host` runs host functions and all-reduces.
  void run(binding<Real>& with, const program_call& c, node_function<Real> by,
           rotations rotation_form = rotations::blockwise, const host_function<Real>* host = nullptr,
           launch_clock* clock = nullptr, bool batch_invariant = false) {
    prepare(with, {g_, with.sizes, by, rotation_form, host});
    const batch_invariant_scope same(batch_invariant);
    const long long tokens = std::max(0LL, g_.sizes.tokens(c.sizes));
    if (tokens > reserved_tokens_) reserve(c.sizes, tokens);
    const call_frame<Real> f{g_, p_, where_, with.precomputed, c, stored_, tokens, by, with.multi_lora};
    for (id i = 0; i < g_.size; ++i) {  // converts inputs that a launch reads whole and cannot read in place
      if (g_[i].what != op::input || !read_whole_[i]) continue;
      const view& v = f.data(i);
      stored_[i] = in_place<Real>(v) ? nullptr : arena_.data() + offset_[i];
      if (stored_[i] != nullptr) read_floats(v, 0, v.count(), stored_[i]);
    }
    const evaluator<Real> evaluate{g_, c.sizes, by, rotation_form, host};
    const launch_context<Real> context{f, evaluate, row_executor_, chunk_rows_};
    for (int k = 0; k < p_.launches.size(); ++k) {
      const launch& l = p_.launches[k];
      ++launched_;
      if (clock != nullptr) clock->record_launch(p_, k);
      p_.visit(l, [&]<class Kind>(const Kind& one) { launch_on_cpu<Kind>::run(context, one, l); });
    }
    if (clock != nullptr) clock->record_launch(p_, p_.launches.size());
    for (int k = 0; k < g_.outs; ++k)
      if (const id i = g_.out[k].at; p_.rows.dependence_of[i] != row_dependence::chunk && f.output(k).data != nullptr) {
        const tensor<Real> v = f.whole(i);
        write(v.p, 0, v.count(), f.output(k));
      }
  }
  // The number of launches that have run since the program was made, which tests compare with the plan.
  long long launched() const { return launched_; }
  // Counts how often addresses have changed that a captured call would use; nothing is captured on the CPU.
  static constexpr long long address_version() { return 0; }

 private:
  // Returns true if a node reads all rows of the input at once.
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
      if (where_.cell[i] >= 0) most = std::max(most, element_count(g_, i, s) / std::max(1LL, tokens));
    return most;
  }
  // Returns true for a mixture of experts. What forward saves of it is in the order of the experts of each chunk, so
  // that all programs have chunks of as many rows.
  [[gnu::cold]] bool routes_rows() const {
    for (id i = 0; i < g_.size; ++i)
      if (is_routed(g_[i].what)) return true;
    return false;
  }
  [[gnu::cold]] void reserve(size_values s, long long tokens) {
    reserved_tokens_ = tokens;
    g_.sizes.set_tokens(s, tokens);
    chunk_rows_ =
        routes_rows() ? chunk_rows : std::clamp(chunk_elements / widest_row(s, tokens), min_chunk_rows, chunk_rows);
    row_executor_.reserve(g_, p_, where_, s, tokens, std::min(tokens, chunk_rows_));
    stored_ = sequence<Real*>(g_.size), offset_ = sequence<long long>(g_.size, -1);
    long long total = 0;
    for (id i = 0; i < g_.size; ++i) {
      const bool mine = where_.stored[i] || p_.rows.dependence_of[i] == row_dependence::whole ||
                        (g_[i].what == op::input && read_whole_[i]);
      if (!mine || !p_.live[i] || (g_[i].what == op::reshape && !where_.stored[i])) continue;
      offset_[i] = total;
      total += aligned_count(element_count(g_, i, s));
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
  void prepare(binding<Real>& with, const evaluator<Real>& evaluate) const {
    if (with.lends != nullptr && with.ready) with.ready = reads_lender(with);
    if (!with.ready) compute_precomputed(with, evaluate);
  }
  // Returns true if the lender's values are still where this binding reads them.
  [[gnu::cold]] bool reads_lender(const binding<Real>& with) const {
    for (id i = 0; i < g_.size; ++i)
      if (is_borrowed(with, i) && with.precomputed.has(i) &&
          !with.precomputed.shares_memory(i, with.lends->precomputed, with.matching[i]))
        return false;
    return true;
  }
  [[gnu::cold]] void compute_precomputed(binding<Real>& with, const evaluator<Real>& evaluate) const {
    values<Real>& precomputed = with.precomputed;
    const node_set needed = needed_precomputed(with);
    for (id i = 0; i < g_.size; ++i) {
      if (!needed[i] || p_.when.of[i] == stage::call) continue;
      if (p_.when.of[i] == stage::load && with.loaded) continue;
      if (is_borrowed(with, i)) {
        precomputed.alias_value(i, with.lends->precomputed, with.matching[i]);
        continue;
      }
      if (is_leaf(g_[i].what)) precomputed.forget(i);  // the memory of the tensor may have changed
      precomputed.compute(i, evaluate);
    }
    for (id i = 0; i < g_.size; ++i) {
      if (!p_.live[i] || p_.when.of[i] == stage::call || traits_of(g_[i].what).from == source::integers) continue;
      const id leaf = base_leaf(g_, i);
      if (leaf >= 0 && can_stay_stored(i) && precomputed.stays_stored(precomputed.leaf(leaf)))
        precomputed.keep_stored(i, leaf);
      else if (!is_needed_by_calls(i) && !is_leaf(g_[i].what) && !is_read_per_update(i))
        precomputed.forget(i);
      else if (precomputed.has(i) && prefers_column_major(with.sizes, i))
        precomputed.make_column_major(i);
      else if (is_needed_by_calls(i))
        static_cast<void>(precomputed[i]);  // converts it here, so that no two threads do so in a call
    }
    with.ready = with.loaded = true, ++with.made;
  }
  [[gnu::cold]] bool is_borrowed(const binding<Real>& with, id i) const {
    return with.lends != nullptr && with.lends->ready && p_.when.of[i] == stage::parameter && !is_leaf(g_[i].what) &&
           with.matching[i] >= 0 && with.lender->p_.when.of[with.matching[i]] == stage::parameter &&
           with.lends->precomputed.has(with.matching[i]);
  }
  // The precomputed values that the call stage needs, without those that lead only to borrowed values.
  [[gnu::cold]] node_set needed_precomputed(const binding<Real>& with) const {
    node_set needed(g_.size);
    for (int k = 0; k < g_.outs; ++k) needed.add(g_.out[k].at);
    for (id i = g_.size - 1; i >= 0; --i) {
      if (p_.when.of[i] == stage::load && p_.live[i]) needed.add(i);
      if (!p_.live[i] || (p_.when.of[i] != stage::call && (!needed[i] || is_borrowed(with, i)))) continue;
      for (int k = 0; k < 3; ++k)
        if (const id o = g_[i].operand(k); o >= 0) needed.add(o);
    }
    return needed;
  }
  // Returns true if a call reads the value or it is an output. A reshaped value shares the memory of its operand.
  [[gnu::cold]] bool is_needed_by_calls(id i) const {
    if (is_output(g_, i)) return true;
    for (id r = i + 1; r < g_.size; ++r) {
      const node& v = g_[r];
      if (!p_.live[r] || (v.a != i && v.b != i && v.c != i)) continue;
      if (p_.when.of[r] == stage::call || (v.what == op::reshape && is_needed_by_calls(r))) return true;
    }
    return false;
  }
  // Returns true if only GEMMs and look-ups of a call read the base tensor, so that they can read it as it is stored.
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
  // Returns true for a large precomputed W'ᵀ of a forward pass (RoAd rotates the outputs), which is stored column-major
  // so that GEMMs read it in NT layout: in NN layout 16 tokens take 1.06 to 1.25 of the bare layer's time. A backward
  // pass would have to transpose its copy after every parameter change.
  [[gnu::cold]] bool prefers_column_major(const size_values& s, id i) const {
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
    return read && element_count(g_, i, s) >= large_weight;
  }
  // Returns true if a value of the load stage is read after every parameter change, directly or reshaped.
  [[gnu::cold]] bool is_read_per_update(id i) const {
    for (id r = 0; r < g_.size && p_.when.of[i] == stage::load; ++r) {
      const node& v = g_[r];
      const bool reads = p_.live[r] && (v.a == i || v.b == i || v.c == i);
      if (reads && (p_.when.of[r] == stage::parameter || v.what == op::reshape)) return true;
    }
    return false;
  }

  graph g_;
  launch_plan p_;
  buffers where_;
  sequence<bool> read_whole_;
  memory<Real> arena_;          // values that are stored for all rows
  sequence<Real*> stored_;      // by node: all rows of its value; null: not stored
  sequence<long long> offset_;  // by node: element offset in the arena; -1: none
  row_executor<Real> row_executor_;
  long long chunk_rows_ = chunk_rows, reserved_tokens_ = -1, launched_ = 0;
};

}  // namespace graft::cpu
