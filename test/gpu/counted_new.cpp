// SPDX-License-Identifier: Apache-2.0
// Counts every allocation of the program that contains the GPU tests.
#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long long> counted{0};
}
namespace test {
long long allocations() { return counted; }
}  // namespace test

void* operator new(std::size_t n) {
  ++counted;
  if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
