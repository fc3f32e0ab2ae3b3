// SPDX-License-Identifier: Apache-2.0
// The sentence about a size that violates a requirement, which the compiler and the program share.
#include <graft/plan/size_requirements.h>

#include "../support/formula_text.h"

using namespace test;

namespace {

builder broken() {
  builder g;
  const scope p{&g};
  const ex W = p.leaf(op::base, "W", 2, 1, 1, 8, 12), A = p.param("A", 5, 12), B = p.param("B", 8, 4);
  make_node::matmul(g, B.i, A.i, false, false, 31);
  make_node::add(g, W.i, p.param("C", 8, 11).i, 32);
  inverse(W);
  g.over({12}, {5}, 77);
  make_node::slice(g, W.i, 3, {10}, {3}, 80);
  return g;
}
const builder b = broken();
constexpr size_values nothing{};

}  // namespace

TEST_CASE("require: sentences") {
  REQUIRE(b.need.size() == 5);
  SAYS_NOW(describe(b, b.need[0], nothing),
           "inner sizes differ: 4 and 5 in B @ A with B[8, 4] and A[5, 12], line 31 of the formula");
  SAYS_NOW(describe(b, b.need[1], nothing),
           "sizes differ: 12 and 11 in W + C with W[8, 12] and C[8, 11], line 32 of the formula");
  CHECK(
      contains(describe(b, b.need[2], nothing).c_str(), "the matrix is not square: 8 rows and 12 columns in W[8, 12]"));
  SAYS_NOW(describe(b, b.need[3], nothing), "5 does not divide 12 in 12 / 5, line 77 of the formula");
  SAYS_NOW(describe(b, b.need[4], nothing),
           "13 is more than 12 in slice(W, axis 3 from 10 size 3) with W[8, 12], line 80 of the formula");
}

TEST_CASE("require: an unknown size fails no requirement") {
  static constexpr graph g = derived<linear_kind, oft<dyn>, false>::literal;
  constexpr auto sizes = [](long long in, long long block) {
    size_values s;
    s.v[g.sizes.find("in")] = in;
    s.v[g.sizes.find("b")] = block;
    return s;
  };
  BOTH(first_violated(g, size_values{}) == nullptr);
  BOTH(first_violated(g, sizes(64, unknown)) == nullptr);
  BOTH(first_violated(g, sizes(64, 8)) == nullptr);
  BOTH(first_violated(g, sizes(64, 7)) != nullptr);
  BOTH(first_violated(g, sizes(64, 0)) != nullptr);
  BOTH(contains(describe(g, *first_violated(g, sizes(64, 7)), sizes(64, 7)).c_str(),
                "7 does not divide 64 in in / b, line "));
}

TEST_CASE("require: the first violated requirement is reported") { CHECK(first_violated(b, nothing) == &b.need[0]); }
