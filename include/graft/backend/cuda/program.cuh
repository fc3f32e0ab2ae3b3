// SPDX-License-Identifier: Apache-2.0
// One forward graph on the GPU. Where it has the form of a product with its slots (plan/slots.h) it runs as that
// product, after the nodes that make its input, if any; else node by node. Values known before the data are computed by
// refresh().
#pragma once
#include <graft/backend/cuda/linear.cuh>
#include <graft/backend/cuda/packed.cuh>
#include <graft/backend/cuda/values.cuh>
#include <graft/plan/slots.h>

#include <optional>

namespace graft::cuda {

template <class T> class program {
 public:
  explicit program(const graph& g) : g_(g), when_(schedule(g)), slots_(slots_of(g, when_)) {}
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  bool fused() const { return slots_.found; }
  // Nothing but the product: the input is the caller's x.
  bool one_kernel() const { return fused() && g_[input()].what == op::input; }
  // The input is the caller's x with a factor per column, which the product can take over.
  bool has_pre() const { return fused() && slots_.pre >= 0 && g_[slots_.unscaled].what == op::input; }
  void fuse_pre() {
    pre_fused_ = true;
    collect();
  }
  const linear_slots& slots() const { return slots_; }
  const graph& value() const { return g_; }

  // Sizes and leaves of a call like this one.
  void bind(const size_values& sizes, const std::vector<view>& leaves) {
    leaves_ = leaves;
    values_.emplace(g_, sizes, leaves);
    sizes_ = sizes;
    collect();
  }
  int out_size() const { return static_cast<int>(size_of(slots_.weight, slots_.weight_by_row ? 2 : 3)); }
  int in_size() const { return static_cast<int>(size_of(slots_.weight, slots_.weight_by_row ? 3 : 2)); }
  int side_rank() const {
    int rank = 0;
    for (int k = 0; k < slots_.sides; ++k) rank += static_cast<int>(g_.sizes.value(slots_.side[k].rank, sizes_));
    return rank;
  }

  // Everything that does not depend on the data. May allocate.
  status refresh(cudaStream_t stream) {
    if (status s = values_->compute(stream, needed_); !s) return s;
    if (!fused()) return values_->reserve(before_);
    if (!weight_in_place()) {
      if (status s = weight_.reserve(static_cast<long long>(out_size()) * in_size() * sizeof(T)); !s) return s;
      if (status s = put(stream, slots_.weight,
                         {nullptr, nullptr, weight_.as<T>(), out_size(), in_size(), 0, 0, in_size(),
                          !slots_.weight_by_row, false});
          !s)
        return s;
    }
    if (one_kernel()) return ok;
    if (status s = values_->reserve(before_); !s) return s;
    return x_.reserve(values_->elements(slots_.x) * static_cast<long long>(sizeof(T)));
  }
  // Gives back what was only needed to pack, which may be a copy of the weight in float. refresh() computes it again.
  void forget_values() {
    if (one_kernel()) values_->forget();
  }
  // Adds the side branches to the adapter, from rank `rank0` on.
  status pack_sides(cudaStream_t stream, packed_adapter<T>& to, int rank0) const {
    for (int k = 0; k < slots_.sides; ++k) {
      const side_branch& side = slots_.side[k];
      const long long rank = g_.sizes.value(side.rank, sizes_), n = out_size(), in = in_size();
      const status a =
          side.a < 0 ? each(stream, rank * in, pack_fold<T>{to.a.template as<T>(), rank, rank0, in}, "fold")
                     : put(stream, side.a,
                           {nullptr, nullptr, to.a.template as<T>(), rank, in, rank0, 0, in, !side.a_by_rank, false});
      if (!a) return a;
      const float* factor = side.factor < 0 ? nullptr : (*values_)[side.factor].p;
      if (status s = put(
              stream, side.b,
              {nullptr, factor, to.b.template as<T>(), n, rank, 0, rank0, to.record.rank, !side.b_by_row, side.minus});
          !s)
        return s;
      rank0 += static_cast<int>(rank);
    }
    return ok;
  }
  // The pre slot, where the record has one: ones if this adapter has no factor of the input.
  status pack_pre(cudaStream_t stream, packed_adapter<T>& to) const {
    if (to.record.pre == nullptr) return ok;
    T* pre = to.pre.template as<T>();
    if (!pre_fused_) return each(stream, in_size(), fill_vector<T>{pre, 1}, "ones");
    return put(stream, slots_.pre, {nullptr, nullptr, pre, 1, in_size(), 0, 0, in_size(), false, false});
  }
  bool scales() const { return has_post(op::mul) || has_post(op::div); }
  bool shifts() const { return has_post(op::add) || has_post(op::sub); }
  // The post slot as one factor and one summand per output; ones or zeros where the layer has another adapter that
  // needs them.
  status pack_post(cudaStream_t stream, packed_adapter<T>& to, bool with_scale, bool with_shift) const {
    const long long n = out_size(), columns = padded_rows(n) + row_padding;
    float *scale = to.post.template as<float>(), *shift = scale + columns;
    if (status s = each(stream, columns, fill_vector<float>{scale, 1}, "ones"); !s) return s;
    if (status s = each(stream, columns, fill_vector<float>{shift, 0}, "zeros"); !s) return s;
    for (int k = 0; k < slots_.posts; ++k) {
      const post_step& step = slots_.post[k];
      const int what = step.what == op::add ? 0 : step.what == op::sub ? 1 : step.what == op::mul ? 2 : 3;
      const tensor<float> v = (*values_)[step.operand];
      if (status s = each(stream, columns, apply_post{scale, shift, v.p, n, v.count() == 1 ? 0 : 1, what}, "post"); !s)
        return s;
    }
    to.record.scale = with_scale ? scale : nullptr, to.record.shift = with_shift ? shift : nullptr;
    return ok;
  }

  // What the product reads: the stored weight, or the copy that refresh() made.
  const void* weight() const {
    return weight_in_place() ? leaves_[static_cast<std::size_t>(base_leaf(g_, slots_.weight))].data : weight_.data();
  }
  linear_problem problem(long long tokens, const adapter_slot& slot) const {
    linear_problem p{dtype_of<T>, tokens, out_size(), in_size(), slot.rank};
    p.pre = slot.pre != nullptr;
    p.aligned = reinterpret_cast<std::uintptr_t>(weight()) % 16 == 0;
    return p;
  }
  // The fused form. `o` brings x, y, the slot and the workspace.
  status run(cudaStream_t stream, const size_values& sizes, const std::vector<view>& leaves, const linear_problem& p,
             const linear_choice& c, linear_operands o) {
    if (!one_kernel()) {
      values_->bind(sizes, leaves);
      if (status s = values_->compute(stream, before_); !s) return s;
      const tensor<float> x = (*values_)[slots_.x];
      if (status s = convert(stream, x.p, dtype::f32, x_.data(), dtype_of<T>, x.count()); !s) return s;
      o.x = x_.data(), o.chained = false;
    }
    o.w = weight();
    return run_linear<T>(stream, p, c, o);
  }
  // Node by node, for any graph.
  status run_unfused(cudaStream_t stream, const size_values& sizes, const std::vector<view>& leaves,
                     const mutable_view& y) {
    values_->bind(sizes, leaves);
    if (status s = values_->compute(stream, before_); !s) return s;
    const id at = g_.out[0].at;
    return convert(stream, (*values_)[at].p, dtype::f32, y.data, y.type, values_->elements(at));
  }

 private:
  id input() const { return pre_fused_ ? slots_.unscaled : slots_.x; }
  // Which nodes are computed when.
  void collect() {
    needed_ = before_ = node_set{};
    if (fused()) {
      for (int k = 0; k < slots_.sides; ++k)
        need(slots_.side[k].a), need(slots_.side[k].b), need(slots_.side[k].factor);
      for (int k = 0; k < slots_.posts; ++k) need(slots_.post[k].operand);
      if (!weight_in_place()) need(slots_.weight);
      if (pre_fused_) need(slots_.pre);
      if (!one_kernel()) before(slots_.x);
    } else {
      for (int k = 0; k < g_.outs; ++k) before(g_.out[k].at);
    }
  }
  bool has_post(op what) const {
    for (int k = 0; k < slots_.posts; ++k)
      if (slots_.post[k].what == what) return true;
    return false;
  }
  long long size_of(id i, int axis) const { return g_.sizes.value(g_[i].d[axis], sizes_); }
  // Everything node i needs that is known before the data.
  void need(id i) {
    if (i < 0 || needed_.in[i]) return;
    needed_.in[i] = true;
    for (int o = 0; o < 3; ++o) need(g_[i].operand(o));
  }
  // Everything of a call that node i needs.
  void before(id i) {
    if (i < 0 || before_.in[i]) return;
    if (when_.of[i] != stage::data) return need(i);
    before_.in[i] = true;
    for (int o = 0; o < 3; ++o) before(g_[i].operand(o));
  }
  // The stored weight itself is what the product reads.
  bool weight_in_place() const {
    const id leaf = base_leaf(g_, slots_.weight);
    return leaf >= 0 && slots_.weight_by_row && leaves_[static_cast<std::size_t>(leaf)].type == dtype_of<T>;
  }
  status put(cudaStream_t stream, id from, pack_matrix<T> how) const {
    how.from = (*values_)[from].p;
    return each(stream, how.rows * how.cols, how, "pack");
  }

  graph g_;
  stages when_;
  linear_slots slots_;
  node_set needed_, before_;  // needed_: known before the data; before_: of a call, ahead of the product
  size_values sizes_;
  std::vector<view> leaves_;
  std::optional<values> values_;
  buffer weight_, x_;
  bool pre_fused_ = false;
};

}  // namespace graft::cuda
