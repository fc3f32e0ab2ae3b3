// SPDX-License-Identifier: Apache-2.0
// How the CPU engine runs a graph: as a program with a binding, or node by node (engine.h declares both).
#pragma once
#include <graft/backend/cpu/runtime/engine.h>
#include <graft/backend/cpu/runtime/program.h>
#include <graft/backend/engine.h>

#include <utility>

namespace graft::cpu {

template <class Real>
status engine<Real>::bind(queue& q, program& in, binding& with, const size_values& s, const leaf_views& leaves,
                          const capacity& limits, shared&) {
  if (status supported = q.check_supported_ops(in.value(), leaves); !supported) return supported;
  in.bind(with, s, leaves, limits.tokens, q.has.dequantize);
  return ok;
}
template <class Real> status engine<Real>::run(queue& q, program& in, binding& with, const program_call& c) {
  const graph& g = in.value();
  const launch_plan& p = in.launches();
  const bool eager = p.to.granularity == target::work::by_nodes;
  if (p.breaks > 0 && !eager)
    return fail("host function '", g[p.first_break].name, "' breaks the graph; run the layer in eager mode");
  if (p.breaks > 0 && !q.host)
    return fail("host function '", g[p.first_break].name, "' is not set; give it with host()");
  if (eager) with.ready = false;  // eager mode reuses no value of an earlier call
  in.run(with, c, q.has.evaluate, eager ? rotations::dense : rotations::blockwise, &q.host, q.clock, q.batch_invariant);
  return std::exchange(q.host_error, status(ok));
}
template <class Real> status engine<Real>::parameters_changed(queue&, program&, binding& with) {
  return with.ready = false, status(ok);
}
template <class Real> status engine<Real>::weight_changed(queue&, program&, binding& with) {
  return with.loaded = with.ready = false, status(ok);
}
template <class Real> void engine<Real>::precompute(queue& q, const program& in, binding& with) {
  in.precompute(with, q.has.evaluate, &q.host);
}
template <class Real>
void engine<Real>::share_precomputed(const program& in, binding& mine, const program& other, const binding& from) {
  in.share_precomputed(mine, other, from);
}

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
static_assert(Engine<engine<float>> && Engine<engine<double>>);

}  // namespace graft::cpu

// A program that links graft::cpu_compiled uses the GEMMs of that library only. Its own files may be compiled for
// another packet width (nvcc has none), and one program must not mix GEMMs of two widths under one name.
#if defined(GRAFT_CPU_COMPILED)
extern template class graft::cpu::program<float>;
extern template class graft::cpu::program<double>;
extern template class graft::cpu::row_products<float>;
extern template class graft::cpu::row_products<double>;
#endif
