// SPDX-License-Identifier: Apache-2.0
// What a plan launches, in one line: "GEMM, prologue rotate | reduce, …".
#pragma once
#include <graft/graft.h>

namespace test {

using namespace graft;

// Prints a launch by the slots of its kernel, with the operations of each: "GEMM, low-rank branch, epilogue add+mul".
// explain() prints the same slots in an engineer's words.
constexpr void slots_of_launch(text& t, const graph& g, const launch_plan& p, const launch& l) {
  t << p.name_of(g, l);
  for (const launch_slot s : {launch_slot::prologue, launch_slot::mainloop, launch_slot::branch, launch_slot::epilogue,
                              launch_slot::reduce, launch_slot::standalone}) {
    sequence<id> ops;
    for (int n = 0; n < l.count; ++n)
      if (const id i = p.nodes[l.first + n]; p.slot_of[i] == s && g[i].what != op::reshape) ops.push(i);
    const bool said = s == launch_slot::mainloop && ops.size() == 1 &&
                      (traits_of(g[ops[0]].what).kind != op_class::product || g[ops[0]].what == op::matmul);
    if (ops.empty() || said) continue;
    const bool multiplies = s == launch_slot::branch || s == launch_slot::reduce;
    int products = 0, listed = 0;
    for (const id i : ops) products += multiplies && g[i].what == op::matmul ? 1 : 0;
    t << ", ";
    if (s == launch_slot::branch && products > 0)
      t << name_of(s), ++listed;
    else if (s == launch_slot::branch)
      t << "branch ";
    else if (products > 0)
      products == 1 ? t << "fused wgrad" : t << products << " fused wgrads", ++listed;
    else if (s != launch_slot::standalone)
      t << name_of(s) << ' ';
    for (const id i : ops)
      if (!multiplies || g[i].what != op::matmul) t << (listed++ > 0 ? "+" : "") << traits_of(g[i].what).name;
  }
}

constexpr text launches(const graph& g, const target& to = cpu_target) {
  const launch_plan p = fuse(g, to);
  text t;
  for (int k = 0; k < p.launches.size(); ++k) {
    const launch& l = p.launches[k];
    t << (k > 0 ? " | " : "");
    slots_of_launch(t, g, p, l);
  }
  return t;
}

}  // namespace test
