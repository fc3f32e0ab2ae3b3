// SPDX-License-Identifier: Apache-2.0
// How the CPU engine runs a graph: as a plan bound to tensors, or node by node (engine.h declares both).
#pragma once
#include <graft/backend/cpu/runtime/bound_plan.h>
#include <graft/backend/cpu/runtime/engine.h>

#include <utility>

namespace graft::cpu {

template <class Real> class engine<Real>::bound {
 public:
  bound(const graph& g, const target& to) : plan_(g, to) {}
  [[gnu::cold, gnu::noinline]] ~bound() = default;  // compiled once, not at every point of destruction
  status bind(queue& q, const size_values& s, const leaf_views& leaves, const capacity& limits, shared&) {
    if (status supported = q.check_supported_ops(value(), leaves); !supported) return supported;
    plan_.bind(s, leaves, limits.tokens, q.has.dequantize);
    return ok;
  }
  // The bound tensors of one of several layers that share this plan.
  using binding = typename plan_binding<Real>::binding;
  void swap_binding(binding& other) { plan_.swap_binding(other); }
  const graph& value() const { return plan_.value(); }
  const plan& launches() const { return plan_.launches(); }
  const plan_binding<Real>& made() const { return plan_; }
  long long launched() const { return plan_.launched(); }
  long long address_version() const { return 0; }
  long long workspace_bytes(long long tokens) { return plan_.workspace_bytes(tokens); }
  call& next_call() { return plan_.next_call(); }
  call& this_call() { return plan_.this_call(); }
  const call& this_call() const { return plan_.this_call(); }
  status parameters_changed(queue&) {
    plan_.parameters_changed();
    return ok;
  }
  status weight_changed(queue&) {
    plan_.weight_changed();
    return ok;
  }
  // Reuses the parameter-stage values of the other direction of a training step.
  void borrow_precomputed(const bound& from) { plan_.borrow_precomputed(from.plan_); }
  status publish(queue&) { return ok; }
  void memory_changed() {}
  status run(queue& q) {
    const graph& g = plan_.value();
    const plan& p = plan_.launches();
    const bool eager = p.to.granularity == target::work::by_nodes;
    if (p.breaks > 0 && !eager)
      return fail("host function '", g[p.first_break].name, "' breaks the graph; run the layer in eager mode");
    if (p.breaks > 0 && !q.host)
      return fail("host function '", g[p.first_break].name, "' is not set; give it with host()");
    if (eager) plan_.parameters_changed();  // eager mode reuses no value of an earlier call
    plan_.run(q.has.evaluate, eager ? rotations::dense : rotations::blockwise, &q.host, q.clock);
    return std::exchange(q.host_error, status(ok));
  }

 private:
  plan_binding<Real> plan_;
};

template <class Real> status engine<Real>::add(queue&, const view& from, const mutable_view& to) {
  const view there{to.data,
                   to.type,
                   {to.size[0], to.size[1], to.size[2], to.size[3]},
                   to.rank,
                   {to.strides[0], to.strides[1], to.strides[2], to.strides[3]}};
  const Real* const values = static_cast<const Real*>(from.data);
  Real sum[256];
  for (long long at = 0, n = 0; at < to.count(); at += n) {
    n = std::min(to.count() - at, 256LL);
    read_floats(there, at, n, sum);
    for (long long i = 0; i < n; ++i) sum[i] += values[at + i];
    write(sum, at, n, to);
  }
  return ok;
}
template <class Real>
status engine<Real>::evaluate(queue& q, const graph& g, const size_values& s, const leaf_views& leaves,
                              const std::vector<mutable_view>& outputs) {
  for (id i = 0; i < g.size; ++i)
    if (g[i].what == op::host && !q.host)
      return fail("host function '", g[i].name, "' is not set; give it with host()");
  if (status supported = q.check_supported_ops(g, leaves); !supported) return supported;
  values<Real> v = evaluate_all<Real>(g, s, leaves, q.has, rotations::blockwise, &q.host);
  for (int k = 0; k < g.outs; ++k)
    if (const mutable_view& to = outputs[static_cast<std::size_t>(k)]; to.data != nullptr)
      write(v[g.out[k].at].p, 0, to.count(), to);
  return ok;
}

}  // namespace graft::cpu

// A program that links graft::cpu_compiled uses the GEMMs of that library only. Its own files may be compiled for
// another packet width (nvcc has none), and one program must not mix GEMMs of two widths under one name.
#if defined(GRAFT_CPU_COMPILED)
extern template class graft::cpu::plan_binding<float>;
extern template class graft::cpu::plan_binding<double>;
extern template class graft::cpu::row_products<float>;
extern template class graft::cpu::row_products<double>;
#endif
