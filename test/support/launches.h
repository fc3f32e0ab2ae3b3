// SPDX-License-Identifier: Apache-2.0
// What a plan launches, in one line: "GEMM, prologue rotate | reduce, …".
#pragma once
#include <graft/graft.h>

namespace test {

using namespace graft;

constexpr text launches(const graph& g, const target& to = cpu_target) {
  const launch_plan p = fuse(g, to);
  text t;
  for (int k = 0; k < p.launches.size(); ++k) {
    const launch& l = p.launches[k];
    t << (k > 0 ? " | " : "");
    describe_launch(t, g, p, l);
  }
  return t;
}

}  // namespace test
