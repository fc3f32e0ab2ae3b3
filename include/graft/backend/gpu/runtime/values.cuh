// SPDX-License-Identifier: Apache-2.0
// Node values of one graph in device memory, and eager evaluation: each node is computed in float by a kernel of its
// own. Plans use it for precomputed values and for nodes that no fused launch takes in; on a whole graph it is the
// oracle of the tests. A quantized weight stays quantized; a node that reads it finds it dequantized in a buffer that
// all weights share.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/gpu/dispatch/evaluate_node.cuh>
#include <graft/backend/gpu/kernels/quantized/dequantize.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/backend/gpu/runtime/library.h>
#include <graft/backend/rank_reduce.h>
#include <graft/core/algorithm.h>
#include <graft/derive/traversal.h>

namespace graft::gpu {

class values {
 public:
  values() = default;
  // `leaves` has one view per node, of device memory for tensors and of host memory for scalars. The graph must outlive
  // this object.
  values(const graph& g, const size_values& s, leaf_views leaves, node_function evaluate,
         const rank_reducer* ranks = nullptr)
      : g_(&g),
        evaluate_(evaluate),
        ranks_(ranks),
        s_(s),
        leaves_(std::move(leaves)),
        at_(g.size),
        into_(g.size),
        own_(g.size),
        composed_(g.size),
        written_(g.size) {}

  // Sets the buffer for dequantized weights and the element type it stores.
  void dequantize_into(const dequantized_buffer* dequantized_weight, dtype as) {
    dequantized_ = dequantized_weight, dequantized_type_ = as;
  }
  bool has_quantized() const {
    for (const view& v : leaves_)
      if (v.quant != nullptr) return true;
    return false;
  }
  // Bytes of the largest dequantized weight; weights of which op::gather reads single rows do not count.
  long long dequantized_bytes(dtype as) const {
    long long most = 0;
    for (id i = 0; i < g_->size; ++i)
      for (int o = 0; o < 3; ++o)
        if (const view* quantized = quantized_leaf((*g_)[i].operand(o));
            quantized != nullptr && (*g_)[i].what != op::gather)
          most = max_of(most, quantized->count() * bits_of(as) / 8);
    for (int k = 0; k < g_->outs; ++k)
      if (const view* quantized = quantized_leaf(g_->out[k].at))
        most = max_of(most, quantized->count() * bits_of(as) / 8);
    return most;
  }
  // Bytes of scratch memory that computing a node takes; for a set of nodes, the largest of them.
  long long scratch(id i) const { return 4 * evaluator<float>{*g_, s_}.scratch(i); }
  long long scratch(const node_set& wanted) const {
    long long most = 0;
    for (id i = 0; i < g_->size; ++i)
      if (wanted[i]) most = max_of(most, scratch(i));
    return most;
  }
  // Sets the scratch memory; with null, the values allocate their own.
  void scratch_at(float* p) { scratch_at_ = p; }
  float* scratch_now() const { return scratch_at_; }
  // Sets the sizes of one call, which the reserved memory must fit.
  void resize(const size_values& s) { s_ = s; }
  const size_values& sizes() const { return s_; }
  void give(id i, const view& v) { leaves_[i] = v, put(i, {const_cast<void*>(v.data), v.type}); }
  // States that the value of node i is at this address.
  void put(id i, const element_ptr<float>& at) { at_[i] = at; }
  // Makes later computations of node i write to `to`, in any element type, instead of to its own buffer.
  void into(id i, const element_ptr<float>& to) { into_[i] = at_[i] = to; }

  // States that another owner computes node i at this address, and frees the memory of node i here.
  void set_external(id i, const element_ptr<float>& there) { own_[i] = buffer(), put(i, there); }
  // Returns the memory that node i is to be computed into: the address set by into(), or its own buffer.
  result<element_ptr<float>> allocate(id i) {
    if (const element_ptr<float>& other = into_[i]; other.at != nullptr) return put(i, other), other;
    buffer& own = own_[i];
    if (status s = own.reserve(elements(i) * 4); !s) return s.failure();
    return put(i, own.as<float>()), element_ptr<float>(own.as<float>());
  }

