// SPDX-License-Identifier: Apache-2.0
// The members of bound_product that write what its kernels read: the sides of an adapter, factors and summands of the
// outputs, a rotation, and a weight that is not read where it lies.
#pragma once
#include <graft/backend/cuda/bound_product.cuh>

namespace graft::cuda {

template <class T>
status bound_product<T>::grow(cudaStream_t stream, const values& v, const linear_kernels& kernels, const launchers& by,
                              const target& to) {
  const long long rows = size_of(slots_.weight, 2), columns = size_of(slots_.weight, 3), all = update_rank(),
                  rank = size_of(grown_.left, grown_.left_across ? 2 : 3);
  const T* const stored = stored_left();
  T *const left = update_[0].template as<T>(), *const right = update_[1].template as<T>();
  if (all > rank)
    for (const buffer& b : update_)
      if (status s = check(cudaMemsetAsync(b.data(), 0, static_cast<std::size_t>(b.bytes()), stream), "clearing"); !s)
        return s;
  if (stored == nullptr)
    if (status s = put(stream, v, grown_.left, {{}, {}, left, rows, rank, 0, 0, all, grown_.left_across, false}); !s)
      return s;
  const bool across = !grown_.right_by_row;  // read as it lies
  const pack_matrix<T> how{
      {}, {}, right, across ? rank : columns, across ? columns : rank, 0, 0, across ? columns : all, false, false};
  if (v[grown_.right].p.at != right)
    if (status s = put(stream, v, grown_.right, how); !s) return s;
  if (grows_.empty()) {
    linear_operands o;
    o.w = right;
    product_shape p{dtype_of<T>, rows, static_cast<int>(columns), static_cast<int>(all), 0};
    p.plain = !grown_.adds, p.across = across;
    grows_ = linear_calls(kernels, to, p, o);
  }
  const auto bound = grows_.at(rows, stored != nullptr ? stored : left, weight_.data(),
                               grown_.adds ? leaf_of(grown_.base).data : nullptr);
  if (!bound) return bound.failure();
  if (status s = launch(stream, **bound, false); !s || grown_.adds) return s;
  if (by.known_expression == nullptr) return not_launched("a weight that follows from a product");
  const cells<float> here{weight_.data(), dtype_of<T>};  // P Q, and in its place the weight
  status found = ok;
  expression_writer writer(
      *g_, [&](id i) { return grows_inside(*g_, i); },
      [&](id i) {
        if (i == grown_.product) return shaped(*g_, i, v.sizes(), here);
        if (i == grown_.base)
          return shaped(*g_, i, v.sizes(), cells<float>{const_cast<void*>(leaf_of(i).data), dtype_of<T>});
        const result<tensor<float>> read = v.numbers(stream, i);
        if (!read) found = read.failure();
        return read ? *read : tensor<float>{};
      });
  const expression e = writer.write(slots_.weight);
  if (!found) return found;
  const tensor<float> out = shaped(*g_, slots_.weight, v.sizes(), here);
  return by.known_expression(stream, by.sums, e, out, out);
}
template <class T> status bound_product<T>::gather_sides(const values& v, side_packer<T>& sides) const {
  int rank0 = first_rank_;
  for (const side_branch& side : slots_.sides) {
    const auto rank = static_cast<int>(g_->sizes.value(side.rank, sizes_));
    pack_side<T> one{};
    const scaled_source a = scaled_value(*g_, side.a, none_id), b = scaled_value(*g_, side.b, side.factor);
    if (side.made) one.a = v[a.value].p;
    if (side.added) one.b = v[b.value].p;
    if (a.factor >= 0) one.a_factor = v[a.factor].p;
    if (b.factor >= 0) one.factor = v[b.factor].p;
    one.a_to = packed_.a.template as<T>(), one.b_to = packed_.b.template as<T>();
    one.a_tiles = packed_.a_tiles.template as<T>(), one.b_tiles = packed_.b_tiles.template as<T>();
    one.rank = rank, one.first = rank0, one.all = rank_;
    one.in = side.made ? k_ : 0, one.out = side.added ? outputs_ : 0, one.slab_rows = padded_rows(n_);
    one.a_across = !side.a_by_rank, one.b_across = !side.b_by_row, one.minus = side.minus;
    if (status s = sides.add(one); !s) return s;
    rank0 += rank;
  }
  return ok;
}
template <class T> status bound_product<T>::pack_sides(cudaStream_t stream, const values& v, const pack_functions& by) {
  if (by.fold == nullptr) return not_launched("packing a side that is no matrices of its own");
  int rank0 = first_rank_;
  for (const side_branch& side : slots_.sides) {
    const long long rank = g_->sizes.value(side.rank, sizes_);
    T *const a = packed_.a.template as<T>(), *const b = packed_.b.template as<T>();
    const status done = !side.made ? status(ok)
                        : side.a < 0
                            ? by.fold(stream, a, rank, rank0, k_)
                            : put(stream, v, side.a, {{}, {}, a, rank, k_, rank0, 0, k_, !side.a_by_rank, false});
    if (!done) return done;
    pack_matrix<T> how{{}, {}, b, outputs_, rank, 0, rank0, rank_, !side.b_by_row, side.minus};
    if (side.factor >= 0) how.factor = v[side.factor].p;
    const repeated_side repeated{b, outputs_, rank, rank0, rank_, how.factor, side.minus};
    const status expands = !side.added  ? status(ok)
                           : side.b < 0 ? by.repeat(stream, repeated)
                                        : put(stream, v, side.b, how);
    if (!expands) return expands;
    rank0 += static_cast<int>(rank);
  }
  return packed_.record.a_tiles == nullptr ? status(ok) : by.tile(stream, packed_.tiles(n_, k_));
}
// The post slot as one factor and one summand per output; ones or zeros where the layer may have another adapter that
// needs them.
template <class T> status bound_product<T>::pack_post(cudaStream_t stream, const values& v) {
  if (slots_.posts.empty() && shared_ == nullptr) return ok;
  const long long columns = padded_rows(n_) + row_padding;
  float *const scale = record_scale(packed_), *const shift = record_shift(packed_);
  if (status s = each(stream, columns, fill_vector<float>{scale, 1}, "ones"); !s) return s;
  if (status s = each(stream, columns, fill_vector<float>{shift, 0}, "zeros"); !s) return s;
  for (const post_step& step : slots_.posts) {
    const int what = step.what == op::add ? 0 : step.what == op::sub ? 1 : step.what == op::mul ? 2 : 3;
    const tensor<float> t = v[step.operand];
    if (status s = each(stream, columns, apply_post{scale, shift, t.p, outputs_, t.count() == 1 ? 0 : 1, what}, "post");
        !s)
      return s;
  }
  packed_.record.scale = has_post(op::mul, op::div) ? scale : nullptr;
  packed_.record.shift = has_post(op::add, op::sub) ? shift : nullptr;
  return ok;
}
template <class T>
status bound_product<T>::pack(cudaStream_t stream, const values& v, side_packer<T>& sides,
                              const linear_kernels& kernels, const launchers& with, const target& to) {
  const pack_functions& by = with.packs;
  chained_ = false;  // the next call reads what is written here
  if (grown_.found) {
    if (status s = lender_ != nullptr ? status(ok) : grow(stream, v, kernels, with, to); !s) return s;
  } else if (!weight_in_place())
    if (status s = put(stream, v, slots_.weight,
                       {{}, {}, weight_.as<T>(), outputs_, k_, 0, 0, k_, !slots_.weight_by_row, false});
        !s)
      return s;
  if (status s = packs_plainly(*g_, slots_) ? gather_sides(v, sides) : pack_sides(stream, v, by); !s) return s;
  if (has_pre()) {
    T* const to = packed_.pre.template as<T>();
    const status s = slots_.pre < 0 ? each(stream, k_, fill_vector<T>{to, 1}, "ones")
                                    : put(stream, v, slots_.pre, {{}, {}, to, 1, k_, 0, 0, k_, false, false});
    if (!s) return s;
  }
  if (sizeof(T) == 2 && turn_.bytes() > 0) {
    if (by.turn == nullptr) return not_launched("a rotation behind a product");
    const tensor<float> q = v[(*g_)[slots_.result].b];
    float* const one = v.composed_of(slots_.result);
    const rotation r = one != nullptr ? rotation(n_, rotation::wide) : rotation(q, n_, (*g_)[slots_.result].tb);
    if (status s = by.turn(stream, one != nullptr ? cells<float>(one) : q.p, r, turn_.data(), n_); !s) return s;
  }
  return pack_post(stream, v);
}

}  // namespace graft::cuda
