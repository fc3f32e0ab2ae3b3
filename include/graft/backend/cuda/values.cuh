// SPDX-License-Identifier: Apache-2.0
// The values of the nodes of one graph in device memory, each computed in float by a kernel of its own: what is known
// before the data, what no fused kernel covers, and, with the literal graph, the oracle for everything else.
#pragma once
#include <graft/backend/cuda/convert.cuh>
#include <graft/backend/cuda/evaluate.cuh>
#include <graft/backend/cuda/memory.h>
#include <graft/core/view.h>
#include <graft/plan/tiling.h>

#include <vector>

namespace graft::cuda {

class values {
 public:
  values() = default;
  // `leaves`: one view per node, of device memory for tensors and of host memory for scalars.
  values(const graph& g, const size_values& s, std::vector<view> leaves)
      : g_(&g), s_(s), leaves_(std::move(leaves)), at_(static_cast<std::size_t>(g.size)), own_(at_.size()) {}

  // Makes room for the nodes of `wanted`, so that computing them allocates nothing.
  status reserve(const node_set& wanted) {
    long long scratch = 0;
    const evaluator<float> evaluate{*g_, s_};
    for (int k = 0; k < g_->size; ++k) {
      const id i = static_cast<id>(k);
      if (!wanted.in[k]) continue;
      const node& v = (*g_)[i];
      const view& leaf = leaves_[static_cast<std::size_t>(k)];
      const bool in_place =
          v.what == op::ids || (is_tensor(v.what) && leaf.type == dtype::f32) || v.what == op::reshape;
      if (!in_place)
        if (status s = own_[static_cast<std::size_t>(k)].reserve(elements(i) * 4); !s) return s;
      scratch = std::max(scratch, evaluate.scratch(i));
    }
    return scratch_.reserve(scratch * 4);
  }
  // Sizes and data of one call; there must be room for them.
  void bind(const size_values& s, const std::vector<view>& leaves) { s_ = s, leaves_ = leaves; }

  // Computes the nodes of `wanted` in order; their operands are computed, wanted or leaves.
  status compute(cudaStream_t stream, const node_set& wanted) {
    for (int k = 0; k < g_->size; ++k)
      if (wanted.in[k])
        if (status s = compute(stream, static_cast<id>(k)); !s) return s;
    return ok;
  }
  tensor<float> operator[](id i) const { return shaped(*g_, i, s_, at_[static_cast<std::size_t>(i)]); }
  void put(id i, float* p) { at_[static_cast<std::size_t>(i)] = p; }
  void forget(id i) { own_[static_cast<std::size_t>(i)] = buffer(), at_[static_cast<std::size_t>(i)] = nullptr; }
  void forget() {
    for (int k = 0; k < g_->size; ++k) forget(static_cast<id>(k));
    scratch_ = buffer();
  }
  buffer take(id i) { return std::move(own_[static_cast<std::size_t>(i)]); }
  long long elements(id i) const { return count(*g_, i, s_); }

 private:
  static bool is_tensor(op o) {
    return o == op::input || o == op::base || o == op::frozen || o == op::param || o == op::kept;
  }
  status compute(cudaStream_t stream, id i) {
    const node& v = (*g_)[i];
    const auto k = static_cast<std::size_t>(i);
    const view& leaf = leaves_[k];
    if (v.what == op::ids) return ok;
    if (v.what == op::reshape) return at_[k] = at_[static_cast<std::size_t>(v.a)], status(ok);
    if (is_tensor(v.what) && leaf.type == dtype::f32)
      return at_[k] = static_cast<float*>(const_cast<void*>(leaf.data)), status(ok);
    if (status s = own_[k].reserve(elements(i) * 4); !s) return s;
    at_[k] = own_[k].as<float>();
    if (is_tensor(v.what)) return convert(stream, leaf.data, leaf.type, at_[k], dtype::f32, elements(i));
    if (v.what == op::scalar) {
      const auto value = static_cast<float>(*static_cast<const double*>(leaf.data));
      return check(cudaMemcpyAsync(at_[k], &value, 4, cudaMemcpyHostToDevice, stream), "copying a scalar");
    }
    operands<float> x;
    if (v.a >= 0) x.a = (*this)[v.a];
    if (v.b >= 0 && (*g_)[v.b].what == op::ids)
      x.ids = static_cast<const std::int64_t*>(leaves_[static_cast<std::size_t>(v.b)].data);
    else if (v.b >= 0)
      x.b = (*this)[v.b];
    if (v.c >= 0) x.c = (*this)[v.c];
    const evaluator<float> evaluate{*g_, s_};
    if (status s = scratch_.reserve(evaluate.scratch(i) * 4); !s) return s;
    if (adds_up(v))
      if (status s = check(cudaMemsetAsync(at_[k], 0, static_cast<std::size_t>(elements(i)) * 4, stream), "clearing");
          !s)
        return s;
    return evaluate(stream, i, (*this)[i], x, scratch_.as<float>());
  }

  const graph* g_ = nullptr;
  size_values s_;
  std::vector<view> leaves_;
  std::vector<float*> at_;
  std::vector<buffer> own_;
  buffer scratch_;
};

}  // namespace graft::cuda
