// SPDX-License-Identifier: Apache-2.0
#include <graft/core/view_checks.h>

#include <climits>
#include <vector>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr float numbers[24]{};

constexpr view shaped(int rank, long long a, long long b, long long apart = 0) {
  view v = view_of(numbers, a, b);
  v.rank = rank, v.strides[0] = apart;
  return v;
}
// The addresses of all elements, one by one: the reference for overlap().
bool share(const view& a, const view& b) {
  auto addresses = [](const view& v) {
    std::vector<std::uintptr_t> all;
    for (long long i = 0; i < v.size[0]; ++i)
      for (long long j = 0; j < v.size[1]; ++j)
        for (std::uintptr_t k = 0; k < static_cast<std::uintptr_t>(bits_of(v.type) / 8); ++k)
          all.push_back(reinterpret_cast<std::uintptr_t>(v.data) +
                        static_cast<std::uintptr_t>((i * v.stride(0) + j * v.stride(1)) * (bits_of(v.type) / 8)) + k);
    return all;
  };
  for (const std::uintptr_t p : addresses(a))
    for (const std::uintptr_t q : addresses(b))
      if (p == q) return true;
  return false;
}

}  // namespace

TEST_CASE("saturate: an overflow gives the largest value") {
  BOTH(saturating_multiply(3, 4) == 12);
  BOTH(saturating_multiply(0, saturated) == 0);
  BOTH(saturating_multiply(saturated, 0) == 0);
  BOTH(saturating_multiply(1LL << 40, 1LL << 40) == saturated);
  BOTH(saturating_multiply(1LL << 31, 1LL << 31) == 1LL << 62);
  BOTH(saturating_add(saturated, 0) == saturated);
  BOTH(saturating_add(saturated, 1) == saturated);
  BOTH(saturating_add(2, 3) == 5);
}

TEST_CASE("view_checks: valid views and invalid ones") {
  BOTH(is_valid(view{}));
  BOTH(is_valid(shaped(2, 4, 6)));
  BOTH(is_valid(shaped(2, 0, 6)));
  BOTH(is_valid(shaped(2, 4, 6, -6)));
  BOTH(!is_valid(shaped(9, 4, 6)));
  BOTH(!is_valid(shaped(-1, 4, 6)));
  BOTH(!is_valid(shaped(2, -4, 6)));
  BOTH(!is_valid(shaped(2, 1LL << 60, 6)));
  BOTH(!is_valid(shaped(2, 1LL << 60, 1LL << 60)));
  BOTH(!is_valid(view_of(numbers, 0, 1LL << 40, 1LL << 40)));
  BOTH(!is_valid(shaped(2, 4, 6, LLONG_MIN)));
  BOTH(!is_valid(shaped(2, 4, 6, 1LL << 47)));
  SAYS(invalid_view("tensor ", "x", shaped(9, 4, 6)).what, "tensor 'x' has 9 axes, expected at most 4");
  SAYS(invalid_view("output ", "y", shaped(2, -4, 6)).what,
       "output 'y' has shape [-4, 6], expected sizes that are not negative");
  SAYS(invalid_view("", "y", shaped(2, 1LL << 60, 6)).what,
       "'y' has shape [1152921504606846976, 6], more than any memory holds");
}

TEST_CASE("view_checks: overlap is exact for contiguous tensors and for slices of the same rows") {
  const auto at = [](long long offset, long long rows, long long cols, long long apart) {
    view v = shaped(2, rows, cols, apart);
    v.data = numbers + offset;
    return v;
  };
  int both = 0, apart = 0;
  for (long long offset = 0; offset < 24; ++offset)
    for (const long long rows : {1LL, 2LL, 3LL})
      for (const long long cols : {1LL, 2LL, 3LL, 5LL})
        for (const long long step : {0LL, 8LL, 16LL}) {
          const view a = at(0, 3, 3, 8), b = at(offset, rows, cols, step), whole = at(4, 2, 4, 0);
          if (step == 8 || rows == 1) {  // the steps agree, so it is exact
            CHECK(overlap(footprint_of(a), footprint_of(b)) == share(a, b));
            CHECK(overlap(footprint_of(b), footprint_of(a)) == share(a, b));
          }
          if (share(a, b)) CHECK(overlap(footprint_of(a), footprint_of(b)));  // never missed
          if (step == 0) CHECK(overlap(footprint_of(whole), footprint_of(b)) == share(whole, b));
          (share(a, b) ? both : apart) += 1;
        }
  CHECK(both > 50);
  CHECK(apart > 50);
  const view backwards = at(23, 3, 2, -8);
  CHECK(overlap(footprint_of(backwards), footprint_of(at(7, 1, 1, 0))));
  CHECK_FALSE(overlap(footprint_of(backwards), footprint_of(at(0, 1, 3, 0))));
  CHECK_FALSE(overlap(footprint_of(at(0, 0, 3, 0)), footprint_of(at(0, 3, 3, 0))));
}

TEST_CASE("view_checks: the same layout") {
  BOTH(same_layout(shaped(2, 4, 6), view_of(numbers + 1, 4, 6)));
  BOTH(same_layout(shaped(2, 4, 6), shaped(2, 4, 6, 6)));
  BOTH(!same_layout(shaped(2, 4, 6), shaped(2, 4, 6, 7)));
  BOTH(!same_layout(shaped(2, 4, 6), shaped(2, 6, 4)));
  BOTH(!same_layout(shaped(2, 4, 6), view_of(numbers, 24)));
  BOTH(!same_layout(view_of(numbers, 2), {numbers, dtype::bf16, {2, 1, 1, 1}, 1}));
}
TEST_CASE("view_checks: the same elements") {
  BOTH(same_elements(shaped(2, 4, 6), view_of(numbers, 24)));
  BOTH(!same_elements(shaped(2, 4, 6), view_of(numbers, 23)));
  BOTH(!same_elements(shaped(2, 4, 6), view_of(numbers + 1, 24)));
  BOTH(!same_elements(shaped(2, 4, 6), shaped(2, 4, 6).transposed()));
}
