// SPDX-License-Identifier: Apache-2.0
// What this process has worked: the time that says most where other work shares the machine.
#pragma once
#include <ctime>

inline double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