  // The memory reserved for node i.
  element_ptr<float> storage(id i) const {
    return into_[i].at != nullptr ? into_[i] : element_ptr<float>(own_[i].as<float>());
  }

  element_ptr<float> location(id i) const { return at_[i]; }

  // Computes the nodes of `wanted` in topological order. Every operand must be computed, wanted or a leaf.
  status compute(cudaStream_t stream, const node_set& wanted) {
    for (id i = 0; i < g_->size; ++i)
      if (wanted[i])
        if (status s = compute_node(stream, i); !s) return s;
    return ok;
  }
  // Composes the butterfly factors of rotation i into one block-diagonal matrix, if they fit 32 columns. The caller
  // repeats it after the factors have changed.
  status compose_factors(cudaStream_t stream, id i);
  float* composed_of(id i) const { return composed_[i].as<float>(); }
  // Computes node i into `to` in this call, or into the memory that allocate() returns if `to` is null.
  status compute_node(cudaStream_t stream, id i, element_ptr<float> to = {});
  // Runs a rowwise launch (norm with gain, its gradient, or concatenated heads) into `to`.
  status compute_rows(cudaStream_t stream, const rowwise_launch& r, const element_ptr<float>& to) {
    operands<float> x;
    concat_inputs<float> with;
    id i = r.result;
    if (r.norm >= 0) {
      i = r.norm;
      x.a = (*this)[(*g_)[i].a], x.b = (*this)[(*g_)[i].b];
      if (r.grad_output < 0) {
        x.c = (*this)[r.scale];
      } else {
        x.c = (*this)[r.grad_output];
        if (r.scale >= 0) x.factors = (*this)[r.scale].p;
        if (r.residual >= 0) x.residual = (*this)[r.residual].p;
      }
    } else {
      for (const concat_part& p : r.parts) {
        const tensor<float> v = (*this)[p.value];
        with.part[with.parts] = v.p, with.width[with.parts] = v.d[3], with.has_rope[with.parts++] = p.has_rope;
      }
      if (r.positions >= 0) {
        with.table = (*this)[r.table];
        with.positions = static_cast<const std::int64_t*>(leaves_[r.positions].data);
      }
      x.concat_inputs_ptr = &with;
    }
    put(r.result, to);
    return evaluate_(stream, *g_, s_, i, (*this)[r.result], x, nullptr);
  }
  // Computes a linear layer of experts with its low-rank branch into `to`.
  status compute_expert_gemm(cudaStream_t stream, const expert_gemm& l, const element_ptr<float>& to) {
    operands<float> x;
    expert_branch<float> branch;
    const node &base = (*g_)[l.base], &added = (*g_)[l.branch];
    branch.tb = added.tb, x.branch = &branch, x.c = (*this)[base.c];
    tensor<float>* const operand[] = {&branch.a, &branch.b, &x.a, &x.b};
    const id from[] = {added.a, added.b, base.a, base.b};
    for (int k = 0; k < 4; ++k) {
      const result<tensor<float>> read = numbers(stream, from[k], used_experts_of(l.base));
      if (!read) return read.failure();
      *operand[k] = *read;
    }
    put(l.result, to);
    return evaluate_(stream, *g_, s_, l.base, (*this)[l.result], x, nullptr);
  }
  // Computes several rotations of one x by one kernel into `to`. `early` states that everything they
  // read except x is unchanged since the last call, so that the kernel may prefetch it before griddepcontrol.wait.
  status compute_rotations(cudaStream_t stream, const id* rotations, int count, id x, element_ptr<float> const* to,
                           bool early) {
    grouped_rotations<float> all;
    all.count = count, all.x = (*this)[x], all.early = early;
    for (int k = 0; k < count; ++k) {
      const node& v = (*g_)[rotations[k]];
      put(rotations[k], to[k]);
      all.out[k] = (*this)[rotations[k]], all.q[k] = (*this)[v.b], all.transposed[k] = v.tb;
      if (float* const one = composed_of(rotations[k]))
        all.q[k] = {one,
                    {1, all.x.d[3] / rotation::composed_width, rotation::composed_width, rotation::composed_width}},
        all.transposed[k] = false;
    }
    operands<float> operand;
    operand.rotations = &all;
    return evaluate_(stream, *g_, s_, rotations[0], all.out[0], operand, nullptr);
  }
  tensor<float> operator[](id i) const { return shaped(*g_, i, s_, at_[unshaped(*g_, i)]); }
  // The value of node i as numbers that a kernel can read: a quantized weight is dequantized first, and of a stack of
  // experts those that are used.
  result<tensor<float>> numbers(cudaStream_t stream, id i, const used_experts& used = {}) const {
    tensor<float> t = (*this)[i];
    if (const view* quantized = quantized_leaf(i)) {
      if (dequantized_ == nullptr)
        return fail("tensor '", g_->name(unshaped(*g_, i)), "' is quantized, and nothing dequantizes it here");
      const result<element_ptr<float>> decoded = dequantized_->dequantize(stream, *quantized, dequantized_type_, used);
      if (!decoded) return decoded.failure();
      t.p = *decoded;
    }
    return t;
  }
  // Copies a computed node to `to`, in any element type.
  status copy(cudaStream_t stream, id i, const element_ptr<float>& to) const;
  long long elements(id i) const { return element_count(*g_, i, s_); }

