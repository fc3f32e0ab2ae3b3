// SPDX-License-Identifier: Apache-2.0
// The values of the nodes of one graph, each on all rows: what is known before the data, what a merge computes, and, with
// the literal graph, the oracle that everything else is tested against.
#pragma once
#include <graft/backend/call.h>
#include <graft/backend/cpu/evaluate.h>
#include <graft/backend/cpu/memory.h>
#include <graft/backend/cpu/storage.h>
#include <graft/derive/walk.h>

#include <map>

namespace graft::cpu {

template <class Real> constexpr dtype real_type = storage<Real>::type;

// A tensor that a kernel can read where it lies.
template <class Real> bool in_place(const view& v) { return v.type == real_type<Real> && v.contiguous(); }
// A weight in a narrow encoding, or in another order than by rows, is used where it lies and decoded inside the product, as
// far as the products read such weights.
template <class Real> bool stays_stored(const view& v, weights of) {
  if (v.beside != nullptr) return true;
  if (of == weights::any)
    return v.contiguous() ? v.rank > 1 && bits_of(v.type) < bits_of(real_type<Real>) : v.rank == 2;
  return v.type == real_type<Real> && v.rank == 2 && !v.contiguous() && (v.stride(0) == 1 || v.stride(1) == 1);
}

// Operands that are read as they are stored, a panel of rows at a time: weights of products, on either side, tables of
// look-ups, and the rows of a sum of squares. Everybody else reads numbers.
[[gnu::noinline]] constexpr bool reads_stored(const graph& g, const node& v, int k) {
  auto is_matrix = [&](id i) { return g[i].d[0] == dim{1} && g[i].d[1] == dim{1}; };
  if (v.what == op::matmul && !v.sum)
    return is_matrix(v.b) && (k == 1 ? !v.ta : is_matrix(v.a) && base_leaf(g, v.b) < 0);
  if (v.what == op::row_dot) return v.a == v.b;
  return row(v.what).axes == flow::look_up && k == 0;
}

template <class Real> class values {
 public:
  values() = default;
  // `decode`: as operations have it.
  values(const graph& g, const size_values& s, leaf_views leaves, code_function<Real> decode)
      : g_(g), s_(s), leaves_(std::move(leaves)), decode_(decode), at_(g.size), own_(g.size) {}

  // A tensor for node i: the leaf's memory where it can be read there, else a copy.
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
    return cpu::stays_stored<Real>(v, decode_ != nullptr ? weights::any : weights::as_wide);
  }
  bool has(id i) const { return at_[i] != nullptr; }
  void forget(id i) {
    own_[i] = memory<Real>();
    at_[i] = nullptr;
  }
  bool is_at(id i, const values& from, id there) const { return at_[i] == from.at_[there]; }
  // The value of another graph that node i equals.
  void take(id i, const values& from, id there) {
    forget(i);
    at_[i] = from.at_[there];
  }
  const std::int64_t* ids(id i) const { return static_cast<const std::int64_t*>(leaf(i).data); }
  // A weight that products and look-ups decode for themselves, as a matrix of the sizes of node i.
  void leave_stored(id i, id leaf_at) {
    forget(i);
    const tensor<Real> t = shaped<Real>(g_, i, s_, nullptr);
    weight_at(i) = weight_of(leaf(leaf_at), t.d[0] * t.d[1] * t.d[2], t.d[3]);
  }
  // A matrix of our own that products alone read, laid out by columns: they read it as they read a weight by rows.
  [[gnu::cold]] void lay_by_columns(id i) {
    const tensor<Real> by_rows = shaped(g_, i, s_, at_[i]);
    memory<Real> turned;
    turned.reserve(by_rows.count());
    tensor<Real> to = by_rows;
    to.p = turned.data();
    transpose(to, by_rows);
    own_[i] = std::move(turned);
    at_[i] = nullptr;
    weight_at(i) = {encoding_of<Real>(), by_rows.d[2], by_rows.d[3], 1, by_rows.d[2], own_[i].data(), nullptr};
  }
  const weight_view* stored(id i) const {
    return i < weights_.size() && weights_[i].codes != nullptr ? &weights_[i] : nullptr;
  }
  const view& leaf(id i) const { return leaves_[i]; }

