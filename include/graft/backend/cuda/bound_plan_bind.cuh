// SPDX-License-Identifier: Apache-2.0
// The members of bound_plan that bind it: which values are computed when, and what is packed for kernels.
#pragma once
#include <graft/backend/cuda/bound_plan.cuh>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

template <class T> bound_plan<T>::bound_plan(const graph& g, const target& to) : g_(g), p_(fuse(g, to)) {
  readers_ = graft::detail::count_readers(g_, p_.live);
  for (const token_sum& s : p_.sums) read_.push(s.left), read_.push(s.right), read_.push(s.scaled);
  for (const product_slots& s : p_.products)
    for (const id i : {s.x, s.other, s.gate, s.turn, s.residual}) read_.push(i);
  for (const chained_product& c : p_.chained) read_.push(c.z), read_.push(c.x);
  for (id i = 0; i < g_.size; ++i)
    if (is_leaf(g_[i].what) && row(g_[i].what).known == stage::data) inputs_.push(i);
  if (to.gathers == target::work::by_products)
    for (const graft::launch& l : p_.launches)
      if (is_attention(g_[l.anchor].what))
        attentions_.extend() = {g_, l.anchor, l.rows >= 0 ? &p_.row_launches[l.rows] : nullptr};
  make_launches();
}
template <class T>
status bound_plan<T>::bind(cudaStream_t stream, const kernel_set& kernels, const size_values& s,
                           const leaf_views& leaves, const capacity& room, shared_slots<T>& shared, code_panel& panel,
                           call_room* of_model) {
  for (id i = 0; i < g_.size; ++i)
    if (const view& v = leaves[i]; v.data != nullptr && !v.contiguous())
      return fail("tensor '", g_.name(i), "' is not stored row after row; on the GPU copy it first");
  if (products_.empty() && sums_.empty()) make_launches();
  next_gain_ = {};
  mixed_ = {};  // what lies here may have been another layer's
  kernels_ = &kernels, leaves_ = leaves;
  now_.data = leaf_views(g_.size), now_.outputs = sequence<mutable_view>(g_.outs);
  now_.sizes = sizes_ = s;
  size_values largest = s;
  g_.sizes.set_tokens(largest, room.tokens);
  reserved_ = largest;
  values_ = values(g_, largest, leaves_, kernels.evaluate, &kernels.ranks);
  in_model_ = of_model != nullptr, room_ = in_model_ ? of_model : shared.room.get();
  lacking_ = normed_ = node_set(g_.size);
  memory_.lie_in(&room_->values);
  values_.decode_into(panel_ = &panel, dtype_of<T>);
  if (kernels.launches.codes.decode != nullptr) panel.read_by(kernels.launches.codes);
  if (panel.readers().decode == nullptr && values_.has_codes()) return no_codes();
  if (status st = panel.reserve(values_.panel_bytes(dtype_of<T>)); !st) return st;
  for (bound_attention<T>& a : attentions_)
    if (status st = a.bind(stream, largest, p_.to, kernels.attention); !st) return st;
  join_ranks(s);
  int rank = 0;
  for (bound_product<T>& b : products_) {
    if (status st = b.bind(stream, largest, leaves_, one_product() ? &shared : nullptr, &panel); !st) return st;
    rank = larger_of(rank, b.rank());
  }
  for (bound_together<T>& b : together_) b.forget();
  collect();
  for (bound_product<T>& b : products_)  // what only a product reads that makes a weight is written as it reads it
    if (const id i = b.update_source(); i >= 0 && readers_[i] == 1 && known_[i])
      values_.into(i, {b.update_place(), dtype_of<T>});
  const bool together = one_product() && shared.used;
  of_adapters_ = together ? &shared.workspace : nullptr;
  workspace_bytes_ = products_.empty() ? 0 : workspace_bound(room.tokens, rank);
  if (together)
    if (status st = of_adapters_->reserve(std::exchange(workspace_bytes_, 0)); !st) return st;
  if (status st = reserve_values(largest); !st) return st;
  values_.scratch_at(memory_.scratch(call_memory::between_calls));
  if (status st = joined_.compute(stream, g_, kernels_->launches, values_, known_); !st) return st;
  if (status st = pack(stream); !st) return st;
  if (products_.empty()) return aim(), status(ok);
  if (p_.norm_of_input >= 0) {
    const id x = p_.row_launches[p_.norm_of_input].result;
    const long long row = g_.sizes.value(g_[x].d[3], s) * static_cast<long long>(sizeof(T));
    if (status st = room_->normed_rows.reserve(most_normed_tokens * row + bytes_of_squares(x)); !st) return st;
  }
  buffer& counters = together ? shared.counters : own_counters_;
  const long long kept = values_.has_codes() ? bytes_kept_by_brief : 0, all = kept + counter_bytes(room.tokens);
  const bool grows = counters.bytes() < all;
  if (grows) {
    ++moved_;
    if (status st = counters.reserve(all); !st) return st;
  }
  std::uint32_t* const begin = counters.as<std::uint32_t>() + kept / 4;
  if (std::exchange(counters_, begin) != begin || grows) {
    const auto bytes = static_cast<std::size_t>(counters.bytes());
    if (status st = check(cudaMemsetAsync(counters.data(), 0, bytes, stream), "clearing"); !st) return st;
  }
  return aim(), status(ok);
}
template <class T> status bound_plan<T>::parameters_changed(cudaStream_t stream, buffer* scratch) {
  if (aimed_ != moves()) aim();
  values_.scratch_at(memory_.scratch(call_memory::between_calls));
  if (scratch != nullptr) {
    const long long bytes = values_.scratch(changing_);
    if (bytes > scratch->bytes()) ++moved_;  // also for plans of the same model that were captured with it
    if (status s = scratch->reserve(bytes); !s) return s;
    values_.scratch_at(scratch->as<float>());
  }
  if (status s = joined_.compute(stream, g_, kernels_->launches, values_, changing_); !s) return s;
  return pack(stream);
}
template <class T> status bound_plan<T>::weight_changed(cudaStream_t stream) {
  if (aimed_ != moves()) aim();
  values_.scratch_at(memory_.scratch(call_memory::between_calls));
  if (status s = joined_.compute(stream, g_, kernels_->launches, values_, known_); !s) return s;
  unchain();
  return pack(stream);
}
template <class T> status bound_plan<T>::publish(cudaStream_t stream) {
  for (bound_product<T>& b : products_)
    if (status s = b.publish(stream); !s) return s;
  return ok;
}
template <class T> void bound_plan<T>::make_launches() {
  // They are large, and stay where they are: room for so many and no more.
  sums_.reserve(p_.sums.size()), products_.reserve(p_.products.size());
  int joint = 0;
  for (const graft::launch& l : p_.launches) joint += l.together > 0 ? 1 : 0;
  together_.reserve(joint);
  sequence<int> by_sums(g_.size, 0);
  for (const token_sum& s : p_.sums) {
    sums_.extend() = bound_sum<T>(s);
    if (!s.by_column) ++by_sums[unshaped(g_, s.left)], ++by_sums[unshaped(g_, s.right)];
  }
  for (const product_slots& s : p_.products)
    products_.extend() = {g_, s,
                          s.before_posts < 0 && by_sums[s.result] > 0 && by_sums[s.result] == readers_[s.result]};
  for (const graft::launch& l : p_.launches)
    if (l.together > 0) together_.extend() = {l.product, l.together + 1};
}
template <class T> void bound_plan<T>::join_ranks(const size_values& s) {
  for (const graft::launch& l : p_.launches) {
    if (l.together == 0) continue;
    int own[max_segments] = {};
    bool coded = false;
    for (int k = 0; k <= l.together; ++k) {
      const product_slots& p = p_.products[l.product + k];
      own[k] = padded_rank(static_cast<int>(side_rank(g_, p, s)));
      const id leaf = base_leaf(g_, p.weight);
      coded = coded || (leaf >= 0 && leaves_[leaf].beside != nullptr);
    }
    const joint_rank all = coded ? joint_rank{} : rank_together(own, l.together + 1, l.gated >= 0);
    for (int k = 0; k <= l.together; ++k)
      products_[l.product + k].stands_with(all.rank, k == 1 && all.apart ? gated_rank : 0);
  }
}
template <class T> void bound_plan<T>::collect() {
  known_ = changing_ = computed_ = node_set(g_.size);
  for (bound_product<T>& b : products_) b.each_source([&](id i) { need(i); });
  for (const token_sum& s : p_.sums) need(s.factor), need(s.scale), need_known(s.left), need_known(s.right);
  for (const graft::launch& l : p_.launches) {
    each_computed(l, [&](id i) { computed_.add(i); });
    if (l.norm >= 0)
      for (const id n : p_.row_launches[l.norm].inside)
        for (int k = 0; k < 3; ++k) need_known(g_[n].operand(k));
    for (int k = l.product; l.product >= 0 && k <= l.product + l.together; ++k)
      for (const id turn : {p_.products[k].turn, p_.products[k].turned >= 0 ? p_.products[k].result : none_id})
        if (turn >= 0) need(g_[turn].b);
    if (l.product < 0 && l.sum < 0)
      for (int n = l.first; n < l.first + l.count; ++n)
        for (int k = 0; k < 3; ++k) need_known(g_[p_.nodes[n]].operand(k));
  }
  for (int k = 0; k < g_.outs; ++k) need_known(g_.out[k].at);
  for (id i = 0; i < g_.size; ++i) changing_.in[i] = known_[i] && p_.when.of[i] == stage::parameter;
  only_product_ = one_product() && p_.products[0].residual < 0;
  sequence<int> readers = readers_;  // and packing is one
  for (const bound_product<T>& b : products_)
    b.each_source([&](id i) {
      if (i >= 0) ++readers[i];
    });
  joined_.find(g_, p_.when, readers, changing_);
}
template <class T> status bound_plan<T>::pack(cudaStream_t stream) {
  side_packer<T> sides(stream);
  for (id i = 0; i < g_.size; ++i)
    if (computed_[i] && g_[i].what == op::rotate && p_.when.of[g_[i].b] != stage::data)
      if (status s = values_.compose_factors(stream, i); !s) return s;
  for (bound_product<T>& b : products_)
    if (status s = b.pack(stream, values_, sides, kernels_->linear, kernels_->launches, p_.to); !s) return s;
  return sides.flush();
}

}  // namespace graft::cuda
