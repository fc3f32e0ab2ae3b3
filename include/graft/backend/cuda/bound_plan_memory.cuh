// SPDX-License-Identifier: Apache-2.0
// The members of bound_plan that say where the values of a call lie, and how they are stored.
#pragma once
#include <graft/backend/cuda/bound_plan.cuh>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

// Values that products read or write between launches are stored as T, those of other launches in float.
template <class T> status bound_plan<T>::reserve_values(const size_values& largest) {
  narrow_ = node_set(g_.size);
  for (const bound_product<T>& b : products_) {
    narrow_.add(b.slots().result);
    if (b.slots().before_posts >= 0) narrow_.add(b.slots().before_posts);
    if (b.slots().turned >= 0) narrow_.add(b.slots().turned);
  }
  for (const id i : read_)
    if (const id at = unshaped(g_, i); at >= 0) narrow_.add(at);
  for (const graft::launch& l : p_.launches)
    if (l.gated >= 0) narrow_.add(l.gated);
  for (const graft::launch& l : p_.launches)  // stacks of products, and rotations, have kernels for 16 bits
    if (const op what = g_[l.anchor].what; l.product < 0 && l.sum < 0 && l.count == 1 &&
                                           (what == op::matmul || what == op::rotate || what == op::rotate_grad)) {
      for (int k = 0; k < 3; ++k) keep_narrow(unshaped(g_, g_[l.anchor].operand(k)));
      keep_narrow(l.anchor);
    }
  for (const graft::launch& l : p_.launches)  // what ranks exchange travels as it was computed
    if (l.what == family::exchange && narrow_[unshaped(g_, g_[l.anchor].a)]) narrow_.add(l.anchor);
  for (const token_sum& s : p_.sums)  // dyᵀ x itself, as large as the weight, and what is computed of it by element
    if (!s.by_column && is_as_a_weight(s.result)) narrow_.add(s.result);
  for (const graft::launch& l : p_.launches)
    if (l.count == 1 && l.product < 0 && l.sum < 0 && is_pointwise(g_[l.anchor].what) && is_as_a_weight(l.anchor))
      for (int k = 0; k < 2; ++k)
        if (const id o = unshaped(g_, g_[l.anchor].operand(k)); o >= 0 && narrow_[o]) narrow_.add(l.anchor);
  for (const dropped_product& d : p_.dropped) {
    keep_narrow(unshaped(g_, d.wide));
    for (const dropped_term& t : d.terms) keep_narrow(unshaped(g_, t.narrow));
    if (d.how != dropped_product::form::sum) keep_narrow(d.result);
  }
  for (const chained_product& c : p_.chained)
    for (const id i : {c.z, c.x, c.between, c.other, c.result}) keep_narrow(unshaped(g_, i));
  for (const row_launch& r : p_.row_launches)  // and norms of long rows for operands of one type
    if (r.norm >= 0)
      for (const id i : {g_[r.norm].a, r.slope, r.added}) keep_narrow(unshaped(g_, i));
  for (const bound_attention<T>& a : attentions_)
    if (a.runs()) a.each_tensor([&](id i) { narrow_.add(unshaped(g_, i)); });
  sequence<call_memory::value> written;
  constexpr long long size = sizeof(T);
  auto scratch = [&](int launch, long long bytes) {
    if (bytes > 0) written.push({launch, none_id, bytes});
  };
  scratch(call_memory::between_calls, values_.scratch(known_));
  pads_.clear();
  for (int k = 0; k < p_.launches.size(); ++k) {
    const graft::launch& l = p_.launches[k];
    scratch(k, scratch_of(l, largest));
    for (const id i : padded_for(g_, p_, l, largest, dtype_of<T>)) {
      pads_.push({k, i});
      written.push({k, i, g_.sizes.value(g_[i].d[2], largest) * padded_columns(i) * size});
    }
    auto write = [&](id i, long long n) {
      if (!is_brought(i)) written.push({k, i, n * (narrow_[i] ? size : 4)});
    };
    auto write_sum = [&](int sum) {
      if (sum < 0) return;
      write(p_.sums[sum].result, count(g_, p_.sums[sum].result, largest));
      if (const id scaled = p_.sums[sum].scaled; scaled >= 0) write(scaled, count(g_, scaled, largest));
    };
    if (l.product >= 0) {
      for (int n = l.product; n <= l.product + l.together; ++n) {
        for (const id ahead : {p_.products[n].gate, p_.products[n].turn})
          if (ahead >= 0) write(ahead, count(g_, ahead, largest));
        if (const id sum = p_.products[n].turned; sum >= 0) write(sum, count(g_, sum, largest));
        const id i = p_.products[n].result;
        write(i, g_.sizes.value(g_[i].d[2], largest) * products_[n].out_size());
      }
      if (l.gated >= 0) write(l.gated, count(g_, l.gated, largest));
      if (l.norm >= 0) {  // with sums of squares behind the rows
        const id x = p_.row_launches[l.norm].result;
        written.push({k, x, count(g_, x, largest) * static_cast<long long>(sizeof(T)) + bytes_of_squares(x)});
      }
      if (const id z = p_.products[l.product].before_posts; is_read_later(z) && z != p_.products[l.product].turned)
        write(z, count(g_, z, largest));
      for (const int sum : l.beside) write_sum(sum);
    } else if (l.sum >= 0) {
      write_sum(l.sum);
    } else if (l.dropped >= 0) {
      write(p_.dropped[l.dropped].result, count(g_, p_.dropped[l.dropped].result, largest));
    } else if (l.chained >= 0) {
      const chained_product& c = p_.chained[l.chained];
      const bool whole = takes_chain(g_, c, largest, dtype_of<T>, p_.to);
      for (const id i : c.inside())
        if (!whole || (i != c.between && i != c.other)) write(i, count(g_, i, largest));
    } else if (l.stack >= 0) {
      const small_stack& s = p_.stacks[l.stack];
      const bool whole = takes_stack(g_, s, largest, p_.to);
      for (const id i : s.inside)
        if (!whole || is_read_outside(s, i)) write(i, count(g_, i, largest));
    } else {
      if (l.rows >= 0) write(p_.row_launches[l.rows].result, count(g_, p_.row_launches[l.rows].result, largest));
      if (l.rows < 0 || l.what == family::attention) write(l.anchor, count(g_, l.anchor, largest));
      if (l.also >= 0) write(l.also, count(g_, l.also, largest));
      for (const int sum : l.summed) write_sum(sum);
    }
  }
  return memory_.reserve(g_, p_, written, workspace_bytes_);
}
template <class T> long long bound_plan<T>::scratch_of(const graft::launch& l, const size_values& s) const {
  long long bytes = 0;
  each_computed(l, [&](id i) { bytes = larger_of(bytes, values_.scratch(i)); });
  for (const bound_attention<T>& a : attentions_)
    if (a.runs() && a.node() == l.anchor) bytes = larger_of(bytes, a.room());
  if (l.chained >= 0 && p_.chained[l.chained].sums())
    bytes = larger_of(bytes, bytes_of_parts(p_.chained[l.chained], s));
  return bytes;
}
// Sizes that binding could not know, those of an image, come with the call: memory is laid out again for larger ones, and
// for outputs that the caller wants in another type than the launches write, or not at all.
template <class T> status bound_plan<T>::make_room() {
  size_values wanted = reserved_;
  bool fits = true;
  for (int k = 0; k < g_.outs; ++k)
    if (const id i = unshaped(g_, g_.out[k].at); launched(k) && is_brought(i) && written_output(i) < 0)
      lacking_.add(i), fits = false;
  for (int i = 0; i < g_.sizes.count; ++i)
    if (const int index = g_.sizes.e[i].index; index >= 0 && now_.sizes.v[index] > wanted.v[index])
      wanted.v[index] = now_.sizes.v[index], fits = false;
  if (fits) return ok;
  values_.resize(wanted);
  if (status s = reserve_values(wanted); !s) return s;
  reserved_ = wanted;
  return ok;
}
// Points everything at the memory of calls as it is now.
template <class T> void bound_plan<T>::aim() {
  memory_.each([&](id i, void* at) { values_.into(i, {at, narrow_[i] ? dtype_of<T> : dtype::f32}); });
  for (bound_product<T>& b : products_) b.memory_moved();
  for (bound_together<T>& b : together_) b.forget();
  aimed_ = moves();
}

}  // namespace graft::cuda
