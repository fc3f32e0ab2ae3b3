// SPDX-License-Identifier: Apache-2.0
// RMS norm fused into the GEMMs around it (plan/launch/gemm.h), members of execution: the GEMM before the norm stores
// h ⊙ gain and sums of squares of h in its epilogue, and the GEMMs after it scale their accumulators by 1 / rms(h):
//     norm(h) Wᵀ = ((h ⊙ gain) Wᵀ) / rms(h)         h [tokens, columns], up to 16 tokens, bf16
// The functions decide per call whether the kernels of all these GEMMs support it, and where h ⊙ gain [tokens, columns]
// and, directly after it, the sums of squares [tokens, columns / 16] are stored: in the memory of the norm's result,
// or, between two blocks of a model, in memory that all plans share. For the first block the embedding look-up writes
// them.
#pragma once
#include <graft/backend/gpu/runtime/execution.cuh>

namespace graft::gpu {

namespace detail {
inline bool aligned16(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }
inline float* squares_after(const void* rows, long long bytes) {
  return reinterpret_cast<float*>(static_cast<char*>(const_cast<void*>(rows)) + bytes);
}
}  // namespace detail

// Can all GEMMs that read x, a norm's result, read h ⊙ gain instead?
template <class T> bool execution<T>::fuses_norm(id x, long long m) const {
  bool all = true;
  for (const gemm_launch& l : p_.all<gemm_launch>())
    l.each_product([&](int k) {
      if (p_.products[k].x != x) return;
      const int written = written_output(p_.products[k].result);
      const id residual = p_.products[k].residual;
      all = all && !is_multi_lora(l) && (residual < 0 || detail::aligned16(tensor_at(residual))) &&
            (written < 0 || detail::aligned16(call_.outputs[written].data)) &&
            binding_.products[k].can_fuse_norm(m, kernels_.gemm, to_);
    });
  return all;
}
// What the epilogue of a GEMM stores for the norm of its result: a norm of this plan, or the first one of the next
// block.
template <class T> epilogue_norm execution<T>::epilogue_norm_of(const gemm_launch& l, long long m) {
  const id h = p_.products[l.product].result;
  const bool last = binding_.next_gain.at != nullptr && program_.shared_workspace_->norm_scaled_rows.bytes() > 0 &&
                    l.norm < 0 && written_output(h) == 0;
  if ((l.norm < 0 && !last) || l.grouped > 0 || is_multi_lora(l)) return {};
  const long long columns = g_.sizes.value(g_[h].d[3], call_.sizes);
  const gemm_binding<T>& before = binding_.products[l.product];
  if (!can_norm_columns(columns) || !before.can_fuse_norm(m, kernels_.gemm, to_)) return {};
  const element_ptr<float> gain = last ? binding_.next_gain : values_[p_.all<rowwise_launch>()[l.norm].scale].p;
  const id residual = p_.products[l.product].residual;
  if ((gain.type != dtype::f32 && gain.type != dtype_of<T>) || !detail::aligned16(gain.at) ||
      !detail::aligned16(tensor_at(h)) || !detail::aligned16(tensor_at(p_.products[l.product].x)) ||
      (residual >= 0 && !detail::aligned16(tensor_at(residual))))
    return {};
  const long long bytes = m * columns * static_cast<long long>(sizeof(T));
  if (last) {
    program_.shared_workspace_->normed = {tensor_at(h), gain.at, m};
    void* const rows = program_.shared_workspace_->norm_scaled_rows.data();
    return {gain.at, rows, detail::squares_after(rows, bytes), gain.type == dtype::f32};
  }
  const rowwise_launch& r = p_.all<rowwise_launch>()[l.norm];
  if (!fuses_norm(r.result, m) || values_[g_[r.norm].b].p.type != dtype::f32) return {};
  void* const rows = output_ptr(r.result);
  binding_.normed.add(r.result);
  return {gain.at, rows, detail::squares_after(rows, bytes), gain.type == dtype::f32};
}
// What the prologue of a GEMM reads if its x is stored as h ⊙ gain in this call.
template <class T> prologue_norm execution<T>::prologue_norm_of(id x, long long m) const {
  if (!binding_.normed[x]) return {};
  const long long columns = g_.sizes.value(g_[x].d[3], call_.sizes);
  for (const rowwise_launch& r : p_.all<rowwise_launch>())
    if (r.result == x)
      return {detail::squares_after(tensor_at(x), m * columns * static_cast<long long>(sizeof(T))),
              static_cast<const float*>(values_[g_[r.norm].b].p.at)};
  return {};
}
// Makes norm r read what the previous block stored for it, if that is valid for this call. Then r needs no launch.
template <class T> bool execution<T>::use_normed_input(const rowwise_launch& r) {
  if (p_.input_norm < 0 || r.result != p_.all<rowwise_launch>()[p_.input_norm].result) return false;
  const scaled_result& from = normed_input_;
  const long long m = g_.sizes.value(g_[r.result].d[2], call_.sizes);
  const bool same = from.result != nullptr && from.result == tensor_at(g_[r.norm].a) && from.rows == m &&
                    from.gain == values_[r.scale].p.at && values_[g_[r.norm].b].p.type == dtype::f32;
  if (!same || !fuses_norm(r.result, m)) return false;
  values_.put(r.result, {program_.shared_workspace_->norm_scaled_rows.data(), dtype_of<T>});
  binding_.normed.add(r.result);
  return true;
}
// Looks up embedding rows h and stores h ⊙ gain and the sums of squares for the first norm of the next block. Returns
// false, and launches nothing, if node i is no such look-up or its kernel does not fit.
template <class T> result<bool> execution<T>::gather_for_norm(id i) {
  const graft::node& v = g_[i];
  // Only bf16 models compile this kernel; otherwise the look-up and the norm are separate launches.
  const auto gather_norm = kernels_.launches.gather_norm;
  if (gather_norm == nullptr || !gathers_rows(v) || binding_.next_gain.at == nullptr || written_output(i) != 0)
    return false;
  const long long m = g_.sizes.value(v.d[2], call_.sizes), columns = g_.sizes.value(v.d[3], call_.sizes);
  const tensor<float> table = values_[v.a];
  void* const h = call_.outputs[0].data;
  const bool fits = dtype_of<T> == dtype::bf16 && m > 0 && m <= max_fused_norm_tokens && can_norm_columns(columns) &&
                    table.p.type == dtype_of<T> && binding_.leaves[unshaped(g_, v.a)].quant == nullptr &&
                    (binding_.next_gain.type == dtype::f32 || binding_.next_gain.type == dtype_of<T>);
  if (!fits || program_.shared_workspace_->norm_scaled_rows.bytes() == 0 || !detail::aligned16(table.p.at) ||
      !detail::aligned16(h) || !detail::aligned16(binding_.next_gain.at))
    return false;
  void* const rows = program_.shared_workspace_->norm_scaled_rows.data();
  const gather_norm_args g{
      table.p.at,
      static_cast<const std::int64_t*>(tensor_at(v.b)),
      table.d[2],
      static_cast<int>(columns),
      static_cast<int>(m),
      h,
      {binding_.next_gain.at, rows, detail::squares_after(rows, m * columns * static_cast<long long>(sizeof(T))),
       binding_.next_gain.type == dtype::f32}};
  if (status s = gather_norm(stream_, g); !s) return s.failure();
  values_.put(i, {h, dtype_of<T>});
  program_.shared_workspace_->normed = {h, binding_.next_gain.at, m};
  return true;
}

}  // namespace graft::gpu
