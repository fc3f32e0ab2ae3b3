// SPDX-License-Identifier: Apache-2.0
// Packing members of gemm_binding: they write the kernel operands of an adapter (branches, scale and shift per output,
// prologue, rotation) and a weight that is not read in place. A computed weight W + P Q (`weight_update_`) is a GEMM of P and Q
// that adds W, or is followed by an elementwise expression.
#pragma once
#include <graft/backend/gpu/kernels/gemm/binding.cuh>

namespace graft::gpu {

template <class T>
status gemm_binding<T>::grow(cudaStream_t stream, const values& v, const gemm_kernel_set& kernels, const launchers& by,
                             const target& to) {
  const long long rows = size_of(slots_.weight, 2), columns = size_of(slots_.weight, 3), all = update_rank(),
                  rank = size_of(weight_update_.left, weight_update_.left_transposed ? 2 : 3);
  const T* const stored = stored_left();
  T *const left = update_[0].template as<T>(), *const right = update_[1].template as<T>();
  if (all > rank)
    for (const buffer& b : update_)
      if (status s = check(cudaMemsetAsync(b.data(), 0, static_cast<std::size_t>(b.bytes()), stream), "clearing"); !s)
        return s;
  if (stored == nullptr)
    if (status s = put(stream, v, weight_update_.left,
                       {{}, {}, left, rows, rank, 0, 0, all, weight_update_.left_transposed, false});
        !s)
      return s;
  const bool nn = !weight_update_.right_by_row;  // NN: Q is read as stored
  const pack_matrix<T> pack_args{{},    {},   right, nn ? rank : columns, nn ? columns : rank, 0, 0, nn ? columns : all,
                                 false, false};
  if (v[weight_update_.right].p.at != right)
    if (status s = put(stream, v, weight_update_.right, pack_args); !s) return s;
  if (weight_update_calls_.empty()) {
    gemm_operands o;
    o.w = right;
    gemm_problem p{dtype_of<T>, rows, static_cast<int>(columns), static_cast<int>(all), 0};
    p.plain = !weight_update_.adds, p.nn = nn;
    weight_update_calls_ = gemm_launch_cache(kernels, to, p, o);
  }
  const auto bound = weight_update_calls_.at(rows, stored != nullptr ? stored : left, weight_.data(),
                                             weight_update_.adds ? leaf_of(weight_update_.base).data : nullptr);
  if (!bound) return bound.failure();
  if (status s = launch(stream, **bound, false); !s || weight_update_.adds) return s;
  if (by.precomputed_expression == nullptr) return launch_not_compiled("a weight that is computed by a GEMM");
  const element_ptr<float> here{weight_.data(), dtype_of<T>};  // holds P Q and is overwritten by the weight
  status found = ok;
  expression_writer writer(
      *g_, [&](id i) { return is_update_elementwise(*g_, i); },
      [&](id i) {
        if (i == weight_update_.product) return shaped(*g_, i, v.sizes(), here);
        if (i == weight_update_.base)
          return shaped(*g_, i, v.sizes(), element_ptr<float>{const_cast<void*>(leaf_of(i).data), dtype_of<T>});
        const result<tensor<float>> read = v.numbers(stream, i);
        if (!read) found = read.failure();
        return read ? *read : tensor<float>{};
      });
  const expression e = writer.write(slots_.weight);
  if (!found) return found;
  const tensor<float> out = shaped(*g_, slots_.weight, v.sizes(), here);
  return by.precomputed_expression(stream, by.sums, e, out, out);
}
template <class T> status gemm_binding<T>::gather_branches(const values& v, branch_packer<T>& packer) const {
  int rank0 = group_rank_offset_;
  for (const low_rank_branch& branch : slots_.branches) {
    const auto rank = static_cast<int>(g_->sizes.value(branch.rank, sizes_));
    pack_branch<T> one{};
    const scaled_source a = scaled_value(*g_, branch.a, none_id), b = scaled_value(*g_, branch.b, branch.factor);
    if (branch.computes_shrink) one.a = v[a.value].p;
    if (branch.expands) one.b = v[b.value].p;
    if (a.factor >= 0) one.a_factor = v[a.factor].p;
    if (b.factor >= 0) one.factor = v[b.factor].p;
    one.a_to = packed_.a.template as<T>(), one.b_to = packed_.b.template as<T>();
    one.a_tiles = packed_.a_tiles.template as<T>(), one.b_tiles = packed_.b_tiles.template as<T>();
    one.rank = rank, one.first = rank0, one.all = rank_;
    one.in = branch.computes_shrink ? k_ : 0, one.out = branch.expands ? outputs_ : 0, one.slab_rows = padded_rows(n_);
    one.a_transposed = !branch.a_rank_major, one.b_transposed = !branch.b_out_major, one.minus = branch.minus;
    if (status s = packer.add(one); !s) return s;
    rank0 += rank;
  }
  return ok;
}
template <class T>
status gemm_binding<T>::pack_own_branches(cudaStream_t stream, const values& v, const pack_functions& by) {
  if (by.fold == nullptr) return launch_not_compiled("packing a low-rank branch that has no matrices of its own");
  int rank0 = group_rank_offset_;
  for (const low_rank_branch& branch : slots_.branches) {
    const long long rank = g_->sizes.value(branch.rank, sizes_);
    T *const a = packed_.a.template as<T>(), *const b = packed_.b.template as<T>();
    const status done =
        !branch.computes_shrink ? status(ok)
        : branch.a < 0          ? by.fold(stream, a, rank, rank0, k_)
                       : put(stream, v, branch.a, {{}, {}, a, rank, k_, rank0, 0, k_, !branch.a_rank_major, false});
    if (!done) return done;
    pack_matrix<T> pack_args{{}, {}, b, outputs_, rank, 0, rank0, rank_, !branch.b_out_major, branch.minus};
    if (branch.factor >= 0) pack_args.factor = v[branch.factor].p;
    const repeated_branch repeated{b, outputs_, rank, rank0, rank_, pack_args.factor, branch.minus};
    const status expands = !branch.expands ? status(ok)
                           : branch.b < 0  ? by.repeat(stream, repeated)
                                           : put(stream, v, branch.b, pack_args);
    if (!expands) return expands;
    rank0 += static_cast<int>(rank);
  }
  return packed_.record.a_tiles == nullptr ? status(ok) : by.tile(stream, packed_.tiles(n_, k_));
}
// Packs the epilogue as one scale and one shift per output. Where adapters are switchable both exist, as ones and
// zeros, because another adapter may need them.
template <class T> status gemm_binding<T>::pack_epilogue(cudaStream_t stream, const values& v) {
  if (slots_.epilogue_steps.empty() && shared_ == nullptr) return ok;
  const long long columns = padded_rows(n_) + row_padding;
  float *const scale = record_scale(packed_), *const shift = record_shift(packed_);
  if (status s = each(stream, columns, fill_vector<float>{scale, 1}, "ones"); !s) return s;
  if (status s = each(stream, columns, fill_vector<float>{shift, 0}, "zeros"); !s) return s;
  for (const epilogue_step& step : slots_.epilogue_steps) {
    const int what = step.what == op::add ? 0 : step.what == op::sub ? 1 : step.what == op::mul ? 2 : 3;
    const tensor<float> t = v[step.operand];
    if (status s = each(stream, columns, apply_epilogue{scale, shift, t.p, outputs_, t.count() == 1 ? 0 : 1, what},
                        "epilogue");
        !s)
      return s;
  }
  packed_.record.scale = has_epilogue(op::mul, op::div) ? scale : nullptr;
  packed_.record.shift = has_epilogue(op::add, op::sub) ? shift : nullptr;
  return ok;
}
template <class T>
status gemm_binding<T>::pack(cudaStream_t stream, const values& v, branch_packer<T>& packer,
                             const gemm_kernel_set& kernels, const launchers& with, const target& to) {
  const pack_functions& by = with.packs;
  pdl_ = false;  // the next call reads the packed values, so its kernel must not start early
  if (weight_update_.found) {
    if (status s = weight_owner_ != nullptr ? status(ok) : grow(stream, v, kernels, with, to); !s) return s;
  } else if (!weight_in_place())
    if (status s = put(stream, v, slots_.weight,
                       {{}, {}, weight_.as<T>(), outputs_, k_, 0, 0, k_, !slots_.weight_is_nt, false});
        !s)
      return s;
  if (status s = packs_plainly(*g_, slots_) ? gather_branches(v, packer) : pack_own_branches(stream, v, by); !s)
    return s;
  if (has_prologue()) {
    T* const to = packed_.prologue.template as<T>();
    const status s = slots_.prologue < 0 ? each(stream, k_, fill_vector<T>{to, 1}, "ones")
                                         : put(stream, v, slots_.prologue, {{}, {}, to, 1, k_, 0, 0, k_, false, false});
    if (!s) return s;
  }
  if (sizeof(T) == 2 && rotation_.bytes() > 0) {
    if (by.fused_rotation == nullptr) return launch_not_compiled("a rotation fused into a GEMM");
    const tensor<float> q = v[(*g_)[slots_.result].b];
    float* const one = v.composed_of(slots_.result);
    const rotation r =
        one != nullptr ? rotation(n_, rotation::composed_width) : rotation(q, n_, (*g_)[slots_.result].tb);
    if (status s = by.fused_rotation(stream, one != nullptr ? element_ptr<float>(one) : q.p, r, rotation_.data(), n_);
        !s)
      return s;
  }
  return pack_epilogue(stream, v);
}

}  // namespace graft::gpu
