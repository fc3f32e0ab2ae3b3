// SPDX-License-Identifier: Apache-2.0
#include <graft/graph/builder.h>
#include <graft/graph/sizes.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

// in, b, h and every derived entry of them.
struct sample {
  builder g{};
  dim in{}, b{}, h{}, k{}, stride{}, pad{}, product{}, quotient{}, triangle{}, window{};
  constexpr sample() {
    in = g.size_named("in", 0, 64), b = g.size_named("b", 0, 8), h = g.size_named("h", 0, 32);
    k = g.size_named("k", 0, 3), stride = g.size_named("stride", 0, 1), pad = g.size_named("pad", 0, 1);
    product = g.times(in, b);
    quotient = g.over(in, b);
    triangle = g.triangle(b);
    window = g.window(h, k, stride, pad);
  }
};
// The dims of the sample, which are the same for each construction; a table of sizes exists only during an evaluation.
constexpr struct dims {
  dim in{}, b{}, h{}, k{}, stride{}, pad{}, product{}, quotient{}, triangle{}, window{};
  constexpr dims() {
    const sample m;
    in = m.in, b = m.b, h = m.h, k = m.k, stride = m.stride, pad = m.pad;
    product = m.product, quotient = m.quotient, triangle = m.triangle, window = m.window;
  }
} s{};

constexpr size_values given(std::initializer_list<std::pair<dim, long long>> known) {
  size_values v;
  for (const auto& [d, n] : known) v.v[d.entry()] = n;
  return v;
}
constexpr long long value(dim d, const size_values& v) { return sample().g.sizes().value(d, v); }

// Solves `d` = n and returns the value found for `name`; -2 if no value fits.
constexpr long long solved(dim d, long long n, dim name, size_values v = {}) {
  return sample().g.sizes().solve(d, n, v) ? v.v[name.entry()] : -2;
}
constexpr long long refused = -2;

}  // namespace

TEST_CASE("sizes: values of named and derived entries") {
  constexpr size_values v = given({{s.in, 64}, {s.b, 8}, {s.h, 10}, {s.k, 3}, {s.stride, 2}, {s.pad, 1}});
  BOTH(value(dim{7}, v) == 7);
  BOTH(value(s.in, v) == 64);
  BOTH(value(s.product, v) == 512);
  BOTH(value(s.quotient, v) == 8);
  BOTH(value(s.triangle, v) == 28);
  BOTH(value(s.window, v) == 5);  // (10 + 2 - 3) / 2 + 1
}

TEST_CASE("sizes: an unknown size makes derived sizes unknown") {
  BOTH(value(s.in, size_values{}) == unknown);
  BOTH(value(s.product, given({{s.in, 64}})) == unknown);
  BOTH(value(s.quotient, given({{s.b, 8}})) == unknown);
  BOTH(value(s.quotient, given({{s.in, 64}, {s.b, 0}})) == unknown);
  BOTH(value(s.triangle, given({{s.in, 64}})) == unknown);
}

TEST_CASE("sizes: a window larger than what it slides over has no size") {
  BOTH(value(s.window, given({{s.h, 2}, {s.k, 3}, {s.stride, 1}, {s.pad, 0}})) == unknown);
  BOTH(value(s.window, given({{s.h, 3}, {s.k, 3}, {s.stride, 1}, {s.pad, 0}})) == 1);
  BOTH(value(s.window, given({{s.h, 1}, {s.k, 3}, {s.stride, 1}, {s.pad, 1}})) == 1);
  BOTH(value(s.window, given({{s.h, 3}, {s.k, 3}, {s.stride, 0}, {s.pad, 0}})) == unknown);
  BOTH(value(s.window, given({{s.h, 3}, {s.k, 3}, {s.stride, 1}})) == unknown);
}

TEST_CASE("sizes: solve sets a name once") {
  BOTH(solved(s.in, 64, s.in) == 64);
  BOTH(solved(s.in, 64, s.in, given({{s.in, 64}})) == 64);
  BOTH(solved(s.in, 63, s.in, given({{s.in, 64}})) == refused);
  BOTH(solved(dim{5}, 5, s.in) == unknown);
  BOTH(solved(dim{5}, 6, s.in) == refused);
}

TEST_CASE("sizes: solve through a product") {
  BOTH(solved(s.product, 512, s.b, given({{s.in, 64}})) == 8);
  BOTH(solved(s.product, 512, s.in, given({{s.b, 8}})) == 64);
  BOTH(solved(s.product, 513, s.b, given({{s.in, 64}})) == refused);
  BOTH(solved(s.product, 513, s.in, given({{s.b, 8}})) == refused);
  BOTH(solved(s.product, 512, s.b, given({{s.in, 64}, {s.b, 8}})) == 8);
  BOTH(solved(s.product, 511, s.b, given({{s.in, 64}, {s.b, 8}})) == refused);
  BOTH(solved(s.product, 512, s.b) == unknown);  // two unknown names: no solution yet, and no contradiction
}

TEST_CASE("sizes: solve through a quotient") {
  BOTH(solved(s.quotient, 8, s.b, given({{s.in, 64}})) == 8);
  BOTH(solved(s.quotient, 7, s.b, given({{s.in, 64}})) == refused);
  BOTH(solved(s.quotient, 0, s.b, given({{s.in, 64}})) == refused);
  BOTH(solved(s.quotient, 6, s.in, given({{s.b, 8}})) == 48);
  BOTH(solved(s.quotient, 6, s.in, given({{s.in, 64}, {s.b, 8}})) == refused);
}

TEST_CASE("sizes: solve through a triangle: 28 = 8 * 7 / 2") {
  BOTH(solved(s.triangle, 28, s.b) == 8);
  BOTH(solved(s.triangle, 496, s.b) == 32);
  BOTH(solved(s.triangle, 1, s.b) == 2);
  BOTH(solved(s.triangle, 28, s.b, given({{s.b, 8}})) == 8);
  BOTH(solved(s.triangle, 28, s.b, given({{s.b, 7}})) == refused);
}

TEST_CASE("sizes: 27 is no triangle") {
  CHECK(solved(s.triangle, 27, s.b) == refused);
  CHECK(solved(s.triangle, 2, s.b) == refused);
}

TEST_CASE("sizes: solve checks a window, and does not invert it") {
  constexpr size_values v = given({{s.h, 10}, {s.k, 3}, {s.stride, 2}, {s.pad, 1}});
  BOTH(solved(s.window, 5, s.h, v) == 10);
  BOTH(solved(s.window, 6, s.h, v) == refused);
  BOTH(solved(s.window, 5, s.h) == unknown);
}

TEST_CASE("sizes: find returns named sizes only") {
  BOTH(sample().g.sizes().find("in") == s.in.entry());
  BOTH(sample().g.sizes().find("pad") == s.pad.entry());
  BOTH(sample().g.sizes().find("") == -1);
  BOTH(sample().g.sizes().find("i") == -1);
}

TEST_CASE("sizes: nominal values replace unknown sizes in cost estimates") {
  BOTH(sample().g.sizes().nominal(dim{5}) == 5);
  BOTH(sample().g.sizes().nominal(s.in) == 64);
  BOTH(sample().g.sizes().nominal(s.product) == 512);
  BOTH(sample().g.sizes().nominal(s.quotient) == 8);
  BOTH(sample().g.sizes().nominal(s.triangle) == 28);
  BOTH(sample().g.sizes().nominal(s.window) == 32);
}
