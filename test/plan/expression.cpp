// SPDX-License-Identifier: Apache-2.0
// Which nodes of a backward pass are joined to one launch, and what is not.
#include <doctest/doctest.h>
#include <graft/derive/keep.h>
#include <graft/graft.h>

#include "../support/gpu_target.h"

using namespace graft;

namespace {

constexpr target gpu_that_joins() {
  target t = test::either_way_gpu;
  t.sums_tokens = t.sums_beside = t.joins_elements = true;
  return t;
}
constexpr target gpu = gpu_that_joins();

template <class Adapter> kept_pair pair_of() {
  using d = derived<linear_kind, Adapter, false>;
  return keep(d::forward, d::backward);
}

// Plans are made while compiling, too.
template <class Adapter>
constexpr int launches = fuse(derived<linear_kind, Adapter, false>::backward, gpu).launches.size();
static_assert(launches<hra<8>> < 20);

}  // namespace

TEST_CASE("expression: a product of elements and the sum over it are one launch") {
  const kept_pair pair = pair_of<adalora<8>>();
  const plan p = fuse(pair.backward, gpu);
  CHECK(p.launches.size() == 3);  // dx with both sums, E, A
  const launch& e = p.launches[p.launch_of[pair.backward.result("lora_E")]];
  REQUIRE(e.count == 2);
  CHECK(graph(pair.backward)[p.nodes[e.first]].what == op::mul);
  CHECK(graph(pair.backward)[e.anchor].what == op::sum_to);
}
TEST_CASE("expression: transposed values and repeated ones are computed where they are read") {
  const kept_pair pair = pair_of<hra<8>>();
  const graph g = pair.backward;
  const plan p = fuse(pair.backward, gpu);
  const launch& last = p.launches[p.launch_of[pair.backward.result("hra_u")]];
  CHECK(last.count > 5);
  bool crosses = false;
  for (int k = last.first; k < last.first + last.count; ++k) crosses = crosses || g[p.nodes[k]].what == op::transpose;
  CHECK(crosses);
  for (int k = last.first; k < last.first + last.count; ++k)  // what is inside is read by nobody else
    for (id r = 0; r < g.size; ++r)
      for (int o = 0; p.live[r] && o < 3; ++o)
        if (g[r].operand(o) == p.nodes[k]) CHECK(p.launch_of[r] == p.launch_of[last.anchor]);
}
TEST_CASE("expression: values with tokens, and targets without such a launch, are left alone") {
  const kept_pair pair = pair_of<dora<8>>();
  const plan p = fuse(pair.backward, gpu);
  for (const launch& l : p.launches)
    if (l.product < 0 && l.sum < 0 && l.count > 1) CHECK(!p.when.by_token[l.anchor]);
  const kept_pair chain = pair_of<hra<8>>();
  for (const launch& l : fuse(chain.backward, test::either_way_gpu).launches)
    if (l.product < 0) CHECK(l.count == 1);
}
TEST_CASE("expression: what grows too large is cut") {
  builder g;
  const scope s{&g};
  const ex x = s.leaf(op::input, "x", 2, 1, 1, s.tokens(), s.size("n"));
  ex v = t(x) * x;
  for (int i = 0; i < 40; ++i) v = sqrt(v);
  g.give(v.i, "y");
  const builder b = canonical(g);
  const plan p = fuse(b, gpu);
  for (const launch& l : p.launches) CHECK(l.count <= most_expression_steps);
  CHECK(p.launches.size() >= 2);
}
