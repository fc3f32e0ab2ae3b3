// SPDX-License-Identifier: Apache-2.0
// A matrix of every token between two that all share is one launch on a GPU that has a kernel for it, with the gradients of
// the two; what it would store in between is not kept in training.
#include <doctest/doctest.h>
#include <graft/adapter/gralora.h>
#include <graft/adapter/lokr.h>
#include <graft/derive/keep.h>
#include <graft/derive/layers.h>
#include <graft/plan/kernels.h>

#include <string>

#include "../support/gpu_target.h"
#include "../support/launches.h"

using namespace graft;
using namespace test;

namespace {

constexpr target chaining = [] {
  target to = either_way_gpu;
  to.largest_chained_side = 64;
  return to;
}();
template <class Adapter> kept_pair trained() {
  const layer_formula f = layer_of<linear_kind, Adapter, false>();
  return keep(capture_forward(f), capture_backward(f));
}
size_values sizes_of(const graph& g, long long side) {
  size_values s = with_nominals(g, {});
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0) {
      const text name = e.name;
      if (same_text(name.c_str(), "in") || same_text(name.c_str(), "out")) s.v[e.index] = 64 * side;
      if (same_text(name.c_str(), "a") || same_text(name.c_str(), "c")) s.v[e.index] = 64;
    }
  g.sizes.set_tokens(s, 512);
  return s;
}

}  // namespace

TEST_CASE("chained: both products of LoKr are a launch, and their gradients with them") {
  const kept_pair pair = trained<lokr<8>>();
  CHECK(pair.leaf.size() == 0);
  CHECK(std::string(launches(pair.forward, chaining).c_str()) ==
        "product: pre=matmul product=matmul | product: product=matmul post=add");
  const plan back = fuse(pair.backward, chaining);
  REQUIRE(back.chained.size() == 1);
  const chained_product& c = back.chained[0];
  const graph g = pair.backward;
  CHECK(c.sums());
  CHECK(c.left_turned);
  CHECK(!c.right_turned);
  CHECK(std::string(g.name(unshaped(g, c.z)).c_str()) == "dy");
  CHECK(std::string(g.name(unshaped(g, c.x)).c_str()) == "x");
  int without = 0;  // every product of small matrices is in it
  for (const launch& l : back.launches) without += l.chained < 0 && g[l.anchor].d[1] != dim{1} ? 1 : 0;
  CHECK(without == 0);
  CHECK(fuse(pair.backward, either_way_gpu).chained.size() == 0);
}
TEST_CASE("chained: larger sides, floats and rows that are no pieces of sixteen bytes are products of their own") {
  const kept_pair pair = trained<lokr<8>>();
  const graph g = pair.backward;
  const plan p = fuse(g, chaining);
  const chained_product& c = p.chained[0];
  CHECK(takes_chain(g, c, sizes_of(g, 64), dtype::bf16, chaining));
  CHECK(!takes_chain(g, c, sizes_of(g, 72), dtype::bf16, chaining));
  CHECK(!takes_chain(g, c, sizes_of(g, 60), dtype::bf16, chaining));
  CHECK(!takes_chain(g, c, sizes_of(g, 64), dtype::f32, chaining));
  for (const launch& l : p.launches)
    if (l.chained >= 0) {
      CHECK(kernels_of(g, p, l, sizes_of(g, 64), dtype::bf16, {}) == 2);
      CHECK(kernels_of(g, p, l, sizes_of(g, 72), dtype::bf16, {}) == 5);
    }
}
TEST_CASE("chained: stacks of blocks are none") {
  CHECK(fuse(trained<gralora<8>>().forward, chaining).chained.size() == 0);
}
