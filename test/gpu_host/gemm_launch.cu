// SPDX-License-Identifier: Apache-2.0
// The state that is bound before a call: the launches, their tensors, and the cache by numbers of tokens. Kernels
// without tensor maps are bound without a driver, so this is tested without a GPU.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/gemm/launch_cache.cuh>

#include <string>
#include <utility>

using namespace graft;
using namespace graft::gpu;

namespace {

struct small_layer {
  char memory[8] = {};  // addresses that are never read
  gemm_kernel_set kernels;
  gemm_problem problem{dtype::f32, 0, 24, 40, 16};
  gemm_operands stays;

  small_layer() {
    kernels.simt = {memory, simt::threads, 0};
    stays.w = memory + 1, stays.a = memory + 2, stays.workspace = memory + 3;
    stays.adapter.rank = 16;
  }
  gemm_launch_cache calls() const { return {kernels, target{}, problem, stays}; }
};
const tile_args& arguments(prepared_gemm& b, int i) { return *b.at[i].with.tiles(); }

}  // namespace

TEST_CASE("bind: a GEMM with a low-rank branch is a shrink and a GEMM, on its tensors") {
  small_layer l;
  prepared_gemm b;
  gemm_operands o = l.stays;
  o.x = l.memory + 4, o.y = l.memory + 5, o.residual = l.memory + 6;
  gemm_problem p = l.problem;
  p.m = 65;
  REQUIRE(bool(bind(b, l.kernels, p, choose(p, target{}), o)));
  REQUIRE(b.count == 2);
  CHECK((b.at[0].grid.x == 1 && b.at[0].grid.y == 2));
  CHECK((arguments(b, 0).x == o.x && arguments(b, 0).w == o.a && arguments(b, 0).y == o.workspace));
  CHECK((arguments(b, 1).x == o.x && arguments(b, 1).w == o.w && arguments(b, 1).y == o.y));
  CHECK((arguments(b, 1).u == o.workspace && arguments(b, 1).residual == o.residual));
  REQUIRE(bool(set_tensors(b, l.memory, l.memory + 7, l.memory + 3)));
  CHECK((arguments(b, 0).x == l.memory && arguments(b, 0).y == o.workspace));
  CHECK((arguments(b, 1).x == l.memory && arguments(b, 1).y == l.memory + 7));
  CHECK(arguments(b, 1).residual == l.memory + 3);
  p.m = 0;
  REQUIRE(bool(bind(b, l.kernels, p, choose(p, target{}), o)));
  CHECK(b.count == 0);
}
TEST_CASE("bind: the launches of the last four numbers of tokens are cached, and get new tensors") {
  small_layer l;
  gemm_launch_cache calls = l.calls();
  // Whether the launches for m tokens were bound before: binding writes the grids, so a mark in one stays until then.
  auto cached = [&](long long m, int x) {
    const auto b = calls.at(m, l.memory + x, l.memory + x + 1, nullptr);
    REQUIRE(bool(b));
    CHECK(arguments(**b, 1).m == m);
    CHECK((arguments(**b, 0).x == l.memory + x && arguments(**b, 1).y == l.memory + x + 1));
    constexpr unsigned mark = 12345;
    return std::exchange((*b)->at[0].grid.z, mark) == mark;
  };
  CHECK_FALSE(cached(1, 0));
  CHECK_FALSE(cached(2, 0));
  CHECK(cached(1, 1));
  CHECK_FALSE(cached(3, 0));
  CHECK_FALSE(cached(4, 0));
  CHECK(cached(1, 2));
  CHECK_FALSE(cached(5, 0));  // replaces the launches for two tokens, the least recently used ones
  CHECK(cached(1, 3));
  CHECK(cached(3, 0));
  CHECK_FALSE(cached(2, 0));
}
TEST_CASE("bind: a kernel that is not compiled is an error") {
  small_layer l;
  l.kernels.simt = {};
  gemm_launch_cache calls = l.calls();
  const auto b = calls.at(1, l.memory, l.memory, nullptr);
  CHECK(std::string(b.message()) ==
        "the kernel 'gemm (no tensor cores)' is not compiled into this program for these sizes");
}
