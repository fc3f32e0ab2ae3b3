// SPDX-License-Identifier: Apache-2.0
// What is bound before a call: which launches, on which tensors, kept for how many numbers of tokens. Kernels without
// tensor maps are bound without a driver, so this is tested where there is no GPU.
#include <doctest/doctest.h>
#include <graft/backend/cuda/linear_calls.cuh>

#include <string>

using namespace graft;
using namespace graft::cuda;

namespace {

struct small_layer {
  char memory[8] = {};  // addresses that nobody reads
  linear_kernels kernels;
  product_shape problem{dtype::f32, 0, 24, 40, 16};
  linear_operands stays;

  small_layer() {
    kernels.simt = {memory, simt::threads, 0};
    stays.w = memory + 1, stays.a = memory + 2, stays.workspace = memory + 3;
    stays.slot.rank = 16;
  }
  linear_calls calls() const { return {kernels, target{}, problem, stays}; }
};
const tile_args& arguments(bound_linear& b, int i) { return *b.at[i].with.tiles(); }

}  // namespace

TEST_CASE("bind: a product with a side branch is a shrink and the product, on its tensors") {
  small_layer l;
  bound_linear b;
  linear_operands o = l.stays;
  o.x = l.memory + 4, o.y = l.memory + 5, o.residual = l.memory + 6;
  product_shape p = l.problem;
  p.m = 65;
  REQUIRE(bool(bind(b, l.kernels, p, choose(p, target{}), o)));
  REQUIRE(b.count == 2);
  CHECK((b.at[0].grid.x == 1 && b.at[0].grid.y == 2));
  CHECK((arguments(b, 0).x == o.x && arguments(b, 0).w == o.a && arguments(b, 0).y == o.workspace));
  CHECK((arguments(b, 1).x == o.x && arguments(b, 1).w == o.w && arguments(b, 1).y == o.y));
  CHECK((arguments(b, 1).s == o.workspace && arguments(b, 1).residual == o.residual));
  REQUIRE(bool(point(b, l.memory, l.memory + 7, l.memory + 3)));
  CHECK((arguments(b, 0).x == l.memory && arguments(b, 0).y == o.workspace));
  CHECK((arguments(b, 1).x == l.memory && arguments(b, 1).y == l.memory + 7));
  CHECK(arguments(b, 1).residual == l.memory + 3);
  p.m = 0;
  REQUIRE(bool(bind(b, l.kernels, p, choose(p, target{}), o)));
  CHECK(b.count == 0);
}
TEST_CASE("bind: the last four numbers of tokens are kept, and follow the tensors") {
  small_layer l;
  linear_calls calls = l.calls();
  auto at = [&](long long m, int x) {
    auto b = calls.at(m, l.memory + x, l.memory + x + 1, nullptr);
    REQUIRE(bool(b));
    CHECK(arguments(**b, 1).m == m);
    CHECK((arguments(**b, 0).x == l.memory + x && arguments(**b, 1).y == l.memory + x + 1));
    return *b;
  };
  const bound_linear* const one = at(1, 0);
  const bound_linear* const two = at(2, 0);
  CHECK(at(1, 1) == one);
  at(3, 0), at(4, 0);
  CHECK(at(1, 2) == one);
  CHECK(at(5, 0) == two);  // the one that was not called for longest
  CHECK(at(1, 3) == one);
  CHECK(at(2, 0) != two);
}
TEST_CASE("bind: a kernel that is not compiled is an error") {
  small_layer l;
  l.kernels.simt = {};
  linear_calls calls = l.calls();
  const auto b = calls.at(1, l.memory, l.memory, nullptr);
  CHECK(std::string(b.message()) ==
        "the kernel 'gemm (no tensor cores)' is not compiled into this program for these sizes");
}
