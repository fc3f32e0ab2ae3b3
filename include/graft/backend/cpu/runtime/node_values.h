// SPDX-License-Identifier: Apache-2.0
// The values of the nodes of one graph, each on all rows: precomputed values, the results of a merge, and, for the
// literal graph, the oracle that all other execution is tested against.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/cpu/ops/evaluate.h>
#include <graft/backend/cpu/runtime/memory.h>
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/derive/traversal.h>

#include <map>

namespace graft::cpu {

template <class Real> constexpr dtype real_type = storage<Real>::type;

// Returns true if a kernel can read the tensor in place.
template <class Real> bool in_place(const view& v) { return v.type == real_type<Real> && v.contiguous(); }
// Returns true if a weight is read as it is stored: a quantized or narrower one, or one that is not row-major, is
// dequantized inside the GEMM, as far as the compiled GEMMs read such weights.
template <class Real> bool stays_stored(const view& v, weights of) {
  if (v.quant != nullptr) return true;
  if (of == weights::any)
    return v.contiguous() ? v.rank > 1 && bits_of(v.type) < bits_of(real_type<Real>) : v.rank == 2;
  return v.type == real_type<Real> && v.rank == 2 && !v.contiguous() && (v.stride(0) == 1 || v.stride(1) == 1);
}

// Returns true if node v reads operand k as it is stored, one tile of rows at a time: weights of GEMMs as left or right
// operand, tables of look-ups, and the rows of a sum of squares. All other nodes read values of type Real.
[[gnu::noinline]] constexpr bool reads_stored(const graph& g, const node& v, int k) {
  auto is_matrix = [&](id i) { return g[i].d[0] == dim{1} && g[i].d[1] == dim{1}; };
  if (v.what == op::matmul && !v.sum)
    return is_matrix(v.b) && (k == 1 ? !v.ta : is_matrix(v.a) && base_leaf(g, v.b) < 0);
  if (v.what == op::grouped_matmul) return k == 1;
  if (v.what == op::row_dot) return v.a == v.b;
  return traits_of(v.what).axes == axis_flow::gather && k == 0;
}

template <class Real> class values {
 public:
  values() = default;

  values(const graph& g, const size_values& s, leaf_views leaves, dequantize_function<Real> dequantize)
      : g_(g), s_(s), leaves_(std::move(leaves)), dequantize_(dequantize), at_(g.size), own_(g.size) {}

  // The tensor of node i: the memory of the leaf if it can be read in place, else a copy.
  tensor<Real> operator[](id i) {
    if (const id from = unshaped(g_, i); at_[i] == nullptr && is_leaf(g_[from].what) && leaf(from).data != nullptr) {
      const view& v = leaf(from);
      if (in_place<Real>(v))
        at_[i] = static_cast<Real*>(const_cast<void*>(v.data));
      else
        read_all(v, make(i).p);
    }
    return shaped(g_, i, s_, at_[i]);
  }
  bool stays_stored(const view& v) const {
    return cpu::stays_stored<Real>(v, dequantize_ != nullptr ? weights::any : weights::as_wide);
  }
  bool has(id i) const { return at_[i] != nullptr; }
  void forget(id i) {
    own_[i] = memory<Real>();
    at_[i] = nullptr;
  }
  bool shares_memory(id i, const values& from, id there) const { return at_[i] == from.at_[there]; }
  // Lets node i share the value of an equal node of another graph.
  void alias_value(id i, const values& from, id there) {
    forget(i);
    at_[i] = from.at_[there];
  }
  const std::int64_t* ids(id i) const { return static_cast<const std::int64_t*>(leaf(i).data); }
  // Lets GEMMs and look-ups dequantize the leaf themselves, as a matrix of the sizes of node i.
  void keep_stored(id i, id leaf_at) {
    forget(i);
    const tensor<Real> t = shaped<Real>(g_, i, s_, nullptr);
    weight_at(i) = weight_of(leaf(leaf_at), t.d[0] * t.d[1] * t.d[2], t.d[3]);
  }
  // Stores an owned matrix that only GEMMs read column-major, so that they read it like a row-major weight (NT layout).
  [[gnu::cold]] void make_column_major(id i) {
    const tensor<Real> by_rows = shaped(g_, i, s_, at_[i]);
    memory<Real> transposed;
    transposed.reserve(by_rows.count());
    tensor<Real> to = by_rows;
    to.p = transposed.data();
    transpose(to, by_rows);
    own_[i] = std::move(transposed);
    at_[i] = nullptr;
    weight_at(i) = {quant_format_of<Real>(), by_rows.d[2], by_rows.d[3], 1, by_rows.d[2], own_[i].data(), nullptr};
  }
  const weight_view* stored(id i) const {
    return i < weights_.size() && weights_[i].data != nullptr ? &weights_[i] : nullptr;
  }
  const view& leaf(id i) const { return leaves_[i]; }

  void compute(id i, const evaluator<Real>& evaluate) {
    const node& v = g_[i];
    if (is_leaf(v.what) && leaf(i).data != nullptr) return;
    if (v.what == op::reshape) {
      if (stored_weight_of(i) == nullptr) at_[i] = (*this)[v.a].p;
      return;
    }
    const tensor<Real> out = make(i);
    weight_view stored_as[3];
    memory<Real> dequantized[3];
    operands<Real> x;
    tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0) continue;
      if (traits_of(g_[o].what).from == source::integers)
        x.ids = ids(o);
      else if (const view* quants = stored_weight_of(o))
        *to[k] = dequantized_operand(*quants, i, k, out, stored_as[k], dequantized[k]);
      else
        *to[k] = (*this)[o];
    }
    if (accumulates_result(v.what)) std::fill_n(out.p, out.count(), Real(0));
    evaluate(i, out, x);
  }

 private:
  // The base tensor of a value if it is quantized or narrower than Real, else null. Writing a full copy of it would
  // take longer than the operation that reads it.
  const view* stored_weight_of(id i) const {
    const id from = base_leaf(g_, i);
    return from >= 0 && leaf(from).contiguous() && stays_stored(leaf(from)) ? &leaf(from) : nullptr;
  }
  // Operand k of node i, which is quantized or narrow: as it is stored if the node reads it so; else dequantized, into
  // the result if the node is elementwise, or into memory that lives as long as the node is computed.
  [[gnu::noinline]] tensor<Real> dequantized_operand(const view& quants, id i, int k, tensor<Real> out, weight_view& as,
                                                     memory<Real>& dequantized) {
    const id o = g_[i].operand(k);
    tensor<Real> t = shaped<Real>(g_, o, s_, nullptr);
    as = weight_of(quants, t.matrices() * t.d[2], t.d[3]);
    if (reads_stored(g_, g_[i], k)) {
      t.stored = &as;
      return t;
    }
    if (traits_of(g_[i].what).axes == axis_flow::elementwise && t.count() == out.count()) {
      t.p = out.p;
    } else {
      dequantized.reserve(t.count());
      t.p = dequantized.data();
    }
    read_all(quants, t.p);
    return t;
  }
  void read_all(const view& v, Real* to) const {
    v.quant != nullptr ? dequantize_(weight_of(v), 0, v.count(), to) : read_floats(v, 0, v.count(), to);
  }
  tensor<Real> make(id i) {
    own_[i].reserve(std::max(1LL, element_count(g_, i, s_)));
    at_[i] = own_[i].data();
    return shaped(g_, i, s_, at_[i]);
  }
  // The list is allocated with the first such weight, because few graphs have one.
  weight_view& weight_at(id i) {
    if (weights_.empty()) weights_ = sequence<weight_view>(g_.size);
    return weights_[i];
  }

  graph g_;
  size_values s_;
  leaf_views leaves_;
  dequantize_function<Real> dequantize_ = nullptr;
  sequence<Real*> at_;
  sequence<memory<Real>> own_;
  sequence<weight_view> weights_;
};

// Values that replace computed ones: finite differences hold detached nodes constant.
template <class Real> using pins = std::map<id, std::vector<Real>>;

// Evaluates every node in order. The oracle builds a rotation as a dense matrix; other callers apply it block by block.
template <class Real>
values<Real> evaluate_all(const graph& g, const size_values& s, const leaf_views& leaves, const operations<Real>& by,
                          rotations rotation_form, const host_function<Real>* host = nullptr,
                          const pins<Real>* pinned = nullptr) {
  values<Real> v(g, s, leaves, by.dequantize);
  const evaluator<Real> evaluate{g, s, by.evaluate, rotation_form, host};
  for (id i = 0; i < g.size; ++i) {
    v.compute(i, evaluate);
    if (pinned == nullptr) continue;
    if (const auto p = pinned->find(i); p != pinned->end()) std::copy(p->second.begin(), p->second.end(), v[i].p);
  }
  return v;
}

}  // namespace graft::cpu
