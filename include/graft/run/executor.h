// SPDX-License-Identifier: Apache-2.0
// Runs one adapted layer on the CPU: forward, backward, merge, unmerge, with or without its adapter. Parameter-time
// values are cached until parameters_changed(); tensors stay where their owner keeps them.
//     executor<float> layer(graphs_of<q_proj>());
//     layer.set("weight", view_of(w, out, in)); …; layer.set("scaling", 2.0);
//     layer.forward(view_of(x, tokens, in), view_into(y, tokens, out));
#pragma once
#include <graft/backend/cpu/fused.h>
#include <graft/run/layer_state.h>

namespace graft {

enum class backend : unsigned char { fused, eager };

struct gradient {
  std::string name;   // the parameter's name
  mutable_view into;
};

template <class Real> class executor {
 public:
  explicit executor(const layer_graphs& graphs, backend how = backend::fused)
      : state_(graphs), how_(how), forward_(*graphs.forward), backward_(*graphs.backward), base_(*graphs.base_forward) {}

  status set(const char* name, const view& v) { return touched(state_.set(name, v)); }
  status set(const char* name, double v) { return touched(state_.set(name, v)); }
  status size(const char* name, long long v) { return touched(state_.size(name, v)); }
  // Tell the layer that the memory behind a tensor was written.
  void parameters_changed() {
    forward_.parameters_changed();
    backward_.parameters_changed();
  }
  void enable(bool adapter) { enabled_ = adapter; }
  bool enabled() const { return enabled_; }
  void host(cpu::host_function<Real> f) { host_ = std::move(f); }

  status forward(const view& x, const mutable_view& y) {
    const builder& fast = enabled_ ? *state_.graphs().forward : *state_.graphs().base_forward;
    const builder& g = enabled_ && how_ == backend::eager ? *state_.graphs().literal : fast;
    return run(g, enabled_ ? forward_ : base_, {{"x", x}}, {{"y", y}});
  }
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& gradients) {
    const builder& g = how_ == backend::eager ? *state_.graphs().literal_backward : *state_.graphs().backward;
    std::map<std::string, mutable_view, std::less<>> out{{"dx", dx}};
    for (const gradient& d : gradients) {
      if (g.result(d.name.c_str()) < 0) return fail("this layer has no parameter '", d.name.c_str(), "'");
      out.insert_or_assign(d.name, d.into);
    }
    return run(g, backward_, {{"x", x}, {"dy", dy}}, out);
  }
  // W' and, where the adapter changes it, b'. What unmerge() will need is kept.
  status merge(const mutable_view& weight, const mutable_view& bias = {}) {
    const builder& g = *state_.graphs().merge;
    size_values s;
    cpu::leaf_views leaves;
    if (status bound = state_.resolve(g, s, leaves, {}); !bound) return bound;
    cpu::values<Real> v = cpu::run_eager<Real>(g, s, leaves, cpu::rotations::blockwise);
    for (const auto& [name, to] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}})
      if (const id at = g.result(name); at >= 0 && to->data != nullptr) {
        if (to->count() != v[at].count()) return fail("'", name, "' has ", to->count(), " elements, expected ", v[at].count());
      } else if (to->data != nullptr) {
        return fail("the adapter leaves '", name, "' as it is");
      }
    const unmerging& u = *state_.graphs().unmerge_weight;
    kept_.clear();
    for (int k = 0; k < u.kept; ++k) {
      const cpu::tensor<Real> t = v[u.kept_from[k]];
      kept_.emplace_back(t.p, t.p + t.count());
    }
    for (const auto& [name, to] : {std::pair{"weight", &weight}, std::pair{"bias", &bias}})
      if (to->data != nullptr) cpu::encode(v[g.result(name)].p, to->count(), to->data, to->type, 0);
    return ok;
  }
  status unmerge(const char* what, const view& merged, const mutable_view& original) {
    const unmerging& u = same_text(what, "bias") ? *state_.graphs().unmerge_bias : *state_.graphs().unmerge_weight;
    if (!u.possible) return fail("the formula cannot be solved for '", what, "'; keep a copy of the base tensor");
    if (static_cast<int>(kept_.size()) != u.kept) return fail("merge() first: unmerging needs a value that it keeps");
    size_values s;
    cpu::leaf_views leaves;
    tensor_map data{{"merged", merged}};
    std::vector<size_values> unused;
    for (int k = 0; k < u.kept; ++k) {
      const node& v = u.g.n[u.g.find(kept_names[k])];
      view kept{kept_[static_cast<std::size_t>(k)].data(), cpu::real_type<Real>, {}, 4};
      size_values known;
      cpu::leaf_views ignored;
      if (status bound = state_.resolve(*state_.graphs().merge, known, ignored, {}); !bound) return bound;
      for (int d = 0; d < 4; ++d) kept.size[d] = state_.graphs().merge->sizes.value(v.d[d], known);
      data.insert_or_assign(kept_names[k], kept);
    }
    if (status bound = state_.resolve(u.g, s, leaves, data); !bound) return bound;
    cpu::values<Real> v = cpu::run_eager<Real>(u.g, s, leaves, cpu::rotations::blockwise);
    const cpu::tensor<Real> w = v[u.g.out[0].at];
    if (original.count() != w.count()) return fail("'", what, "' has ", original.count(), " elements, expected ", w.count());
    cpu::encode(w.p, w.count(), original.data, original.type, 0);
    return ok;
  }

 private:
  status touched(status s) {
    if (s) {
      for (bool& b : bound_) b = false;
    }
    return s;
  }
  using outputs = std::map<std::string, mutable_view, std::less<>>;

  status run(const builder& g, cpu::fused<Real>& program, const tensor_map& data, const outputs& out) {
    size_values s;
    cpu::leaf_views leaves;
    if (status bound = state_.resolve(g, s, leaves, data); !bound) return bound;
    std::vector<mutable_view> to(static_cast<std::size_t>(g.outs));
    for (int k = 0; k < g.outs; ++k) {
      const auto found = out.find(g.out[k].name);
      if (found == out.end() || found->second.data == nullptr) continue;
      const long long expected = count(g, g.out[k].at, s);
      if (found->second.count() != expected)
        return fail("output '", g.out[k].name, "' has ", found->second.count(), " elements, expected ", expected);
      to[static_cast<std::size_t>(k)] = found->second;
    }
    if (status valid = check_ids(g, s, leaves); !valid) return valid;
    for (int k = 0; k < g.size; ++k)
      if (g.n[k].what == op::host && (!host_ || how_ == backend::fused))
        return fail("host function '", g.n[k].name, "' runs in eager mode only, with host() set");
    if (how_ == backend::eager) {
      cpu::values<Real> v = cpu::run_eager<Real>(g, s, leaves, cpu::rotations::dense, &host_);
      for (int k = 0; k < g.outs; ++k)
        if (const mutable_view& o = to[static_cast<std::size_t>(k)]; o.data != nullptr) {
          const cpu::tensor<Real> t = v[g.out[k].at];
          cpu::encode(t.p, t.count(), o.data, o.type, 0);
        }
      return ok;
    }
    const int which = &program == &forward_ ? 0 : &program == &backward_ ? 1 : 2;
    if (!bound_[which]) program.bind(s, leaves), bound_[which] = true;
    program.run(s.v[g.sizes.find("tokens")], leaves, to);
    return ok;
  }
  static status check_ids(const graph& g, const size_values& s, const cpu::leaf_views& leaves) {
    for (int k = 0; k < g.size; ++k) {
      const node& v = g.n[k];
      if (v.what != op::gather) continue;
      const long long rows = g.sizes.value(g[v.a].d[v.ta ? 3 : 2], s), tokens = g.sizes.value(v.d[2], s);
      const view& ids = leaves[static_cast<std::size_t>(v.b)];
      if (ids.type != dtype::i64) return fail("ids are stored as ", name_of(ids.type), ", expected i64");
      for (long long t = 0; t < tokens; ++t)
        if (const auto at = static_cast<const std::int64_t*>(ids.data)[t]; at < 0 || at >= rows)
          return fail("id ", static_cast<long long>(at), " at position ", t, " is outside the table of ", rows, " rows");
    }
    return ok;
  }

  layer_state state_;
  backend how_;
  cpu::fused<Real> forward_, backward_, base_;
  bool bound_[3] = {false, false, false};
  bool enabled_ = true;
  cpu::host_function<Real> host_;
  std::vector<std::vector<Real>> kept_;
};

}  // namespace graft
