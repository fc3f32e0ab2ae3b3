// SPDX-License-Identifier: Apache-2.0
// The largest piece of memory that was asked for. In a file of its own: what an optimiser sees through it takes for a
// mismatch.
#include <algorithm>
#include <cstdlib>
#include <new>

std::size_t largest_request = 0;

void* operator new(std::size_t n) {
  largest_request = std::max(largest_request, n);
  if (void* const p = std::malloc(n > 0 ? n : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
