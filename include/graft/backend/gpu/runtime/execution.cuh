// SPDX-License-Identifier: Apache-2.0
// execution: one call of a program with the binding of a layer. For sizes that bind() knew it launches the kernels of
// the plan in order and does nothing else (no allocation, look-up or synchronization), so a caller may capture it in a
// CUDA graph. The file has the class, then its members for the memory of calls, for running, and for launches of small
// matrices. The members that fuse an RMS norm into the neighboring GEMMs are in execution_fused_norm.cuh.
#pragma once
#include <graft/backend/gpu/runtime/launch_clock.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <class T> class execution {
 public:
  execution(program<T>& in, binding<T>& with, const call& c, cudaStream_t stream, const target& to, bool exclusive)
      : program_(in),
        binding_(with),
        call_(c),
        g_(in.g_),
        p_(in.p_),
        kernels_(*in.kernels_),
        values_(with.values),
        stream_(stream),
        to_(to),
        exclusive_(exclusive) {}

  status run(launch_clock* clock = nullptr);

 private:
  status reserve_call_memory();
  void* workspace() const {
    return program_.adapter_workspace_ != nullptr ? program_.adapter_workspace_->data() : program_.memory_.workspace();
  }
  // Node i as a wgrad reads it. Values stored by a GEMM may have rows with padding.
  wgrad_operand operand_of(id raw) const {
    const id i = unshaped(g_, raw);
    const auto columns = static_cast<int>(g_.sizes.value(g_[raw].d[3], call_.sizes));
    for (const gemm_binding<T>& b : binding_.products) {
      if (b.shrink_output() == i) return {b.shrink_now(), columns, b.rank(), dtype_of<T>};
      if (b.slots().result == i && i == raw) return {tensor_at(i), columns, b.out_size(), dtype_of<T>};
    }
    if (i == raw && program_.is_padded(i))
      return {values_.storage(i).at, columns, program_.padded_columns(binding_, i), dtype_of<T>};
    return {tensor_at(i), columns, columns, comes_with_call(i) ? dtype_of<T> : values_[i].p.type};
  }
  bool comes_with_call(id i) const { return is_leaf(g_[i].what) && row(g_[i].what).known_at == stage::call; }
  const void* tensor_at(id i) const {
    i = unshaped(g_, i);
    return comes_with_call(i) ? call_.data[i].data : values_[i].p.at;
  }
  status check_type(id raw) const {
    const id i = unshaped(g_, raw);
    if (i < 0 || !comes_with_call(i) || call_.data[i].type == dtype_of<T>) return ok;
    return fail("tensor '", g_.name(i), "' is ", name_of(call_.data[i].type), ", this layer computes in ",
                name_of(dtype_of<T>));
  }
  status check_types() const;
  // GEMMs read and write T. An output of another type is converted by a copy.
  bool converts(int k) const {
    return launched(k) && program_.stored_as_t_[unshaped(g_, g_.out[k].at)] && call_.outputs[k].type != dtype_of<T>;
  }
  // The output that the launch of node i writes directly; -1: it writes to the workspace.
  int written_output(id i) const {
    const int k = output_of(i);
    return k >= 0 && converts(k) ? -1 : k;
  }
  int output_of(id i) const {
    for (int k = 0; k < g_.outs; ++k)
      if (unshaped(g_, g_.out[k].at) == i && call_.outputs[k].data != nullptr) return k;
    return -1;
  }
  dtype output_type(int k) const { return call_.outputs[k].type; }
  void* output_at(id i) const {
    const int k = i < 0 ? -1 : output_of(i);
    return k < 0 ? nullptr : call_.outputs[k].data;
  }
  bool launched(int k) const { return p_.launch_of[unshaped(g_, g_.out[k].at)] >= 0; }

  bool is_multi_lora(const graft::launch& l) const;
  // What the rows of a multi-LoRA batch read beside x and the weight.
  multi_lora_operands rows_of(const multi_lora_launches::product& of) const {
    multi_lora_operands rows;  // no designated initializers: nvcc 13 drops the designators in a class template
    rows.batch = {of.records, binding_.multi_lora.of_row}, rows.sums = binding_.multi_lora.sums;
    rows.scaled = of.prologue ? of.scaled : nullptr, rows.exclusive = exclusive_;
    return rows;
  }
  result<bool> run_multi_lora_grouped(const graft::launch& l);
  // ---- RMS norms fused into GEMMs (execution_fused_norm.cuh)
  bool fuses_norm(id x, long long m) const;
  epilogue_norm epilogue_norm_of(const graft::launch& l, long long m);
  prologue_norm prologue_norm_of(id x, long long m) const;
  bool use_normed_input(const rowwise_launch& r);
  result<bool> gather_for_norm(id i);
  status run_products(const graft::launch& l);
  status run_product(const graft::launch& l, int index);
  void* output_ptr(id i);
  status rotate_inputs(const graft::launch& l);
  // Is the rotation of the GEMM's result fused into its kernel in this call?
  bool rotation_inside(const gemm_binding<T>& b, long long m) const {
    const gemm_slots& s = b.slots();
    bool aligned = true;
    for (const id i : {s.x, s.result, s.output_rotation}) {
      const int k = written_output(i);
      const void* const at = k >= 0 ? call_.outputs[k].data : tensor_at(i);
      aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
    }
    return aligned && b.rotates(m, kernels_.gemm, to_);
  }
  // The tensor that the GEMM reads as x.
  const void* input_of(const gemm_slots& s) const { return tensor_at(s.input_rotation >= 0 ? s.input_rotation : s.x); }
  // A gradient that the caller did not request, and that nothing else reads, is not computed.
  bool is_requested(id i) const { return output_of(i) >= 0 || !is_output(g_, i) || program_.readers_[i] > 1; }
  element_ptr<float> output_ptr(const wgrad_sum& s);
  fused_wgrad fused_wgrad_of(int index, const gemm_binding<T>& product, void* shrink);
  status run_wgrad(int index);
  status run_rows(const rowwise_launch& r);
  status run_dropout_gemm(const dropout_gemm& d);
  status run_kronecker_chain(const matrix_chain& c);
  status run_matrix_stack(const matrix_stack& s);
  status run_node(id i);
  status pad(const padded_rows_of& rows);
  status pad_operands(int launch);
  status run_attention(const graft::launch& l);
  status run_expression(const graft::launch& l);

  program<T>& program_;
  binding<T>& binding_;
  const call& call_;
  const graph& g_;
  const plan& p_;
  const kernel_set& kernels_;
  gpu::values& values_;
  cudaStream_t stream_;
  const target& to_;
  bool exclusive_;
  scaled_result normed_input_{};
};

