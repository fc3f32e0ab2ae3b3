// SPDX-License-Identifier: Apache-2.0
// What a plan launches, in one line: "product: pre=rotate product=matmul | reduce: …".
#pragma once
#include <graft/graft.h>

namespace test {

using namespace graft;

constexpr text launches(const graph& g, const target& to = cpu_target) {
  const plan p = fuse(g, to);
  text t;
  for (int k = 0; k < p.launches.size(); ++k) {
    const launch& l = p.launches[k];
    t << (k > 0 ? " | " : "") << name_of(l.what) << ':';
    for (int s = 1; s <= static_cast<int>(slot::alone); ++s) {
      bool first = true;
      for (int n = 0; n < l.count; ++n) {
        const id i = p.nodes[l.first + n];
        if (p.place[i] != static_cast<slot>(s) || g[i].what == op::reshape) continue;
        t << (first ? " " : ",");
        if (first && static_cast<slot>(s) != slot::alone) t << name_of(static_cast<slot>(s)) << '=';
        t << row(g[i].what).name;
        first = false;
      }
    }
  }
  return t;
}

}  // namespace test
