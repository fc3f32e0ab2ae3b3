// SPDX-License-Identifier: Apache-2.0
// The members of bound_plan that put a norm inside the products around it (plan/norm_between.h): whether the kernels of
// this call take it, and where h ⊙ gain and its sums of squares lie. They lie behind each other: in the memory of the
// norm's result, or between two blocks in memory that all plans of a model share. Ahead of the first block the look-up of
// the ids writes them.
#pragma once
#include <graft/backend/cuda/bound_plan.cuh>

namespace graft::cuda {

namespace detail {
inline bool by_sixteen(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }
inline float* squares_behind(const void* rows, long long bytes) {
  return reinterpret_cast<float*>(static_cast<char*>(const_cast<void*>(rows)) + bytes);
}
}  // namespace detail

// Do all products that read x take it as h ⊙ gain?
template <class T> bool bound_plan<T>::takes_norm(id x, long long m, const target& to) const {
  bool all = true;
  for (const graft::launch& l : p_.launches)
    for (int k = l.product; l.product >= 0 && k <= l.product + l.together; ++k) {
      if (p_.products[k].x != x) continue;
      const int written = written_output(p_.products[k].result);
      const id residual = p_.products[k].residual;
      all = all && !mixes(l) && (residual < 0 || detail::by_sixteen(tensor_at(residual))) &&
            (written < 0 || detail::by_sixteen(now_.outputs[written].data)) &&
            products_[k].stands_by_norm(m, kernels_->linear, to);
    }
  return all;
}
// What the launch of a product stores for a norm behind its result: one of this plan, or the first of the next block.
template <class T> norm_behind bound_plan<T>::norm_behind_of(const graft::launch& l, long long m, const target& to) {
  const id h = p_.products[l.product].result;
  const bool last = next_gain_.at != nullptr && room_->normed_rows.bytes() > 0 && l.norm < 0 && written_output(h) == 0;
  if ((l.norm < 0 && !last) || l.together > 0 || mixes(l)) return {};
  const long long columns = g_.sizes.value(g_[h].d[3], now_.sizes);
  const bound_product<T>& before = products_[l.product];
  if (!takes_norm_of(columns) || !before.stands_by_norm(m, kernels_->linear, to)) return {};
  const cells<float> gain = last ? next_gain_ : values_[p_.row_launches[l.norm].scale].p;
  const id residual = p_.products[l.product].residual;
  if ((gain.type != dtype::f32 && gain.type != dtype_of<T>) || !detail::by_sixteen(gain.at) ||
      !detail::by_sixteen(tensor_at(h)) || !detail::by_sixteen(tensor_at(p_.products[l.product].x)) ||
      (residual >= 0 && !detail::by_sixteen(tensor_at(residual))))
    return {};
  const long long bytes = m * columns * static_cast<long long>(sizeof(T));
  if (last) {
    room_->normed = {tensor_at(h), gain.at, m};
    void* const rows = room_->normed_rows.data();
    return {gain.at, rows, detail::squares_behind(rows, bytes), gain.type == dtype::f32};
  }
  const row_launch& r = p_.row_launches[l.norm];
  if (!takes_norm(r.result, m, to) || values_[g_[r.norm].b].p.type != dtype::f32) return {};
  void* const rows = place_of(r.result);
  normed_.add(r.result);
  return {gain.at, rows, detail::squares_behind(rows, bytes), gain.type == dtype::f32};
}
template <class T> norm_ahead bound_plan<T>::norm_ahead_of(id x, long long m) const {
  if (!normed_[x]) return {};
  const long long columns = g_.sizes.value(g_[x].d[3], now_.sizes);
  for (const row_launch& r : p_.row_launches)
    if (r.result == x)
      return {detail::squares_behind(tensor_at(x), m * columns * static_cast<long long>(sizeof(T))),
              static_cast<const float*>(values_[g_[r.norm].b].p.at)};
  return {};
}
// Has the block before done the norm that this one begins with?
template <class T> bool bound_plan<T>::take_normed_input(const row_launch& r) {
  if (p_.norm_of_input < 0 || r.result != p_.row_launches[p_.norm_of_input].result) return false;
  const normed_result& from = normed_input_;
  const long long m = g_.sizes.value(g_[r.result].d[2], now_.sizes);
  const bool same = from.result != nullptr && from.result == tensor_at(g_[r.norm].a) && from.rows == m &&
                    from.gain == values_[r.scale].p.at && values_[g_[r.norm].b].p.type == dtype::f32;
  if (!same || !takes_norm(r.result, m, p_.to)) return false;
  values_.put(r.result, {room_->normed_rows.data(), dtype_of<T>});
  normed_.add(r.result);
  return true;
}
// Rows of a table that the next block begins to norm; false: it is not such a look-up, and nothing was launched.
template <class T> result<bool> bound_plan<T>::look_up_for_norm(cudaStream_t stream, id i) {
  const graft::node& v = g_[i];
  // Models in bf16 have it; elsewhere the look-up and the norm are launches of their own.
  const auto look_up = kernels_->launches.look_up;
  if (look_up == nullptr || !looks_up_rows(v) || next_gain_.at == nullptr || written_output(i) != 0) return false;
  const long long m = g_.sizes.value(v.d[2], now_.sizes), columns = g_.sizes.value(v.d[3], now_.sizes);
  const tensor<float> table = values_[v.a];
  void* const h = now_.outputs[0].data;
  const bool fits = dtype_of<T> == dtype::bf16 && m > 0 && m <= most_normed_tokens && takes_norm_of(columns) &&
                    table.p.type == dtype_of<T> && leaves_[unshaped(g_, v.a)].beside == nullptr &&
                    (next_gain_.type == dtype::f32 || next_gain_.type == dtype_of<T>);
  if (!fits || room_->normed_rows.bytes() == 0 || !detail::by_sixteen(table.p.at) || !detail::by_sixteen(h) ||
      !detail::by_sixteen(next_gain_.at))
    return false;
  void* const rows = room_->normed_rows.data();
  const look_up_args g{
      table.p.at,
      static_cast<const std::int64_t*>(tensor_at(v.b)),
      table.d[2],
      static_cast<int>(columns),
      static_cast<int>(m),
      h,
      {next_gain_.at, rows, detail::squares_behind(rows, m * columns * static_cast<long long>(sizeof(T))),
       next_gain_.type == dtype::f32}};
  if (status s = look_up(stream, g); !s) return s.failure();
  values_.put(i, {h, dtype_of<T>});
  room_->normed = {h, next_gain_.at, m};
  return true;
}

}  // namespace graft::cuda
