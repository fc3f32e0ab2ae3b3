// SPDX-License-Identifier: Apache-2.0
// Launches of GEMMs: the rotations of their inputs, the products in one or several kernels, and the wgrads that no
// kernel took in.
#pragma once
#include <graft/backend/gpu/kernels/gemm/grouped_binding.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <> struct launch_on_gpu<gemm_launch> {
  static constexpr bool operands_are_packed = true;
  template <class T>
  static void describe(text& t, const graph&, const launch_plan& p, const binding<T>& with, const gemm_launch& l,
                       long long tokens, const gemm_kernel_mask& have) {
    const gemm_binding<T>& product = with.products[l.product];
    if (const quantized_choice quantized = product.quantized_choice_for(tokens, p.to); quantized.groups > 0) {
      const int launches = launch_count_of(quantized, product.rank());
      t << "quantized skinny GEMM, " << launches << (launches == 1 ? " launch" : " launches");
      return;
    }
    if (product.is_quantized()) t << "dequantize, ";
    const gemm_choice c = choose(product.shape(tokens), p.to, have);
    t << name_of(c.path) << (c.skinny.nn ? ", NN weight, " : ", ") << c.launches
      << (c.launches == 1 ? " launch" : " launches");
  }
  template <class T, class F> static void each_own_node(const program<T>& in, const gemm_launch& l, F f) {
    l.each_product([&](int k) {
      const gemm_slots& s = in.p_.products[k];
      if (s.input_rotation >= 0) f(s.input_rotation);
      if (s.output_rotation >= 0) f(s.result);
    });
  }
  template <class T> static void each_stored(const program<T>& in, const gemm_launch& l, const stored_nodes<T>& to) {
    l.each_product([&](int k) {
      const gemm_slots& s = in.p_.products[k];
      for (const id i : {s.input_rotation, s.output_rotation})
        if (i >= 0) to.add(i);
      to.add(s.result, in.g_.sizes.value(in.g_[s.result].d[2], to.sizes) * to.with.products[k].out_size());
    });
    if (l.gated >= 0) to.add(l.gated);
    const gemm_slots& first = in.p_.products[l.product];
    if (in.is_saved_for_later(first.pre_epilogue) && first.pre_epilogue != first.output_rotation)
      to.add(first.pre_epilogue);
  }
  template <class T, class F> static void each_operand(const program<T>& in, const gemm_launch& l, F f) {
    l.each_product([&](int k) {
      const gemm_slots& s = in.p_.products[k];
      for (const id i : {s.x, s.input_rotation, s.residual}) f(i);
    });
  }
  template <class T> static void each_typed(const program<T>& in, const gemm_launch& l, const typed_values<T>& to) {
    l.each_product([&](int k) {
      const gemm_slots& s = in.p_.products[k];
      for (const id i : {s.result, s.pre_epilogue, s.output_rotation}) to.add(i);
    });
    to.add(l.gated);
  }
  template <class T>
  static void each_precomputed(const program<T>& in, const gemm_launch& l, const precomputed_values<T>& to) {
    l.each_product([&](int k) {
      const gemm_slots& s = in.p_.products[k];
      to.with.products[k].each_source([&](id i) { to.add(i); });
      for (const id rotation : {s.input_rotation, s.output_rotation >= 0 ? s.result : none_id})
        if (rotation >= 0) to.add(in.g_[rotation].b);
    });
  }
  template <class T> static status run(execution<T>& e, const gemm_launch& l, const graft::launch&) {
    if (status s = rotate_inputs(e, l); !s) return s;
    if (l.grouped > 0 && e.is_multi_lora(l)) {
      const auto ran = run_multi_lora_grouped(e, l);
      if (!ran) return ran.failure();
      if (*ran) return l.gated >= 0 ? e.run_node(l.gated) : status(ok);
    }
    for (grouped_gemm_binding<T>& b : e.binding_.grouped) {
      if (l.grouped == 0 || b.first() != l.product || e.is_multi_lora(l)) continue;
      void* y[max_segments + 1] = {};
      const void* x[max_segments] = {};
      for (int k = 0; k <= l.grouped; ++k)
        y[k] = e.output_ptr(e.p_.products[l.product + k].result), x[k] = input_of(e, e.p_.products[l.product + k]);
      if (l.gated >= 0) y[l.grouped + 1] = e.output_ptr(l.gated);
      const long long m = e.g_.sizes.value(e.g_[e.p_.products[l.product].result].d[2], e.call_.sizes);
      using ran = typename grouped_gemm_binding<T>::ran;
      const auto what = b.run(e.stream_, e.kernels_.gemm, e.to_, m, e.binding_.products,
                              {x, y, l.gated >= 0, e.workspace(), e.program_.counters_}, e.exclusive_);
      if (!what) return what.failure();
      if (*what == ran::products && l.gated >= 0) return e.run_node(l.gated);
      if (*what != ran::nothing) return ok;
    }
    for (int k = 0; k <= l.grouped; ++k)
      if (status s = run_product(e, l, l.product + k); !s) return s;
    return l.gated >= 0 ? e.run_node(l.gated) : status(ok);
  }

 private:
  // The tensor that the GEMM reads as x.
  template <class T> static const void* input_of(execution<T>& e, const gemm_slots& s) {
    return e.tensor_at(s.input_rotation >= 0 ? s.input_rotation : s.x);
  }
  // Returns true if the rotation of the GEMM's result is fused into its kernel in this call.
  template <class T> static bool rotation_inside(execution<T>& e, const gemm_binding<T>& b, long long m) {
    const gemm_slots& s = b.slots();
    bool aligned = true;
    for (const id i : {s.x, s.result, s.output_rotation}) {
      const int k = e.written_output(i);
      const void* const at = k >= 0 ? e.call_.outputs[k].data : e.tensor_at(i);
      aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
    }
    return aligned && b.rotates(m, e.kernels_.gemm, e.to_);
  }
  // Runs a grouped GEMM with a multi-LoRA batch as segments of one skinny GEMM launch. Returns false, and launches
  // nothing, if no kernel takes all of them.
  template <class T> static result<bool> run_multi_lora_grouped(execution<T>& e, const gemm_launch& l) {
    const int count = l.grouped + 1;
    if (count > max_segments) return false;
    multi_lora_operands rows[max_segments];
    gemm_problem shapes[max_segments];
    const gemm_slots& s = e.p_.products[l.product];
    const long long m = e.g_.sizes.value(e.g_[s.result].d[2], e.call_.sizes);
    for (int k = 0; k < count; ++k) {
      const multi_lora_launches::product& of = e.binding_.multi_lora.products[static_cast<std::size_t>(l.product + k)];
      if (of.records == nullptr || e.p_.products[l.product + k].input_rotation >= 0) return false;
      rows[k] = e.rows_of(of);
      gemm_binding<T>& b = e.binding_.products[l.product + k];
      if (!b.as_group_member(m, e.tensor_at(s.x), e.output_ptr(b.slots().result), rows[k], shapes[k])) return false;
    }
    const skinny_choice c = choose_multi_lora(shapes, count, e.to_);
    if (m == 0 || c.rows == 0 || e.kernels_.multi_lora.finish.kernel == nullptr) return false;
    bool pdl = true;
    for (int k = 0; k < count; ++k) pdl = e.binding_.products[l.product + k].may_use_pdl() && pdl;
    rows[0].pdl = pdl;
    if (status done = run_multi_lora_skinny(e.stream_, e.kernels_.multi_lora, c, shapes, rows, count); !done)
      return done.failure();
    return true;
  }
  // Computes the rotations x R that the GEMMs of a launch read: by one kernel where one takes all of them, else one
  // after the other.
  template <class T> static status rotate_inputs(execution<T>& e, const gemm_launch& l) {
    id rotations[max_segments] = {};
    element_ptr<float> to[max_segments];
    int count = 0;
    bool early = true, aligned = true;
    const auto aligned16 = [&](const void* at) { aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
    const id x = e.p_.products[l.product].x;
    for (int k = l.product; k <= l.product + l.grouped; ++k) {
      const gemm_slots& s = e.p_.products[k];
      if (s.input_rotation < 0) continue;
      to[count] = {e.output_ptr(s.input_rotation), dtype_of<T>}, rotations[count] = s.input_rotation;
      aligned16(to[count++].at);
      early = early && e.binding_.products[k].uses_pdl();
    }
    if (count == 0) return ok;
    aligned16(e.tensor_at(x));
    const auto& share_kernel = e.p_.to.template can<gemm_launch>().rotations_share_kernel;
    if (aligned && share_kernel && share_kernel(e.g_, rotations, count, e.call_.sizes, dtype_of<T>, e.p_.to))
      return e.values_.compute_rotations(e.stream_, rotations, count, x, to, early);
    for (int k = 0; k < count; ++k)
      if (status s = e.run_node(rotations[k]); !s) return s;
    return ok;
  }
  template <class T> static status run_product(execution<T>& e, const gemm_launch& l, int index) {
    gemm_binding<T>& b = e.binding_.products[index];
    const gemm_slots& s = b.slots();
    gemm_tensors with;
    const long long m = e.g_.sizes.value(e.g_[s.result].d[2], e.call_.sizes);
    with.rotates = s.output_rotation >= 0 && rotation_inside(e, b, m);
    const bool rotates_after = s.output_rotation >= 0 && !with.rotates;
    with.y = e.output_ptr(rotates_after ? s.output_rotation : s.result);
    with.x = input_of(e, s), with.residual = s.residual < 0 ? nullptr : e.tensor_at(s.residual);
    void* const shrink = e.output_at(b.shrink_output());
    with.shrink = shrink == nullptr || b.shrink_is_padded() ? b.own_shrink() : shrink;
    if (const id shrink_in = b.shrink_input(); shrink_in >= 0) {
      const long long rank = branch_rank(e.g_, s, e.call_.sizes);
      if (!b.shrink_is_padded())
        with.shrink = const_cast<void*>(e.tensor_at(shrink_in));
      else if (m > 0)
        if (status done = e.pad({e.tensor_at(shrink_in), with.shrink, m, rank, rank, b.rank()}); !done) return done;
    }
    with.before = rotates_after ? nullptr : e.output_at(s.pre_epilogue);
    if (with.before == nullptr && !rotates_after && e.program_.is_saved_for_later(s.pre_epilogue))
      with.before = e.values_.storage(s.pre_epilogue).at;
    if (with.before != nullptr) e.values_.put(s.pre_epilogue, {with.before, dtype_of<T>});
    with.workspace = e.workspace(), with.counters = e.program_.counters_;
    for (int k = 0; k < 2; ++k)
      if (l.fused_wgrads[k] >= 0) with.sums[k] = fused_wgrad_of(e, l.fused_wgrads[k], b, with.shrink);
    if (const auto k = static_cast<std::size_t>(index); k < e.binding_.multi_lora.products.size()) {
      const multi_lora_launches::product& rows = e.binding_.multi_lora.products[k];
      if (rows.records != nullptr) {
        multi_lora_operands of = e.rows_of(rows);
        of.blocks = rows.blocks, of.pdl = true;
        return b.run_multi_lora(e.stream_, e.kernels_.gemm, e.kernels_.multi_lora, e.to_, m, with, of);
      }
    }
    const result<unsigned> ran = b.run(e.stream_, e.kernels_.gemm, e.to_, m, with, e.exclusive_);
    if (!ran) return ran.failure();
    sequence<int> separate;  // wgrads that the kernel did not take in
    for (unsigned k = 0; k < 2; ++k)
      if (l.fused_wgrads[k] >= 0 && (*ran >> k & 1) == 0) separate.push(l.fused_wgrads[k]);
    if (status done = e.run_wgrads(separate); !done) return done;
    if (rotates_after) return e.run_node(s.result);
    if (shrink == nullptr || !b.shrink_is_padded() || m == 0) return ok;
    const auto rank = branch_rank(e.g_, s, e.call_.sizes);
    return e.pad({with.shrink, shrink, m, rank, b.rank(), rank});
  }
  template <class T>
  static fused_wgrad fused_wgrad_of(execution<T>& e, int index, const gemm_binding<T>& product, void* shrink) {
    const wgrad_launch& s = e.p_.template all<wgrad_launch>()[index];
    if (!e.is_requested(s.result)) return {};
    fused_wgrad b;
    const id of_product = product.shrink_output();
    auto operand = [&](id i) {
      wgrad_operand o = e.operand_of(i);
      if (i == of_product) o.data = shrink;
      return o;
    };
    const wgrad_operand left = operand(s.left), right = operand(s.right);
    b.by_column = left.columns >= right.columns;
    b.z = b.by_column ? left : right, b.q = b.by_column ? right : left;
    b.waits_for_shrink = of_product >= 0 && (s.left == of_product || s.right == of_product);
    b.columnwise = s.by_column;
    if (s.factor >= 0) b.factor = e.values_[s.factor].p;
    b.to = e.output_ptr(s);
    return b;
  }
};

}  // namespace graft::gpu
