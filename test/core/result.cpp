// SPDX-License-Identifier: Apache-2.0
#include <graft/core/result.h>

#include <memory>

#include "../support/static_check.h"
#include "../support/subprocess.h"

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
  result<std::unique_ptr<int>> from(std::make_unique<int>(4));
  const result<std::unique_ptr<int>> to = std::move(from);
  CHECK(**to == 4);
}

TEST_CASE("fail: the sentence is built from parts and cut where it does not fit") {
  SAYS(fail("a ", 1, ' ', text("b")).what, "a 1 b");
  const error e = fail(std::string(5000, 'x').c_str());
  CHECK(e.what.n == text::capacity);
}

namespace {
// Counts how many of it there are.
struct counted {
  static inline int alive = 0;
  int value = 0;
  explicit counted(int v) : value(v) { ++alive; }
  counted(const counted& o) : value(o.value) { ++alive; }
  counted(counted&& o) noexcept : value(o.value) { o.value = -1, ++alive; }
  counted& operator=(const counted&) = default;
  counted& operator=(counted&&) = default;
  ~counted() { --alive; }
};
}  // namespace

TEST_CASE("result: what it holds is copied, moved and destroyed once") {
  {
    result<counted> a(counted(3)), b = fail("no");
    CHECK(counted::alive == 1);
    result<counted> c = a, d = b;
    CHECK(c->value == 3);
    CHECK(std::string(d.message()) == "no");
    CHECK(counted::alive == 2);
    d = a, c = b;  // a value over a failure, and the other way
    CHECK(d->value == 3);
    CHECK(std::string(c.message()) == "no");
    CHECK(counted::alive == 2);
    const result<counted> moved = std::move(d);
    CHECK(moved->value == 3);
    const result<counted>& itself = a;
    a = itself;
    CHECK(a->value == 3);
  }
  CHECK(counted::alive == 0);
}

TEST_CASE("result: reading the value of a failure ends the program with its error") {
  const char* const name = "result: reading the value of a failure ends the program with its error";
  const std::string words = test::last_words(name, [] {
    const result<std::unique_ptr<pair_of_numbers>> none = fail("there is no such pair");
    return (*none)->a;
  });
  CHECK(words == "graft: the value of a failed result was read; its error: there is no such pair\n");
}