 private:
  // All-reduce: copies the operand to `to`, then replaces it by the sum or the maximum over all ranks.
  status exchange(cudaStream_t stream, id i, const tensor<float>& from, const element_ptr<float>& to) const;
  const view* quantized_leaf(id i) const {
    if (i < 0) return nullptr;
    const view& v = leaves_[unshaped(*g_, i)];
    return v.quant != nullptr ? &v : nullptr;
  }
  // The experts whose weight the product of node i reads; all of them for every other node.
  used_experts used_experts_of(id i) const {
    const node& v = (*g_)[i];
    if (v.what != op::grouped_matmul) return {};
    const evaluator<float> at{*g_, s_};
    const tensor<float> routing = (*this)[v.c];
    return used_experts::of(routing_table<float>(routing), g_->sizes.value((*g_)[v.b].d[1], s_), at.experts(v).first);
  }
  // Returns true if node i is a tensor of the caller or a reshape, which have no memory of their own.
  bool is_external(id i) const {
    const op o = (*g_)[i].what;
    return traits_of(o).from == source::tensor || traits_of(o).from == source::integers || o == op::reshape;
  }

  const graph* g_ = nullptr;
  node_function evaluate_ = nullptr;
  const rank_reducer* ranks_ = nullptr;
  size_values s_;
  leaf_views leaves_;
  struct written_number {
    const void* at;
    float value;
  };
  sequence<element_ptr<float>> at_, into_;
  sequence<buffer> own_, composed_;
  sequence<written_number> written_;  // last value and address of each scalar, to skip writing it again
  buffer scratch_;
  float* scratch_at_ = nullptr;
  const dequantized_buffer* dequantized_ = nullptr;
  dtype dequantized_type_ = dtype::f32;
};

#if GRAFT_GPU_BODIES
GRAFT_GPU_LIBRARY status values::compute_node(cudaStream_t stream, id i, element_ptr<float> to) {
  const node& v = (*g_)[i];
  const view& leaf = leaves_[i];
  if (traits_of(v.what).from == source::tensor) return put(i, {const_cast<void*>(leaf.data), leaf.type}), status(ok);
  if (is_external(i)) return ok;
  if (to.at == nullptr) to = into_[i];
  if (to.at == nullptr) {
    const result<element_ptr<float>> own = allocate(i);
    if (!own) return own.failure();
    to = *own;
  }
  put(i, to);
  if (v.what == op::scalar) {
    const auto value = static_cast<float>(*static_cast<const double*>(leaf.data));
    if (written_[i].at == to.at && written_[i].value == value) return ok;
    written_[i] = {to.at, value};
    return on_stream{stream}.elements(1, fill_functor<float>{to, value},
                                      "scalar");  // a captured graph contains the value
  }
  operands<float> x;
  const view* looked_up = nullptr;
  tensor<float>* const operand[3] = {&x.a, &x.b, &x.c};
  for (int o = 0; o < 3; ++o)
    if (const id from = v.operand(o); from >= 0) {
      if (traits_of((*g_)[from].what).from == source::integers)
        x.ids = static_cast<const std::int64_t*>(leaves_[from].data);
      else if (v.what == op::gather && quantized_leaf(from) != nullptr)
        looked_up = quantized_leaf(from);
      else if (result<tensor<float>> read = numbers(stream, from, used_experts_of(i)))
        *operand[o] = *read;
      else
        return read.failure();
    }
  if (looked_up != nullptr) {
    if (dequantized_ == nullptr || dequantized_->functions().gather == nullptr) return no_quantized_kernels();
    const gathered_dequantized f{(*this)[i], quantized_weight_of(*looked_up),   looked_up->size[0], x.ids,
                                 v.ta,       evaluator<float>{*g_, s_}.shard(v)};
    return dequantized_->functions().gather(stream, f);
  }
  if (traits_of(v.what).kind == op_class::collective) return exchange(stream, i, x.a, to);
  if (scratch_at_ == nullptr)
    if (status s = scratch_.reserve(scratch(i)); !s) return s;
  x.overwrites = v.what == op::rotate_grad, x.composed = composed_of(i);
  const bool overwrites = x.overwrites || v.what == op::combine || v.what == op::grouped_wgrad;
  if (accumulates_result(v.what) && !overwrites) {
    const auto bytes = static_cast<std::size_t>(elements(i) * bits_of(to.type) / 8);
    if (status s = check(cudaMemsetAsync(to.at, 0, bytes, stream), "clearing"); !s) return s;
  }
  return evaluate_(stream, *g_, s_, i, (*this)[i], x, scratch_at_ != nullptr ? scratch_at_ : scratch_.as<float>());
}
GRAFT_GPU_LIBRARY status values::compose_factors(cudaStream_t stream, id i) {
  const node& v = (*g_)[i];
  const tensor<float> q = (*this)[v.b];
  const rotation r(q, g_->sizes.value(v.d[3], s_), v.tb);
  if (!r.composes()) return ok;
  buffer& one = composed_[i];
  if (status s = one.reserve(2 * r.in * rotation::composed_width * 4); !s) return s;
  operands<float> x;
  x.b = q, x.composes = true;
  const tensor<float> to{one.as<float>(),
                         {1, r.in / rotation::composed_width, rotation::composed_width, rotation::composed_width}};
  return evaluate_(stream, *g_, s_, i, to, x, nullptr);
}
GRAFT_GPU_LIBRARY status values::copy(cudaStream_t stream, id i, const element_ptr<float>& to) const {
  const result<tensor<float>> from = numbers(stream, i);
  if (!from) return from.failure();
  return on_stream{stream}.elements(elements(i), unary<float>{op::detach, to, from->p}, "copy");
}
GRAFT_GPU_LIBRARY status values::exchange(cudaStream_t stream, id i, const tensor<float>& from,
                                          const element_ptr<float>& to) const {
  const char* const name = traits_of((*g_)[i].what).name;
  if (ranks_ == nullptr || ranks_->link == nullptr)
    return fail(name, " needs the ranks that compute with this one: give them with the model's options");
  const auto bytes = static_cast<std::size_t>(elements(i) * bits_of(to.type) / 8);
  const bool same = from.p.type == to.type;
  if (status s = same ? check(cudaMemcpyAsync(to.at, from.p.at, bytes, cudaMemcpyDeviceToDevice, stream), name)
                      : on_stream{stream}.elements(elements(i), unary<float>{op::detach, to, from.p}, name);
      !s)
    return s;
  return ranks_->link->reduce({to.at, to.type, {elements(i), 1, 1, 1}, 1}, (*g_)[i].what == op::all_reduce_max);
}
#endif

}  // namespace graft::gpu
