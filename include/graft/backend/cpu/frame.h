// SPDX-License-Identifier: Apache-2.0
// One call as the launches of a plan see it: its sizes, the tensors it brings, and where every value is that is stored
// for all rows. All threads share it.
#pragma once
#include <graft/backend/cpu/mixed_products.h>
#include <graft/backend/cpu/values.h>
#include <graft/plan/buffers.h>

namespace graft::cpu {

template <class Real> struct frame {
  const graph& g;
  const plan& p;
  const buffers& where;
  values<Real>& known;
  const call& now;
  const sequence<Real*>& stored;  // by node: all rows of it; null: it is nowhere whole
  long long tokens;
  node_function<Real> by;
  mixed_rows<Real>* mixed;  // null: all rows are the same

  const view& data(id i) const { return now.data[i]; }
  static bool direct(const mutable_view& v) { return v.data != nullptr && v.type == real_type<Real> && v.contiguous(); }
  const mutable_view& output(int k) const { return now.outputs[k]; }

  tensor<Real> full(id i, Real* p_at) const { return shaped(g, i, now.sizes, p_at); }
  // n of the rows of a value.
  [[gnu::noinline]] tensor<Real> piece(id i, Real* p_at, long long n) const {
    tensor<Real> t = full(i, p_at);
    if (p.rows.axis[i] >= 0) t.d[p.rows.axis[i]] = tokens == 0 ? 0 : t.d[p.rows.axis[i]] / tokens * n;
    return t;
  }
  [[gnu::noinline]] long long row_elements(id i) const { return tokens == 0 ? 0 : count(g, i, now.sizes) / tokens; }

  bool is_known(id i) const { return p.when.of[i] != stage::data; }
  // All rows of a value that was there before this launch.
  [[gnu::noinline]] tensor<Real> whole(id i) const {
    if (is_known(i)) return known[i];
    const id from = where.same_as[i] >= 0 ? where.same_as[i] : i;
    if (stored[from] != nullptr) return full(i, stored[from]);
    const id shaped_from = unshaped(g, from);  // the memory of what it reshapes
    if (stored[shaped_from] != nullptr) return full(i, stored[shaped_from]);
    return full(i, static_cast<Real*>(const_cast<void*>(data(shaped_from).data)));  // an input of the right type
  }
  // A base weight that is not stored as Real is decoded inside the product.
  tensor<Real> weight(id i) const {
    const weight_view* const as_stored = known.stored(i);
    if (as_stored == nullptr) return known[i];
    tensor<Real> t = full(i, nullptr);
    t.stored = as_stored;
    return t;
  }
  // One node on all rows.
  void compute_whole(id i, const evaluator<Real>& evaluate) const {
    const node& v = g[i];
    if (v.what == op::reshape) return;
    tensor<Real> out = whole(i);
    if (adds_up(v.what)) std::fill_n(out.p, out.count(), Real(0));
    operands<Real> x;
    tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    for (int k = 0; k < 3; ++k)
      if (const id o = v.operand(k); o >= 0) {
        if (row(g[o].what).from == source::integers)
          x.ids = is_known(o) ? known.ids(o) : static_cast<const std::int64_t*>(data(o).data);
        else
          *to[k] = is_known(o) && reads_stored(g, v, k) ? weight(o) : whole(o);
      }
    evaluate(i, out, x);
  }
};

}  // namespace graft::cpu
