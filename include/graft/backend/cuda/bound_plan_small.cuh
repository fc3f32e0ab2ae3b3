// SPDX-License-Identifier: Apache-2.0
// The launches of a bound plan whose matrices are small: narrow products with dropout, a small matrix of every token between
// two that all share, and stacks of small matrices. Where a kernel does not take the sizes of a call, nodes run one by one, as
// the plan counts them (plan/kernels.h).
#pragma once
#include <graft/backend/cuda/bound_plan.cuh>

namespace graft::cuda {

template <class T> status bound_plan<T>::run_dropped(cudaStream_t stream, const dropped_product& d) {
  if (!is_asked_for(d.result)) return ok;
  const int k = written_output(d.result);
  cells<float> to = values_.room(d.result);
  if (k >= 0) to = {now_.outputs[k].data, now_.outputs[k].type};
  values_.put(d.result, to);
  dropped_args with;
  const tensor<float> wide = values_[d.wide];
  with.wide = wide.p, with.out = to, with.rows = wide.d[2], with.columns = static_cast<int>(wide.d[3]);
  with.terms = 0;
  for (const dropped_term& of : d.terms) {
    dropped_branch& t = with.term[with.terms++];
    if (of.narrow >= 0) {
      const sum_operand from = operand_of(of.narrow);
      t.narrow = from.elements(), t.rank = from.columns, t.pitch = from.pitch;
    }
    if (of.factor >= 0) {
      const tensor<float> a = values_[of.factor];
      t.factor = a.p;
      t.rank = static_cast<int>(a.d[of.factor_by_rank ? 2 : 3]);
      t.rank_step = of.factor_by_rank ? a.d[3] : 1, t.column_step = of.factor_by_rank ? 1 : a.d[3];
    }
    const graft::node& v = g_[of.dropout];
    t.seed = static_cast<const std::int64_t*>(tensor_at(v.b));
    t.salt = g_.sizes.value(v.k[0], now_.sizes), t.rate = values_[v.c].p;
  }
  const auto multiply = kernels_->launches.dropped;
  return multiply != nullptr ? multiply(stream, d.how, with) : not_launched("a product with dropout");
}
template <class T> status bound_plan<T>::run_chain(cudaStream_t stream, const chained_product& c) {
  if (!takes_chain(g_, c, now_.sizes, dtype_of<T>, p_.to)) {
    for (const id i : c.inside())
      if (status s = run_node(stream, i); !s) return s;
    return ok;
  }
  if (kernels_->launches.chain == nullptr) return not_launched("a small matrix of every token");
  auto place = [&](id i) {
    const int k = written_output(i);
    cells<float> to = values_.room(i);
    if (k >= 0) to = {now_.outputs[k].data, now_.outputs[k].type};
    return values_.put(i, to), to;
  };
  const chain_sides n = sides_of(g_, c, now_.sizes);
  chain_args with;
  with.z = tensor_at(c.z), with.d = place_of(c.result);
  with.l = values_[c.left].p, with.r = values_[c.right].p;
  with.l_turned = c.left_turned, with.r_turned = c.right_turned;
  with.l_rows = static_cast<int>(n.left_rows), with.z_rows = static_cast<int>(n.rows);
  with.z_cols = static_cast<int>(n.columns), with.r_cols = static_cast<int>(n.right_columns);
  with.tokens = g_.sizes.value(g_[c.z].d[1], now_.sizes);
  if (c.sums())
    with.x = tensor_at(c.x), with.e = place(c.left_sum), with.f = place(c.right_sum),
    with.partial = values_.scratch_now();
  return kernels_->launches.chain(stream, with);
}
template <class T> status bound_plan<T>::run_small(cudaStream_t stream, const small_stack& s) {
  if (!takes_stack(g_, s, now_.sizes, p_.to)) {
    for (const id i : s.inside)
      if (status done = run_node(stream, i); !done) return done;
    return ok;
  }
  stack_args with{};
  with.operands = s.operands.size(), with.steps = s.inside.size(), with.places = s.places;
  const tensor<float> first = values_[g_[s.inside[0]].a], other = values_[s.operands[0]];
  const tensor<float>& like = first.count() > 1 ? first : other;
  with.side = static_cast<int>(like.d[3]), with.matrices = like.matrices();
  for (int k = 0; k < with.operands; ++k) {
    with.operand[k] = values_[s.operands[k]].p;
    with.at[k] = static_cast<signed char>(s.placed_at[k]);
  }
  const auto place = [&](id o) -> signed char {
    for (int k = 0; k < with.operands; ++k)
      if (s.operands[k] == o) return with.at[k];
    for (int k = 0; k < with.steps; ++k)
      if (s.inside[k] == o) return static_cast<signed char>(s.place[k]);
    return -1;
  };
  for (int k = 0; k < with.steps; ++k) {
    const id i = s.inside[k];
    const graft::node& v = g_[i];
    stack_step& to = with.step[k];
    to.what = v.what, to.ta = v.ta, to.tb = v.tb;
    to.to = static_cast<signed char>(s.place[k]), to.a = place(v.a),
    to.b = v.b < 0 ? static_cast<signed char>(0) : place(v.b);
    if (to.a < 0 || to.b < 0) to.number = values_[to.a < 0 ? v.a : v.b].p;
    if (!is_read_outside(s, i)) continue;
    const int out = written_output(i);
    to.store = values_.room(i);
    if (out >= 0) to.store = {now_.outputs[out].data, now_.outputs[out].type};
    values_.put(i, to.store);
  }
  if (kernels_->launches.stack == nullptr) return not_launched("stacks of small matrices");
  return kernels_->launches.stack(stream, with);
}

}  // namespace graft::cuda
