// SPDX-License-Identifier: Apache-2.0
// The values of the nodes of one graph in device memory, each computed in float by a kernel of its own: what is known
// before the data, what no product takes in, and, with the literal graph, the oracle for everything else. A weight that is
// codes stays that; whoever reads it finds its numbers in a panel, until somebody else reads another one.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/cuda/code_panel.cuh>
#include <graft/backend/cuda/evaluate.cuh>
#include <graft/backend/cuda/library.h>
#include <graft/backend/cuda/memory.h>
#include <graft/backend/rank_exchange.h>
#include <graft/core/few_numbers.h>
#include <graft/derive/walk.h>

namespace graft::cuda {

class values {
 public:
  values() = default;
  // `leaves`: one view per node, of device memory for tensors and of host memory for scalars. The graph outlives this.
  values(const graph& g, const size_values& s, leaf_views leaves, node_function evaluate,
         const rank_exchange* ranks = nullptr)
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

  // Where the numbers of codes are read, and how they are stored there.
  void decode_into(const code_panel* panel, dtype as) { panel_ = panel, panel_type_ = as; }
  bool has_codes() const {
    for (const view& v : leaves_)
      if (v.beside != nullptr) return true;
    return false;
  }
  // Bytes of the largest weight that is codes, but for those that are only looked up.
  long long panel_bytes(dtype as) const {
    long long most = 0;
    for (id i = 0; i < g_->size; ++i)
      for (int o = 0; o < 3; ++o)
        if (const view* codes = codes_of((*g_)[i].operand(o)); codes != nullptr && (*g_)[i].what != op::gather)
          most = larger_of(most, codes->count() * bits_of(as) / 8);
    for (int k = 0; k < g_->outs; ++k)
      if (const view* codes = codes_of(g_->out[k].at)) most = larger_of(most, codes->count() * bits_of(as) / 8);
    return most;
  }
  // Bytes of extra memory that computing a node takes, or one of the nodes of `wanted` at most.
  long long scratch(id i) const { return 4 * evaluator<float>{*g_, s_}.scratch(i); }
  long long scratch(const node_set& wanted) const {
    long long most = 0;
    for (id i = 0; i < g_->size; ++i)
      if (wanted[i]) most = larger_of(most, scratch(i));
    return most;
  }
  // Where that lies from now on.
  void scratch_at(float* p) { scratch_at_ = p; }
  float* scratch_now() const { return scratch_at_; }
  // Sizes and data of one call; there must be room for them.
  void resize(const size_values& s) { s_ = s; }
  const size_values& sizes() const { return s_; }
  void give(id i, const view& v) { leaves_[i] = v, put(i, {const_cast<void*>(v.data), v.type}); }
  // Node i was computed, there.
  void put(id i, const cells<float>& at) { at_[i] = at; }
  // Where node i is to be computed, in any type, instead of in memory of its own.
  void into(id i, const cells<float>& to) { into_[i] = at_[i] = to; }

  // Node i is computed by somebody else, there: it needs no memory here.
  void lies_at(id i, const cells<float>& there) { own_[i] = buffer(), put(i, there); }
  // Memory of its own for node i, which is computed next; or where else it is to be.
  result<cells<float>> own_room(id i) {
    if (const cells<float>& other = into_[i]; other.at != nullptr) return put(i, other), other;
    buffer& own = own_[i];
    if (status s = own.reserve(elements(i) * 4); !s) return s.failure();
    return put(i, own.as<float>()), cells<float>(own.as<float>());
  }

  // The memory that is reserved for node i.
  cells<float> room(id i) const { return into_[i].at != nullptr ? into_[i] : cells<float>(own_[i].as<float>()); }

  cells<float> place(id i) const { return at_[i]; }

