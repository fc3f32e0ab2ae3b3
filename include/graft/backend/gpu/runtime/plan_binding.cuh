// SPDX-License-Identifier: Apache-2.0
// plan_binding: a plan bound to tensors on the GPU, and its execution, launch by launch.
//
// bind() computes what does not depend on the data and packs it for the kernels; parameters_changed() repeats this for
// values that follow from parameters. run() is one call: for sizes that bind() knew, it launches the kernels of the
// plan in order and does nothing else (no allocation, look-up or synchronization), so a caller may capture it in a CUDA
// graph. The file has the class, then its members for binding, for the memory of calls, for running, and for launches
// of small matrices. The members that fuse an RMS norm into the neighboring GEMMs are in plan_binding_fused_norm.cuh.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/gpu/kernels/attention/binding.cuh>
#include <graft/backend/gpu/kernels/gemm/binding_pack.cuh>
#include <graft/backend/gpu/kernels/grouped/binding.cuh>
#include <graft/backend/gpu/kernels/wgrad/binding.cuh>
#include <graft/backend/gpu/runtime/launch_clock.cuh>
#include <graft/backend/gpu/runtime/parameter_expressions.cuh>
#include <graft/backend/gpu/runtime/workspace.cuh>
#include <graft/backend/mode.h>
#include <graft/core/algorithm.h>

