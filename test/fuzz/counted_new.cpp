// SPDX-License-Identifier: Apache-2.0
// The operators new, counted. They are in a separate file because an optimiser that sees through them reports a
// mismatch of new and free.
#include "counted_new.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

std::atomic<std::size_t> largest_request{0}, all_requests{0}, limit{std::numeric_limits<std::size_t>::max()};

void* counted_or_null(std::size_t n) noexcept {
  all_requests += n;
  std::size_t before = largest_request;
  while (before < n && !largest_request.compare_exchange_weak(before, n)) {}
  return n > limit ? nullptr : std::malloc(n > 0 ? n : 1);
}

}  // namespace

namespace counted {

void begin() { largest_request = 0, all_requests = 0; }
std::size_t largest() { return largest_request; }
std::size_t total() { return all_requests; }
void refuse_above(std::size_t bytes) { limit = bytes; }

}  // namespace counted

void* operator new(std::size_t n) {
  if (void* const p = counted_or_null(n)) return p;
  throw std::bad_alloc();
}
// std::stable_sort allocates with this one, and a sanitizer's version would not match the operators delete below.
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return counted_or_null(n); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