  // Computes the nodes of `wanted` in order; their operands are computed, wanted or leaves.
  status compute(cudaStream_t stream, const node_set& wanted) {
    for (id i = 0; i < g_->size; ++i)
      if (wanted[i])
        if (status s = compute_node(stream, i); !s) return s;
    return ok;
  }
  // The factors of rotation i as one, where they stay within its blocks: to be made again when they change.
  status compose_factors(cudaStream_t stream, id i);
  float* composed_of(id i) const { return composed_[i].as<float>(); }
  // `to`: where, for this once.
  status compute_node(cudaStream_t stream, id i, cells<float> to = {});
  // The nodes of a row launch at once, into `to`.
  status compute_rows(cudaStream_t stream, const row_launch& r, const cells<float>& to) {
    operands<float> x;
    joined_values<float> with;
    id i = r.result;
    if (r.norm >= 0) {
      i = r.norm;
      x.a = (*this)[(*g_)[i].a], x.b = (*this)[(*g_)[i].b];
      if (r.slope < 0) {
        x.c = (*this)[r.scale];
      } else {
        x.c = (*this)[r.slope];
        if (r.scale >= 0) x.factors = (*this)[r.scale].p;
        if (r.added >= 0) x.added = (*this)[r.added].p;
      }
    } else {
      for (const joined_part& p : r.parts) {
        const tensor<float> v = (*this)[p.value];
        with.part[with.parts] = v.p, with.width[with.parts] = v.d[3], with.turned[with.parts++] = p.turned;
      }
      if (r.positions >= 0) {
        with.table = (*this)[r.table];
        with.positions = static_cast<const std::int64_t*>(leaves_[r.positions].data);
      }
      x.joined = &with;
    }
    put(r.result, to);
    return evaluate_(stream, *g_, s_, i, (*this)[r.result], x, nullptr);
  }
  // Several rotations of one x, or of x ⊙ other, into `to`; `early`: none of what they read but x was written since the
  // last call.
  status compute_turns(cudaStream_t stream, const id* turns, int count, id x, id other, cells<float> const* to,
                       bool early) {
    turned_values<float> all;
    all.count = count, all.x = (*this)[x], all.early = early;
    if (other >= 0) all.other = (*this)[other].p;
    for (int k = 0; k < count; ++k) {
      const node& v = (*g_)[turns[k]];
      put(turns[k], to[k]);
      all.out[k] = (*this)[turns[k]], all.q[k] = (*this)[v.b], all.transposed[k] = v.tb;
      if (float* const one = composed_of(turns[k]))
        all.q[k] = {one, {1, all.x.d[3] / rotation::wide, rotation::wide, rotation::wide}}, all.transposed[k] = false;
    }
    operands<float> operand;
    operand.turned = &all;
    return evaluate_(stream, *g_, s_, turns[0], all.out[0], operand, nullptr);
  }
  tensor<float> operator[](id i) const { return shaped(*g_, i, s_, at_[unshaped(*g_, i)]); }
  // The same to be read: codes are decoded first.
  result<tensor<float>> numbers(cudaStream_t stream, id i) const {
    tensor<float> t = (*this)[i];
    if (const view* codes = codes_of(i)) {
      if (panel_ == nullptr)
        return fail("tensor '", g_->name(unshaped(*g_, i)), "' is codes, which nothing decodes here");
      const result<cells<float>> decoded = panel_->decode(stream, *codes, panel_type_);
      if (!decoded) return decoded.failure();
      t.p = *decoded;
    }
    return t;
  }
  // A computed node to somewhere else, in any type.
  status copy(cudaStream_t stream, id i, const cells<float>& to) const;
  long long elements(id i) const { return count(*g_, i, s_); }

 private:
  // A copy of its operand, which all ranks then make the sum of theirs, or the largest.
  status exchange(cudaStream_t stream, id i, const tensor<float>& from, const cells<float>& to) const;
  const view* codes_of(id i) const {
    if (i < 0) return nullptr;
    const view& v = leaves_[unshaped(*g_, i)];
    return v.beside != nullptr ? &v : nullptr;
  }
  // A caller's tensor, or a reshaped value: nothing of its own.
  bool lies_elsewhere(id i) const {
    const op o = (*g_)[i].what;
    return row(o).from == source::tensor || row(o).from == source::integers || o == op::reshape;
  }

