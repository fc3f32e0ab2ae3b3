// SPDX-License-Identifier: Apache-2.0
// The CPU time of this process, which is more meaningful than wall time on a shared machine.
#pragma once
#include <ctime>

inline double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