namespace graft::gpu {

// Pointers to the kernels that a layer may launch; a program compiles only those that it names here.
struct kernel_set {
  gemm_kernel_set gemm;
  node_function evaluate = nullptr;
  launchers launches{};
  attention_table attention = nullptr;
  multi_lora_kernels multi_lora{};  // empty: a batch cannot mix adapters
  rank_reducer ranks{};             // empty: this process computes alone
};

template <class T> class plan_binding {
 public:
  plan_binding(const graph& g, const target& to);
  plan_binding(const plan_binding&) = delete;
  plan_binding& operator=(const plan_binding&) = delete;

  const graph& value() const { return g_; }
  const plan& launches() const { return p_; }
  const size_values& sizes() const { return sizes_; }
  // Is the plan a single GEMM on the input? Only such a layer can be grouped with others that read the same input, and
  // can switch adapters without invalidating a captured graph.
  bool one_product() const {
    return p_.launches.size() == 1 && p_.products.size() == 1 && g_[p_.products[0].x].what == op::input &&
           p_.products[0].weight_is_nt && p_.products[0].input_rotation < 0;
  }
  gemm_binding<T>& product() { return products_[0]; }
  const gemm_binding<T>& product(int k = 0) const { return products_[k]; }

  status bind(cudaStream_t stream, const kernel_set& kernels, const size_values& s, const leaf_views& leaves,
              const capacity& limits, shared_adapter_args<T>& shared, dequantized_buffer& dequantized_weight,
              model_workspace* model_memory);
  // The state of one of several layers that share this plan: its tensors, the values that follow from them, and its
  // bound launches. All layers have the same sizes and share the workspace.
  struct binding {
    size_values sizes;
    leaf_views leaves;
    values precomputed;
    node_set before, changing;
    node_set borrowed{};  // parameter-stage values that another plan computes
    sequence<gemm_binding<T>> products;
    sequence<wgrad_binding<T>> sums;
    sequence<grouped_gemm_binding<T>> grouped;
    element_ptr<float> next_gain{};  // gain of the RMS norm that the next block begins with
    multi_lora_launches multi_lora;
    long long bound_version = -1;
  };
  // Exchanges the state of the current layer for that of another one.
  void swap_binding(binding& other) {
    std::swap(sizes_, other.sizes), std::swap(leaves_, other.leaves), std::swap(values_, other.precomputed);
    std::swap(precomputed_, other.before), std::swap(changing_, other.changing);
    std::swap(products_, other.products), std::swap(sums_, other.sums), std::swap(grouped_, other.grouped);
    std::swap(bound_version_, other.bound_version);
    std::swap(multi_lora_, other.multi_lora), std::swap(next_gain_, other.next_gain);
  }
  // States that this block reads the output of the block `before`. If this block begins with a norm that only GEMMs
  // read, the last launch of `before` may compute it.
  void follows(binding& before, const binding& mine) const {
    const int r = p_.input_norm;
    before.next_gain =
        r < 0 ? element_ptr<float>{} : mine.precomputed.location(unshaped(g_, p_.all<rowwise_launch>()[r].scale));
  }
  // Makes `mine` read parameter-stage values from another plan of the same layer, whose parameters_changed() must run
  // first. `equal` has the node of that plan for each node of this one, or none_id.
  static void share_precomputed(binding& mine, const binding& from, const sequence<id>& equal) {
    if (mine.borrowed.in.size() != equal.size()) mine.borrowed = node_set(equal.size());
    for (id i = 0; i < equal.size(); ++i) {
      if (!mine.changing[i] && !mine.borrowed[i]) continue;
      if (equal[i] < 0 || !from.changing[equal[i]] || from.precomputed.location(equal[i]).at == nullptr) continue;
      mine.precomputed.set_external(i, from.precomputed.location(equal[i]));
      mine.borrowed.add(i), mine.changing.in[i] = mine.before.in[i] = false;
    }
    for (gemm_binding<T>& p : mine.products)
      for (const gemm_binding<T>& other : from.products)
        if (p.makes_weight() && other.makes_weight() && equal[p.slots().weight] == other.slots().weight)
          p.borrow_weight(other);
  }
  // Shares precomputed values between the current bindings of two plans of one layer.
  void share_precomputed(plan_binding& from, const sequence<id>& equal) {
    binding mine, other;
    swap_binding(mine), from.swap_binding(other);
    share_precomputed(mine, other, equal);
    swap_binding(mine), from.swap_binding(other);
  }
  // Counts how often addresses that launches use have changed; a graph captured with an older version is invalid.
  long long address_version() const {
    return local_version_ + memory_.layout_version() + (dequantized_ != nullptr ? dequantized_->address_version() : 0) +
           (adapter_workspace_ != nullptr ? adapter_workspace_->address_version() : 0) +
           (shared_workspace_ != nullptr ? shared_workspace_->norm_scaled_rows.address_version() : 0);
  }
  // Recomputes and repacks parameter-stage values after their tensors were written; it allocates nothing but `scratch`,
  // which replaces the workspace if other plans may use that at the same time.
  status parameters_changed(cudaStream_t stream, buffer* scratch = nullptr);
  // Recomputes all precomputed values after the weight was written.
  status weight_changed(cudaStream_t stream);
  status publish(cudaStream_t stream);
  call& next_call() {
    call_.sizes = sizes_;
    for (mutable_view& v : call_.outputs) v = {};
    return call_;
  }
  call& this_call() { return call_; }
  const call& this_call() const { return call_; }

  status run(cudaStream_t stream, const target& to, bool exclusive, launch_clock* clock = nullptr);
  // The number of plan launches that have run.
  long long launched() const { return launched_ * p_.launches.size(); }
  void skip_pdl_once() {
    for (gemm_binding<T>& b : products_) b.skip_pdl_once();
  }

 private:
  void make_launches();
  // Pads the adapters of a grouped GEMM to one rank. Quantized weights keep their own ranks.
  void set_common_ranks(const size_values& s);
  // Collects which values are precomputed, which of them follow from parameters, and which nodes a call may compute.
  void collect();
  void need_precomputed(id i) {
    i = unshaped_data(i);
    if (i >= 0 && p_.when.of[i] != stage::call) need(i);
  }
  id unshaped_data(id i) const {  // a reshape of data has no launch, its operand has
    while (i >= 0 && g_[i].what == op::reshape && p_.when.of[i] == stage::call) i = g_[i].a;
    return i;
  }
  void need(id i) {
    if (i < 0 || precomputed_[i]) return;
    precomputed_.add(i);
    for (int o = 0; o < 3; ++o) need(g_[i].operand(o));
  }
  status pack(cudaStream_t stream);
  status reserve_values(const size_values& largest);
  void store_as_t(id i) {
    if (i >= 0 && p_.when.has_token_rows[i] && !is_leaf(g_[i].what)) stored_as_t_.add(i);
  }
  // Is node i an output that is written to the caller's memory? A single layer reserves none for it; blocks of a model
  // do.
  bool is_caller_memory(id i) const {
    if (in_model_ || missing_outputs_[i]) return false;
    for (int k = 0; k < g_.outs; ++k)
      if (unshaped(g_, g_.out[k].at) == i) return true;
    return false;
  }
  // Calls f for the nodes that a launch may have to compute by kernels of their own.
  template <class F> void each_computed(const graft::launch& l, F f) const {
    p_.each_wgrad(l, [&](int sum) { f(p_.all<wgrad_sum>()[sum].result); });
    p_.visit(l, [&](const auto& one) { each_own_node(one, f); });
  }
  template <class F> void each_own_node(const gemm_launch& l, F f) const {
    if (l.norm >= 0) f(p_.all<rowwise_launch>()[l.norm].norm);
    l.each_product([&](int k) {
      if (p_.products[k].input_rotation >= 0) f(p_.products[k].input_rotation);
      if (p_.products[k].output_rotation >= 0) f(p_.products[k].result);
    });
  }
  template <class F> void each_own_node(const wgrad_sum&, F) const {}
  template <class F> void each_own_node(const matrix_chain& c, F f) const {
    for (const id i : c.inside()) f(i);
  }
  template <class F> void each_own_node(const matrix_stack& s, F f) const {
    for (const id i : s.inside) f(i);
  }
  template <class Kind, class F> void each_own_node(const Kind& l, F f) const { f(l.anchor()); }
  long long scratch_of(const graft::launch& l, const size_values& s) const;
  struct stored_values {
    const size_values& sizes;
    int launch;
    sequence<workspace_layout::value>& written;
  };
  void write_value(id i, const stored_values& to) const;
  void write_value(id i, long long n, const stored_values& to) const;
  void write_values(const gemm_launch& l, const stored_values& to) const;
  void write_values(const wgrad_sum&, const stored_values&) const {}
  void write_values(const dropout_gemm& d, const stored_values& to) const;
  void write_values(const matrix_chain& c, const stored_values& to) const;
  void write_values(const matrix_stack& s, const stored_values& to) const;
  void write_values(const attention_launch& l, const stored_values& to) const;
  void write_values(const rowwise_launch& r, const stored_values& to) const;
  void write_values(const expression_launch& l, const stored_values& to) const;
  void write_values(const nodes_launch& l, const stored_values& to) const;
  void write_values(const rows_launch&, const stored_values&) const {}  // a GPU has none
  status reserve_call_memory();
  void update_pointers();
  void* workspace() const { return adapter_workspace_ != nullptr ? adapter_workspace_->data() : memory_.workspace(); }
  // Node i as a wgrad reads it. Values stored by a GEMM may have rows with padding.
  wgrad_operand operand_of(id raw) const {
    const id i = unshaped(g_, raw);
    const auto columns = static_cast<int>(g_.sizes.value(g_[raw].d[3], call_.sizes));
    for (const gemm_binding<T>& b : products_) {
      if (b.shrink_output() == i) return {b.shrink_now(), columns, b.rank(), dtype_of<T>};
      if (b.slots().result == i && i == raw) return {tensor_at(i), columns, b.out_size(), dtype_of<T>};
    }
    if (i == raw && is_padded(i)) return {values_.storage(i).at, columns, padded_columns(i), dtype_of<T>};
    return {tensor_at(i), columns, columns, comes_with_call(i) ? dtype_of<T> : values_[i].p.type};
  }
  int padded_columns(id i) const { return padded_rank(static_cast<int>(g_.sizes.value(g_[i].d[3], sizes_))); }
  bool is_padded(id i) const {
    for (const padded_operand& p : pads_)
      if (p.what == i) return true;
    return false;
  }
  // Is node i as large as a weight, such as dW = dyᵀ x: without rows for the tokens, and wider than any rank on both
  // axes? It is then stored as T, but not in f16, whose range such sums may exceed.
  bool is_large_matrix(id i) const {
    const node& v = g_[i];
    auto wide = [&](int axis) { return g_.sizes.value(v.d[axis], sizes_) > wide_tile_rank; };
    return dtype_of<T> != dtype::f16 && p_.when.of[i] == stage::call && !p_.when.has_token_rows[i] &&
           !is_output(g_, i) && wide(2) && wide(3);
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
    return launched(k) && stored_as_t_[unshaped(g_, g_.out[k].at)] && call_.outputs[k].type != dtype_of<T>;
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

  bool is_multi_lora(const gemm_launch& l) const;
  result<bool> run_multi_lora_grouped(cudaStream_t stream, const target& to, const gemm_launch& l, bool exclusive);
  // ---- RMS norms fused into GEMMs (plan_binding_fused_norm.cuh)
  long long bytes_of_squares(id x) const {
    return max_fused_norm_tokens * g_.sizes.value(g_[x].d[3], sizes_) / 16 * static_cast<long long>(sizeof(float));
  }
  bool fuses_norm(id x, long long m, const target& to) const;
  epilogue_norm epilogue_norm_of(const gemm_launch& l, long long m, const target& to);
  prologue_norm prologue_norm_of(id x, long long m) const;
  bool use_normed_input(const rowwise_launch& r);
  result<bool> gather_for_norm(cudaStream_t stream, id i);
  // A launch in a call; `index` is its index among those of its kind.
  struct launch_in_call {
    cudaStream_t stream;
    const target& to;
    int index;
    bool exclusive;
  };
  status run_launch(const launch_in_call& at, const gemm_launch& l) {
    return run_products(at.stream, at.to, l, at.exclusive);
  }
  status run_launch(const launch_in_call& at, const wgrad_sum&) { return run_wgrad(at.stream, at.to, at.index); }
  status run_launch(const launch_in_call& at, const dropout_gemm& d) { return run_dropout_gemm(at.stream, d); }
  status run_launch(const launch_in_call& at, const matrix_chain& c) { return run_kronecker_chain(at.stream, c); }
  status run_launch(const launch_in_call& at, const matrix_stack& s) { return run_matrix_stack(at.stream, s); }
  status run_launch(const launch_in_call& at, const attention_launch& l) { return run_attention(at.stream, at.to, l); }
  status run_launch(const launch_in_call& at, const rowwise_launch& r) { return run_rows(at.stream, r); }
  status run_launch(const launch_in_call& at, const expression_launch& l) {
    return run_expression(at.stream, at.to, l, p_.launches[p_.launch_of[l.root]]);
  }
  status run_launch(const launch_in_call& at, const nodes_launch& l) { return run_node(at.stream, l.first); }
  status run_launch(const launch_in_call&, const rows_launch&) { return fail("a GPU runs no chunks of rows"); }
  status run_products(cudaStream_t stream, const target& to, const gemm_launch& l, bool exclusive);
  status run_product(cudaStream_t stream, const target& to, const gemm_launch& l, int index, bool exclusive);
  void* output_ptr(id i);
  status rotate_inputs(cudaStream_t stream, const gemm_launch& l);
  // Is the rotation of the GEMM's result fused into its kernel in this call?
  bool rotation_inside(const gemm_binding<T>& b, long long m, const target& to) const {
    const gemm_slots& s = b.slots();
    bool aligned = true;
    for (const id i : {s.x, s.result, s.output_rotation}) {
      const int k = written_output(i);
      const void* const at = k >= 0 ? call_.outputs[k].data : tensor_at(i);
      aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
    }
    return aligned && b.rotates(m, kernels_->gemm, to);
  }
  // The tensor that the GEMM reads as x.
  const void* input_of(const gemm_slots& s) const { return tensor_at(s.input_rotation >= 0 ? s.input_rotation : s.x); }
  // Is i a value before the epilogue that other launches read?
  bool is_saved_for_later(id i) const {
    int outputs = 0;
    for (int k = 0; k < g_.outs; ++k) outputs += g_.out[k].at == i ? 1 : 0;
    return i >= 0 && readers_[i] > outputs + 1;
  }
  // A gradient that the caller did not request, and that nothing else reads, is not computed.
  bool is_requested(id i) const { return output_of(i) >= 0 || !is_output(g_, i) || readers_[i] > 1; }
  element_ptr<float> output_ptr(const wgrad_sum& s);
  fused_wgrad fused_wgrad_of(int index, const gemm_binding<T>& product, void* shrink);
  status run_wgrad(cudaStream_t stream, const target& to, int index);
  status run_rows(cudaStream_t stream, const rowwise_launch& r);
  status run_dropout_gemm(cudaStream_t stream, const dropout_gemm& d);
  status run_kronecker_chain(cudaStream_t stream, const matrix_chain& c);
  status run_matrix_stack(cudaStream_t stream, const matrix_stack& s);
  // Is the value of node i read outside of the stack?
  bool is_read_outside(const matrix_stack& s, id i) const {
    int inside = 0;
    for (const id reader : s.inside)
      for (int k = 0; k < 3; ++k) inside += g_[reader].operand(k) == i ? 1 : 0;
    return readers_[i] > inside;
  }
  // Bytes of the partial gradients E and F that the blocks of the chain kernel write.
  long long chain_partial_bytes(const matrix_chain& c, const size_values& s) const {
    const long long tokens = g_.sizes.value(g_[c.z].d[1], s),
                    each = count(g_, c.left_sum, s) + count(g_, c.right_sum, s);
    return chain_blocks(tokens) * each * static_cast<long long>(sizeof(float));
  }
  status run_node(cudaStream_t stream, id i);
  status pad(cudaStream_t stream, const padded_rows_of& rows);
  status pad_operands(cudaStream_t stream, int launch);
  status run_attention(cudaStream_t stream, const target& to, const attention_launch& l);
  status run_expression(cudaStream_t stream, const target& to, const expression_launch& l, const graft::launch& of);

  graph g_;
  plan p_;
  sequence<id> inputs_;
  sequence<gemm_binding<T>> products_;
  sequence<wgrad_binding<T>> sums_;
  sequence<grouped_gemm_binding<T>> grouped_;  // one for each launch of several products
  multi_lora_launches multi_lora_;
  element_ptr<float> next_gain_{};
  scaled_result normed_input_{};
  node_set normed_;  // results of norms that are stored as h ⊙ gain in this call
  sequence<attention_binding<T>> attentions_;
  sequence<int> readers_;
  sequence<id> gemm_operands_;  // operands of GEMMs and wgrads, stored as T
  const kernel_set* kernels_ = nullptr;
  size_values sizes_, reserved_;  // sizes of the layer; largest sizes that the workspace was laid out for
  leaf_views leaves_;
  values values_;
  call call_;
  node_set precomputed_, changing_,
      computed_;          // precomputed nodes; those that follow from parameters; nodes that launches of a call compute
  node_set stored_as_t_;  // values of a call that are stored as T
  struct padded_operand {
    int before;  // index of the launch that reads it
    id what;
  };
  sequence<padded_operand> pads_;                // wgrad operands that are copied with padding
  parameter_expressions parameter_expressions_;  // expressions of precomputed values
  node_set missing_outputs_;                     // outputs for which the caller gives no memory of the written type
  workspace_layout memory_;
  const dequantized_buffer* dequantized_ = nullptr;
  long long bound_version_ = -1, local_version_ = 0, launched_ = 0;
  model_workspace* shared_workspace_ = nullptr;  // shared by all plans of the layer or of the model
  bool in_model_ = false;
  buffer own_counters_;
  long long workspace_bytes_ = 0;
  growing_buffer* adapter_workspace_ = nullptr;  // workspace shared by the adapters of a layer
  std::uint32_t* counters_ = nullptr;
  bool is_single_gemm_ = false;
};

// ---- Binding: which values are precomputed, and what is packed for the kernels

template <class T> plan_binding<T>::plan_binding(const graph& g, const target& to) : g_(g), p_(fuse(g, to)) {
  readers_ = graft::detail::count_readers(g_, p_.live);
  for (const wgrad_sum& s : p_.all<wgrad_sum>())
    gemm_operands_.push(s.left), gemm_operands_.push(s.right), gemm_operands_.push(s.scaled);
  for (const gemm_slots& s : p_.products)
    for (const id i : {s.x, s.other, s.gate, s.input_rotation, s.residual}) gemm_operands_.push(i);
  for (const matrix_chain& c : p_.all<matrix_chain>()) gemm_operands_.push(c.z), gemm_operands_.push(c.x);
  for (id i = 0; i < g_.size; ++i)
    if (is_leaf(g_[i].what) && row(g_[i].what).known_at == stage::call) inputs_.push(i);
  if (to.granularity == target::work::by_products)
    for (const attention_launch& l : p_.all<attention_launch>())
      attentions_.extend() = {g_, l.node, l.heads >= 0 ? &p_.all<rowwise_launch>()[l.heads] : nullptr};
  make_launches();
}
template <class T>
status plan_binding<T>::bind(cudaStream_t stream, const kernel_set& kernels, const size_values& s,
                             const leaf_views& leaves, const capacity& limits, shared_adapter_args<T>& shared,
                             dequantized_buffer& dequantized_weight, model_workspace* model_memory) {
  for (id i = 0; i < g_.size; ++i) {
    const view& v = leaves[i];
    if (v.data != nullptr && !v.contiguous())
      return fail("tensor '", g_.name(i), "' is not stored row after row; on the GPU copy it first");
    if (status st = check_gpu_format(g_.name(i), v); !st) return st;
  }
  if (products_.empty() && sums_.empty()) make_launches();
  next_gain_ = {};
  multi_lora_ = {};  // the state may be left from another layer
  kernels_ = &kernels, leaves_ = leaves;
  call_.data = leaf_views(g_.size), call_.outputs = sequence<mutable_view>(g_.outs);
  call_.sizes = sizes_ = s;
  size_values largest = s;
  g_.sizes.set_tokens(largest, limits.tokens);
  reserved_ = largest;
  values_ = values(g_, largest, leaves_, kernels.evaluate, &kernels.ranks);
  in_model_ = model_memory != nullptr, shared_workspace_ = in_model_ ? model_memory : shared.shared_workspace.get();
  missing_outputs_ = normed_ = node_set(g_.size);
  memory_.use_memory(&shared_workspace_->values);
  values_.dequantize_into(dequantized_ = &dequantized_weight, dtype_of<T>);
  if (kernels.launches.quantized.dequantize != nullptr) dequantized_weight.use_functions(kernels.launches.quantized);
  if (dequantized_weight.functions().dequantize == nullptr && values_.has_quantized()) return no_quantized_kernels();
  if (status st = dequantized_weight.reserve(values_.dequantized_bytes(dtype_of<T>)); !st) return st;
  for (attention_binding<T>& a : attentions_)
    if (status st = a.bind(stream, largest, p_.to, kernels.attention); !st) return st;
  set_common_ranks(s);
  int rank = 0;
  for (gemm_binding<T>& b : products_) {
    if (status st = b.bind(stream, largest, leaves_, one_product() ? &shared : nullptr, &dequantized_weight); !st)
      return st;
    rank = max_of(rank, b.rank());
  }
  for (grouped_gemm_binding<T>& b : grouped_) b.invalidate();
  collect();
  for (gemm_binding<T>& b : products_)  // Q of W + P Q is computed into the operand of its GEMM
    if (const id i = b.update_source(); i >= 0 && readers_[i] == 1 && precomputed_[i])
      values_.into(i, {b.update_ptr(), dtype_of<T>});
  const bool grouped = one_product() && shared.used;
  adapter_workspace_ = grouped ? &shared.workspace : nullptr;
  workspace_bytes_ = products_.empty() ? 0 : workspace_bound(limits.tokens, rank);
  if (grouped)
    if (status st = adapter_workspace_->reserve(std::exchange(workspace_bytes_, 0)); !st) return st;
  if (status st = reserve_values(largest); !st) return st;
  values_.scratch_at(memory_.scratch(workspace_layout::between_calls));
  if (status st = parameter_expressions_.compute(stream, g_, kernels_->launches, values_, precomputed_); !st) return st;
  if (status st = pack(stream); !st) return st;
  if (products_.empty()) return update_pointers(), status(ok);
  if (p_.input_norm >= 0) {
    const id x = p_.all<rowwise_launch>()[p_.input_norm].result;
    const long long row = g_.sizes.value(g_[x].d[3], s) * static_cast<long long>(sizeof(T));
    if (status st = shared_workspace_->norm_scaled_rows.reserve(max_fused_norm_tokens * row + bytes_of_squares(x)); !st)
      return st;
  }
  buffer& counters = grouped ? shared.counters : own_counters_;
  const long long persistent_bytes = values_.has_quantized() ? two_unit_persistent_bytes : 0,
                  all = persistent_bytes + counter_bytes(limits.tokens);
  const bool grows = counters.bytes() < all;
  if (grows) {
    ++local_version_;
    if (status st = counters.reserve(all); !st) return st;
  }
  std::uint32_t* const begin = counters.as<std::uint32_t>() + persistent_bytes / 4;
  if (std::exchange(counters_, begin) != begin || grows) {
    const auto bytes = static_cast<std::size_t>(counters.bytes());
    if (status st = check(cudaMemsetAsync(counters.data(), 0, bytes, stream), "clearing"); !st) return st;
  }
  return update_pointers(), status(ok);
}
template <class T> status plan_binding<T>::parameters_changed(cudaStream_t stream, buffer* scratch) {
  if (bound_version_ != address_version()) update_pointers();
  values_.scratch_at(memory_.scratch(workspace_layout::between_calls));
  if (scratch != nullptr) {
    const long long bytes = values_.scratch(changing_);
    if (bytes > scratch->bytes()) ++local_version_;  // also invalidates captured graphs of other plans of the model
    if (status s = scratch->reserve(bytes); !s) return s;
    values_.scratch_at(scratch->as<float>());
  }
  if (status s = parameter_expressions_.compute(stream, g_, kernels_->launches, values_, changing_); !s) return s;
  return pack(stream);
}
template <class T> status plan_binding<T>::weight_changed(cudaStream_t stream) {
  if (bound_version_ != address_version()) update_pointers();
  values_.scratch_at(memory_.scratch(workspace_layout::between_calls));
  if (status s = parameter_expressions_.compute(stream, g_, kernels_->launches, values_, precomputed_); !s) return s;
  skip_pdl_once();
  return pack(stream);
}
template <class T> status plan_binding<T>::publish(cudaStream_t stream) {
  for (gemm_binding<T>& b : products_)
    if (status s = b.publish(stream); !s) return s;
  return ok;
}
template <class T> void plan_binding<T>::make_launches() {
  // The elements are large and must not move, so exactly as many as needed are reserved.
  sums_.reserve(p_.all<wgrad_sum>().size()), products_.reserve(p_.products.size());
  int joint = 0;
  for (const gemm_launch& l : p_.all<gemm_launch>()) joint += l.grouped > 0 ? 1 : 0;
  grouped_.reserve(joint);
  sequence<int> by_sums(g_.size, 0);
  for (const wgrad_sum& s : p_.all<wgrad_sum>()) {
    sums_.extend() = wgrad_binding<T>(s);
    if (!s.by_column) ++by_sums[unshaped(g_, s.left)], ++by_sums[unshaped(g_, s.right)];
  }
  for (const gemm_slots& s : p_.products)
    products_.extend() = {g_, s,
                          s.pre_epilogue < 0 && by_sums[s.result] > 0 && by_sums[s.result] == readers_[s.result]};
  for (const gemm_launch& l : p_.all<gemm_launch>())
    if (l.grouped > 0) grouped_.extend() = {l.product, l.grouped + 1};
}
template <class T> void plan_binding<T>::set_common_ranks(const size_values& s) {
  for (const gemm_launch& l : p_.all<gemm_launch>()) {
    if (l.grouped == 0) continue;
    int own[max_segments] = {};
    bool is_quantized = false;
    for (int k = 0; k <= l.grouped; ++k) {
      const gemm_slots& p = p_.products[l.product + k];
      own[k] = padded_rank(static_cast<int>(branch_rank(g_, p, s)));
      const id leaf = base_leaf(g_, p.weight);
      is_quantized = is_quantized || (leaf >= 0 && leaves_[leaf].quant != nullptr);
    }
    const common_rank all = is_quantized ? common_rank{} : grouped_rank(own, l.grouped + 1, l.gated >= 0);
    for (int k = 0; k <= l.grouped; ++k)
      products_[l.product + k].set_common_rank(all.rank, k == 1 && all.separate ? max_gated_rank : 0);
  }
}
template <class T> void plan_binding<T>::collect() {
  precomputed_ = changing_ = computed_ = node_set(g_.size);
  for (gemm_binding<T>& b : products_) b.each_source([&](id i) { need(i); });
  for (const wgrad_sum& s : p_.all<wgrad_sum>())
    need(s.factor), need(s.scale), need_precomputed(s.left), need_precomputed(s.right);
  for (const graft::launch& l : p_.launches) {
    each_computed(l, [&](id i) { computed_.add(i); });
    if (!l.is<gemm_launch>() && !l.is<wgrad_sum>())
      for (int n = l.first; n < l.first + l.count; ++n)
        for (int k = 0; k < 3; ++k) need_precomputed(g_[p_.nodes[n]].operand(k));
  }
  for (const gemm_launch& l : p_.all<gemm_launch>())
    if (l.norm >= 0)
      for (const id n : p_.all<rowwise_launch>()[l.norm].inside)
        for (int k = 0; k < 3; ++k) need_precomputed(g_[n].operand(k));
  for (const gemm_slots& s : p_.products)
    for (const id rotation : {s.input_rotation, s.output_rotation >= 0 ? s.result : none_id})
      if (rotation >= 0) need(g_[rotation].b);
  for (int k = 0; k < g_.outs; ++k) need_precomputed(g_.out[k].at);
  for (id i = 0; i < g_.size; ++i) changing_.in[i] = precomputed_[i] && p_.when.of[i] == stage::parameter;
  is_single_gemm_ = one_product() && p_.products[0].residual < 0;
  sequence<int> readers = readers_;  // packing counts as a reader
  for (const gemm_binding<T>& b : products_)
    b.each_source([&](id i) {
      if (i >= 0) ++readers[i];
    });
  parameter_expressions_.find(g_, p_.when, readers, changing_);
}
template <class T> status plan_binding<T>::pack(cudaStream_t stream) {
  branch_packer<T> packer(stream);
  for (id i = 0; i < g_.size; ++i)
    if (computed_[i] && g_[i].what == op::rotate && p_.when.of[g_[i].b] != stage::call)
      if (status s = values_.compose_factors(stream, i); !s) return s;
  for (gemm_binding<T>& b : products_)
    if (status s = b.pack(stream, values_, packer, kernels_->gemm, kernels_->launches, p_.to); !s) return s;
  return packer.flush();
}

// ---- Memory of calls: element types and addresses of the values

// Decides the element types and reserves the workspace. Values that GEMMs read or write are stored as T, others in
// float.
template <class T> status plan_binding<T>::reserve_values(const size_values& largest) {
  stored_as_t_ = node_set(g_.size);
  for (const gemm_binding<T>& b : products_) {
    stored_as_t_.add(b.slots().result);
    if (b.slots().pre_epilogue >= 0) stored_as_t_.add(b.slots().pre_epilogue);
    if (b.slots().output_rotation >= 0) stored_as_t_.add(b.slots().output_rotation);
  }
  for (const id i : gemm_operands_)
    if (const id at = unshaped(g_, i); at >= 0) stored_as_t_.add(at);
  for (const gemm_launch& l : p_.all<gemm_launch>())
    if (l.gated >= 0) stored_as_t_.add(l.gated);
  for (const nodes_launch& l : p_.all<nodes_launch>())  // batched GEMMs and rotations have 16-bit kernels
    if (const op what = g_[l.first].what; what == op::matmul || what == op::rotate || what == op::rotate_grad) {
      for (int k = 0; k < 3; ++k) store_as_t(unshaped(g_, g_[l.first].operand(k)));
      store_as_t(l.first);
    }
  for (const nodes_launch& l : p_.all<nodes_launch>())  // an all-reduce keeps the element type of its operand
    if (row(g_[l.first].what).kind == op_class::collective && stored_as_t_[unshaped(g_, g_[l.first].a)])
      stored_as_t_.add(l.first);
  for (const wgrad_sum& s : p_.all<wgrad_sum>())  // dW = dyᵀ x, as large as the weight, and elementwise functions of it
    if (!s.by_column && is_large_matrix(s.result)) stored_as_t_.add(s.result);
  for (const nodes_launch& l : p_.all<nodes_launch>())
    if (is_pointwise(g_[l.first].what) && is_large_matrix(l.first))
      for (int k = 0; k < 2; ++k)
        if (const id o = unshaped(g_, g_[l.first].operand(k)); o >= 0 && stored_as_t_[o]) stored_as_t_.add(l.first);
  for (const dropout_gemm& d : p_.all<dropout_gemm>()) {
    store_as_t(unshaped(g_, d.wide));
    for (const dropout_term& t : d.terms) store_as_t(unshaped(g_, t.narrow));
    if (d.form_kind != dropout_gemm::form::sum) store_as_t(d.result);
  }
  for (const matrix_chain& c : p_.all<matrix_chain>())
    for (const id i : {c.z, c.x, c.between, c.other, c.result}) store_as_t(unshaped(g_, i));
  for (const rowwise_launch& r : p_.all<rowwise_launch>())  // norm kernels for long rows need operands of one type
    if (r.norm >= 0)
      for (const id i : {g_[r.norm].a, r.grad_output, r.residual}) store_as_t(unshaped(g_, i));
  for (const attention_binding<T>& a : attentions_)
    if (a.runs()) a.each_tensor([&](id i) { stored_as_t_.add(unshaped(g_, i)); });
  sequence<workspace_layout::value> written;
  constexpr long long size = sizeof(T);
  auto scratch = [&](int launch, long long bytes) {
    if (bytes > 0) written.push({launch, none_id, bytes});
  };
  scratch(workspace_layout::between_calls, values_.scratch(precomputed_));
  pads_.clear();
  for (int k = 0; k < p_.launches.size(); ++k) {
    const graft::launch& l = p_.launches[k];
    scratch(k, scratch_of(l, largest));
    for (const id i : padded_operands(g_, p_, l, largest, dtype_of<T>)) {
      pads_.push({k, i});
      written.push({k, i, g_.sizes.value(g_[i].d[2], largest) * padded_columns(i) * size});
    }
    const stored_values store{largest, k, written};
    p_.visit(l, [&](const auto& one) { write_values(one, store); });
    p_.each_wgrad(l, [&](int sum) {
      const wgrad_sum& w = p_.all<wgrad_sum>()[sum];
      write_value(w.result, store);
      if (w.scaled >= 0) write_value(w.scaled, store);
    });
  }
  return memory_.reserve(g_, p_, written, workspace_bytes_);
}
// The values that a launch stores, besides those of its wgrads.
template <class T> void plan_binding<T>::write_value(id i, const stored_values& to) const {
  write_value(i, count(g_, i, to.sizes), to);
}
template <class T> void plan_binding<T>::write_value(id i, long long n, const stored_values& to) const {
  if (!is_caller_memory(i))
    to.written.push({to.launch, i, n * (stored_as_t_[i] ? static_cast<long long>(sizeof(T)) : 4)});
}
template <class T> void plan_binding<T>::write_values(const gemm_launch& l, const stored_values& to) const {
  l.each_product([&](int n) {
    const gemm_slots& s = p_.products[n];
    for (const id i : {s.gate, s.input_rotation, s.output_rotation})
      if (i >= 0) write_value(i, to);
    write_value(s.result, g_.sizes.value(g_[s.result].d[2], to.sizes) * products_[n].out_size(), to);
  });
  if (l.gated >= 0) write_value(l.gated, to);
  if (l.norm >= 0) {  // the sums of squares follow the rows
    const id x = p_.all<rowwise_launch>()[l.norm].result;
    const long long bytes = count(g_, x, to.sizes) * static_cast<long long>(sizeof(T));
    to.written.push({to.launch, x, bytes + bytes_of_squares(x)});
  }
  const gemm_slots& first = p_.products[l.product];
  if (is_saved_for_later(first.pre_epilogue) && first.pre_epilogue != first.output_rotation)
    write_value(first.pre_epilogue, to);
}
template <class T> void plan_binding<T>::write_values(const dropout_gemm& d, const stored_values& to) const {
  write_value(d.result, to);
}
template <class T> void plan_binding<T>::write_values(const matrix_chain& c, const stored_values& to) const {
  const bool whole = fuses_chain(g_, c, to.sizes, dtype_of<T>, p_.to.can<matrix_chain>());
  for (const id i : c.inside())
    if (!whole || (i != c.between && i != c.other)) write_value(i, to);
}
template <class T> void plan_binding<T>::write_values(const matrix_stack& s, const stored_values& to) const {
  const bool whole = fuses_stack(g_, s, to.sizes, p_.to.can<matrix_stack>());
  for (const id i : s.inside)
    if (!whole || is_read_outside(s, i)) write_value(i, to);
}
template <class T> void plan_binding<T>::write_values(const attention_launch& l, const stored_values& to) const {
  if (l.heads >= 0) write_value(p_.all<rowwise_launch>()[l.heads].result, to);
  write_value(l.node, to);
}
template <class T> void plan_binding<T>::write_values(const rowwise_launch& r, const stored_values& to) const {
  write_value(r.result, to);
}
template <class T> void plan_binding<T>::write_values(const expression_launch& l, const stored_values& to) const {
  write_value(l.root, to);
  if (l.paired_root >= 0) write_value(l.paired_root, to);
}
template <class T> void plan_binding<T>::write_values(const nodes_launch& l, const stored_values& to) const {
  write_value(l.first, to);
}
template <class T> long long plan_binding<T>::scratch_of(const graft::launch& l, const size_values& s) const {
  long long bytes = 0;
  each_computed(l, [&](id i) { bytes = max_of(bytes, values_.scratch(i)); });
  for (const attention_binding<T>& a : attentions_)
    if (a.runs() && a.node() == p_.anchor_of(l)) bytes = max_of(bytes, a.workspace());
  if (const matrix_chain* const c = p_.as<matrix_chain>(l); c != nullptr && c->sums())
    bytes = max_of(bytes, chain_partial_bytes(*c, s));
  return bytes;
}
// Lays out the workspace again if the call has larger sizes than bind() knew (image sizes come with the call), or if
// the caller wants an output in another type than the launch writes, or not at all.
template <class T> status plan_binding<T>::reserve_call_memory() {
  size_values wanted = reserved_;
  bool fits = true;
  for (int k = 0; k < g_.outs; ++k)
    if (const id i = unshaped(g_, g_.out[k].at); launched(k) && is_caller_memory(i) && written_output(i) < 0)
      missing_outputs_.add(i), fits = false;
  for (int i = 0; i < g_.sizes.count; ++i)
    if (const int index = g_.sizes.e[i].index; index >= 0 && call_.sizes.v[index] > wanted.v[index])
      wanted.v[index] = call_.sizes.v[index], fits = false;
  if (fits) return ok;
  values_.resize(wanted);
  if (status s = reserve_values(wanted); !s) return s;
  reserved_ = wanted;
  return ok;
}
// Sets the addresses of all values after the workspace has changed.
template <class T> void plan_binding<T>::update_pointers() {
  memory_.each([&](id i, void* at) { values_.into(i, {at, stored_as_t_[i] ? dtype_of<T> : dtype::f32}); });
  for (gemm_binding<T>& b : products_) b.drop_bound_launches();
  for (grouped_gemm_binding<T>& b : grouped_) b.invalidate();
  bound_version_ = address_version();
}

// ---- Running: one call launches the kernels of the plan in order

template <class T>
status plan_binding<T>::run(cudaStream_t stream, const target& to, bool exclusive, launch_clock* clock) {
  if (p_.breaks > 0) {
    const node& v = g_[p_.first_break];
    if (v.what == op::host) return fail("host function '", v.name, "' cannot run on the GPU");
    return fail(row(v.what).name, ": experts are not supported on the GPU yet; run them on the CPU");
  }
  if (status s = check_types(); !s) return s;
  if (status s = reserve_call_memory(); !s) return s;
  if (bound_version_ != address_version()) update_pointers();
  if (!is_single_gemm_) {
    values_.resize(call_.sizes);
    for (const id i : inputs_) values_.give(i, call_.data[i]);
  }
  normed_input_ = std::exchange(shared_workspace_->normed, {});
  for (const rowwise_launch& r : p_.all<rowwise_launch>()) normed_.in[r.result] = false;
  for (int k = 0; k < p_.launches.size(); ++k) {
    const graft::launch& l = p_.launches[k];
    values_.scratch_at(memory_.scratch(k));
    if (clock != nullptr)
      if (status s = clock->note(stream, p_, k); !s) return s;
    if (status s = pad_operands(stream, k); !s) return s;
    status s = ok;
    p_.visit(l, [&](const auto& one) { s = run_launch({stream, to, l.index, exclusive}, one); });
    if (!s) return s;
  }
  if (clock != nullptr)
    if (status s = clock->note(stream, p_, p_.launches.size()); !s) return s;
  for (int k = 0; k < g_.outs; ++k) {  // an input, a precomputed value, a second copy, another type
    const mutable_view& y = call_.outputs[k];
    if (y.data == nullptr || (launched(k) && output_of(unshaped(g_, g_.out[k].at)) == k && !converts(k))) continue;
    values_.resize(call_.sizes);
    if (status s = values_.copy(stream, g_.out[k].at, {y.data, y.type}); !s) return s;
  }
  ++launched_;
  return ok;
}
template <class T> status plan_binding<T>::check_types() const {
  for (const id i : inputs_)
    if (!call_.data[i].contiguous())
      return fail("tensor '", g_.name(i), "' has gaps between its rows; on the GPU copy it to contiguous memory first");
  for (int k = 0; k < g_.outs; ++k)
    if (!call_.outputs[k].contiguous())
      return fail("output '", g_.output_name(k), "' has gaps between its rows; on the GPU give it contiguous memory");
  for (const id i : gemm_operands_)
    if (status st = check_type(i); !st) return st;
  for (const gemm_binding<T>& b : products_)
    for (const id i : {b.shrink_output(), b.slots().pre_epilogue})
      if (const int k = i < 0 ? -1 : output_of(i); k >= 0 && output_type(k) != dtype_of<T>)
        return fail("output '", g_.output_name(k), "' is ", name_of(output_type(k)), ", it is stored as ",
                    name_of(dtype_of<T>));
  status of_attention = ok;
  for (const attention_binding<T>& a : attentions_)
    if (a.runs())
      a.each_tensor([&](id i) {
        if (of_attention) of_attention = check_type(i);
      });
  return of_attention;
}
template <class T> void* plan_binding<T>::output_ptr(id i) {
  const int written = written_output(i);
  void* const y = written >= 0 ? call_.outputs[written].data : values_.storage(i).at;
  values_.put(i, {y, dtype_of<T>});
  return y;
}
// Does a GEMM of this launch have a multi-LoRA batch?
template <class T> bool plan_binding<T>::is_multi_lora(const gemm_launch& l) const {
  bool any = false;
  for (int k = l.product; k <= l.product + l.grouped; ++k)
    any = any || (static_cast<std::size_t>(k) < multi_lora_.products.size() &&
                  multi_lora_.products[static_cast<std::size_t>(k)].records != nullptr);
  return any;
}
// Runs a grouped GEMM with a multi-LoRA batch as segments of one skinny GEMM launch. Returns false, and launches
// nothing, if no kernel takes all of them.
template <class T>
result<bool> plan_binding<T>::run_multi_lora_grouped(cudaStream_t stream, const target& to, const gemm_launch& l,
                                                     bool exclusive) {
  const int count = l.grouped + 1;
  if (count > max_segments) return false;
  multi_lora_operands rows[max_segments];
  gemm_problem shapes[max_segments];
  const gemm_slots& s = p_.products[l.product];
  const long long m = g_.sizes.value(g_[s.result].d[2], call_.sizes);
  for (int k = 0; k < count; ++k) {
    const multi_lora_launches::product& of = multi_lora_.products[static_cast<std::size_t>(l.product + k)];
    if (of.records == nullptr || p_.products[l.product + k].input_rotation >= 0) return false;
    rows[k] = {.batch = {of.records, multi_lora_.of_row},
               .sums = multi_lora_.sums,
               .scaled = of.prologue ? of.scaled : nullptr};
    rows[k].exclusive = exclusive;
    gemm_binding<T>& b = products_[l.product + k];
    if (!b.as_group_member(m, tensor_at(s.x), output_ptr(b.slots().result), rows[k], shapes[k])) return false;
  }
  const skinny_choice c = choose_multi_lora(shapes, count, to);
  if (m == 0 || c.rows == 0 || kernels_->multi_lora.finish.kernel == nullptr) return false;
  bool pdl = true;
  for (int k = 0; k < count; ++k) pdl = products_[l.product + k].may_use_pdl() && pdl;
  rows[0].pdl = pdl;
  if (status done = run_multi_lora_skinny(stream, kernels_->multi_lora, c, shapes, rows, count); !done)
    return done.failure();
  return true;
}
// Computes the rotations x R that the GEMMs of a launch read: by one kernel for up to 64 rows, else one after the
// other.
template <class T> status plan_binding<T>::rotate_inputs(cudaStream_t stream, const gemm_launch& l) {
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
    early = early && products_[k].uses_pdl();
  }
  if (count == 0) return ok;
  aligned16(tensor_at(first.x));
  if (first.other >= 0) aligned16(tensor_at(first.other));
  const auto& share_kernel = p_.to.can<gemm_launch>().rotations_share_kernel;
  if (aligned && share_kernel && share_kernel(g_, rotations, count, call_.sizes, dtype_of<T>, p_.to))
    return values_.compute_rotations(stream, rotations, count, first.x, first.other, to, early);
  if (first.gate >= 0)
    if (status s = run_node(stream, first.gate); !s) return s;
  for (int k = 0; k < count; ++k)
    if (status s = run_node(stream, rotations[k]); !s) return s;
  return ok;
}
template <class T>
status plan_binding<T>::run_products(cudaStream_t stream, const target& to, const gemm_launch& l, bool exclusive) {
  if (status s = rotate_inputs(stream, l); !s) return s;
  if (l.grouped > 0 && is_multi_lora(l)) {
    const auto ran = run_multi_lora_grouped(stream, to, l, exclusive);
    if (!ran) return ran.failure();
    if (*ran) return l.gated >= 0 ? run_node(stream, l.gated) : status(ok);
  }
  for (grouped_gemm_binding<T>& b : grouped_) {
    if (l.grouped == 0 || b.first() != l.product || is_multi_lora(l)) continue;
    void* y[max_segments + 1] = {};
    const void* x[max_segments] = {};
    for (int k = 0; k <= l.grouped; ++k)
      y[k] = output_ptr(p_.products[l.product + k].result), x[k] = input_of(p_.products[l.product + k]);
    if (l.gated >= 0) y[l.grouped + 1] = output_ptr(l.gated);
    const gemm_slots& s = p_.products[l.product];
    const long long m = g_.sizes.value(g_[s.result].d[2], call_.sizes);
    using ran = typename grouped_gemm_binding<T>::ran;
    const auto what = b.run(stream, kernels_->gemm, to, m, products_,
                            {x, y, l.gated >= 0, prologue_norm_of(s.x, m), workspace(), counters_}, exclusive);
    if (!what) return what.failure();
    if (*what == ran::products && l.gated >= 0) return run_node(stream, l.gated);
    if (*what != ran::nothing) return ok;
  }
  for (int k = 0; k <= l.grouped; ++k)
    if (status s = run_product(stream, to, l, l.product + k, exclusive); !s) return s;
  if (l.norm >= 0 && !normed_[p_.all<rowwise_launch>()[l.norm].result])
    if (status s = run_rows(stream, p_.all<rowwise_launch>()[l.norm]); !s) return s;
  return l.gated >= 0 ? run_node(stream, l.gated) : status(ok);
}
template <class T>
status plan_binding<T>::run_product(cudaStream_t stream, const target& to, const gemm_launch& l, int index,
                                    bool exclusive) {
  gemm_binding<T>& b = products_[index];
  const gemm_slots& s = b.slots();
  gemm_tensors with;
  const long long m = g_.sizes.value(g_[s.result].d[2], call_.sizes);
  with.rotates = s.output_rotation >= 0 && rotation_inside(b, m, to);
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
      if (status done = pad(stream, {tensor_at(shrink_in), with.shrink, m, rank, rank, b.rank()}); !done) return done;
  }
  with.before = rotates_after ? nullptr : output_at(s.pre_epilogue);
  if (with.before == nullptr && !rotates_after && is_saved_for_later(s.pre_epilogue))
    with.before = values_.storage(s.pre_epilogue).at;
  if (with.before != nullptr) values_.put(s.pre_epilogue, {with.before, dtype_of<T>});
  with.workspace = workspace(), with.counters = counters_;
  with.in_norm = prologue_norm_of(s.x, m), with.out_norm = epilogue_norm_of(l, m, to);
  for (int k = 0; k < 2; ++k)
    if (l.fused_wgrads[k] >= 0) with.sums[k] = fused_wgrad_of(l.fused_wgrads[k], b, with.shrink);
  if (const auto k = static_cast<std::size_t>(index); k < multi_lora_.products.size()) {
    const multi_lora_launches::product& rows = multi_lora_.products[k];
    if (rows.records != nullptr)
      return b.run_multi_lora(stream, kernels_->gemm, kernels_->multi_lora, to, m, with,
                              {.batch = {rows.records, multi_lora_.of_row},
                               .sums = multi_lora_.sums,
                               .blocks = rows.blocks,
                               .scaled = rows.prologue ? rows.scaled : nullptr,
                               .exclusive = exclusive,
                               .pdl = true});
  }
  const result<unsigned> ran = b.run(stream, kernels_->gemm, to, m, with, exclusive);
  if (!ran) return ran.failure();
  for (unsigned k = 0; k < 2; ++k)
    if (l.fused_wgrads[k] >= 0 && (*ran >> k & 1) == 0)
      if (status done = run_wgrad(stream, to, l.fused_wgrads[k]); !done) return done;
  if (rotates_after) return run_node(stream, s.result);
  if (shrink == nullptr || !b.shrink_is_padded() || m == 0) return ok;
  const auto rank = branch_rank(g_, s, call_.sizes);
  return pad(stream, {with.shrink, shrink, m, rank, b.rank(), rank});
}
template <class T> status plan_binding<T>::pad(cudaStream_t stream, const padded_rows_of& rows) {
  const auto copy = kernels_->launches.packs.pad;
  return copy != nullptr ? copy(stream, rows) : launch_not_compiled("storing the shrink result of a low-rank branch");
}
// Copies narrow wgrad operands to rows with padding, as TMA needs row pitches that are multiples of 16 bytes.
template <class T> status plan_binding<T>::pad_operands(cudaStream_t stream, int launch) {
  for (const auto& [before, i] : pads_) {
    const long long rows = g_.sizes.value(g_[i].d[2], call_.sizes), columns = g_.sizes.value(g_[i].d[3], call_.sizes);
    if (before != launch || rows == 0) continue;
    if (status s = pad(stream, {tensor_at(i), values_.storage(i).at, rows, columns, columns, padded_columns(i)}); !s)
      return s;
  }
  return ok;
}
template <class T> element_ptr<float> plan_binding<T>::output_ptr(const wgrad_sum& s) {
  element_ptr<float> d = values_.storage(s.result);
  if (const int k = written_output(s.result); k >= 0) d = {call_.outputs[k].data, call_.outputs[k].type};
  values_.put(s.result, d);
  return d;
}
template <class T>
fused_wgrad plan_binding<T>::fused_wgrad_of(int index, const gemm_binding<T>& product, void* shrink) {
  const wgrad_sum& s = p_.all<wgrad_sum>()[index];
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
template <class T> status plan_binding<T>::run_wgrad(cudaStream_t stream, const target& to, int index) {
  wgrad_binding<T>& b = sums_[index];
  const wgrad_sum& s = b.sum();
  if (!is_requested(s.result)) return s.scaled < 0 ? status(ok) : run_node(stream, s.scaled);
  const element_ptr<float> d = output_ptr(s);
  const long long m = g_.sizes.value(g_[s.left].d[2], call_.sizes);
  element_ptr<float> scaled, scale;
  if (s.scaled >= 0) scaled = {output_ptr(s.scaled), dtype_of<T>}, scale = values_[s.scale].p;
  return b.run(stream, kernels_->gemm, kernels_->launches, to, m, operand_of(s.left), operand_of(s.right),
               s.factor < 0 ? element_ptr<float>{} : values_[s.factor].p, d, false, scaled, scale);
}
template <class T> status plan_binding<T>::run_rows(cudaStream_t stream, const rowwise_launch& r) {
  if (use_normed_input(r)) return ok;
  const int k = written_output(r.result);
  if (k < 0) return values_.compute_rows(stream, r, values_.storage(r.result));
  const mutable_view& y = call_.outputs[k];
  return values_.compute_rows(stream, r, {y.data, y.type});
}
// Runs attention by a fused kernel if there is one, else node by node. The launch that concatenates heads and applies
// RoPE runs first, unless the kernel reads q, k and v separately.
template <class T>
status plan_binding<T>::run_attention(cudaStream_t stream, const target& to, const attention_launch& l) {
  const id i = l.node;
  const auto at = [&](id o) { return tensor_at(o); };
  const attention_binding<T>* by = nullptr;
  for (const attention_binding<T>& a : attentions_)
    if (a.node() == i) by = &a;
  separate_qkv separate;
  bool takes = by != nullptr && by->fuses_heads(to, call_.sizes, at, separate);
  if (separate.angles != nullptr)
    takes = takes && values_[p_.all<rowwise_launch>()[l.heads].table].p.type == dtype::f32;
  if (l.heads >= 0 && !takes)
    if (status s = run_rows(stream, p_.all<rowwise_launch>()[l.heads]); !s) return s;
  if (by == nullptr || !by->runs()) return run_node(stream, i);
  const int k = written_output(i);
  void* const y = k >= 0 ? call_.outputs[k].data : values_.storage(i).at;
  values_.put(i, {y, dtype_of<T>});
  // In a model no two calls overlap: it copies the inputs of a call first, or replays a graph.
  return by->run(stream, to, call_.sizes, at, y, values_.scratch_now(), takes ? &separate : nullptr,
                 {call_.attention_out, call_.attention_lse}, kernels_->gemm.timed.by, in_model_);
}
template <class T> status plan_binding<T>::run_node(cudaStream_t stream, id i) {
  const int k = written_output(i);
  if (const result<bool> done = gather_for_norm(stream, i); !done || *done) return done ? status(ok) : done.failure();
  if (k < 0) return values_.compute_node(stream, i);
  const mutable_view& y = call_.outputs[k];
  return values_.compute_node(stream, i, {y.data, y.type});
}

template <class T>
status plan_binding<T>::run_expression(cudaStream_t stream, const target& to, const expression_launch& l,
                                       const graft::launch& of) {
  const id* const nodes = &p_.nodes[of.first];
  status found = ok;
  // Builds the elementwise expression of a root and sets the address that its result is stored to.
  auto written = [&](id root) {
    const int k = written_output(root);
    element_ptr<float> at = values_.storage(root);
    if (k >= 0) at = {call_.outputs[k].data, call_.outputs[k].type};
    values_.put(root, at);
    expression_writer writer(
        g_, [&](id i) { return is_one_of(nodes, nodes + of.count, i); },
        [&](id i) {
          const result<tensor<float>> read = values_.numbers(stream, i);
          if (!read) found = read.failure();
          return read ? *read : tensor<float>{};
        });
    return writer.write(g_[root].what == op::sum_to ? g_[root].a : root);
  };
  const expression first = written(l.root);
  if (l.paired_root < 0) {
    const id value = g_[l.root].what == op::sum_to ? g_[l.root].a : l.root;
    if (!found) return found;
    const auto evaluate = kernels_->launches.expression;
    if (evaluate == nullptr) return launch_not_compiled("an expression");
    return evaluate(stream, kernels_->launches.sums, first, shaped(g_, value, call_.sizes, element_ptr<float>{}),
                    values_[l.root]);
  }
  const expression second = written(l.paired_root);
  if (!found) return found;
  bool sums = l.gate_wgrads[0] >= 0 && kernels_->launches.gates != nullptr;
  for (const int k : l.gate_wgrads) sums = sums && is_requested(p_.all<wgrad_sum>()[k].result);
  if (sums) {
    gate_wgrad with[2];
    for (int k = 0; k < 2; ++k) {
      const wgrad_sum& s = p_.all<wgrad_sum>()[l.gate_wgrads[k]];
      with[k] = {output_ptr(s), {output_ptr(s.scaled), dtype_of<T>}, tensor_at(s.right), values_[s.scale].p.at};
    }
    const result<bool> made =
        kernels_->launches.gates(stream, to, first, second, values_[l.root], values_[l.paired_root], with[0], with[1]);
    if (!made) return made.failure();
    if (*made) return ok;
  }
  const auto evaluate = kernels_->launches.two_expressions;
  if (evaluate == nullptr) return launch_not_compiled("two expressions");
  if (status s = evaluate(stream, first, second, values_[l.root], values_[l.paired_root]); !s) return s;
  for (const int k : l.gate_wgrads)
    if (k >= 0)
      if (status s = run_wgrad(stream, to, k); !s) return s;
  return ok;
}

// ---- Launches of small matrices: narrow GEMMs with dropout, Kronecker chains, stacks of small matrices
// If no kernel takes the sizes of a call, the nodes run one by one; plan/kernel_count.h counts launches by the same
// rule.

template <class T> status plan_binding<T>::run_dropout_gemm(cudaStream_t stream, const dropout_gemm& d) {
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
  const auto multiply = kernels_->launches.dropout_gemms;
  return multiply != nullptr ? multiply(stream, d.form_kind, with) : launch_not_compiled("a GEMM with dropout");
}
template <class T> status plan_binding<T>::run_kronecker_chain(cudaStream_t stream, const matrix_chain& c) {
  if (!fuses_chain(g_, c, call_.sizes, dtype_of<T>, p_.to.can<matrix_chain>())) {
    for (const id i : c.inside())
      if (status s = run_node(stream, i); !s) return s;
    return ok;
  }
  if (kernels_->launches.chain == nullptr) return launch_not_compiled("a small matrix of every token");
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
  return kernels_->launches.chain(stream, with);
}
template <class T> status plan_binding<T>::run_matrix_stack(cudaStream_t stream, const matrix_stack& s) {
  if (!fuses_stack(g_, s, call_.sizes, p_.to.can<matrix_stack>())) {
    for (const id i : s.inside)
      if (status done = run_node(stream, i); !done) return done;
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
    if (!is_read_outside(s, i)) continue;
    const int out = written_output(i);
    to.store = values_.storage(i);
    if (out >= 0) to.store = {call_.outputs[out].data, call_.outputs[out].type};
    values_.put(i, to.store);
  }
  if (kernels_->launches.stack == nullptr) return launch_not_compiled("stacks of small matrices");
  return kernels_->launches.stack(stream, with);
}

}  // namespace graft::gpu
