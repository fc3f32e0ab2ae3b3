// SPDX-License-Identifier: Apache-2.0
// Elementwise fusion: which nodes of a backward pass are joined to one launch, and which are not.
#include <doctest/doctest.h>
#include <graft/block/gemma2.h>
#include <graft/block/gpt_oss.h>
#include <graft/block/llama.h>
#include <graft/block/opt.h>
#include <graft/block/phi3.h>
#include <graft/block/qwen2_moe.h>
#include <graft/derive/saved_tensors.h>
#include <graft/graft.h>

#include <string>

#include "../support/gpu_target.h"

using namespace graft;

namespace {

constexpr target gpu_that_joins() {
  target t = test::gpu_target_nn;
  t.can<wgrad_launch>().has_kernel = t.can<wgrad_launch>().fuses_into_dgrad = t.can<expression_launch>().fused = true;
  return t;
}
constexpr target gpu_target = gpu_that_joins();

template <class Adapter> saved_pair pair_of() {
  using d = derived<linear_kind, Adapter, false>;
  return select_saved_tensors(d::forward, d::backward);
}

// Plans can be made while compiling as well.
template <class Adapter>
constexpr int launches = fuse(derived<linear_kind, Adapter, false>::backward, gpu_target).launches.size();
static_assert(launches<hra<8>> < 20);

}  // namespace

