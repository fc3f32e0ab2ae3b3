// SPDX-License-Identifier: Apache-2.0
// execution: one call of a program with the binding of a layer. For sizes that bind() knew it launches the kernels of
// the plan in order and does nothing else (no allocation, look-up or synchronization), so a caller may capture it in a
// CUDA graph. How a launch of a kind runs is in the folder of its kernels (dispatch/launches.cuh).
#pragma once
#include <graft/backend/gpu/dispatch/launches.cuh>
#include <graft/backend/gpu/runtime/launch_clock.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <class T> class execution {
 public:
  execution(program<T>& in, binding<T>& with, const program_call& c, cudaStream_t stream, const target& to,
            bool exclusive)
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
  template <class Kind> friend struct launch_on_gpu;

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
  bool comes_with_call(id i) const { return is_leaf(g_[i].what) && traits_of(g_[i].what).known_at == stage::call; }
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

  bool is_multi_lora(const gemm_launch& l) const;
  // What the rows of a multi-LoRA batch read in addition to x and the weight.
  multi_lora_operands rows_of(const multi_lora_launches::product& of) const {
    multi_lora_operands rows;  // no designated initializers: nvcc 13 drops the designators in a class template
    rows.batch = {of.records, binding_.multi_lora.of_row}, rows.sums = binding_.multi_lora.sums;
    rows.scaled = of.prologue ? of.scaled : nullptr, rows.exclusive = exclusive_;
    return rows;
  }
  void* output_ptr(id i);
  // A gradient that the caller did not request, and that nothing else reads, is not computed.
  bool is_requested(id i) const { return output_of(i) >= 0 || !is_output(g_, i) || program_.readers_[i] > 1; }
  element_ptr<float> output_ptr(const wgrad_launch& s);
  status run_wgrad(int index);
  status run_wgrads(const sequence<int>& all);
  typename wgrad_binding<T>::operands operands_of(const wgrad_launch& s);
  status run_rows(const rowwise_launch& r);
  status run_node(id i);
  status pad(const padded_rows_of& rows);
  status pad_operands(int launch);

  program<T>& program_;
  binding<T>& binding_;
  const program_call& call_;
  const graph& g_;
  const launch_plan& p_;
  const kernel_set& kernels_;
  gpu::values& values_;
  cudaStream_t stream_;
  const target& to_;
  bool exclusive_;
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
  for (int k = 0; k < p_.launches.size(); ++k) {
    const graft::launch& l = p_.launches[k];
    values_.scratch_at(program_.memory_.scratch(k));
    if (clock != nullptr)
      if (status s = clock->note(stream_, p_, k); !s) return s;
    if (status s = pad_operands(k); !s) return s;
    status s = ok;
    p_.visit(l, [&]<class Kind>(const Kind& one) { s = launch_on_gpu<Kind>::run(*this, one, l); });
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
template <class T> element_ptr<float> execution<T>::output_ptr(const wgrad_launch& s) {
  element_ptr<float> d = values_.storage(s.result);
  if (const int k = written_output(s.result); k >= 0) d = {call_.outputs[k].data, call_.outputs[k].type};
  values_.put(s.result, d);
  return d;
}
// Returns true if a GEMM of this launch has a multi-LoRA batch.
template <class T> bool execution<T>::is_multi_lora(const gemm_launch& l) const {
  bool any = false;
  for (int k = l.product; k <= l.product + l.grouped; ++k)
    any = any || (static_cast<std::size_t>(k) < binding_.multi_lora.products.size() &&
                  binding_.multi_lora.products[static_cast<std::size_t>(k)].records != nullptr);
  return any;
}
template <class T> status execution<T>::run_wgrad(int index) {
  wgrad_binding<T>& b = binding_.sums[index];
  const wgrad_launch& s = b.sum();
  if (!is_requested(s.result)) return s.scaled < 0 ? status(ok) : run_node(s.scaled);
  const element_ptr<float> d = output_ptr(s);
  const long long m = g_.sizes.value(g_[s.left].d[2], call_.sizes);
  element_ptr<float> scaled, scale;
  if (s.scaled >= 0) scaled = {output_ptr(s.scaled), dtype_of<T>}, scale = values_[s.scale].p;
  return b.run(stream_, kernels_.gemm, kernels_.launches, to_, m, operand_of(s.left), operand_of(s.right),
               s.factor < 0 ? element_ptr<float>{} : values_[s.factor].p, d, false, scaled, scale);
}
template <class T> typename wgrad_binding<T>::operands execution<T>::operands_of(const wgrad_launch& s) {
  const wgrad_operand left = operand_of(s.left), right = operand_of(s.right);
  const bool by_column = left.columns >= right.columns;
  const element_ptr<float> factor = s.factor < 0 ? element_ptr<float>{} : values_[s.factor].p;
  return {by_column ? left : right, by_column ? right : left, by_column, false, factor, output_ptr(s)};
}
// Runs wgrads over the same tokens, two of them as one launch where a kernel takes both.
template <class T> status execution<T>::run_wgrads(const sequence<int>& all) {
  if (all.size() == 2) {
    const wgrad_launch &a = p_.all<wgrad_launch>()[all[0]], &b = p_.all<wgrad_launch>()[all[1]];
    const auto joins = [&](const wgrad_launch& s) {
      return !s.by_column && s.scaled < 0 && is_requested(s.result) &&
             g_.sizes.value(g_[s.left].d[3], call_.sizes) > 0 && g_.sizes.value(g_[s.right].d[3], call_.sizes) > 0;
    };
    if (joins(a) && joins(b)) {
      const typename wgrad_binding<T>::operands both[2] = {operands_of(a), operands_of(b)};
      const long long m = g_.sizes.value(g_[a.left].d[2], call_.sizes);
      const result<bool> ran = binding_.sums[all[0]].run_pair(stream_, kernels_.gemm, to_, m, both);
      if (!ran || *ran) return ran ? status(ok) : ran.failure();
    }
  }
  for (const int index : all)
    if (status s = run_wgrad(index); !s) return s;
  return ok;
}
template <class T> status execution<T>::run_rows(const rowwise_launch& r) {
  const int k = written_output(r.result);
  if (k < 0) return values_.compute_rows(stream_, r, values_.storage(r.result));
  const mutable_view& y = call_.outputs[k];
  return values_.compute_rows(stream_, r, {y.data, y.type});
}
template <class T> status execution<T>::run_node(id i) {
  const int k = written_output(i);
  if (k < 0) return values_.compute_node(stream_, i);
  const mutable_view& y = call_.outputs[k];
  return values_.compute_node(stream_, i, {y.data, y.type});
}

}  // namespace graft::gpu
