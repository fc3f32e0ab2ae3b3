// SPDX-License-Identifier: Apache-2.0
// The members of bound_plan that run it: the launches of a plan in their order, each with the tensors of this call.
#pragma once
#include <graft/backend/cuda/bound_plan_norms.cuh>
#include <graft/backend/cuda/bound_plan_small.cuh>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

template <class T> status bound_plan<T>::run(cudaStream_t stream, const target& to, bool alone, launch_clock* clock) {
  if (p_.breaks > 0) return fail("host function '", g_[p_.first_break].name, "' cannot run on the GPU");
  if (status s = check_types(); !s) return s;
  if (status s = make_room(); !s) return s;
  if (aimed_ != moves()) aim();
  if (!only_product_) {
    values_.resize(now_.sizes);
    for (const id i : inputs_) values_.give(i, now_.data[i]);
  }
  normed_input_ = std::exchange(room_->normed, {});
  for (const row_launch& r : p_.row_launches) normed_.in[r.result] = false;
  for (int k = 0; k < p_.launches.size(); ++k) {
    const graft::launch& l = p_.launches[k];
    values_.scratch_at(memory_.scratch(k));
    if (clock != nullptr)
      if (status s = clock->note(stream, p_, k); !s) return s;
    if (status s = pad_operands(stream, k); !s) return s;
    const status s = l.product >= 0                    ? run_products(stream, to, l, alone)
                     : l.sum >= 0                      ? run_sum(stream, to, l.sum)
                     : l.dropped >= 0                  ? run_dropped(stream, p_.dropped[l.dropped])
                     : l.chained >= 0                  ? run_chain(stream, p_.chained[l.chained])
                     : l.stack >= 0                    ? run_small(stream, p_.stacks[l.stack])
                     : is_attention(g_[l.anchor].what) ? run_attention(stream, to, l)
                     : l.rows >= 0                     ? run_rows(stream, p_.row_launches[l.rows])
                     : l.count > 1                     ? run_expression(stream, to, l)
                                                       : run_node(stream, l.anchor);
    if (!s) return s;
  }
  if (clock != nullptr)
    if (status s = clock->note(stream, p_, p_.launches.size()); !s) return s;
  for (int k = 0; k < g_.outs; ++k) {  // what no launch writes there: an input, a value known before, a second copy
    const mutable_view& y = now_.outputs[k];
    if (y.data == nullptr || (launched(k) && output_of(unshaped(g_, g_.out[k].at)) == k && !converts(k))) continue;
    values_.resize(now_.sizes);
    if (status s = values_.copy(stream, g_.out[k].at, {y.data, y.type}); !s) return s;
  }
  ++launched_;
  return ok;
}
template <class T> status bound_plan<T>::check_types() const {
  for (const id i : inputs_)
    if (!now_.data[i].contiguous())
      return fail("tensor '", g_.name(i), "' has gaps between its rows; on the GPU copy it into one piece first");
  for (int k = 0; k < g_.outs; ++k)
    if (!now_.outputs[k].contiguous())
      return fail("output '", g_.output_name(k), "' has gaps between its rows; on the GPU give it one piece");
  for (const id i : read_)
    if (status st = check_type(i); !st) return st;
  for (const bound_product<T>& b : products_)
    for (const id i : {b.kept_side(), b.slots().before_posts})
      if (const int k = i < 0 ? -1 : output_of(i); k >= 0 && output_type(k) != dtype_of<T>)
        return fail("output '", g_.output_name(k), "' is ", name_of(output_type(k)), ", it is kept as ",
                    name_of(dtype_of<T>));
  status of_attention = ok;
  for (const bound_attention<T>& a : attentions_)
    if (a.runs())
      a.each_tensor([&](id i) {
        if (of_attention) of_attention = check_type(i);
      });
  return of_attention;
}
template <class T> void* bound_plan<T>::place_of(id i) {
  const int written = written_output(i);
  void* const y = written >= 0 ? now_.outputs[written].data : values_.room(i).at;
  values_.put(i, {y, dtype_of<T>});
  return y;
}
// Do rows have adapters of their own on one of these products?
template <class T> bool bound_plan<T>::mixes(const graft::launch& l) const {
  bool any = false;
  for (int k = l.product; k <= l.product + l.together; ++k)
    any = any || (static_cast<std::size_t>(k) < mixed_.products.size() &&
                  mixed_.products[static_cast<std::size_t>(k)].records != nullptr);
  return any;
}
// The same as segments of one launch; false: no kernel takes all of them, and nothing was launched.
template <class T>
result<bool> bound_plan<T>::run_mixed_together(cudaStream_t stream, const target& to, const graft::launch& l,
                                               bool alone) {
  const int count = l.together + 1;
  if (count > max_segments) return false;
  mixed_operands rows[max_segments];
  product_shape shapes[max_segments];
  const product_slots& s = p_.products[l.product];
  const long long m = g_.sizes.value(g_[s.result].d[2], now_.sizes);
  for (int k = 0; k < count; ++k) {
    const mixed_launches::product& of = mixed_.products[static_cast<std::size_t>(l.product + k)];
    if (of.records == nullptr || p_.products[l.product + k].turn >= 0) return false;
    rows[k] = {.batch = {of.records, mixed_.of_row}, .sums = mixed_.sums, .scaled = of.pre ? of.scaled : nullptr};
    rows[k].alone = alone;
    bound_product<T>& b = products_[l.product + k];
    if (!b.as_segment(m, tensor_at(s.x), place_of(b.slots().result), rows[k], shapes[k])) return false;
  }
  const stream_choice c = choose_mixed(shapes, count, to);
  if (m == 0 || c.rows == 0 || kernels_->mixed.finish.kernel == nullptr) return false;
  bool chained = true;
  for (int k = 0; k < count; ++k) chained = products_[l.product + k].may_chain() && chained;
  rows[0].chained = chained;
  if (status done = stream_mixed(stream, kernels_->mixed, c, shapes, rows, count); !done) return done.failure();
  return true;
}
// The rotations ahead of the products of a launch: one kernel for a few rows, else one after the other.
template <class T> status bound_plan<T>::turn_inputs(cudaStream_t stream, const graft::launch& l) {
  id turns[max_segments] = {};
  cells<float> to[max_segments];
  int count = 0;
  bool early = true, aligned = true;
  const auto by_sixteen = [&](const void* at) { aligned = aligned && reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  const product_slots& first = p_.products[l.product];
  for (int k = l.product; k <= l.product + l.together; ++k) {
    const product_slots& s = p_.products[k];
    if (s.turn < 0) continue;
    to[count] = {place_of(s.turn), dtype_of<T>}, turns[count] = s.turn;
    by_sixteen(to[count++].at);
    early = early && products_[k].is_chained();
  }
  if (count == 0) return ok;
  by_sixteen(tensor_at(first.x));
  if (first.other >= 0) by_sixteen(tensor_at(first.other));
  if (aligned && p_.to.run_turned != nullptr && p_.to.run_turned(g_, turns, count, now_.sizes, dtype_of<T>, p_.to))
    return values_.compute_turns(stream, turns, count, first.x, first.other, to, early);
  if (first.gate >= 0)
    if (status s = run_node(stream, first.gate); !s) return s;
  for (int k = 0; k < count; ++k)
    if (status s = run_node(stream, turns[k]); !s) return s;
  return ok;
}
template <class T>
status bound_plan<T>::run_products(cudaStream_t stream, const target& to, const graft::launch& l, bool alone) {
  if (status s = turn_inputs(stream, l); !s) return s;
  if (l.together > 0 && mixes(l)) {
    const auto ran = run_mixed_together(stream, to, l, alone);
    if (!ran) return ran.failure();
    if (*ran) return l.gated >= 0 ? run_node(stream, l.gated) : status(ok);
  }
  for (bound_together<T>& b : together_) {
    if (l.together == 0 || b.first() != l.product || mixes(l)) continue;
    void* y[max_segments + 1] = {};
    const void* x[max_segments] = {};
    for (int k = 0; k <= l.together; ++k)
      y[k] = place_of(p_.products[l.product + k].result), x[k] = input_of(p_.products[l.product + k]);
    if (l.gated >= 0) y[l.together + 1] = place_of(l.gated);
    const product_slots& s = p_.products[l.product];
    const long long m = g_.sizes.value(g_[s.result].d[2], now_.sizes);
    using ran = typename bound_together<T>::ran;
    const auto what = b.run(stream, kernels_->linear, to, m, products_,
                            {x, y, l.gated >= 0, norm_ahead_of(s.x, m), workspace(), counters_}, alone);
    if (!what) return what.failure();
    if (*what == ran::products && l.gated >= 0) return run_node(stream, l.gated);
    if (*what != ran::nothing) return ok;
  }
  for (int k = 0; k <= l.together; ++k)
    if (status s = run_product(stream, to, l, l.product + k, alone); !s) return s;
  if (l.norm >= 0 && !normed_[p_.row_launches[l.norm].result])
    if (status s = run_rows(stream, p_.row_launches[l.norm]); !s) return s;
  return l.gated >= 0 ? run_node(stream, l.gated) : status(ok);
}
template <class T>
status bound_plan<T>::run_product(cudaStream_t stream, const target& to, const graft::launch& l, int index,
                                  bool alone) {
  bound_product<T>& b = products_[index];
  const product_slots& s = b.slots();
  product_tensors with;
  const long long m = g_.sizes.value(g_[s.result].d[2], now_.sizes);
  with.turns = s.turned >= 0 && turns_inside_of(b, m, to);
  const bool turns_behind = s.turned >= 0 && !with.turns;
  with.y = place_of(turns_behind ? s.turned : s.result);
  with.x = input_of(s), with.residual = s.residual < 0 ? nullptr : tensor_at(s.residual);
  void* const side = output_at(b.kept_side());
  with.side = side == nullptr || b.pads_side() ? b.own_side() : side;
  if (const id given = b.given_side(); given >= 0) {
    const long long rank = side_rank(g_, s, now_.sizes);
    if (!b.pads_side())
      with.side = const_cast<void*>(tensor_at(given));
    else if (m > 0)
      if (status done = pad(stream, {tensor_at(given), with.side, m, rank, rank, b.rank()}); !done) return done;
  }
  with.before = turns_behind ? nullptr : output_at(s.before_posts);
  if (with.before == nullptr && !turns_behind && is_read_later(s.before_posts))
    with.before = values_.room(s.before_posts).at;
  if (with.before != nullptr) values_.put(s.before_posts, {with.before, dtype_of<T>});
  with.workspace = workspace(), with.counters = counters_;
  with.ahead = norm_ahead_of(s.x, m), with.behind = norm_behind_of(l, m, to);
  for (int k = 0; k < 2; ++k)
    if (l.beside[k] >= 0) with.sums[k] = sum_beside(l.beside[k], b, with.side);
  if (const auto k = static_cast<std::size_t>(index); k < mixed_.products.size()) {
    const mixed_launches::product& rows = mixed_.products[k];
    if (rows.records != nullptr)
      return b.run_mixed(stream, kernels_->linear, kernels_->mixed, to, m, with,
                         {.batch = {rows.records, mixed_.of_row},
                          .sums = mixed_.sums,
                          .blocks = rows.blocks,
                          .scaled = rows.pre ? rows.scaled : nullptr,
                          .alone = alone,
                          .chained = true});
  }
  const result<unsigned> ran = b.run(stream, kernels_->linear, to, m, with, alone);
  if (!ran) return ran.failure();
  for (unsigned k = 0; k < 2; ++k)
    if (l.beside[k] >= 0 && (*ran >> k & 1) == 0)
      if (status done = run_sum(stream, to, l.beside[k]); !done) return done;
  if (turns_behind) return run_node(stream, s.result);
  if (side == nullptr || !b.pads_side() || m == 0) return ok;
  const auto rank = side_rank(g_, s, now_.sizes);
  return pad(stream, {with.side, side, m, rank, b.rank(), rank});
}
template <class T> status bound_plan<T>::pad(cudaStream_t stream, const padded_rows_of& rows) {
  const auto copy = kernels_->launches.packs.pad;
  return copy != nullptr ? copy(stream, rows) : not_launched("a side branch that is kept");
}
// What forward kept of a narrow branch, with the padding that sums over the tokens want.
template <class T> status bound_plan<T>::pad_operands(cudaStream_t stream, int launch) {
  for (const auto& [before, i] : pads_) {
    const long long rows = g_.sizes.value(g_[i].d[2], now_.sizes), columns = g_.sizes.value(g_[i].d[3], now_.sizes);
    if (before != launch || rows == 0) continue;
    if (status s = pad(stream, {tensor_at(i), values_.room(i).at, rows, columns, columns, padded_columns(i)}); !s)
      return s;
  }
  return ok;
}
template <class T> cells<float> bound_plan<T>::place_of(const token_sum& s) {
  cells<float> d = values_.room(s.result);
  if (const int k = written_output(s.result); k >= 0) d = {now_.outputs[k].data, now_.outputs[k].type};
  values_.put(s.result, d);
  return d;
}
template <class T> beside_sum bound_plan<T>::sum_beside(int index, const bound_product<T>& product, void* side) {
  const token_sum& s = p_.sums[index];
  if (!is_asked_for(s.result)) return {};
  beside_sum b;
  const id of_product = product.kept_side();
  auto operand = [&](id i) {
    sum_operand o = operand_of(i);
    if (i == of_product) o.data = side;
    return o;
  };
  const sum_operand left = operand(s.left), right = operand(s.right);
  b.by_column = left.columns >= right.columns;
  b.z = b.by_column ? left : right, b.q = b.by_column ? right : left;
  b.waits = of_product >= 0 && (s.left == of_product || s.right == of_product);
  b.dots = s.by_column;
  if (s.factor >= 0) b.factor = values_[s.factor].p;
  b.to = place_of(s);
  return b;
}
template <class T> status bound_plan<T>::run_sum(cudaStream_t stream, const target& to, int index) {
  bound_sum<T>& b = sums_[index];
  const token_sum& s = b.sum();
  if (!is_asked_for(s.result)) return s.scaled < 0 ? status(ok) : run_node(stream, s.scaled);
  const cells<float> d = place_of(s);
  const long long m = g_.sizes.value(g_[s.left].d[2], now_.sizes);
  cells<float> scaled, scale;
  if (s.scaled >= 0) scaled = {place_of(s.scaled), dtype_of<T>}, scale = values_[s.scale].p;
  return b.run(stream, kernels_->linear, kernels_->launches, to, m, operand_of(s.left), operand_of(s.right),
               s.factor < 0 ? cells<float>{} : values_[s.factor].p, d, false, scaled, scale);
}
template <class T> status bound_plan<T>::run_rows(cudaStream_t stream, const row_launch& r) {
  if (take_normed_input(r)) return ok;
  const int k = written_output(r.result);
  if (k < 0) return values_.compute_rows(stream, r, values_.room(r.result));
  const mutable_view& y = now_.outputs[k];
  return values_.compute_rows(stream, r, {y.data, y.type});
}
// By a kernel for whole models, where there is one; heads that it does not take as they are come first.
template <class T> status bound_plan<T>::run_attention(cudaStream_t stream, const target& to, const graft::launch& l) {
  const id i = l.anchor;
  const auto at = [&](id o) { return tensor_at(o); };
  const bound_attention<T>* by = nullptr;
  for (const bound_attention<T>& a : attentions_)
    if (a.node() == i) by = &a;
  apart_heads apart;
  bool takes = by != nullptr && by->takes_heads(to, now_.sizes, at, apart);
  if (apart.angles != nullptr) takes = takes && values_[p_.row_launches[l.rows].table].p.type == dtype::f32;
  if (l.rows >= 0 && !takes)
    if (status s = run_rows(stream, p_.row_launches[l.rows]); !s) return s;
  if (by == nullptr || !by->runs()) return run_node(stream, i);
  const int k = written_output(i);
  void* const y = k >= 0 ? now_.outputs[k].data : values_.room(i).at;
  values_.put(i, {y, dtype_of<T>});
  // A model copies the numbers of its rows before a call, or replays a graph: no two calls overlap.
  return by->run(stream, to, now_.sizes, at, y, values_.scratch_now(), takes ? &apart : nullptr,
                 {now_.attended, now_.attention_sums}, kernels_->linear.timed.by, in_model_);
}
template <class T> status bound_plan<T>::run_node(cudaStream_t stream, id i) {
  const int k = written_output(i);
  if (const result<bool> done = look_up_for_norm(stream, i); !done || *done) return done ? status(ok) : done.failure();
  if (k < 0) return values_.compute_node(stream, i);
  const mutable_view& y = now_.outputs[k];
  return values_.compute_node(stream, i, {y.data, y.type});
}

template <class T> status bound_plan<T>::run_expression(cudaStream_t stream, const target& to, const graft::launch& l) {
  const id* const nodes = &p_.nodes[l.first];
  status found = ok;
  // What is computed element by element for a root, which is stored where its readers find it.
  auto written = [&](id root) {
    const int k = written_output(root);
    cells<float> at = values_.room(root);
    if (k >= 0) at = {now_.outputs[k].data, now_.outputs[k].type};
    values_.put(root, at);
    expression_writer writer(
        g_, [&](id i) { return is_among(nodes, nodes + l.count, i); },
        [&](id i) {
          const result<tensor<float>> read = values_.numbers(stream, i);
          if (!read) found = read.failure();
          return read ? *read : tensor<float>{};
        });
    return writer.write(g_[root].what == op::sum_to ? g_[root].a : root);
  };
  const expression first = written(l.anchor);
  if (l.also < 0) {
    const id root = g_[l.anchor].what == op::sum_to ? g_[l.anchor].a : l.anchor;
    if (!found) return found;
    const auto evaluate = kernels_->launches.expression;
    if (evaluate == nullptr) return not_launched("an expression");
    return evaluate(stream, kernels_->launches.sums, first, shaped(g_, root, now_.sizes, cells<float>{}),
                    values_[l.anchor]);
  }
  const expression second = written(l.also);
  if (!found) return found;
  bool sums = l.summed[0] >= 0 && kernels_->launches.gates != nullptr;
  for (const int k : l.summed) sums = sums && is_asked_for(p_.sums[k].result);
  if (sums) {
    gate_sum with[2];
    for (int k = 0; k < 2; ++k) {
      const token_sum& s = p_.sums[l.summed[k]];
      with[k] = {place_of(s), {place_of(s.scaled), dtype_of<T>}, tensor_at(s.right), values_[s.scale].p.at};
    }
    const result<bool> made =
        kernels_->launches.gates(stream, to, first, second, values_[l.anchor], values_[l.also], with[0], with[1]);
    if (!made) return made.failure();
    if (*made) return ok;
  }
  const auto evaluate = kernels_->launches.two_expressions;
  if (evaluate == nullptr) return not_launched("two expressions");
  if (status s = evaluate(stream, first, second, values_[l.anchor], values_[l.also]); !s) return s;
  for (const int k : l.summed)
    if (k >= 0)
      if (status s = run_sum(stream, to, k); !s) return s;
  return ok;
}

}  // namespace graft::cuda