TEST_CASE("expression: an elementwise product and the sum over it are one launch") {
  const saved_pair pair = pair_of<adalora<8>>();
  const launch_plan p = fuse(pair.backward, gpu_target);
  CHECK(p.launches.size() == 3);  // dx with both sums, E, A
  const launch& e = p.launches[p.launch_of[pair.backward.result("lora_E")]];
  REQUIRE(e.count == 2);
  CHECK(graph(pair.backward)[p.nodes[e.first]].what == op::mul);
  CHECK(graph(pair.backward)[p.anchor_of(e)].what == op::sum_to);
}
TEST_CASE("expression: transposes and broadcasts are computed inside their readers") {
  const saved_pair pair = pair_of<hra<8>>();
  const graph g = pair.backward;
  const launch_plan p = fuse(pair.backward, gpu_target);
  const launch& last = p.launches[p.launch_of[pair.backward.result("hra_u")]];
  CHECK(last.count > 5);
  bool crosses = false;
  for (int k = last.first; k < last.first + last.count; ++k) crosses = crosses || g[p.nodes[k]].what == op::transpose;
  CHECK(crosses);
  for (int k = last.first; k < last.first + last.count; ++k)  // no other launch reads a value inside
    for (id r = 0; r < g.size; ++r)
      for (int o = 0; p.live[r] && o < 3; ++o)
        if (g[r].operand(o) == p.nodes[k]) CHECK(p.launch_of[r] == p.launch_of[p.anchor_of(last)]);
}
TEST_CASE("expression: a gate is one launch, and both of its gradients are one launch") {
  const block_formula block = block_of<llama>();
  using model = adapted<llama, target_modules<"*_proj", lora<16>>>;
  const block_options options{model::adapters};
  const saved_pair pair = select_saved_tensors(capture_forward(block, options), capture_backward(block, options));
  for (const builder* made : {&pair.forward, &pair.backward}) {
    const graph g = *made;
    const launch_plan p = fuse(g, gpu_target);
    int expressions = 0;
    for (const launch& l : p.launches) {
      bool activates = false;
      for (int k = l.first; k < l.first + l.count; ++k)
        activates = activates || g[p.nodes[k]].what == op::silu || g[p.nodes[k]].what == op::sigmoid;
      if (!activates) continue;
      ++expressions;
      CHECK(l.count > 1);  // only the last value is stored
      const expression_launch* const e = p.as<expression_launch>(l);
      REQUIRE(e != nullptr);
      CHECK(p.launch_of[e->root] == &l - &p.launches[0]);
      for (int k = l.first; k < l.first + l.count; ++k) {  // readers of other values recompute them
        if (p.nodes[k] == e->root || p.nodes[k] == e->paired_root) continue;
        for (id r = 0; r < g.size; ++r)
          for (int o = 0; p.live[r] && o < 3; ++o)
            if (g[r].operand(o) == p.nodes[k]) CHECK((is_pointwise(g[r].what) && p.when.has_token_rows[r]));
      }
      const bool is_gradient = made == &pair.backward;
      CHECK((e->paired_root >= 0) == is_gradient);
      if (is_gradient) CHECK(p.launch_of[e->paired_root] == p.launch_of[e->root]);
    }
    CHECK(expressions == 1);
  }
}
TEST_CASE("expression: a launch computes a second value only if that needs no later launch") {
  builder g;
  const scope p{&g};
  const auto n = p.size("in", dyn, 64);
  const ex a = p.leaf(op::input, "a", 2, 1, 1, p.tokens(), n), b = p.leaf(op::input, "b", 2, 1, 1, p.tokens(), n);
  const ex w = p.leaf(op::base, "w", 2, 1, 1, n, n), v = p.leaf(op::base, "v", 2, 1, 1, n, n);
  const ex made = a * w, later = b * v;
  g.add_output((mul(silu(made), a) * w).i, "first");
  g.add_output((mul(sigmoid(made), mul(a, b)) * w).i, "with it");
  g.add_output((mul(tanh(made), mul(a, later)) * w).i, "not with it");
  const graph whole = g;
  const launch_plan planned = fuse(whole, gpu_target);
  int pairs = 0, expressions = 0;
  for (const launch& l : planned.launches)
    if (const expression_launch* const e = planned.as<expression_launch>(l); e != nullptr)
      ++expressions, pairs += e->paired_root >= 0 ? 1 : 0;
  CHECK(expressions == 2);
  CHECK(pairs == 1);
}
TEST_CASE("expression: a value that one launch reads is stored, even if another recomputes it") {
  builder g;
  const scope p{&g};
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), p.size("in", dyn, 64));
  const ex w = p.leaf(op::base, "w", 2, 1, 1, p.size("in", dyn, 64), p.size("in", dyn, 64));
  const ex shared = silu(x), other = mul(shared, x);
  g.add_output((shared * w).i, "stored");
  g.add_output(mul(other, sigmoid(shared)).i, "joined");
  const graph made = g;
  const launch_plan planned = fuse(made, gpu_target);
  const id at = made[made.result("stored")].a;
  REQUIRE(made[at].what == op::silu);
  bool computed = false;
  for (const launch& l : planned.launches) computed = computed || planned.anchor_of(l) == at;
  CHECK(computed);
}
TEST_CASE("expression: norms of tokens are not joined, nor on targets without such a launch") {
  const saved_pair pair = pair_of<dora<8>>();
  const launch_plan p = fuse(pair.backward, gpu_target);
  for (const launch& l : p.launches)
    if (l.is<expression_launch>()) CHECK(!p.when.has_token_rows[p.anchor_of(l)]);
  const saved_pair chain = pair_of<hra<8>>();
  for (const launch& l : fuse(chain.backward, test::gpu_target_nn).launches)
    if (!l.is<gemm_launch>()) CHECK(l.count == 1);
}
TEST_CASE("expression: an expression that is too large is split") {
  builder g;
  const scope s{&g};
  const ex x = s.leaf(op::input, "x", 2, 1, 1, s.tokens(), s.size("n"));
  ex v = t(x) * x;
  for (int i = 0; i < 40; ++i) v = sqrt(v);
  g.add_output(v.i, "y");
  const builder b = canonical(g);
  const launch_plan p = fuse(b, gpu_target);
  for (const launch& l : p.launches) CHECK(l.count <= max_expression_steps);
  CHECK(p.launches.size() >= 2);
}
// gpt-oss clamps both halves of its gate, whose gradient has more steps than one expression may have.
TEST_CASE("expression: what an expression reads is stored by another launch, in every block") {
  const adapter_rule rules[] = {{"*_proj", formula_of<lora<>>()}};
  for (const block_formula& f : {block_of<llama>(), block_of<gemma2>(), block_of<opt>(), block_of<phi3>(),
                                 block_of<qwen2_moe>(), block_of<gpt_oss>()}) {
    INFO(std::string(f.name));
    block_options o;
    o.adapters = {rules, 1}, o.activation = op::silu;
    const builder forward = capture_forward(f, o);
    REQUIRE(forward.bad.what == formula_error::none);
    const saved_pair pair = select_saved_tensors(forward, capture_backward(f, o));
    for (const builder* of : {&forward, &pair.forward, &pair.backward}) {
      const graph g = *of;
      const launch_plan p = fuse(g, gpu_target);
      int expressions = 0;
      for (const expression_launch& e : p.all<expression_launch>()) {
        ++expressions;
        const launch& l = p.launches[p.launch_of[e.root]];
        node_set inside(g.size);
        for (int k = 0; k < l.count; ++k) inside.add(p.nodes[l.first + k]);
        for (int k = 0; k < l.count; ++k)
          for (int operand = 0; operand < 3; ++operand) {
            const id read = g[p.nodes[l.first + k]].operand(operand);
            if (read < 0 || inside[read]) continue;
            const id i = unshaped(g, read);
            if (is_leaf(g[i].what) || p.when.of[i] != stage::call) continue;
            INFO("node ", i, ", ", std::string(traits_of(g[i].what).name));
            REQUIRE(p.launch_of[i] >= 0);
            bool inner = false;  // a value that another expression computes without storing it
            for (const expression_launch& other : p.all<expression_launch>())
              if (p.launch_of[i] == p.launch_of[other.root]) inner = i != other.root && i != other.paired_root;
            CHECK_FALSE(inner);
          }
      }
      if (of == &pair.backward) CHECK(expressions > 0);
    }
  }
}
