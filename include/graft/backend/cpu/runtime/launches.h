// SPDX-License-Identifier: Apache-2.0
// What launches do on the CPU: the table of the backend, by kind. A kind with a kernel of its own has a specialization
// in the folder of that kernel, which is included here.
#pragma once
#include <graft/backend/cpu/runtime/row_executor.h>

namespace graft::cpu {

// What a launch runs with.
template <class Real> struct launch_context {
  const call_frame<Real>& frame;
  const evaluator<Real>& evaluate;
  row_executor<Real>& rows;
  long long chunk_rows;
};

// The nodes run one after the other on all rows.
template <class Kind> struct launch_on_cpu {
  template <class Real> static void run(const launch_context<Real>& in, const Kind&, const launch& l) {
    for (int n = l.first; n < l.first + l.count; ++n) in.frame.compute_whole(in.frame.p.nodes[n], in.evaluate);
  }
};
template <> struct launch_on_cpu<rows_launch> {
  template <class Real> static void run(const launch_context<Real>& in, const rows_launch&, const launch& l) {
    in.rows.run(in.frame, l, in.chunk_rows);
  }
};

}  // namespace graft::cpu