  void compute(id i, const evaluator<Real>& evaluate) {
    const node& v = g_[i];
    if (is_leaf(v.what) && leaf(i).data != nullptr) return;
    if (v.what == op::reshape) {
      if (codes_of(i) == nullptr) at_[i] = (*this)[v.a].p;
      return;
    }
    const tensor<Real> out = make(i);
    weight_view stored_as[3];
    memory<Real> decoded[3];
    operands<Real> x;
    tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0) continue;
      if (row(g_[o].what).from == source::integers)
        x.ids = ids(o);
      else if (const view* codes = codes_of(o))
        *to[k] = from_codes(*codes, i, k, out, stored_as[k], decoded[k]);
      else
        *to[k] = (*this)[o];
    }
    if (adds_up(v.what)) std::fill_n(out.p, out.count(), Real(0));
    evaluate(i, out, x);
  }

 private:
  // The base tensor behind a value, where it is codes, or narrower than what is computed with: a copy of it all would take
  // longer to be written than what reads it takes.
  const view* codes_of(id i) const {
    const id from = base_leaf(g_, i);
    return from >= 0 && leaf(from).contiguous() && stays_stored(leaf(from)) ? &leaf(from) : nullptr;
  }
  // Operand k of node i, which is codes: as it is stored, or, for what reads numbers one by one, decoded into the result,
  // or else into memory that lasts as long as the node is computed.
  [[gnu::noinline]] tensor<Real> from_codes(const view& codes, id i, int k, tensor<Real> out, weight_view& as,
                                            memory<Real>& decoded) {
    const id o = g_[i].operand(k);
    tensor<Real> t = shaped<Real>(g_, o, s_, nullptr);
    as = weight_of(codes, t.matrices() * t.d[2], t.d[3]);
    if (reads_stored(g_, g_[i], k)) {
      t.stored = &as;
      return t;
    }
    if (row(g_[i].what).axes == flow::each && t.count() == out.count()) {
      t.p = out.p;
    } else {
      decoded.reserve(t.count());
      t.p = decoded.data();
    }
    read_all(codes, t.p);
    return t;
  }
  void read_all(const view& v, Real* to) const {
    v.beside != nullptr ? decode_(weight_of(v, v.size[0], v.size[1]), 0, v.count(), to)
                        : read_numbers(v, 0, v.count(), to);
  }
  tensor<Real> make(id i) {
    own_[i].reserve(std::max(1LL, count(g_, i, s_)));
    at_[i] = own_[i].data();
    return shaped(g_, i, s_, at_[i]);
  }
  // Few graphs have such weights: there is room for them once there is one.
  weight_view& weight_at(id i) {
    if (weights_.empty()) weights_ = sequence<weight_view>(g_.size);
    return weights_[i];
  }

  graph g_;
  size_values s_;
  leaf_views leaves_;
  code_function<Real> decode_ = nullptr;
  sequence<Real*> at_;
  sequence<memory<Real>> own_;
  sequence<weight_view> weights_;
};

// Values that replace what the graph would compute: detached nodes, when differences are taken.
template <class Real> using pins = std::map<id, std::vector<Real>>;

// Every node in turn. `how`: the oracle builds a rotation as a dense matrix, everybody else applies it block by block.
template <class Real>
values<Real> evaluate_all(const graph& g, const size_values& s, const leaf_views& leaves, const operations<Real>& by,
                          rotations how, const host_function<Real>* host = nullptr,
                          const pins<Real>* pinned = nullptr) {
  values<Real> v(g, s, leaves, by.decode);
  const evaluator<Real> evaluate{g, s, by.evaluate, how, host};
  for (id i = 0; i < g.size; ++i) {
    v.compute(i, evaluate);
    if (pinned == nullptr) continue;
    if (const auto p = pinned->find(i); p != pinned->end()) std::copy(p->second.begin(), p->second.end(), v[i].p);
  }
  return v;
}

}  // namespace graft::cpu
