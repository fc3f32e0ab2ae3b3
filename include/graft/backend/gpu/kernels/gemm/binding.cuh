// SPDX-License-Identifier: Apache-2.0
// gemm_binding: a GEMM of a plan bound to device memory, and how the operands of its kernels are packed.
#pragma once
#include <graft/backend/gpu/dispatch/launchers.cuh>
#include <graft/backend/gpu/kernels/gemm/branch_sources.h>
#include <graft/backend/gpu/kernels/gemm/launch_cache.cuh>
#include <graft/backend/gpu/kernels/gemm/packed_adapter.cuh>
#include <graft/backend/gpu/kernels/multi_lora/launch.cuh>
#include <graft/backend/gpu/runtime/values.cuh>
#include <graft/backend/gpu/runtime/workspace.cuh>
#include <graft/core/algorithm.h>
#include <graft/graph/op.h>
#include <graft/plan/kernel_count.h>

#include <memory>

namespace graft::gpu {

// ---- The binding

// gemm_binding: a GEMM of a plan bound to device memory. It holds the packed adapter, the weight (read in place,
// copied, or computed) and cached launches for the last token counts.
//
// Several adapters of a layer share one set of addresses, into which the active adapter is copied in stream order, so
// that captured launches see it. A weight that follows from W and a low-rank update, W + P Q, is computed by a GEMM of
// its own once per change and layer. A quantized weight is read directly by the kernels for few tokens; for more it is
// dequantized before each launch, into a buffer that all GEMMs of the stream share. U = x Aᵀ is the shrink result.

// Device memory that the adapters of one layer share. Launches read the active adapter at fixed addresses, so that a
// captured launch sees whichever adapter is active.
template <class T> struct shared_adapter_args {
  bool used = false;      // the layer has several adapters
  int rank = 0;           // padded: the largest rank an adapter may have
  bool prologue = false;  // a factor per input column; only where rank is 0
  bool weight = false;    // some adapter is folded into a copy of the weight, so every adapter has a copy
  packed_adapter<T> now;  // the active adapter
  buffer weight_now, counters;
  growing_buffer workspace;  // shared, because a captured launch outlives the adapter that it was captured with
  // All plans of the layer point to this workspace. It grows by chunks, because a caller may have captured its calls.
  std::unique_ptr<growing_buffer> shared_workspace =
      std::make_unique<growing_buffer>(growing_buffer::growth::by_chunks);
};

constexpr activation activation_of(op o) {
  switch (o) {
    case op::relu: return activation::relu;
    case op::silu: return activation::silu;
    case op::gelu: return activation::gelu;
    case op::gelu_tanh: return activation::gelu_tanh;
    default: return activation::none;
  }
}

// Tensors of one call.
struct gemm_tensors {
  const void* x = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  bool rotates = false;                       // the output rotation is fused into the kernel
  void *shrink = nullptr, *before = nullptr;  // destinations of U (padded rows) and of the sum before the epilogue
  fused_wgrad sums[2]{};
  void* workspace = nullptr;
  std::uint32_t* counters = nullptr;
};

template <class T> class gemm_binding {
 public:
  gemm_binding() = default;
  // `pads`: only wgrads read the result, which need rows of padded rank, as U has them.
  gemm_binding(const graph& g, const gemm_slots& slots, bool pads) : g_(&g), slots_(slots), pads_(pads) {}
  const gemm_slots& slots() const { return slots_; }
  // For a grouped GEMM: the common padded rank of all members, and the first rank column that this member uses.
  void set_common_rank(int rank, int first) { group_rank_ = rank, group_rank_offset_ = first; }
  bool has_separate_rank() const { return group_rank_offset_ > 0; }

  // Allocates for the sizes and leaves of a layer, whose elements stay where they are. `shared` is null where the layer
  // launches more than this GEMM.
  status bind(cudaStream_t stream, const size_values& s, const leaf_views& leaves, shared_adapter_args<T>* shared,
              const dequantized_buffer* dequantized_weight) {
    sizes_ = s, leaves_ = leaves.data(), dequantized_ = dequantized_weight,
    shared_ = shared != nullptr && shared->used ? shared : nullptr;
    weight_update_ = low_rank_update_at(*g_, slots_.weight), weight_owner_ = nullptr;
    weight_update_.found = weight_update_.found && leaf_of(weight_update_.base).type == dtype_of<T> &&
                           leaf_of(weight_update_.base).quant == nullptr;
    outputs_ = static_cast<int>(size_of(slots_.weight, slots_.weight_is_nt ? 2 : 3));
    n_ = pads_ && !weight_in_place() && !weight_update_.found ? padded_rank(outputs_) : outputs_;
    k_ = static_cast<int>(size_of(slots_.weight, slots_.weight_is_nt ? 3 : 2));
    const int own = padded_rank(static_cast<int>(branch_rank(*g_, slots_, s)));
    if (shared_ != nullptr && own > shared_->rank)
      return fail("a low-rank branch of rank ", branch_rank(*g_, slots_, s), " does not fit; the layer was bound for ",
                  shared_->rank, ": bind() it with a capacity of a larger rank");
    rank_ = shared_ != nullptr ? shared_->rank : own;
    rank_ = max_of(rank_, group_rank_);
    calls_ = {}, quantized_gemm_ = {};
    if (status st = packed_.reserve(stream, n_, k_, rank_, has_prologue()); !st) return st;
    if (shared_ != nullptr) {
      if (status st = shared_->now.reserve_once(stream, n_, k_, rank_, shared_->prologue); !st) return st;
      if (shared_->weight)
        if (status st = shared_->weight_now.reserve(weight_bytes()); !st) return st;
    }
    if (const long long wide = rotation_tile_width;
        rotation_columns() > 0 && wide % rotation_columns() == 0 && n_ % wide == 0) {
      const long long bytes = (padded_rows(n_) + row_padding) * rotation_tile_width * static_cast<long long>(sizeof(T));
      if (status st = rotation_.reserve(bytes); !st) return st;
      if (status st = check(cudaMemsetAsync(rotation_.data(), 0, static_cast<std::size_t>(bytes), stream), "clearing");
          !st)
        return st;
    }
    if (shrink_output() >= 0 || (shrink_input() >= 0 && shrink_is_padded()))
      if (status st = s_.reserve(size_of(slots_.result, 2) * rank_ * static_cast<long long>(sizeof(T))); !st) return st;
    if (weight_in_place()) return ok;
    if (weight_update_.found)
      for (int k = stored_left() != nullptr ? 1 : 0; k < 2; ++k)
        if (status st = update_[k].reserve(size_of(slots_.weight, 2 + k) * update_rank() * sizeof(T)); !st) return st;
    if (status st = weight_.reserve(weight_bytes()); !st) return st;
    return check(cudaMemsetAsync(weight_.data(), 0, static_cast<std::size_t>(weight_bytes()), stream), "clearing");
  }
  // Calls need(i) for every value that pack() reads.
  template <class Need> void each_source(Need need) const {
    for (const low_rank_branch& b : slots_.branches) {
      const bool plain = packs_plainly(*g_, slots_);
      const scaled_source a = plain ? scaled_value(*g_, b.a, none_id) : scaled_source{b.a, none_id},
                          other = plain ? scaled_value(*g_, b.b, b.factor) : scaled_source{b.b, b.factor};
      need(a.value), need(a.factor), need(other.value), need(other.factor);
    }
    for (const epilogue_step& p : slots_.epilogue_steps) need(p.operand);
    if (weight_update_.found)
      need(weight_update_.left), need(weight_update_.right), each_number(need);
    else if (!weight_in_place())
      need(slots_.weight);
    need(slots_.prologue);
    if (slots_.output_rotation >= 0) need((*g_)[slots_.result].b);
  }
  // Packs float values into what the kernels read. Branches may stay in `packer`, to be packed with those of other
  // GEMMs.
  status pack(cudaStream_t stream, const values& v, branch_packer<T>& packer, const gemm_kernel_set& kernels,
              const launchers& by, const target& to);
  // Activates this adapter: copies it to the addresses that the layer's launches read.
  status activate_adapter(cudaStream_t stream) {
    if (shared_ == nullptr) return ok;
    pdl_ = false;  // the next call reads the copy, so its kernel must not start early
    if (shared_->weight)
      if (status s = check(cudaMemcpyAsync(shared_->weight_now.data(), own_weight(),
                                           static_cast<std::size_t>(weight_bytes()), cudaMemcpyDeviceToDevice, stream),
                           "switching the weight");
          !s)
        return s;
    return shared_->now.copy_from(stream, packed_);
  }
  void skip_pdl_once() { pdl_ = false; }
  // A computed weight W + P Q is computed once per layer: other plans of the layer borrow it from the plan whose pack()
  // comes first.
  bool makes_weight() const { return weight_update_.found && weight_owner_ == nullptr; }
  void borrow_weight(const gemm_binding& from) {
    weight_owner_ = &from, weight_ = {}, update_[0] = {}, update_[1] = {};
    calls_ = weight_update_calls_ = {};
  }
  // The value Q of the weight update, if it is computed and the update GEMM can read it in place.
  id update_source() const {
    const bool same =
        makes_weight() && !weight_update_.right_by_row && size_of(weight_update_.right, 2) == update_rank();
    return same && !is_leaf((*g_)[unshaped(*g_, weight_update_.right)].what) ? unshaped(*g_, weight_update_.right)
                                                                             : none_id;
  }
  void* update_ptr() const { return update_[1].data(); }
  // Workspace or counters have moved: bound launches are dropped.
  void drop_bound_launches() { calls_ = {}, quantized_gemm_ = {}; }
  // Returns true if this launch may read weights and adapter before the preceding kernel has finished: from the second
  // call after a change on.
  bool may_use_pdl() { return std::exchange(pdl_, true); }
  bool uses_pdl() const { return pdl_; }

  // Runs the GEMM. Returns a bit per wgrad of `with.sums` that was fused into the launch.
  result<unsigned> run(cudaStream_t stream, const gemm_kernel_set& kernels, const target& to, long long m,
                       const gemm_tensors& with, bool exclusive) {
    if (is_quantized()) {
      const result<bool> is_skinny = run_quantized(stream, kernels, to, m, with, exclusive);
      if (!is_skinny) return is_skinny.failure();
      if (*is_skinny) return 0U;
      if (const auto decoded = dequantized_->dequantize(stream, leaf(), dtype_of<T>); !decoded)
        return decoded.failure();
    }
    if (calls_.empty() || exclusive != exclusive_ || with.shrink != u_now_ || with.before != pre_epilogue_now_ ||
        with.rotates != rotates_now_) {
      gemm_operands o;
      const packed_adapter<T>& from = shared_ != nullptr ? shared_->now : packed_;
      o.act = act(), o.exclusive = exclusive_ = exclusive;
      o.w = weight(), o.adapter = from.record, o.a = from.a.data();
      o.u = u_now_ = with.shrink, o.before = pre_epilogue_now_ = with.before;
      o.fused_rotation = (rotates_now_ = with.rotates) ? rotation_.data() : nullptr;
      if (shared_ != nullptr) o.adapter.scale = record_scale(from), o.adapter.shift = record_shift(from);
      o.workspace = with.workspace, o.counters = with.counters;
      if (has_no_branch()) o.adapter.rank = 0, o.adapter.a_tiles = o.adapter.b_tiles = o.adapter.b = o.a = nullptr;
      calls_ = gemm_launch_cache(kernels, to, bare_problem(m), o);
    }
    auto bound = calls_.at(m, with.x, with.y, with.residual, with.sums);
    if (!bound) return bound.failure();
    const bool pdl = may_use_pdl() && !is_quantized();  // the weight is complete only when dequantizing has ended
    if (status done = launch(stream, **bound, pdl); !done) return done.failure();
    return (*bound)->fused_wgrads;
  }
  // Runs a multi-LoRA batch: every row has its own adapter record instead of this layer's adapter.
  status run_multi_lora(cudaStream_t stream, const gemm_kernel_set& kernels, const multi_lora_kernels& multi_lora,
                        const target& to, long long m, const gemm_tensors& with, multi_lora_operands rows) {
    if (is_quantized())
      if (const auto decoded = dequantized_->dequantize(stream, leaf(), dtype_of<T>); !decoded)
        return decoded.failure();
    rows.x = with.x, rows.w = weight(), rows.y = with.y, rows.residual = with.residual;
    rows.act = act(), rows.pdl = may_use_pdl() && rows.pdl && !is_quantized();
    return multi_lora_.run(stream, kernels, multi_lora, to, shape(m), rows);
  }
  // Fills in operands and problem as a member of a grouped multi-LoRA launch; false: this GEMM cannot be a member.
  bool as_group_member(long long m, const void* x, void* y, multi_lora_operands& rows, gemm_problem& p) {
    if (is_quantized() || slots_.residual >= 0 || rows.scaled != nullptr) return false;
    rows.x = x, rows.w = weight(), rows.y = y, rows.act = act();
    p = shape(m), p.rank = 0, p.prologue = p.epilogue_steps = false;
    p.aligned =
        p.aligned && reinterpret_cast<std::uintptr_t>(x) % 16 == 0 && reinterpret_cast<std::uintptr_t>(y) % 16 == 0;
    return true;
  }
  // The record that rows of a multi-LoRA batch with this adapter read; valid until the next bind().
  adapter_record record_for_rows() const {
    const adapter_args& s = packed_.record;
    if (has_no_branch()) return {nullptr, nullptr, s.scale, s.shift, s.prologue, 0};
    return {packed_.a.data(), packed_.b.data(), s.scale, s.shift, s.prologue, rank_, s.a_tiles, s.b_tiles};
  }
  bool is_quantized() const { return base_leaf(*g_, slots_.weight) >= 0 && leaf().quant != nullptr; }
  // How a GEMM of m tokens reads the quantized weight directly; groups is 0 where it has to be dequantized first.
  quantized_choice quantized_choice_for(long long m, const target& to) const {
    if (!is_quantized() || !slots_.weight_is_nt || shrink_output() >= 0 || shrink_input() >= 0 ||
        slots_.pre_epilogue >= 0)
      return {};
    return choose_quantized(leaf().quant->format, dtype_of<T>, m, k_, rank_, to);
  }
  quantized_operands as_quantized() const { return {leaf(), dtype_of<T>, record(), act(), n_, k_}; }
  // Returns true if the output rotation is fused. Not with autotuning, which may select a kernel without it.
  bool rotates(long long m, const gemm_kernel_set& kernels, const target& to) const {
    return !is_quantized() && shared_ == nullptr && kernels.timed.by == nullptr && rotation_.bytes() > 0 &&
           rotation_inside_gemm(bare_problem(m), to, kernels.have);
  }
  // The problem without a zero branch that exists only because of the common rank of a group.
  gemm_problem bare_problem(long long m) const {
    gemm_problem p = shape(m);
    if (has_no_branch()) p.rank = 0;
    return p;
  }
  gemm_problem shape(long long m) const {
    gemm_problem p{dtype_of<T>, m, n_, k_, rank_};
    p.epilogue_steps = !slots_.epilogue_steps.empty() || shared_ != nullptr;
    p.prologue = has_prologue(), p.nn = weight_is_nn();
    p.stores_shrink = shrink_output() >= 0, p.stores_pre_epilogue = slots_.pre_epilogue >= 0;
    p.shrink_input = shrink_input() >= 0;
    p.plain = slots_.act == op::detach && slots_.residual < 0, p.output_rotation = rotation_columns();
    p.aligned = reinterpret_cast<std::uintptr_t>(weight()) % 16 == 0;
    return p;
  }
  // The problem for kernels that read the quantized weight directly.
  gemm_problem quantized_problem(long long m) const {
    gemm_problem p = shape(m);
    p.stored = leaf().quant->format, p.nn = !slots_.weight_is_nt;
    p.aligned = reinterpret_cast<std::uintptr_t>(leaf().data) % 16 == 0;
    return p;
  }
  activation act() const { return activation_of(slots_.act); }
  const void* weight() const {
    return shared_ != nullptr && shared_->weight ? shared_->weight_now.data() : own_weight();
  }
  adapter_args record() const {
    const packed_adapter<T>& from = shared_ != nullptr ? shared_->now : packed_;
    adapter_args s = from.record;
    if (shared_ != nullptr) s.scale = record_scale(from), s.shift = record_shift(from);
    return s;
  }
  int rank() const { return rank_; }
  // The shrink result U = x Aᵀ that this launch stores for others, [tokens, rank()]; -1: none.
  id shrink_output() const { return shrink_output_of(slots_); }
  const void* shrink_now() const { return u_now_; }
  // The shrink result U that an earlier launch computed, [tokens, branch rank]; -1: none.
  id shrink_input() const { return shrink_input_of(slots_); }
  // Own memory for U, and whether its rows are padded beyond the rank of the value.
  void* own_shrink() { return s_.data(); }
  bool shrink_is_padded() const { return branch_rank(*g_, slots_, sizes_) != rank_; }
  int out_size() const { return n_; }
  int in_size() const { return k_; }

 private:
  // Runs directly on the quantized weight; false: it has to be dequantized first.
  result<bool> run_quantized(cudaStream_t stream, const gemm_kernel_set& kernels, const target& to, long long m,
                             const gemm_tensors& with, bool exclusive) {
    const quantized_choice c = quantized_choice_for(m, to);
    const bool aligned =
        reinterpret_cast<std::uintptr_t>(with.x) % 16 == 0 && reinterpret_cast<std::uintptr_t>(leaf().data) % 16 == 0;
    if (c.groups == 0 || !aligned || !kernels.quantized.has(c, rank_ > 0)) return false;
    if (quantized_gemm_.empty()) {
      const quantized_operands one = as_quantized();
      quantized_gemm_ = quantized_gemm(kernels.quantized, to, &one, 1);
    }
    const quantized_tensors now{with.x, {with.y}, with.residual, static_cast<float*>(with.workspace), with.counters};
    if (status s = quantized_gemm_.run(stream, c, m, now, may_use_pdl(), exclusive); !s) return s.failure();
    return true;
  }
  // Width of the diagonal blocks of the output rotation, all butterfly factors combined; 0: no rotation.
  long long rotation_columns() const {
    if (slots_.output_rotation < 0) return 0;
    return rotation_width(size_of((*g_)[slots_.result].b, 0), size_of((*g_)[slots_.result].b, 3));
  }
  // Returns true if there is no branch. Branch buffers that are allocated for the common rank of a group hold zeros.
  bool has_no_branch() const { return shared_ == nullptr && slots_.branches.empty(); }
  bool has_prologue() const { return slots_.prologue >= 0 || (shared_ != nullptr && shared_->prologue); }
  long long weight_bytes() const { return static_cast<long long>(n_) * k_ * static_cast<long long>(sizeof(T)); }
  long long size_of(id i, int axis) const { return g_->sizes.value((*g_)[i].d[axis], sizes_); }
  // Returns true if kernels read the stored weight, or a frozen matrix of the adapter, in place.
  bool weight_in_place() const {
    if (base_leaf(*g_, slots_.weight) >= 0) return is_quantized() || leaf().type == dtype_of<T>;
    const bool frozen = (*g_)[unshaped(*g_, slots_.weight)].what == op::frozen && shared_ == nullptr;
    return frozen && is_like_ours(leaf()) && (!pads_ || padded_rank(outputs_) == outputs_);
  }
  static bool is_like_ours(const view& v) {
    return v.data != nullptr && v.type == dtype_of<T> && v.quant == nullptr &&
           reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
  }
  const view& leaf() const { return leaf_of(slots_.weight); }
  const view& leaf_of(id i) const { return leaves_[unshaped(*g_, i)]; }
  bool weight_is_nn() const { return (weight_in_place() || weight_update_.found) && !slots_.weight_is_nt; }
  const void* own_weight() const {
    if (weight_owner_ != nullptr) return weight_owner_->own_weight();
    return is_quantized() ? dequantized_->data() : weight_in_place() ? leaf().data : weight_.data();
  }
  // Padded rank of the update P Q of a computed weight W + P Q, which is stored as [rows, columns] like W.
  int update_rank() const {
    return padded_rank(static_cast<int>(size_of(weight_update_.left, weight_update_.left_transposed ? 2 : 3)));
  }
  status grow(cudaStream_t stream, const values& v, const gemm_kernel_set& kernels, const launchers& by,
              const target& to);
  // P, if the update GEMM can read it in place; otherwise null.
  const T* stored_left() const {
    const view& at = leaf_of(weight_update_.left);
    const bool same =
        is_like_ours(at) && !weight_update_.left_transposed && size_of(weight_update_.left, 3) == update_rank();
    return same ? static_cast<const T*>(at.data) : nullptr;
  }
  // Calls need(o) for the scalars in the expression between the product P Q and the weight.
  template <class Need> void each_number(Need need) const {
    for (id i = weight_update_.product; i <= slots_.weight; ++i)
      for (int k = 0; is_update_elementwise(*g_, i) && k < 3; ++k)
        if (const id o = (*g_)[i].operand(k); o >= 0 && is_scalar((*g_)[o])) need(o);
  }
  status put(cudaStream_t stream, const values& v, id from, pack_matrix<T> args) const {
    const result<tensor<float>> read = v.numbers(stream, from);
    if (!read) return read.failure();
    args.from = read->p;
    return each(stream, args.rows * args.cols, args, "pack");
  }
  status gather_branches(const values& v, branch_packer<T>& packer) const;
  status pack_own_branches(cudaStream_t stream, const values& v, const pack_functions& by);
  bool has_epilogue(op what, op other) const {
    for (const epilogue_step& p : slots_.epilogue_steps)
      if (p.what == what || p.what == other) return true;
    return false;
  }
  static float* record_scale(const packed_adapter<T>& p) { return p.epilogue.template as<float>(); }
  float* record_shift(const packed_adapter<T>& p) const {
    return p.epilogue.template as<float>() + padded_rows(n_) + row_padding;
  }
  status pack_epilogue(cudaStream_t stream, const values& v);

  const graph* g_ = nullptr;
  gemm_slots slots_;
  size_values sizes_;
  const view* leaves_ = nullptr;  // views by node, whose memory does not move with the binding of the layer
  shared_adapter_args<T>* shared_ = nullptr;
  const dequantized_buffer* dequantized_ = nullptr;
  bool pads_ = false;
  int group_rank_ = 0, group_rank_offset_ = 0;
  int outputs_ = 0, n_ = 0, k_ = 0, rank_ = 0;  // n_: outputs with padding, as stored
  packed_adapter<T> packed_;
  buffer weight_, s_, rotation_;
  low_rank_update weight_update_;
  buffer update_[2];  // P and Q of the weight update
  const gemm_binding* weight_owner_ = nullptr;
  gemm_launch_cache calls_, weight_update_calls_;
  multi_lora_gemm<T> multi_lora_;
  quantized_gemm quantized_gemm_;
  void *u_now_ = nullptr, *pre_epilogue_now_ = nullptr;  // further outputs of the bound launches
  bool exclusive_ = false, rotates_now_ = false;
  bool pdl_ = false;  // the next call may read weights and adapter before the preceding kernel has finished
};

// ---- Packing

// Packing members of gemm_binding: they write the kernel operands of an adapter (branches, scale and shift per output,
// prologue, rotation) and a weight that is not read in place. A computed weight W + P Q (`weight_update_`) is a GEMM of
// P and Q that adds W, or is followed by an elementwise expression.

template <class T>
status gemm_binding<T>::grow(cudaStream_t stream, const values& v, const gemm_kernel_set& kernels, const launchers& by,
                             const target& to) {
  const long long rows = size_of(slots_.weight, 2), columns = size_of(slots_.weight, 3), all = update_rank(),
                  rank = size_of(weight_update_.left, weight_update_.left_transposed ? 2 : 3);
  const T* const stored = stored_left();
  T *const left = update_[0].template as<T>(), *const right = update_[1].template as<T>();
  if (all > rank)
    for (const buffer& b : update_)
      if (status s = check(cudaMemsetAsync(b.data(), 0, static_cast<std::size_t>(b.bytes()), stream), "clearing"); !s)
        return s;
  if (stored == nullptr)
    if (status s = put(stream, v, weight_update_.left,
                       {{}, {}, left, rows, rank, 0, 0, all, weight_update_.left_transposed, false});
        !s)
      return s;
  const bool nn = !weight_update_.right_by_row;  // NN: Q is read as stored
  const pack_matrix<T> pack_args{{},    {},   right, nn ? rank : columns, nn ? columns : rank, 0, 0, nn ? columns : all,
                                 false, false};
  if (v[weight_update_.right].p.at != right)
    if (status s = put(stream, v, weight_update_.right, pack_args); !s) return s;
  if (weight_update_calls_.empty()) {
    gemm_operands o;
    o.w = right;
    gemm_problem p{dtype_of<T>, rows, static_cast<int>(columns), static_cast<int>(all), 0};
    p.plain = !weight_update_.adds, p.nn = nn;
    weight_update_calls_ = gemm_launch_cache(kernels, to, p, o);
  }
  const auto bound = weight_update_calls_.at(rows, stored != nullptr ? stored : left, weight_.data(),
                                             weight_update_.adds ? leaf_of(weight_update_.base).data : nullptr);
  if (!bound) return bound.failure();
  if (status s = launch(stream, **bound, false); !s || weight_update_.adds) return s;
  if (by.precomputed_expression == nullptr) return launch_not_compiled("a weight that is computed by a GEMM");
  const element_ptr<float> here{weight_.data(), dtype_of<T>};  // holds P Q and is overwritten by the weight
  status found = ok;
  expression_writer writer(
      *g_, [&](id i) { return is_update_elementwise(*g_, i); },
      [&](id i) {
        if (i == weight_update_.product) return shaped(*g_, i, v.sizes(), here);
        if (i == weight_update_.base)
          return shaped(*g_, i, v.sizes(), element_ptr<float>{const_cast<void*>(leaf_of(i).data), dtype_of<T>});
        const result<tensor<float>> read = v.numbers(stream, i);
        if (!read) found = read.failure();
        return read ? *read : tensor<float>{};
      });
  const expression e = writer.write(slots_.weight);
  if (!found) return found;
  const tensor<float> out = shaped(*g_, slots_.weight, v.sizes(), here);
  return by.precomputed_expression(stream, by.sums, e, out, out);
}
template <class T> status gemm_binding<T>::gather_branches(const values& v, branch_packer<T>& packer) const {
  int rank0 = group_rank_offset_;
  for (const low_rank_branch& branch : slots_.branches) {
    const auto rank = static_cast<int>(g_->sizes.value(branch.rank, sizes_));
    pack_branch<T> one{};
    const scaled_source a = scaled_value(*g_, branch.a, none_id), b = scaled_value(*g_, branch.b, branch.factor);
    if (branch.computes_shrink) one.a = v[a.value].p;
    if (branch.expands) one.b = v[b.value].p;
    if (a.factor >= 0) one.a_factor = v[a.factor].p;
    if (b.factor >= 0) one.factor = v[b.factor].p;
    one.a_to = packed_.a.template as<T>(), one.b_to = packed_.b.template as<T>();
    one.a_tiles = packed_.a_tiles.template as<T>(), one.b_tiles = packed_.b_tiles.template as<T>();
    one.rank = rank, one.first = rank0, one.all = rank_;
    one.in = branch.computes_shrink ? k_ : 0, one.out = branch.expands ? outputs_ : 0, one.slab_rows = padded_rows(n_);
    one.a_transposed = !branch.a_rank_major, one.b_transposed = !branch.b_out_major, one.minus = branch.minus;
    if (status s = packer.add(one); !s) return s;
    rank0 += rank;
  }
  return ok;
}
template <class T>
status gemm_binding<T>::pack_own_branches(cudaStream_t stream, const values& v, const pack_functions& by) {
  if (by.fold == nullptr) return launch_not_compiled("packing a low-rank branch that has no matrices of its own");
  int rank0 = group_rank_offset_;
  for (const low_rank_branch& branch : slots_.branches) {
    const long long rank = g_->sizes.value(branch.rank, sizes_);
    T *const a = packed_.a.template as<T>(), *const b = packed_.b.template as<T>();
    const status done =
        !branch.computes_shrink ? status(ok)
        : branch.a < 0          ? by.fold(stream, a, rank, rank0, k_)
                       : put(stream, v, branch.a, {{}, {}, a, rank, k_, rank0, 0, k_, !branch.a_rank_major, false});
    if (!done) return done;
    pack_matrix<T> pack_args{{}, {}, b, outputs_, rank, 0, rank0, rank_, !branch.b_out_major, branch.minus};
    if (branch.factor >= 0) pack_args.factor = v[branch.factor].p;
    const repeated_branch repeated{b, outputs_, rank, rank0, rank_, pack_args.factor, branch.minus};
    const status expands = !branch.expands ? status(ok)
                           : branch.b < 0  ? by.repeat(stream, repeated)
                                           : put(stream, v, branch.b, pack_args);
    if (!expands) return expands;
    rank0 += static_cast<int>(rank);
  }
  return packed_.record.a_tiles == nullptr ? status(ok) : by.tile(stream, packed_.tiles(n_, k_));
}
// Packs the epilogue as one scale and one shift per output. Where adapters are switchable both exist, as ones and
// zeros, because another adapter may need them.
template <class T> status gemm_binding<T>::pack_epilogue(cudaStream_t stream, const values& v) {
  if (slots_.epilogue_steps.empty() && shared_ == nullptr) return ok;
  const long long columns = padded_rows(n_) + row_padding;
  float *const scale = record_scale(packed_), *const shift = record_shift(packed_);
  if (status s = each(stream, columns, fill_vector<float>{scale, 1}, "ones"); !s) return s;
  if (status s = each(stream, columns, fill_vector<float>{shift, 0}, "zeros"); !s) return s;
  for (const epilogue_step& step : slots_.epilogue_steps) {
    const int what = step.what == op::add ? 0 : step.what == op::sub ? 1 : step.what == op::mul ? 2 : 3;
    const tensor<float> t = v[step.operand];
    if (status s = each(stream, columns, apply_epilogue{scale, shift, t.p, outputs_, t.count() == 1 ? 0 : 1, what},
                        "epilogue");
        !s)
      return s;
  }
  packed_.record.scale = has_epilogue(op::mul, op::div) ? scale : nullptr;
  packed_.record.shift = has_epilogue(op::add, op::sub) ? shift : nullptr;
  return ok;
}
template <class T>
status gemm_binding<T>::pack(cudaStream_t stream, const values& v, branch_packer<T>& packer,
                             const gemm_kernel_set& kernels, const launchers& with, const target& to) {
  const pack_functions& by = with.packs;
  pdl_ = false;  // the next call reads the packed values, so its kernel must not start early
  if (weight_update_.found) {
    if (status s = weight_owner_ != nullptr ? status(ok) : grow(stream, v, kernels, with, to); !s) return s;
  } else if (!weight_in_place())
    if (status s = put(stream, v, slots_.weight,
                       {{}, {}, weight_.as<T>(), outputs_, k_, 0, 0, k_, !slots_.weight_is_nt, false});
        !s)
      return s;
  if (status s = packs_plainly(*g_, slots_) ? gather_branches(v, packer) : pack_own_branches(stream, v, by); !s)
    return s;
  if (has_prologue()) {
    T* const to = packed_.prologue.template as<T>();
    const status s = slots_.prologue < 0 ? each(stream, k_, fill_vector<T>{to, 1}, "ones")
                                         : put(stream, v, slots_.prologue, {{}, {}, to, 1, k_, 0, 0, k_, false, false});
    if (!s) return s;
  }
  if (sizeof(T) == 2 && rotation_.bytes() > 0) {
    if (by.fused_rotation == nullptr) return launch_not_compiled("a rotation fused into a GEMM");
    const tensor<float> q = v[(*g_)[slots_.result].b];
    float* const one = v.composed_of(slots_.result);
    const rotation r =
        one != nullptr ? rotation(n_, rotation::composed_width) : rotation(q, n_, (*g_)[slots_.result].tb);
    if (status s = by.fused_rotation(stream, one != nullptr ? element_ptr<float>(one) : q.p, r, rotation_.data(), n_);
        !s)
      return s;
  }
  return pack_epilogue(stream, v);
}

}  // namespace graft::gpu
