// SPDX-License-Identifier: Apache-2.0
// In a file of its own, which the host compiler compiles: nvcc knows no OpenMP here.
#include "each_in_parallel.h"

namespace test {

void each_in_parallel(int n, const std::function<void(int)>& f) {
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic)
#endif
  for (int i = 0; i < n; ++i) f(i);
}

}  // namespace test
