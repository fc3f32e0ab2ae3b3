// SPDX-License-Identifier: Apache-2.0
// Runs one adapted layer on the CPU: forward, backward, merge, unmerge, with or without its adapter. Parameter-time
// values are cached until parameters_changed(); tensors stay where their owner keeps them.
//     executor<float> layer(graphs_of<linear_kind, lora<>, false>());
//     layer.set("weight", view_of(w, out, in)); …; layer.set("scaling", 2.0);
//     layer.forward(view_of(x, tokens, in), view_into(y, tokens, out));
#pragma once
#include <graft/derive/cost.h>
#include <graft/run/bound_graph.h>

namespace graft {

struct gradient {
  std::string name;  // the parameter's name
  mutable_view into;
};

template <class Real> class executor {
 public:
  explicit executor(const layer_graphs& graphs, backend how = backend::fused)
      : state_(graphs),
        forward_(how == backend::eager ? graphs.literal : graphs.forward, how),
        folded_(graphs.folded, how),
        base_(graphs.base_forward, how),
        base_backward_(graphs.base_backward, how),
        backward_(how == backend::eager ? graphs.literal_backward : graphs.backward, how),
        how_(how) {}

  status set(const char* name, const view& v) { return touched(state_.set(name, v)); }
  status set(const char* name, double v) { return touched(state_.set(name, v)); }
  status size(const char* name, long long v) { return touched(state_.size(name, v)); }
  // The memory behind a parameter was written: cached values that follow from it are stale.
  void parameters_changed() {
    for (bound_graph<Real>* g : {&forward_, &folded_, &base_, &base_backward_, &backward_}) g->parameters_changed();
  }
  // A disabled adapter costs nothing: the base layer runs as if it were alone.
  void enable(bool adapter) { enabled_ = adapter; }
  bool enabled() const { return enabled_; }
  void host(cpu::host_function<Real> f) { host_ = std::move(f); }

  status forward(const view& x, const mutable_view& y) {
    bound_graph<Real>& g = !enabled_ ? base_ : folds(x) ? folded_ : forward_;
    return g(state_, {{"x", x}}, {{"y", y}}, host_);
  }
  // dx and any of the parameters' gradients; those not asked for are not written.
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients) {
    const graph& g = backward_.value();
    if (g.bad.what == fault::not_differentiable) return fail("no gradient for ", located(g, g.bad.at));
    if (g.bad.what != fault::none) return fail("the gradient of this formula needs more nodes than a graph holds");
    output_map out{{"dx", dx}};
    if (!enabled_) {
      if (!gradients.empty()) return fail("the adapter is disabled: its parameters have no gradient, only dx exists");
      return base_backward_(state_, {{"x", x}, {"dy", dy}}, out, host_);
    }
    for (const gradient& d : gradients) {
      if (g.result(d.name.c_str()) < 0) return fail("this layer has no parameter '", d.name.c_str(), "'");
      out.insert_or_assign(d.name, d.into);
    }
    return backward_(state_, {{"x", x}, {"dy", dy}}, out, host_);
  }

  // W' and, where the adapter changes it, b'. What unmerge() will need is kept.
  status merge(const mutable_view& weight, const mutable_view& bias = {}) {
    const graph& g = state_.graphs().merge;
    result<bound_leaves> b = state_.bind(g);
    if (!b) return b.failure();
    for (const auto& [name, to] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}}) {
      if (to->data == nullptr) continue;
      const id at = g.result(name);
      if (at < 0) return fail("the adapter leaves '", name, "' as it is");
      if (const long long n = count(g, at, b->sizes); to->count() != n)
        return fail("'", name, "' has ", to->count(), " elements, expected ", n);
    }
    cpu::values<Real> v = cpu::run_eager<Real>(g, b->sizes, b->leaf, cpu::rotations::blockwise, &host_);
    const unmerge_facts& u = state_.graphs().weight_facts;
    kept_.clear();
    for (int k = 0; k < u.kept; ++k) {
      const cpu::tensor<Real> t = v[u.kept_from[k]];
      kept_.push_back({{t.p, t.p + t.count()}, {t.d[0], t.d[1], t.d[2], t.d[3]}});
    }
    for (const auto& [name, to] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}})
      if (to->data != nullptr) cpu::encode(v[g.result(name)].p, to->count(), to->data, to->type, 0);
    return ok;
  }
  // `what` is "weight" or "bias": the base tensor from the merged one.
  status unmerge(const char* what, const view& merged, const mutable_view& original) {
    const bool is_bias = same_text(what, "bias");
    if (!is_bias && !same_text(what, "weight")) return fail("'", what, "' cannot be unmerged, expected weight or bias");
    const graph& g = is_bias ? state_.graphs().unmerge_bias : state_.graphs().unmerge_weight;
    const unmerge_facts& u = is_bias ? state_.graphs().bias_facts : state_.graphs().weight_facts;
    if (!u.possible) return fail("the formula cannot be solved for '", what, "'; keep a copy of the base tensor");
    if (static_cast<int>(kept_.size()) < u.kept) return fail("merge() first: unmerging needs a value that it keeps");
    result<bound_leaves> b = state_.bind(g);
    if (!b) return b.failure();
    tensor_map data{{"merged", merged}};
    for (int k = 0; k < u.kept; ++k) {
      const kept_value& from = kept_[static_cast<std::size_t>(k)];
      view v{from.data.data(), cpu::real_type<Real>, {}, 4};
      std::copy_n(from.size, 4, v.size);
      data.insert_or_assign(kept_names[k], v);
    }
    if (status s = layer_state::bind_data(g, data, *b); !s) return s;
    const id at = g.out[0].at;
    if (const long long n = count(g, at, b->sizes); original.count() != n)
      return fail("'", what, "' has ", original.count(), " elements, expected ", n);
    cpu::values<Real> v = cpu::run_eager<Real>(g, b->sizes, b->leaf, cpu::rotations::blockwise, &host_);
    cpu::encode(v[at].p, original.count(), original.data, original.type, 0);
    return ok;
  }

 private:
  struct kept_value {
    std::vector<Real> data;
    long long size[4];
  };
  status touched(status s) {
    if (s)
      for (bound_graph<Real>* g : {&forward_, &folded_, &base_, &base_backward_, &backward_}) g->unbind();
    return s;
  }
  // Is a copy of the weight with the adapter in it cheaper than the side branch? Asked once per number of tokens.
  bool folds(const view& x) {
    if (how_ == backend::eager || x.rank == 0) return false;
    if (asked_for_ == x.size[0]) return folds_;
    const graph &branch = state_.graphs().forward, &folded = state_.graphs().folded;
    result<bound_leaves> b = state_.bind(branch);
    asked_for_ = x.size[0];
    folds_ = false;
    if (!b || !layer_state::bind_data(branch, {{"x", x}}, *b)) return false;  // forward() will say why
    size_values s = b->sizes, t;
    for (int i = 0; i < folded.sizes.count; ++i)
      if (const int at = branch.sizes.find(folded.sizes.e[i].name);
          at >= 0 && folded.sizes.e[i].what == size_entry::kind::name)
        t.v[i] = s.v[at];
    folds_ = worth_folding(cost_of(branch, s, dtype::f32, dtype::f32), cost_of(folded, t, dtype::f32, dtype::f32));
    return folds_;
  }

  layer_state state_;
  bound_graph<Real> forward_, folded_, base_, base_backward_, backward_;
  backend how_;
  bool enabled_ = true, folds_ = false;
  long long asked_for_ = -1;
  cpu::host_function<Real> host_;
  std::vector<kept_value> kept_;
};

}  // namespace graft
