// SPDX-License-Identifier: Apache-2.0
// The values of the nodes of one graph, and the eager way to compute them: one node after the other, each on all
// tokens. With the literal graph this is the oracle that everything else is tested against.
#pragma once
#include <graft/backend/cpu/evaluate.h>
#include <graft/derive/stage.h>

#include <map>

namespace graft::cpu {

using leaf_views = std::vector<view>;  // one per node; only leaves have data

template <class Real> constexpr dtype real_type = storage<Real>::type;

// A base weight in bf16 is used where it lies and widened inside the product.
template <class Real> bool stays_narrow(const view& base) {
  return base.type == dtype::bf16 && real_type<Real> == dtype::f32 && base.rank > 1;
}

template <class Real> class values {
 public:
  values(const graph& g, const size_values& s, leaf_views leaves)
      : g_(g), s_(s), leaves_(std::move(leaves)), at_(static_cast<std::size_t>(g.size)), own_(at_.size()) {}

  // A tensor for node i: the leaf's memory where it has the right type, else a widened copy.
  tensor<Real> operator[](id i) {
    const auto k = static_cast<std::size_t>(i);
    if (at_[k] == nullptr && is_leaf(g_[i].what) && leaves_[k].data != nullptr) {
      const view& v = leaves_[k];
      if (v.type == real_type<Real>) {
        at_[k] = static_cast<Real*>(const_cast<void*>(v.data));
      } else {
        const auto n = count(g_, i, s_);
        own_[k].resize(static_cast<std::size_t>(n));
        decode(v.data, v.type, 0, n, own_[k].data());
        at_[k] = own_[k].data();
      }
    }
    return shaped(g_, i, s_, at_[k]);
  }
  bool has(id i) const { return at_[static_cast<std::size_t>(i)] != nullptr; }
  void forget(id i) {
    std::vector<Real>().swap(own_[static_cast<std::size_t>(i)]);  // gives the memory back, which = {} does not
    at_[static_cast<std::size_t>(i)] = nullptr;
  }
  void put(id i, Real* p) { at_[static_cast<std::size_t>(i)] = p; }
  const std::int64_t* ids(id i) const {
    return static_cast<const std::int64_t*>(leaves_[static_cast<std::size_t>(i)].data);
  }

  tensor<Real> make(id i) {
    const auto k = static_cast<std::size_t>(i);
    own_[k].assign(static_cast<std::size_t>(count(g_, i, s_)), Real(0));
    at_[k] = own_[k].data();
    return (*this)[i];
  }
  void compute(id i, const evaluator<Real>& evaluate) {
    const node& v = g_[i];
    if (is_leaf(v.what) && leaves_[static_cast<std::size_t>(i)].data != nullptr) return;
    if (v.what == op::reshape) return put(i, (*this)[v.a].p);
    operands<Real> x;
    if (v.a >= 0) x.a = (*this)[v.a];
    if (v.b >= 0 && g_[v.b].what == op::ids)
      x.ids = ids(v.b);
    else if (v.b >= 0)
      x.b = (*this)[v.b];
    if (v.c >= 0) x.c = (*this)[v.c];
    evaluate(i, make(i), x);
  }

 private:
  graph g_;
  size_values s_;
  leaf_views leaves_;
  std::vector<Real*> at_;
  std::vector<std::vector<Real>> own_;
};

// Values that replace what the graph would compute: detached nodes, when differences are taken.
template <class Real> using pins = std::map<id, std::vector<Real>>;

template <class Real>
values<Real> run_eager(const graph& g, const size_values& s, const leaf_views& leaves, rotations how,
                       const host_function<Real>* host = nullptr, const pins<Real>* pinned = nullptr) {
  values<Real> v(g, s, leaves);
  const evaluator<Real> evaluate{g, s, how, host};
  for (int i = 0; i < g.size; ++i) {
    v.compute(static_cast<id>(i), evaluate);
    if (pinned == nullptr) continue;
    if (const auto p = pinned->find(static_cast<id>(i)); p != pinned->end())
      std::copy(p->second.begin(), p->second.end(), v[static_cast<id>(i)].p);
  }
  return v;
}

}  // namespace graft::cpu
