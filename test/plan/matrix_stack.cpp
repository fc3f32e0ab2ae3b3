// SPDX-License-Identifier: Apache-2.0
// Products of stacks of small matrices are one launch: the gradient of OFT's and BOFT's parameters from that of their
// blocks.
#include <doctest/doctest.h>
#include <graft/graft.h>
#include <graft/targets.h>

using namespace graft;

namespace {

template <class Adapter> graph backward_of() { return derived<linear_kind, Adapter, false>::backward; }
int steps_of(const launch_plan& p, op what, const graph& g) {
  int n = 0;
  for (const matrix_stack& s : p.all<matrix_stack>())
    for (const id i : s.inside) n += g[i].what == what ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("matrix stack: one launch computes the parameter's gradient from the gradient of the blocks") {
  const graph g = backward_of<oft<32>>();
  const launch_plan p = fuse(g, sm_90);
  REQUIRE(p.all<matrix_stack>().size() == 1);
  CHECK(p.launches.size() == 3);  // dy W with its rotation, the gradient of the blocks, and the stack
  CHECK((steps_of(p, op::matmul, g) == 5 && steps_of(p, op::unskew, g) == 1));
  target single = sm_90;
  single.can<matrix_stack>().max_size = 0;
  CHECK(fuse(g, single).all<matrix_stack>().empty());
  CHECK(fuse(g, single).launches.size() == 9);
}
TEST_CASE("matrix stack: transposes, scalings and sums are steps of the launch") {
  const graph g = backward_of<boft<8, 2>>();
  const launch_plan p = fuse(g, sm_90);
  REQUIRE(p.all<matrix_stack>().size() == 1);
  CHECK((steps_of(p, op::transpose, g) == 1 && steps_of(p, op::mul, g) == 2 && steps_of(p, op::add, g) == 2));
}
TEST_CASE("matrix stack: a matrix keeps its slot until its last reader") {
  const graph g = backward_of<boft<8, 2>>();
  const launch_plan p = fuse(g, sm_90);
  REQUIRE(p.all<matrix_stack>().size() == 1);
  const matrix_stack& s = p.all<matrix_stack>()[0];
  CHECK(s.slots < s.inside.size() + s.operands.size());
  sequence<id> holds(s.slots, none_id);
  for (int k = 0; k < s.operands.size(); ++k) holds[s.operand_slot[k]] = s.operands[k];
  for (int k = 0; k < s.inside.size(); ++k) {
    for (int n = 0; n < 3; ++n) {
      const id o = g[s.inside[k]].operand(n);
      bool at_hand = o < 0 || is_scalar(g[o]);
      for (const id held : holds) at_hand = at_hand || held == o;
      CHECK(at_hand);
    }
    for (int n = 0; n < 3; ++n)
      if (const id o = g[s.inside[k]].operand(n); o >= 0 && !is_scalar(g[o])) CHECK(holds[s.slot[k]] != o);
    holds[s.slot[k]] = s.inside[k];
  }
}
TEST_CASE("matrix stack: a single product is no stack, and matrices that are too large are separate launches") {
  CHECK(fuse(backward_of<lora<16>>(), sm_90).all<matrix_stack>().empty());
  CHECK(fuse(backward_of<oft_neumann<32, 5>>(), sm_90).all<matrix_stack>().empty());
  const graph g = backward_of<oft<dyn>>();
  const launch_plan p = fuse(g, sm_90);
  REQUIRE(p.all<matrix_stack>().size() == 1);
  auto kernels = [&](long long edge) {
    size_values s = with_nominals(g, size_values{});
    for (int i = 0; i < g.sizes.count; ++i)
      if (g.sizes.e[i].index >= 0) s.v[g.sizes.e[i].index] = 1024;
    s.v[g.sizes.e[g.sizes.find("b")].index] = edge;
    return kernel_count(g, p, s, dtype::bf16);
  };
  CHECK(kernels(64) == 4);
  CHECK(kernels(128) == 10);
}
TEST_CASE("matrix stack: single matrices are a stack of one") {
  const graph g = backward_of<hra<8>>();
  const launch_plan p = fuse(g, sm_90);
  REQUIRE(p.all<matrix_stack>().size() == 1);
  CHECK((steps_of(p, op::matmul, g) == 2 && steps_of(p, op::strict_upper, g) == 1 && steps_of(p, op::add, g) == 1));
  CHECK(g.sizes.value(g[p.all<matrix_stack>()[0].inside[0]].d[3], size_values{}) == 8);
  const graph rotated = backward_of<psoft<16>>();
  const launch_plan of_rotated = fuse(rotated, sm_90);
  REQUIRE(of_rotated.all<matrix_stack>().size() == 1);
  CHECK((steps_of(of_rotated, op::matmul, rotated) == 4 && steps_of(of_rotated, op::unskew, rotated) == 1));
}
