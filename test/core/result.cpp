// SPDX-License-Identifier: Apache-2.0
#include <graft/core/result.h>

#include <memory>

#include "../support/both.h"

using namespace graft;

namespace {

constexpr result<int> half(int n) {
  if (n % 2 != 0) return fail("expected an even number, found ", n);
  return n / 2;
}
constexpr status checked(int n) {
  if (const result<int> h = half(n); !h) return h.failure();
  return ok;
}
struct pair_of_numbers {
  int a, b;
};

}  // namespace

TEST_CASE("result: a value or an error, never both") {
  BOTH(static_cast<bool>(half(8)));
  BOTH(*half(8) == 4);
  SAYS(half(8).message(), "");
  BOTH(!half(7));
  SAYS(half(7).message(), "expected an even number, found 7");
  SAYS(half(7).failure().what, "expected an even number, found 7");
}

TEST_CASE("result: an error travels through the caller's own type") {
  BOTH(static_cast<bool>(checked(2)));
  SAYS(checked(3).message(), "expected an even number, found 3");
}

TEST_CASE("result: the value can be written and reached into") {
  constexpr int sum = [] {
    result<pair_of_numbers> r(pair_of_numbers{1, 2});
    r->a = 10;
    (*r).b = 20;
    const result<pair_of_numbers>& c = r;
    return c->a + (*c).b;
  }();
  BOTH(sum == 30);
}

TEST_CASE("result: holds what can only be moved") {
  result<std::unique_ptr<int>> r(std::make_unique<int>(5));
  REQUIRE(bool(r));
  const std::unique_ptr<int> out = std::move(*r);
  CHECK(*out == 5);
}

TEST_CASE("fail: the sentence is built from parts and cut where it does not fit") {
  SAYS(fail("a ", 1, ' ', text("b")).what, "a 1 b");
  const error e = fail(std::string(5000, 'x').c_str());
  CHECK(e.what.n == text::capacity);
}
