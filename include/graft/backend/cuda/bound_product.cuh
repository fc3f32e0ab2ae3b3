// SPDX-License-Identifier: Apache-2.0
// A product of a plan bound to device memory: its adapter packed as kernels read it, its weight where it lies or copied,
// and its launches for the last few numbers of tokens. Where a layer has several adapters, the launches of all of them
// read one place, into which the active adapter is copied in the order of the stream: what was captured before sees it. A
// weight that follows from W and P Q is made by a product of its own, as large as W and once for all plans of a layer. A
// weight that is codes is read by kernels of few tokens, and for others decoded into a panel that all products of the
// stream share, just before each launch.
#pragma once
#include <graft/backend/cuda/launchers.cuh>
#include <graft/backend/cuda/linear_calls.cuh>
#include <graft/backend/cuda/mixed_linear.cuh>
#include <graft/backend/cuda/product_tensors.cuh>
#include <graft/backend/cuda/side_sources.h>
#include <graft/backend/cuda/values.cuh>
#include <graft/core/few_numbers.h>
#include <graft/plan/kernels.h>

namespace graft::cuda {

template <class T> class bound_product {
 public:
  bound_product() = default;
  // `pads`: only products over the tokens read the result, and they want rows as long as those of S.
  bound_product(const graph& g, const product_slots& slots, bool pads) : g_(&g), slots_(slots), pads_(pads) {}
  const product_slots& slots() const { return slots_; }
  // In a launch with others: the rank that all of them have, and the column where this one's own begins.
  void stands_with(int rank, int first) { least_rank_ = rank, first_rank_ = first; }
  bool stands_apart() const { return first_rank_ > 0; }

  // Sizes of the layer and its leaves; `shared` is null where this product is not all that its layer launches.
  status bind(cudaStream_t stream, const size_values& s, const leaf_views& leaves, shared_slots<T>* shared,
              const code_panel* panel) {
    sizes_ = s, leaves_ = &leaves, panel_ = panel, shared_ = shared != nullptr && shared->used ? shared : nullptr;
    grown_ = grown_at(*g_, slots_.weight), lender_ = nullptr;
    grown_.found = grown_.found && leaf_of(grown_.base).type == dtype_of<T> && leaf_of(grown_.base).beside == nullptr;
    outputs_ = static_cast<int>(size_of(slots_.weight, slots_.weight_by_row ? 2 : 3));
    n_ = pads_ && !weight_in_place() && !grown_.found ? padded_rank(outputs_) : outputs_;
    k_ = static_cast<int>(size_of(slots_.weight, slots_.weight_by_row ? 3 : 2));
    const int own = padded_rank(static_cast<int>(side_rank(*g_, slots_, s)));
    if (shared_ != nullptr && own > shared_->rank)
      return fail("a side branch of rank ", side_rank(*g_, slots_, s), " does not fit; the layer was bound for ",
                  shared_->rank, ": bind() it with a capacity of a larger rank");
    rank_ = shared_ != nullptr ? shared_->rank : own;
    rank_ = larger_of(rank_, least_rank_);
    calls_ = {}, code_calls_ = {};
    if (status st = packed_.reserve(stream, n_, k_, rank_, has_pre()); !st) return st;
    if (shared_ != nullptr) {
      if (status st = shared_->now.reserve_once(stream, n_, k_, rank_, shared_->pre); !st) return st;
      if (shared_->weight)
        if (status st = shared_->weight_now.reserve(weight_bytes()); !st) return st;
    }
    if (const long long wide = turned_width; turned_together() > 0 && wide % turned_together() == 0 && n_ % wide == 0) {
      const long long bytes = (padded_rows(n_) + row_padding) * turned_width * static_cast<long long>(sizeof(T));
      if (status st = turn_.reserve(bytes); !st) return st;
      if (status st = check(cudaMemsetAsync(turn_.data(), 0, static_cast<std::size_t>(bytes), stream), "clearing"); !st)
        return st;
    }
    if (kept_side() >= 0 || (given_side() >= 0 && pads_side()))
      if (status st = s_.reserve(size_of(slots_.result, 2) * rank_ * static_cast<long long>(sizeof(T))); !st) return st;
    if (weight_in_place()) return ok;
    if (grown_.found)
      for (int k = stored_left() != nullptr ? 1 : 0; k < 2; ++k)
        if (status st = update_[k].reserve(size_of(slots_.weight, 2 + k) * update_rank() * sizeof(T)); !st) return st;
    if (status st = weight_.reserve(weight_bytes()); !st) return st;
    return check(cudaMemsetAsync(weight_.data(), 0, static_cast<std::size_t>(weight_bytes()), stream), "clearing");
  }
  // Every value that pack() reads.
  template <class Need> void each_source(Need need) const {
    for (const side_branch& b : slots_.sides) {
      const bool plain = packs_plainly(*g_, slots_);
      const scaled_source a = plain ? scaled_value(*g_, b.a, none_id) : scaled_source{b.a, none_id},
                          other = plain ? scaled_value(*g_, b.b, b.factor) : scaled_source{b.b, b.factor};
      need(a.value), need(a.factor), need(other.value), need(other.factor);
    }
    for (const post_step& p : slots_.posts) need(p.operand);
    if (grown_.found)
      need(grown_.left), need(grown_.right), each_number(need);
    else if (!weight_in_place())
      need(slots_.weight);
    need(slots_.pre);
    if (slots_.turned >= 0) need((*g_)[slots_.result].b);
  }
  // From values in float to what the kernels read; the sides may be packed later, with those of other products.
  status pack(cudaStream_t stream, const values& v, side_packer<T>& sides, const linear_kernels& kernels,
              const launchers& by, const target& to);
  // Makes this the adapter that the launches of the layer read.
  status publish(cudaStream_t stream) {
    if (shared_ == nullptr) return ok;
    chained_ = false;  // the next call reads what is copied here
    if (shared_->weight)
      if (status s = check(cudaMemcpyAsync(shared_->weight_now.data(), own_weight(),
                                           static_cast<std::size_t>(weight_bytes()), cudaMemcpyDeviceToDevice, stream),
                           "switching the weight");
          !s)
        return s;
    return shared_->now.copy_from(stream, packed_);
  }
  void unchain() { chained_ = false; }
  // A weight that the product of another plan makes of the same values, whose pack() comes first, is made once.
  bool makes_weight() const { return grown_.found && lender_ == nullptr; }
  void borrow_weight(const bound_product& from) {
    lender_ = &from, weight_ = {}, update_[0] = {}, update_[1] = {};
    calls_ = grows_ = {};
  }
  // Q of the product that makes it, where that is computed and reads it as it is stored.
  id update_source() const {
    const bool same = makes_weight() && !grown_.right_by_row && size_of(grown_.right, 2) == update_rank();
    return same && !is_leaf((*g_)[unshaped(*g_, grown_.right)].what) ? unshaped(*g_, grown_.right) : none_id;
  }
  void* update_place() const { return update_[1].data(); }
  // Workspace and counters lie elsewhere.
  void memory_moved() { calls_ = {}, code_calls_ = {}; }
  // May this launch read weights and adapter before the kernel ahead of it has finished? From the second one on.
  bool may_chain() { return std::exchange(chained_, true); }
  bool is_chained() const { return chained_; }

  // Which of the sums ran beside it: a bit for each.
  result<unsigned> run(cudaStream_t stream, const linear_kernels& kernels, const target& to, long long m,
                       const product_tensors& with, bool alone) {
    if (is_coded()) {
      const result<bool> streamed = run_codes(stream, kernels, to, m, with, alone);
      if (!streamed) return streamed.failure();
      if (*streamed) return 0U;
      if (const auto decoded = panel_->decode(stream, leaf(), dtype_of<T>); !decoded) return decoded.failure();
    }
    if (kernels.across != nullptr && runs_across(to, m, with)) {  // without it the products below take them
      const across_args g{with.x, weight(), with.y, static_cast<int>(m), k_, n_};
      if (status done = kernels.across(stream, g); !done) return done.failure();
      return 0U;
    }
    if (calls_.empty() || alone != alone_ || with.side != s_now_ || with.before != before_now_ ||
        with.turns != turns_now_) {
      linear_operands o;
      const packed_adapter<T>& from = shared_ != nullptr ? shared_->now : packed_;
      o.act = act(), o.alone = alone_ = alone;
      o.w = weight(), o.slot = from.record, o.a = from.a.data();
      o.s = s_now_ = with.side, o.before = before_now_ = with.before;
      o.turn = (turns_now_ = with.turns) ? turn_.data() : nullptr;
      if (shared_ != nullptr) o.slot.scale = record_scale(from), o.slot.shift = record_shift(from);
      o.workspace = with.workspace, o.counters = with.counters;
      if (has_no_branch()) o.slot.rank = 0, o.slot.a_tiles = o.slot.b_tiles = o.slot.b = o.a = nullptr;
      calls_ = linear_calls(kernels, to, shape_alone(m), o);
    }
    auto bound = calls_.at(m, with.x, with.y, with.residual, with.sums);
    if (!bound) return bound.failure();
    if (!take_norms(**bound, with.ahead, with.behind)) return fail("no kernel of this product has a norm inside");
    const bool chained = may_chain() && !is_coded();  // a panel is whole when its decoding has ended
    if (status done = launch(stream, **bound, chained); !done) return done.failure();
    return (*bound)->beside;
  }
  // The same with a record for each row: what they leave out is what this layer has of its own.
  status run_mixed(cudaStream_t stream, const linear_kernels& kernels, const mixed_kernels& mixing, const target& to,
                   long long m, const product_tensors& with, mixed_operands rows) {
    if (is_coded())
      if (const auto decoded = panel_->decode(stream, leaf(), dtype_of<T>); !decoded) return decoded.failure();
    rows.x = with.x, rows.w = weight(), rows.y = with.y, rows.residual = with.residual;
    rows.act = act(), rows.chained = may_chain() && rows.chained && !is_coded();
    return mixed_.run(stream, kernels, mixing, to, shape(m), rows);
  }
  // The same as a segment of a launch of several; false: this one cannot be.
  bool as_segment(long long m, const void* x, void* y, mixed_operands& rows, product_shape& p) {
    if (is_coded() || slots_.residual >= 0 || rows.scaled != nullptr) return false;
    rows.x = x, rows.w = weight(), rows.y = y, rows.act = act();
    p = shape(m), p.rank = 0, p.pre = p.posts = false;
    p.aligned =
        p.aligned && reinterpret_cast<std::uintptr_t>(x) % 16 == 0 && reinterpret_cast<std::uintptr_t>(y) % 16 == 0;
    return true;
  }
  // What rows with this adapter read, until it is bound again.
  mixed_record record_of_rows() const {
    const adapter_slot& s = packed_.record;
    if (has_no_branch()) return {nullptr, nullptr, s.scale, s.shift, s.pre, 0};
    return {packed_.a.data(), packed_.b.data(), s.scale, s.shift, s.pre, rank_, s.a_tiles, s.b_tiles};
  }
  bool is_coded() const { return base_leaf(*g_, slots_.weight) >= 0 && leaf().beside != nullptr; }
  // How a product of m tokens reads codes; without groups of tokens where it does not.
  code_choice codes_for(long long m, const target& to) const {
    if (!is_coded() || !slots_.weight_by_row || kept_side() >= 0 || given_side() >= 0 || slots_.before_posts >= 0)
      return {};
    return choose_codes(leaf().beside->how, dtype_of<T>, m, k_, rank_, to);
  }
  code_operands as_codes() const { return {leaf(), dtype_of<T>, record(), act(), n_, k_}; }
  // May norms of x and of the result be inside its kernel? With timed choices there may be another one.
  bool stands_by_norm(long long m, const linear_kernels& kernels, const target& to) const {
    if (is_coded()) {
      const code_choice c = codes_for(m, to);
      return codes_stand_by_norm(shape_of_codes(m), to) && c.groups == 1 && kernels.codes.has(c);
    }
    return kernels.timed.by == nullptr && cuda::stands_by_norm(shape_alone(m), to, kernels.have);
  }
  // Is the rotation of the result part of its kernel? With timed choices there may be another one.
  bool turns(long long m, const linear_kernels& kernels, const target& to) const {
    return !is_coded() && shared_ == nullptr && kernels.timed.by == nullptr && turn_.bytes() > 0 &&
           turns_inside(shape_alone(m), to, kernels.have);
  }
  // Without what stands in place of a branch for the sake of others.
  product_shape shape_alone(long long m) const {
    product_shape p = shape(m);
    if (has_no_branch()) p.rank = 0;
    return p;
  }
  product_shape shape(long long m) const {
    product_shape p{dtype_of<T>, m, n_, k_, rank_};
    p.posts = !slots_.posts.empty() || shared_ != nullptr;
    p.pre = has_pre(), p.across = lies_across(), p.keeps = kept_side() >= 0 || slots_.before_posts >= 0;
    p.given_side = given_side() >= 0;
    p.plain = slots_.act == op::detach && slots_.residual < 0, p.turned = turned_together();
    p.aligned = reinterpret_cast<std::uintptr_t>(weight()) % 16 == 0;
    return p;
  }
  // The same for kernels that read codes.
  product_shape shape_of_codes(long long m) const {
    product_shape p = shape(m);
    p.stored = leaf().beside->how, p.across = !slots_.weight_by_row;
    p.aligned = reinterpret_cast<std::uintptr_t>(leaf().data) % 16 == 0;
    return p;
  }
  activation act() const { return activation_of(slots_.act); }
  const void* weight() const {
    return shared_ != nullptr && shared_->weight ? shared_->weight_now.data() : own_weight();
  }
  adapter_slot record() const {
    const packed_adapter<T>& from = shared_ != nullptr ? shared_->now : packed_;
    adapter_slot s = from.record;
    if (shared_ != nullptr) s.scale = record_scale(from), s.shift = record_shift(from);
    return s;
  }
  int rank() const { return rank_; }
  // The value x Aᵀ that the launch stores for others, [tokens, rank()]; -1: none.
  id kept_side() const { return kept_side_of(slots_); }
  const void* kept() const { return s_now_; }
  // The value that stands for it and was made before, [tokens, side_rank()]; -1: none.
  id given_side() const { return given_side_of(slots_); }
  // Where S lies if the caller gives no memory for it, and whether our rows have padding that those of others have not.
  void* own_side() { return s_.data(); }
  bool pads_side() const { return side_rank(*g_, slots_, sizes_) != rank_; }
  int out_size() const { return n_; }
  int in_size() const { return k_; }

 private:
  bool runs_across(const target& to, long long m, const product_tensors& with) const {
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(with.x) % 16 == 0 && reinterpret_cast<std::uintptr_t>(with.y) % 16 == 0;
    return aligned && shared_ == nullptr && with.residual == nullptr && streams_across(shape(m), to);
  }
  // False where the weight has to be decoded first.
  result<bool> run_codes(cudaStream_t stream, const linear_kernels& kernels, const target& to, long long m,
                         const product_tensors& with, bool alone) {
    const code_choice c = codes_for(m, to);
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(with.x) % 16 == 0 && reinterpret_cast<std::uintptr_t>(leaf().data) % 16 == 0;
    if (c.groups == 0 || !aligned || !kernels.codes.has(c)) return false;
    if (code_calls_.empty()) {
      const code_operands one = as_codes();
      code_calls_ = code_calls(kernels.codes, to, &one, 1);
    }
    const code_tensors now{with.x,        {with.y},   with.residual, static_cast<float*>(with.workspace),
                           with.counters, with.ahead, with.behind};
    if (status s = code_calls_.run(stream, c, m, now, may_chain(), alone); !s) return s.failure();
    return true;
  }
  // Columns that the rotation behind it keeps together; 0: there is none.
  long long turned_together() const {
    if (slots_.turned < 0) return 0;
    return turned_columns(size_of((*g_)[slots_.result].b, 0), size_of((*g_)[slots_.result].b, 3));
  }
  // What stands in its place for the sake of others is zeros.
  bool has_no_branch() const { return shared_ == nullptr && slots_.sides.empty(); }
  bool has_pre() const { return slots_.pre >= 0 || (shared_ != nullptr && shared_->pre); }
  long long weight_bytes() const { return static_cast<long long>(n_) * k_ * static_cast<long long>(sizeof(T)); }
  long long size_of(id i, int axis) const { return g_->sizes.value((*g_)[i].d[axis], sizes_); }
  // The stored weight itself is what the product reads, or a frozen matrix of the adapter that lies as it should.
  bool weight_in_place() const {
    if (base_leaf(*g_, slots_.weight) >= 0) return is_coded() || leaf().type == dtype_of<T>;
    const bool frozen = (*g_)[unshaped(*g_, slots_.weight)].what == op::frozen && shared_ == nullptr;
    return frozen && is_like_ours(leaf()) && (!pads_ || padded_rank(outputs_) == outputs_);
  }
  static bool is_like_ours(const view& v) {
    return v.data != nullptr && v.type == dtype_of<T> && v.beside == nullptr &&
           reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
  }
  const view& leaf() const { return leaf_of(slots_.weight); }
  const view& leaf_of(id i) const { return (*leaves_)[unshaped(*g_, i)]; }
  bool lies_across() const { return (weight_in_place() || grown_.found) && !slots_.weight_by_row; }
  const void* own_weight() const {
    if (lender_ != nullptr) return lender_->own_weight();
    return is_coded() ? panel_->data() : weight_in_place() ? leaf().data : weight_.data();
  }
  // W + P Q as it is stored, [rows, columns], whichever of them is the inner axis of this product.
  int update_rank() const { return padded_rank(static_cast<int>(size_of(grown_.left, grown_.left_across ? 2 : 3))); }
  status grow(cudaStream_t stream, const values& v, const linear_kernels& kernels, const launchers& by,
              const target& to);
  // P where it is stored, if the product can read it there.
  const T* stored_left() const {
    const view& at = leaf_of(grown_.left);
    const bool same = is_like_ours(at) && !grown_.left_across && size_of(grown_.left, 3) == update_rank();
    return same ? static_cast<const T*>(at.data) : nullptr;
  }
  // What stands between the product and the weight: numbers alone.
  template <class Need> void each_number(Need need) const {
    for (id i = grown_.product; i <= slots_.weight; ++i)
      for (int k = 0; grows_inside(*g_, i) && k < 3; ++k)
        if (const id o = (*g_)[i].operand(k); o >= 0 && is_scalar((*g_)[o])) need(o);
  }
  status put(cudaStream_t stream, const values& v, id from, pack_matrix<T> how) const {
    const result<tensor<float>> read = v.numbers(stream, from);
    if (!read) return read.failure();
    how.from = read->p;
    return each(stream, how.rows * how.cols, how, "pack");
  }
  status gather_sides(const values& v, side_packer<T>& sides) const;
  status pack_sides(cudaStream_t stream, const values& v, const pack_functions& by);
  bool has_post(op what, op other) const {
    for (const post_step& p : slots_.posts)
      if (p.what == what || p.what == other) return true;
    return false;
  }
  static float* record_scale(const packed_adapter<T>& p) { return p.post.template as<float>(); }
  float* record_shift(const packed_adapter<T>& p) const {
    return p.post.template as<float>() + padded_rows(n_) + row_padding;
  }
  status pack_post(cudaStream_t stream, const values& v);

  const graph* g_ = nullptr;
  product_slots slots_;
  size_values sizes_;
  const leaf_views* leaves_ = nullptr;
  shared_slots<T>* shared_ = nullptr;
  const code_panel* panel_ = nullptr;
  bool pads_ = false;
  int least_rank_ = 0, first_rank_ = 0;
  int outputs_ = 0, n_ = 0, k_ = 0, rank_ = 0;  // n_: outputs as they are stored, with padding
  packed_adapter<T> packed_;
  buffer weight_, s_, turn_;
  grown_weight grown_;
  buffer update_[2];  // P and Q of it
  const bound_product* lender_ = nullptr;
  linear_calls calls_, grows_;
  mixed_linear<T> mixed_;
  code_calls code_calls_;
  void *s_now_ = nullptr, *before_now_ = nullptr;  // what the launches write beside y
  bool alone_ = false, turns_now_ = false;
  bool chained_ = false;  // the next call may read weights and adapter before the kernel ahead of it has finished
};

}  // namespace graft::cuda
