// SPDX-License-Identifier: Apache-2.0
// One graph of a layer, bound to the layer's tensors and run by a backend. Binding happens once after a change; a call
// only looks at the tensors it brings.
#pragma once
#include <graft/backend/cpu/fused.h>
#include <graft/run/backend.h>
#include <graft/run/layer_state.h>

namespace graft {

using output_map = std::map<std::string, mutable_view, std::less<>>;

template <class Real> class bound_graph {
 public:
  bound_graph(const graph& g, backend how) : g_(g), how_(how), program_(g) {}

  void unbind() { bound_ = false; }
  void parameters_changed() { program_.parameters_changed(); }
  const graph& value() const { return g_; }

  status prepare(const layer_state& state) {
    if (bound_) return ok;
    result<bound_leaves> b = state.bind(g_);
    if (!b) return b.failure();
    leaves_ = std::move(*b);
    program_.bind(leaves_.sizes, leaves_.leaf);
    bound_ = true;
    return ok;
  }
  status operator()(const layer_state& state, const tensor_map& data, const output_map& out,
                    const cpu::host_function<Real>& host) {
    if (g_.size == 0) return fail("this method does not exist for this kind of layer");
    if (status s = prepare(state); !s) return s;
    bound_leaves call = leaves_;
    if (status s = layer_state::bind_data(g_, data, call); !s) return s;
    std::vector<mutable_view> to(static_cast<std::size_t>(g_.outs));
    for (int k = 0; k < g_.outs; ++k) {
      const auto found = out.find(g_.out[k].name);
      if (found == out.end() || found->second.data == nullptr) continue;
      if (!computes_in(found->second.type))
        return fail("output '", g_.out[k].name, "' is ", name_of(found->second.type),
                    ", expected f32, f64, bf16 or f16");
      const long long expected = count(g_, g_.out[k].at, call.sizes);
      if (found->second.count() != expected)
        return fail("output '", g_.out[k].name, "' has ", found->second.count(), " elements, expected ", expected);
      to[static_cast<std::size_t>(k)] = found->second;
    }
    if (status s = check_ids(call); !s) return s;
    if (how_ == backend::fused) return run_fused(call, to);
    return run_eager(call, to, host);
  }

 private:
  status run_fused(const bound_leaves& call, const std::vector<mutable_view>& to) {
    for (int k = 0; k < g_.size; ++k)
      if (g_.n[k].what == op::host)
        return fail("host function '", g_.n[k].name, "' breaks the graph; run the layer in eager mode");
    program_.run({call.sizes, call.leaf, to});
    return ok;
  }
  status run_eager(const bound_leaves& call, const std::vector<mutable_view>& to,
                   const cpu::host_function<Real>& host) {
    for (int k = 0; k < g_.size; ++k)
      if (g_.n[k].what == op::host && !host)
        return fail("host function '", g_.n[k].name, "' is not set; give it with host()");
    cpu::values<Real> v = cpu::run_eager<Real>(g_, call.sizes, call.leaf, cpu::rotations::dense, &host);
    for (int k = 0; k < g_.outs; ++k)
      if (const mutable_view& o = to[static_cast<std::size_t>(k)]; o.data != nullptr) {
        const cpu::tensor<Real> t = v[g_.out[k].at];
        cpu::encode(t.p, t.count(), o.data, o.type, 0);
      }
    return ok;
  }
  status check_ids(const bound_leaves& call) const {
    for (int k = 0; k < g_.size; ++k) {
      const node& v = g_.n[k];
      if (v.what != op::gather && v.what != op::scatter) continue;
      const node& table = v.what == op::gather ? g_[v.a] : v;
      const long long rows = g_.sizes.value(table.d[v.ta ? 3 : 2], call.sizes);
      const long long tokens = g_.sizes.value(g_[v.b].d[3], call.sizes);
      const auto* ids = static_cast<const std::int64_t*>(call.leaf[static_cast<std::size_t>(v.b)].data);
      for (long long t = 0; t < tokens; ++t)
        if (ids[t] < 0 || ids[t] >= rows)
          return fail("id ", static_cast<long long>(ids[t]), " at position ", t, " is outside the table of ", rows,
                      " rows");
    }
    return ok;
  }

  graph g_;
  backend how_;
  cpu::fused<Real> program_;
  bound_leaves leaves_;
  bool bound_ = false;
};

}  // namespace graft
