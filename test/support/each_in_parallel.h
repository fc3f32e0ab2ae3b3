// SPDX-License-Identifier: Apache-2.0
// Independent pieces of a test on all threads. Inside, the CPU backend computes each piece on one thread.
#pragma once
#include <functional>

namespace test {

// Calls f(0) ... f(n - 1), which must not throw, in any order.
void each_in_parallel(int n, const std::function<void(int)>& f);

}  // namespace test
