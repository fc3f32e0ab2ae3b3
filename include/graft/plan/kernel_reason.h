// SPDX-License-Identifier: Apache-2.0
// why_several_kernels: the reason in words why a call takes more than one kernel on its target, for the option
// one_kernel and for explain(). The plan tells which values are launches of their own; the target explains why a GEMM
// takes several kernels.
#pragma once
#include <graft/plan/kernel_count.h>
#include <graft/plan/size_requirements.h>

namespace graft {

// The reason for one launch; empty where it takes one kernel or the target states none.
[[gnu::cold]] constexpr text why_several_kernels(const graph& g, const launch_plan& p, const launch& l,
                                                 const size_values& s, dtype type, const quant_format& stored) {
  text why;
  p.visit(l, [&]<class Kind>(const Kind& one) {
    const launch_facts facts{g, p, s, type, stored};
    if constexpr (requires { one.why_several(facts); })
      if (kernel_count(g, p, l, s, type, stored) > 1) why = one.why_several(facts);
  });
  return why;
}
// The reason for a plan: that of its only launch, or at most `most` launches with the value that each computes.
[[gnu::cold]] constexpr text why_several_kernels(const graph& g, const launch_plan& p, const size_values& s, dtype type,
                                                 const quant_format& stored, int most = 4) {
  text t;
  if (p.launches.size() == 1) t = why_several_kernels(g, p, p.launches[0], s, type, stored);
  if (!t.empty()) return t;
  for (int k = 0; k < p.launches.size() && k < most; ++k) {
    const launch& l = p.launches[k];
    const int n = kernel_count(g, p, l, s, type, stored);
    if (k > 0) t << "; ";
    t << "launch " << k << " computes ", print(t, g, p.nodes[l.first + l.count - 1], {nullptr, 4});
    if (n > 1) t << " in " << n << " kernels";
    const text why = why_several_kernels(g, p, l, s, type, stored);
    if (!why.empty()) t << ", because " << why;
  }
  if (p.launches.size() > most) t << "; and " << p.launches.size() - most << " more";
  return t;
}

}  // namespace graft
