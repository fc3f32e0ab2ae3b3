// SPDX-License-Identifier: Apache-2.0
// How the CPU's engine runs a graph: as a plan bound to tensors, or node by node. See engine.h.
#pragma once
#include <graft/backend/cpu/bound_plan.h>
#include <graft/backend/cpu/engine.h>

#include <utility>

namespace graft::cpu {

template <class Real> class engine<Real>::bound {
 public:
  bound(const graph& g, const target& to) : plan_(g, to) {}
  [[gnu::cold, gnu::noinline]] ~bound() = default;  // compiled once, not wherever one may end
  status bind(queue& q, const size_values& s, const leaf_views& leaves, const capacity& room, shared&) {
    if (status known = q.knows(value(), leaves); !known) return known;
    plan_.bind(s, leaves, room.tokens, q.has.decode);
    return ok;
  }
  // The tensors of one of several layers that share this plan.
  using binding = typename bound_plan<Real>::binding;
  void exchange(binding& other) { plan_.exchange(other); }
  const graph& value() const { return plan_.value(); }
  const plan& launches() const { return plan_.launches(); }
  const bound_plan<Real>& made() const { return plan_; }
  long long launched() const { return plan_.launched(); }
  long long moves() const { return 0; }
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
  // Values that follow from the parameters alone, from the other direction of a training step.
  void borrow(const bound& from) { plan_.borrow(from.plan_); }
  status publish(queue&) { return ok; }
  void memory_changed() {}
  status run(queue& q) {
    const graph& g = plan_.value();
    const plan& p = plan_.launches();
    const bool eager = p.to.gathers == target::work::by_nodes;
    if (p.breaks > 0 && !eager)
      return fail("host function '", g[p.first_break].name, "' breaks the graph; run the layer in eager mode");
    if (p.breaks > 0 && !q.host)
      return fail("host function '", g[p.first_break].name, "' is not set; give it with host()");
    if (eager) plan_.parameters_changed();  // as the formula is written: nothing is kept from call to call
    plan_.run(q.has.evaluate, eager ? rotations::dense : rotations::blockwise, &q.host, q.clock);
    return std::exchange(q.outside, status(ok));
  }

 private:
  bound_plan<Real> plan_;
};

template <class Real> status engine<Real>::add(queue&, const view& from, const mutable_view& to) {
  const view there{to.data,
                   to.type,
                   {to.size[0], to.size[1], to.size[2], to.size[3]},
                   to.rank,
                   {to.apart[0], to.apart[1], to.apart[2], to.apart[3]}};
  const Real* const values = static_cast<const Real*>(from.data);
  Real sum[256];
  for (long long at = 0, n = 0; at < to.count(); at += n) {
    n = std::min(to.count() - at, 256LL);
    read_numbers(there, at, n, sum);
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
  if (status known = q.knows(g, leaves); !known) return known;
  values<Real> v = evaluate_all<Real>(g, s, leaves, q.has, rotations::blockwise, &q.host);
  for (int k = 0; k < g.outs; ++k)
    if (const mutable_view& to = outputs[static_cast<std::size_t>(k)]; to.data != nullptr)
      write(v[g.out[k].at].p, 0, to.count(), to);
  return ok;
}

}  // namespace graft::cpu

// A program that links graft::cpu_compiled has the products of that library alone. A file of its own may be compiled for
// another width of packets (nvcc knows none), and a program with products of two widths under one name mixes them.
#if defined(GRAFT_CPU_COMPILED)
extern template class graft::cpu::bound_plan<float>;
extern template class graft::cpu::bound_plan<double>;
extern template class graft::cpu::mixed_products<float>;
extern template class graft::cpu::mixed_products<double>;
#endif
