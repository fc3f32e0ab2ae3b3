// SPDX-License-Identifier: Apache-2.0
// multiply_add on the CPU, in one loop.
#pragma once

namespace graft::cpu {

template <> struct launch_on_cpu<multiply_add> {
  static inline int launches = 0;

  template <class Real> static void run(const launch_context<Real>& in, const multiply_add& a, const launch&) {
    ++launches;
    const tensor<Real> x = in.frame.whole(a.x), y = in.frame.whole(a.y), z = in.frame.whole(a.z),
                       out = in.frame.whole(a.result);
    for (long long i = 0; i < out.count(); ++i) out.p[i] = x.p[i] * y.p[i] + z.p[i];
  }
};

}  // namespace graft::cpu