// ---- Memory of calls

// Lays out the workspace again if the call has larger sizes than bind() knew (image sizes come with the call), or if
// the caller wants an output in another type than the launch writes, or not at all.
template <class T> status execution<T>::reserve_call_memory() {
  size_values wanted = program_.reserved_;
  bool fits = true;
  for (int k = 0; k < g_.outs; ++k)
    if (const id i = unshaped(g_, g_.out[k].at); launched(k) && program_.is_caller_memory(i) && written_output(i) < 0)
      program_.missing_outputs_.add(i), fits = false;
  for (int i = 0; i < g_.sizes.count; ++i)
    if (const int index = g_.sizes.e[i].index; index >= 0 && call_.sizes.v[index] > wanted.v[index])
      wanted.v[index] = call_.sizes.v[index], fits = false;
  if (fits) return ok;
  values_.resize(wanted);
  if (status s = program_.reserve_values(binding_, wanted); !s) return s;
  program_.reserved_ = wanted;
  return ok;
}

// ---- Running: one call launches the kernels of the plan in order

template <class T> status execution<T>::run(launch_clock* clock) {
  if (status s = check_types(); !s) return s;
  if (status s = reserve_call_memory(); !s) return s;
  if (binding_.bound_version != program_.address_version()) program_.update_pointers(binding_);
  const bool is_single_gemm = program_.one_product() && p_.products[0].residual < 0;
  if (!is_single_gemm) {
    values_.resize(call_.sizes);
    for (const id i : program_.inputs_) values_.give(i, call_.data[i]);
  }
  normed_input_ = std::exchange(program_.shared_workspace_->normed, {});
  for (const rowwise_launch& r : p_.rowwise_launches) binding_.normed.in[r.result] = false;
  for (int k = 0; k < p_.launches.size(); ++k) {
    const graft::launch& l = p_.launches[k];
    values_.scratch_at(program_.memory_.scratch(k));
    if (clock != nullptr)
      if (status s = clock->note(stream_, p_, k); !s) return s;
    if (status s = pad_operands(k); !s) return s;
    const status s = l.product >= 0                    ? run_products(l)
                     : l.sum >= 0                      ? run_wgrad(l.sum)
                     : l.dropout_gemms >= 0            ? run_dropout_gemm(p_.dropout_gemms[l.dropout_gemms])
                     : l.chains >= 0                   ? run_kronecker_chain(p_.chains[l.chains])
                     : l.stack >= 0                    ? run_matrix_stack(p_.stacks[l.stack])
                     : is_attention(g_[l.anchor].what) ? run_attention(l)
                     : l.rows >= 0                     ? run_rows(p_.rowwise_launches[l.rows])
                     : l.count > 1                     ? run_expression(l)
                                                       : run_node(l.anchor);
    if (!s) return s;
  }
  if (clock != nullptr)
    if (status s = clock->note(stream_, p_, p_.launches.size()); !s) return s;
  for (int k = 0; k < g_.outs; ++k) {  // an input, a precomputed value, a second copy, another type
    const mutable_view& y = call_.outputs[k];
    if (y.data == nullptr || (launched(k) && output_of(unshaped(g_, g_.out[k].at)) == k && !converts(k))) continue;
    values_.resize(call_.sizes);
    if (status s = values_.copy(stream_, g_.out[k].at, {y.data, y.type}); !s) return s;
  }
  ++program_.launched_;
  return ok;
}
template <class T> status execution<T>::check_types() const {
  for (const id i : program_.inputs_)
    if (!call_.data[i].contiguous())
      return fail("tensor '", g_.name(i), "' has gaps between its rows; on the GPU copy it to contiguous memory first");
  for (int k = 0; k < g_.outs; ++k)
    if (!call_.outputs[k].contiguous())
      return fail("output '", g_.output_name(k), "' has gaps between its rows; on the GPU give it contiguous memory");
  for (const id i : program_.gemm_operands_)
    if (status st = check_type(i); !st) return st;
  for (const gemm_binding<T>& b : binding_.products)
    for (const id i : {b.shrink_output(), b.slots().pre_epilogue})
      if (const int k = i < 0 ? -1 : output_of(i); k >= 0 && output_type(k) != dtype_of<T>)
        return fail("output '", g_.output_name(k), "' is ", name_of(output_type(k)), ", it is stored as ",
                    name_of(dtype_of<T>));
  status of_attention = ok;
  for (const attention_binding<T>& a : program_.attentions_)
    if (a.runs())
      a.each_tensor([&](id i) {
        if (of_attention) of_attention = check_type(i);
      });
  return of_attention;
}
template <class T> void* execution<T>::output_ptr(id i) {
  const int written = written_output(i);
  void* const y = written >= 0 ? call_.outputs[written].data : values_.storage(i).at;
  values_.put(i, {y, dtype_of<T>});
  return y;
}
// Does a GEMM of this launch have a multi-LoRA batch?
template <class T> bool execution<T>::is_multi_lora(const graft::launch& l) const {
  bool any = false;
  for (int k = l.product; k <= l.product + l.grouped; ++k)
    any = any || (static_cast<std::size_t>(k) < binding_.multi_lora.products.size() &&
                  binding_.multi_lora.products[static_cast<std::size_t>(k)].records != nullptr);
  return any;
}
// Runs a grouped GEMM with a multi-LoRA batch as segments of one skinny GEMM launch. Returns false, and launches
// nothing, if no kernel takes all of them.
template <class T> result<bool> execution<T>::run_multi_lora_grouped(const graft::launch& l) {
  const int count = l.grouped + 1;
  if (count > max_segments) return false;
  multi_lora_operands rows[max_segments];
  gemm_problem shapes[max_segments];
  const gemm_slots& s = p_.products[l.product];
  const long long m = g_.sizes.value(g_[s.result].d[2], call_.sizes);
  for (int k = 0; k < count; ++k) {
    const multi_lora_launches::product& of = binding_.multi_lora.products[static_cast<std::size_t>(l.product + k)];
    if (of.records == nullptr || p_.products[l.product + k].input_rotation >= 0) return false;
    rows[k] = rows_of(of);
    gemm_binding<T>& b = binding_.products[l.product + k];
    if (!b.as_group_member(m, tensor_at(s.x), output_ptr(b.slots().result), rows[k], shapes[k])) return false;
  }
  const skinny_choice c = choose_multi_lora(shapes, count, to_);
  if (m == 0 || c.rows == 0 || kernels_.multi_lora.finish.kernel == nullptr) return false;
  bool pdl = true;
  for (int k = 0; k < count; ++k) pdl = binding_.products[l.product + k].may_use_pdl() && pdl;
  rows[0].pdl = pdl;
  if (status done = run_multi_lora_skinny(stream_, kernels_.multi_lora, c, shapes, rows, count); !done)
    return done.failure();
  return true;
}
// Computes the rotations x R that the GEMMs of a launch read: by one kernel for up to 64 rows, else one after the
// other.
template <class T> status execution<T>::rotate_inputs(const graft::launch& l) {
  id rotations[max_segments] = {};
  element_ptr<float> to[max_segments];
  int count = 0;
  bool early = true, aligned = true;
  const auto aligned16 = [&](const void* at) { aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  const gemm_slots& first = p_.products[l.product];
  for (int k = l.product; k <= l.product + l.grouped; ++k) {
    const gemm_slots& s = p_.products[k];
    if (s.input_rotation < 0) continue;
    to[count] = {output_ptr(s.input_rotation), dtype_of<T>}, rotations[count] = s.input_rotation;
    aligned16(to[count++].at);
    early = early && binding_.products[k].uses_pdl();
  }
  if (count == 0) return ok;
  aligned16(tensor_at(first.x));
  if (first.other >= 0) aligned16(tensor_at(first.other));
  if (aligned && p_.to.rotations_share_kernel &&
      p_.to.rotations_share_kernel(g_, rotations, count, call_.sizes, dtype_of<T>, p_.to))
    return values_.compute_rotations(stream_, rotations, count, first.x, first.other, to, early);
  if (first.gate >= 0)
    if (status s = run_node(first.gate); !s) return s;
  for (int k = 0; k < count; ++k)
    if (status s = run_node(rotations[k]); !s) return s;
  return ok;
}
template <class T> status execution<T>::run_products(const graft::launch& l) {
  if (status s = rotate_inputs(l); !s) return s;
  if (l.grouped > 0 && is_multi_lora(l)) {
    const auto ran = run_multi_lora_grouped(l);
    if (!ran) return ran.failure();
    if (*ran) return l.gated >= 0 ? run_node(l.gated) : status(ok);
  }
  for (grouped_gemm_binding<T>& b : binding_.grouped) {
    if (l.grouped == 0 || b.first() != l.product || is_multi_lora(l)) continue;
    void* y[max_segments + 1] = {};
    const void* x[max_segments] = {};
    for (int k = 0; k <= l.grouped; ++k)
      y[k] = output_ptr(p_.products[l.product + k].result), x[k] = input_of(p_.products[l.product + k]);
    if (l.gated >= 0) y[l.grouped + 1] = output_ptr(l.gated);
    const gemm_slots& s = p_.products[l.product];
    const long long m = g_.sizes.value(g_[s.result].d[2], call_.sizes);
    using ran = typename grouped_gemm_binding<T>::ran;
    const auto what =
        b.run(stream_, kernels_.gemm, to_, m, binding_.products,
              {x, y, l.gated >= 0, prologue_norm_of(s.x, m), workspace(), program_.counters_}, exclusive_);
    if (!what) return what.failure();
    if (*what == ran::products && l.gated >= 0) return run_node(l.gated);
    if (*what != ran::nothing) return ok;
  }
  for (int k = 0; k <= l.grouped; ++k)
    if (status s = run_product(l, l.product + k); !s) return s;
  if (l.norm >= 0 && !binding_.normed[p_.rowwise_launches[l.norm].result])
    if (status s = run_rows(p_.rowwise_launches[l.norm]); !s) return s;
  return l.gated >= 0 ? run_node(l.gated) : status(ok);
}
template <class T> status execution<T>::run_product(const graft::launch& l, int index) {
  gemm_binding<T>& b = binding_.products[index];
  const gemm_slots& s = b.slots();
  gemm_tensors with;
  const long long m = g_.sizes.value(g_[s.result].d[2], call_.sizes);
  with.rotates = s.output_rotation >= 0 && rotation_inside(b, m);
  const bool rotates_after = s.output_rotation >= 0 && !with.rotates;
  with.y = output_ptr(rotates_after ? s.output_rotation : s.result);
  with.x = input_of(s), with.residual = s.residual < 0 ? nullptr : tensor_at(s.residual);
  void* const shrink = output_at(b.shrink_output());
  with.shrink = shrink == nullptr || b.shrink_is_padded() ? b.own_shrink() : shrink;
  if (const id shrink_in = b.shrink_input(); shrink_in >= 0) {
    const long long rank = branch_rank(g_, s, call_.sizes);
    if (!b.shrink_is_padded())
      with.shrink = const_cast<void*>(tensor_at(shrink_in));
    else if (m > 0)
      if (status done = pad({tensor_at(shrink_in), with.shrink, m, rank, rank, b.rank()}); !done) return done;
  }
  with.before = rotates_after ? nullptr : output_at(s.pre_epilogue);
  if (with.before == nullptr && !rotates_after && program_.is_saved_for_later(s.pre_epilogue))
    with.before = values_.storage(s.pre_epilogue).at;
  if (with.before != nullptr) values_.put(s.pre_epilogue, {with.before, dtype_of<T>});
  with.workspace = workspace(), with.counters = program_.counters_;
  with.in_norm = prologue_norm_of(s.x, m), with.out_norm = epilogue_norm_of(l, m);
  for (int k = 0; k < 2; ++k)
    if (l.fused_wgrads[k] >= 0) with.sums[k] = fused_wgrad_of(l.fused_wgrads[k], b, with.shrink);
  if (const auto k = static_cast<std::size_t>(index); k < binding_.multi_lora.products.size()) {
    const multi_lora_launches::product& rows = binding_.multi_lora.products[k];
    if (rows.records != nullptr) {
      multi_lora_operands of = rows_of(rows);
      of.blocks = rows.blocks, of.pdl = true;
      return b.run_multi_lora(stream_, kernels_.gemm, kernels_.multi_lora, to_, m, with, of);
    }
  }
  const result<unsigned> ran = b.run(stream_, kernels_.gemm, to_, m, with, exclusive_);
  if (!ran) return ran.failure();
  for (unsigned k = 0; k < 2; ++k)
    if (l.fused_wgrads[k] >= 0 && (*ran >> k & 1) == 0)
      if (status done = run_wgrad(l.fused_wgrads[k]); !done) return done;
  if (rotates_after) return run_node(s.result);
  if (shrink == nullptr || !b.shrink_is_padded() || m == 0) return ok;
  const auto rank = branch_rank(g_, s, call_.sizes);
  return pad({with.shrink, shrink, m, rank, b.rank(), rank});
}
template <class T> status execution<T>::pad(const padded_rows_of& rows) {
  const auto copy = kernels_.launches.packs.pad;
  return copy != nullptr ? copy(stream_, rows) : launch_not_compiled("storing the shrink result of a low-rank branch");
}
// Copies narrow wgrad operands to rows with padding, as TMA needs row pitches that are multiples of 16 bytes.
template <class T> status execution<T>::pad_operands(int launch) {
  for (const auto& [before, i] : program_.pads_) {
    const long long rows = g_.sizes.value(g_[i].d[2], call_.sizes), columns = g_.sizes.value(g_[i].d[3], call_.sizes);
    if (before != launch || rows == 0) continue;
    if (status s =
            pad({tensor_at(i), values_.storage(i).at, rows, columns, columns, program_.padded_columns(binding_, i)});
        !s)
      return s;
  }
  return ok;
}
template <class T> element_ptr<float> execution<T>::output_ptr(const wgrad_sum& s) {
  element_ptr<float> d = values_.storage(s.result);
  if (const int k = written_output(s.result); k >= 0) d = {call_.outputs[k].data, call_.outputs[k].type};
  values_.put(s.result, d);
  return d;
}
template <class T> fused_wgrad execution<T>::fused_wgrad_of(int index, const gemm_binding<T>& product, void* shrink) {
  const wgrad_sum& s = p_.sums[index];
  if (!is_requested(s.result)) return {};
  fused_wgrad b;
  const id of_product = product.shrink_output();
  auto operand = [&](id i) {
    wgrad_operand o = operand_of(i);
    if (i == of_product) o.data = shrink;
    return o;
  };
  const wgrad_operand left = operand(s.left), right = operand(s.right);
  b.by_column = left.columns >= right.columns;
  b.z = b.by_column ? left : right, b.q = b.by_column ? right : left;
  b.waits_for_shrink = of_product >= 0 && (s.left == of_product || s.right == of_product);
  b.columnwise = s.by_column;
  if (s.factor >= 0) b.factor = values_[s.factor].p;
  b.to = output_ptr(s);
  return b;
}
template <class T> status execution<T>::run_wgrad(int index) {
  wgrad_binding<T>& b = binding_.sums[index];
  const wgrad_sum& s = b.sum();
  if (!is_requested(s.result)) return s.scaled < 0 ? status(ok) : run_node(s.scaled);
  const element_ptr<float> d = output_ptr(s);
  const long long m = g_.sizes.value(g_[s.left].d[2], call_.sizes);
  element_ptr<float> scaled, scale;
  if (s.scaled >= 0) scaled = {output_ptr(s.scaled), dtype_of<T>}, scale = values_[s.scale].p;
  return b.run(stream_, kernels_.gemm, kernels_.launches, to_, m, operand_of(s.left), operand_of(s.right),
               s.factor < 0 ? element_ptr<float>{} : values_[s.factor].p, d, false, scaled, scale);
}
template <class T> status execution<T>::run_rows(const rowwise_launch& r) {
  if (use_normed_input(r)) return ok;
  const int k = written_output(r.result);
  if (k < 0) return values_.compute_rows(stream_, r, values_.storage(r.result));
  const mutable_view& y = call_.outputs[k];
  return values_.compute_rows(stream_, r, {y.data, y.type});
}
// Runs attention by a fused kernel if there is one, else node by node. The launch that concatenates heads and applies
// RoPE runs first, unless the kernel reads q, k and v separately.
template <class T> status execution<T>::run_attention(const graft::launch& l) {
  const id i = l.anchor;
  const auto at = [&](id o) { return tensor_at(o); };
  const attention_binding<T>* by = nullptr;
  for (const attention_binding<T>& a : program_.attentions_)
    if (a.node() == i) by = &a;
  separate_qkv separate;
  bool takes = by != nullptr && by->fuses_heads(to_, call_.sizes, at, separate);
  if (separate.angles != nullptr) takes = takes && values_[p_.rowwise_launches[l.rows].table].p.type == dtype::f32;
  if (l.rows >= 0 && !takes)
    if (status s = run_rows(p_.rowwise_launches[l.rows]); !s) return s;
  if (by == nullptr || !by->runs()) return run_node(i);
  const int k = written_output(i);
  void* const y = k >= 0 ? call_.outputs[k].data : values_.storage(i).at;
  values_.put(i, {y, dtype_of<T>});
  // In a model no two calls overlap: it copies the inputs of a call first, or replays a graph.
  return by->run(stream_, to_, call_.sizes, at, y, values_.scratch_now(), takes ? &separate : nullptr,
                 {call_.attention_out, call_.attention_lse}, kernels_.gemm.timed.by, program_.in_model_);
}
template <class T> status execution<T>::run_node(id i) {
  const int k = written_output(i);
  if (const result<bool> done = gather_for_norm(i); !done || *done) return done ? status(ok) : done.failure();
  if (k < 0) return values_.compute_node(stream_, i);
  const mutable_view& y = call_.outputs[k];
  return values_.compute_node(stream_, i, {y.data, y.type});
}

template <class T> status execution<T>::run_expression(const graft::launch& l) {
  const id* const nodes = &p_.nodes[l.first];
  status found = ok;
  // Builds the elementwise expression of a root and sets the address that its result is stored to.
  auto written = [&](id root) {
    const int k = written_output(root);
    element_ptr<float> at = values_.storage(root);
    if (k >= 0) at = {call_.outputs[k].data, call_.outputs[k].type};
    values_.put(root, at);
    expression_writer writer(
        g_, [&](id i) { return is_one_of(nodes, nodes + l.count, i); },
        [&](id i) {
          const result<tensor<float>> read = values_.numbers(stream_, i);
          if (!read) found = read.failure();
          return read ? *read : tensor<float>{};
        });
    return writer.write(g_[root].what == op::sum_to ? g_[root].a : root);
  };
  const expression first = written(l.anchor);
  if (l.paired_root < 0) {
    const id root = g_[l.anchor].what == op::sum_to ? g_[l.anchor].a : l.anchor;
    if (!found) return found;
    const auto evaluate = kernels_.launches.expression;
    if (evaluate == nullptr) return launch_not_compiled("an expression");
    return evaluate(stream_, kernels_.launches.sums, first, shaped(g_, root, call_.sizes, element_ptr<float>{}),
                    values_[l.anchor]);
  }
  const expression second = written(l.paired_root);
  if (!found) return found;
  bool sums = l.gate_wgrads[0] >= 0 && kernels_.launches.gates != nullptr;
  for (const int k : l.gate_wgrads) sums = sums && is_requested(p_.sums[k].result);
  if (sums) {
    gate_wgrad with[2];
    for (int k = 0; k < 2; ++k) {
      const wgrad_sum& s = p_.sums[l.gate_wgrads[k]];
      with[k] = {output_ptr(s), {output_ptr(s.scaled), dtype_of<T>}, tensor_at(s.right), values_[s.scale].p.at};
    }
    const result<bool> made = kernels_.launches.gates(stream_, to_, first, second, values_[l.anchor],
                                                      values_[l.paired_root], with[0], with[1]);
    if (!made) return made.failure();
    if (*made) return ok;
  }
  const auto evaluate = kernels_.launches.two_expressions;
  if (evaluate == nullptr) return launch_not_compiled("two expressions");
  if (status s = evaluate(stream_, first, second, values_[l.anchor], values_[l.paired_root]); !s) return s;
  for (const int k : l.gate_wgrads)
    if (k >= 0)
      if (status s = run_wgrad(k); !s) return s;
  return ok;
}

// ---- Launches of small matrices: narrow GEMMs with dropout, Kronecker chains, stacks of small matrices
// If no kernel takes the sizes of a call, the nodes run one by one; plan/kernel_count.h counts launches by the same
// rule.

template <class T> status execution<T>::run_dropout_gemm(const dropout_gemm& d) {
  if (!is_requested(d.result)) return ok;
  const int k = written_output(d.result);
  element_ptr<float> to = values_.storage(d.result);
  if (k >= 0) to = {call_.outputs[k].data, call_.outputs[k].type};
  values_.put(d.result, to);
  dropout_gemm_args with;
  const tensor<float> wide = values_[d.wide];
  with.wide = wide.p, with.out = to, with.rows = wide.d[2], with.columns = static_cast<int>(wide.d[3]);
  with.terms = 0;
  for (const dropout_term& of : d.terms) {
    dropout_branch& t = with.term[with.terms++];
    if (of.narrow >= 0) {
      const wgrad_operand from = operand_of(of.narrow);
      t.narrow = from.elements(), t.rank = from.columns, t.pitch = from.pitch;
    }
    if (of.factor >= 0) {
      const tensor<float> a = values_[of.factor];
      t.factor = a.p;
      t.rank = static_cast<int>(a.d[of.factor_rank_major ? 2 : 3]);
      t.rank_step = of.factor_rank_major ? a.d[3] : 1, t.column_step = of.factor_rank_major ? 1 : a.d[3];
    }
    const graft::node& v = g_[of.dropout];
    t.seed = static_cast<const std::int64_t*>(tensor_at(v.b));
    t.salt = g_.sizes.value(v.k[0], call_.sizes), t.rate = values_[v.c].p;
  }
  const auto multiply = kernels_.launches.dropout_gemms;
  return multiply != nullptr ? multiply(stream_, d.form_kind, with) : launch_not_compiled("a GEMM with dropout");
}
template <class T> status execution<T>::run_kronecker_chain(const matrix_chain& c) {
  if (!fuses_chain(g_, c, call_.sizes, dtype_of<T>, p_.to)) {
    for (const id i : c.inside())
      if (status s = run_node(i); !s) return s;
    return ok;
  }
  if (kernels_.launches.chain == nullptr) return launch_not_compiled("a small matrix of every token");
  auto slot = [&](id i) {
    const int k = written_output(i);
    element_ptr<float> to = values_.storage(i);
    if (k >= 0) to = {call_.outputs[k].data, call_.outputs[k].type};
    return values_.put(i, to), to;
  };
  const chain_sizes n = chain_sizes_of(g_, c, call_.sizes);
  chain_args with;
  with.z = tensor_at(c.z), with.d = output_ptr(c.result);
  with.l = values_[c.left].p, with.r = values_[c.right].p;
  with.l_transposed = c.left_transposed, with.r_transposed = c.right_transposed;
  with.l_rows = static_cast<int>(n.left_rows), with.z_rows = static_cast<int>(n.rows);
  with.z_cols = static_cast<int>(n.columns), with.r_cols = static_cast<int>(n.right_columns);
  with.tokens = g_.sizes.value(g_[c.z].d[1], call_.sizes);
  if (c.sums())
    with.x = tensor_at(c.x), with.e = slot(c.left_sum), with.f = slot(c.right_sum),
    with.partial = values_.scratch_now();
  return kernels_.launches.chain(stream_, with);
}
template <class T> status execution<T>::run_matrix_stack(const matrix_stack& s) {
  if (!fuses_stack(g_, s, call_.sizes, p_.to)) {
    for (const id i : s.inside)
      if (status done = run_node(i); !done) return done;
    return ok;
  }
  stack_args with{};
  with.operands = s.operands.size(), with.steps = s.inside.size(), with.slots = s.slots;
  const tensor<float> first = values_[g_[s.inside[0]].a], other = values_[s.operands[0]];
  const tensor<float>& like = first.count() > 1 ? first : other;
  with.edge = static_cast<int>(like.d[3]), with.matrices = like.matrices();
  for (int k = 0; k < with.operands; ++k) {
    with.operand[k] = values_[s.operands[k]].p;
    with.at[k] = static_cast<signed char>(s.operand_slot[k]);
  }
  const auto slot = [&](id o) -> signed char {
    for (int k = 0; k < with.operands; ++k)
      if (s.operands[k] == o) return with.at[k];
    for (int k = 0; k < with.steps; ++k)
      if (s.inside[k] == o) return static_cast<signed char>(s.slot[k]);
    return -1;
  };
  for (int k = 0; k < with.steps; ++k) {
    const id i = s.inside[k];
    const graft::node& v = g_[i];
    stack_step& to = with.step[k];
    to.what = v.what, to.ta = v.ta, to.tb = v.tb;
    to.to = static_cast<signed char>(s.slot[k]), to.a = slot(v.a),
    to.b = v.b < 0 ? static_cast<signed char>(0) : slot(v.b);
    if (to.a < 0 || to.b < 0) to.number = values_[to.a < 0 ? v.a : v.b].p;
    if (!program_.is_read_outside(s, i)) continue;
    const int out = written_output(i);
    to.store = values_.storage(i);
    if (out >= 0) to.store = {call_.outputs[out].data, call_.outputs[out].type};
    values_.put(i, to.store);
  }
  if (kernels_.launches.stack == nullptr) return launch_not_compiled("stacks of small matrices");
  return kernels_.launches.stack(stream_, with);
}

}  // namespace graft::gpu