  const graph* g_ = nullptr;
  node_function evaluate_ = nullptr;
  const rank_exchange* ranks_ = nullptr;
  size_values s_;
  leaf_views leaves_;
  struct written_number {
    const void* at;
    float value;
  };
  sequence<cells<float>> at_, into_;
  sequence<buffer> own_, composed_;
  sequence<written_number> written_;  // of the host, where they were written last
  buffer scratch_;
  float* scratch_at_ = nullptr;
  const code_panel* panel_ = nullptr;
  dtype panel_type_ = dtype::f32;
};

#if GRAFT_CUDA_BODIES
GRAFT_CUDA_LIBRARY status values::compute_node(cudaStream_t stream, id i, cells<float> to) {
  const node& v = (*g_)[i];
  const view& leaf = leaves_[i];
  if (row(v.what).from == source::tensor) return put(i, {const_cast<void*>(leaf.data), leaf.type}), status(ok);
  if (lies_elsewhere(i)) return ok;
  if (to.at == nullptr) to = into_[i];
  if (to.at == nullptr) {
    const result<cells<float>> own = own_room(i);
    if (!own) return own.failure();
    to = *own;
  }
  put(i, to);
  if (v.what == op::scalar) {
    const auto value = static_cast<float>(*static_cast<const double*>(leaf.data));
    if (written_[i].at == to.at && written_[i].value == value) return ok;
    written_[i] = {to.at, value};
    return on_stream{stream}.elements(1, filled<float>{to, value}, "scalar");  // captured with its number
  }
  operands<float> x;
  const view* looked_up = nullptr;
  tensor<float>* const operand[3] = {&x.a, &x.b, &x.c};
  for (int o = 0; o < 3; ++o)
    if (const id from = v.operand(o); from >= 0) {
      if (row((*g_)[from].what).from == source::integers)
        x.ids = static_cast<const std::int64_t*>(leaves_[from].data);
      else if (v.what == op::gather && codes_of(from) != nullptr)
        looked_up = codes_of(from);
      else if (result<tensor<float>> read = numbers(stream, from))
        *operand[o] = *read;
      else
        return read.failure();
    }
  if (looked_up != nullptr) {
    if (panel_ == nullptr || panel_->readers().gather == nullptr) return no_codes();
    const gathered_codes f{
        (*this)[i], coded_of(*looked_up), looked_up->size[0], x.ids, v.ta, evaluator<float>{*g_, s_}.part(v)};
    return panel_->readers().gather(stream, f);
  }
  if (row(v.what).kind == op_class::exchange) return exchange(stream, i, x.a, to);
  if (scratch_at_ == nullptr)
    if (status s = scratch_.reserve(scratch(i)); !s) return s;
  x.fresh = v.what == op::rotate_grad, x.composed = composed_of(i);
  if (adds_up(v.what) && !x.fresh) {
    const auto bytes = static_cast<std::size_t>(elements(i) * bits_of(to.type) / 8);
    if (status s = check(cudaMemsetAsync(to.at, 0, bytes, stream), "clearing"); !s) return s;
  }
  return evaluate_(stream, *g_, s_, i, (*this)[i], x, scratch_at_ != nullptr ? scratch_at_ : scratch_.as<float>());
}
GRAFT_CUDA_LIBRARY status values::compose_factors(cudaStream_t stream, id i) {
  const node& v = (*g_)[i];
  const tensor<float> q = (*this)[v.b];
  const rotation r(q, g_->sizes.value(v.d[3], s_), v.tb);
  if (!r.composes()) return ok;
  buffer& one = composed_[i];
  if (status s = one.reserve(2 * r.in * rotation::wide * 4); !s) return s;
  operands<float> x;
  x.b = q, x.composes = true;
  const tensor<float> to{one.as<float>(), {1, r.in / rotation::wide, rotation::wide, rotation::wide}};
  return evaluate_(stream, *g_, s_, i, to, x, nullptr);
}
GRAFT_CUDA_LIBRARY status values::copy(cudaStream_t stream, id i, const cells<float>& to) const {
  const result<tensor<float>> from = numbers(stream, i);
  if (!from) return from.failure();
  return on_stream{stream}.elements(elements(i), unary<float>{op::detach, to, from->p}, "copy");
}
GRAFT_CUDA_LIBRARY status values::exchange(cudaStream_t stream, id i, const tensor<float>& from,
                                           const cells<float>& to) const {
  const char* const name = row((*g_)[i].what).name;
  if (ranks_ == nullptr || ranks_->link == nullptr)
    return fail(name, " needs the ranks that compute with this one: give them with the model's options");
  const auto bytes = static_cast<std::size_t>(elements(i) * bits_of(to.type) / 8);
  const bool same = from.p.type == to.type;
  if (status s = same ? check(cudaMemcpyAsync(to.at, from.p.at, bytes, cudaMemcpyDeviceToDevice, stream), name)
                      : on_stream{stream}.elements(elements(i), unary<float>{op::detach, to, from.p}, name);
      !s)
    return s;
  return ranks_->link->reduce({to.at, to.type, {elements(i), 1, 1, 1}, 1}, (*g_)[i].what == op::rank_max);
}
#endif

}  // namespace graft::cuda
