// SPDX-License-Identifier: Apache-2.0
// One call as the launches of a plan see it: its sizes, its tensors, and the address of every value that is stored for
// all rows. All threads share it.
#pragma once
#include <graft/backend/cpu/multi_lora/row_products.h>
#include <graft/backend/cpu/runtime/node_values.h>
#include <graft/plan/buffers.h>

namespace graft::cpu {

template <class Real> struct call_frame {
  const graph& g;
  const launch_plan& p;
  const buffers& where;
  values<Real>& precomputed;
  const program_call& current_call;
  const sequence<Real*>& stored;  // by node: all rows of the value; null: they are not stored
  long long tokens;
  node_function<Real> by;
  multi_lora_rows<Real>* multi_lora;  // null: no row has an adapter of its own

  const view& data(id i) const { return current_call.data[i]; }
  static bool direct(const mutable_view& v) { return v.data != nullptr && v.type == real_type<Real> && v.contiguous(); }
  const mutable_view& output(int k) const { return current_call.outputs[k]; }

  tensor<Real> full(id i, Real* p_at) const { return shaped(g, i, current_call.sizes, p_at); }
  // A tensor of n rows of a value at p_at.
  [[gnu::noinline]] tensor<Real> row_chunk(id i, Real* p_at, long long n) const {
    tensor<Real> t = full(i, p_at);
    if (p.rows.axis[i] >= 0) t.d[p.rows.axis[i]] = tokens == 0 ? 0 : t.d[p.rows.axis[i]] / tokens * n;
    return t;
  }
  [[gnu::noinline]] long long row_elements(id i) const {
    return tokens == 0 ? 0 : element_count(g, i, current_call.sizes) / tokens;
  }

  bool is_precomputed(id i) const { return p.when.of[i] != stage::call; }
  // All rows of a value that an earlier launch has computed.
  [[gnu::noinline]] tensor<Real> whole(id i) const {
    if (is_precomputed(i)) return precomputed[i];
    const id from = where.same_as[i] >= 0 ? where.same_as[i] : i;
    if (stored[from] != nullptr) return full(i, stored[from]);
    const id shaped_from = unshaped(g, from);  // a reshaped value shares the memory of its operand
    if (stored[shaped_from] != nullptr) return full(i, stored[shaped_from]);
    return full(i, static_cast<Real*>(const_cast<void*>(data(shaped_from).data)));  // an input of the right type
  }
  // A weight for a GEMM, which dequantizes a base weight that is not stored as Real.
  tensor<Real> weight(id i) const {
    const weight_view* const as_stored = precomputed.stored(i);
    if (as_stored == nullptr) return precomputed[i];
    tensor<Real> t = full(i, nullptr);
    t.stored = as_stored;
    return t;
  }
  // Computes one node on all rows.
  void compute_whole(id i, const evaluator<Real>& evaluate) const {
    const node& v = g[i];
    if (v.what == op::reshape) return;
    tensor<Real> out = whole(i);
    if (accumulates_result(v.what)) std::fill_n(out.p, out.count(), Real(0));
    operands<Real> x;
    tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    for (int k = 0; k < 3; ++k)
      if (const id o = v.operand(k); o >= 0) {
        if (traits_of(g[o].what).from == source::integers)
          x.ids = is_precomputed(o) ? precomputed.ids(o) : static_cast<const std::int64_t*>(data(o).data);
        else
          *to[k] = is_precomputed(o) && reads_stored(g, v, k) ? weight(o) : whole(o);
      }
    evaluate(i, out, x);
  }
};

}  // namespace graft::cpu
