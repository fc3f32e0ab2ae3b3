// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/core/sequence.h>

#include <memory>

using namespace graft;

namespace {
// Grows past its capacity twice and keeps its elements.
constexpr bool grows() {
  sequence<int> s;
  for (int i = 0; i < 20; ++i) i % 2 == 0 ? s.push(i) : static_cast<void>(s.extend() = i);
  bool same = s.size() == 20;
  for (int i = 0; i < 20; ++i) same = same && s[i] == i;
  return same;
}
static_assert(grows());

struct counted {
  int* alive = nullptr;
  explicit counted(int& n) : alive(&n) { ++n; }
  ~counted() { --*alive; }
  counted(const counted&) = delete;
  counted& operator=(const counted&) = delete;
};
}  // namespace

TEST_CASE("sequence: holds move-only elements and destroys them when it is cleared") {
  int alive = 0;
  sequence<std::unique_ptr<counted>> s;
  for (int i = 0; i < 20; ++i) s.extend() = std::make_unique<counted>(alive);
  CHECK(s.size() == 20);
  CHECK(alive == 20);
  sequence<std::unique_ptr<counted>> other;
  other.extend() = std::make_unique<counted>(alive);
  other = static_cast<sequence<std::unique_ptr<counted>>&&>(s);
  CHECK(other.size() == 20);
  other = {};
  CHECK(other.empty());
  CHECK(alive <= 1);  // the moved-from sequence may own the old element until it is destroyed
  s = {};
  CHECK(alive == 0);
}

TEST_CASE("sequence: a length and a value fill it, and the destructor destroys every element") {
  const sequence<long long> s(5, -1);
  int count = 0;
  for (const long long v : s) count += v == -1 ? 1 : 0;
  CHECK(count == 5);
  int alive = 0;
  {
    sequence<std::unique_ptr<counted>> held(3);
    held[1] = std::make_unique<counted>(alive);
    CHECK(alive == 1);
  }
  CHECK(alive == 0);
}
