// SPDX-License-Identifier: Apache-2.0
// What plans launch, as whoever runs them finds it (bound_plan_run.cuh, bound_plan_bind.cuh), is in the set that a layer
// type compiles: for every adapter, forward and backward, on devices with other numbers of processors.
#include <doctest/doctest.h>
#include <graft/run/type_kernels.h>

#include <string>

#include "../support/all_layers.h"

using namespace graft;

namespace {

namespace set = cuda::launches;

cuda::launch_set of_sum(const graph& g, id i, const size_values& s) {
  unsigned size[4], to[4];
  for (int k = 0; k < 4; ++k) {
    size[k] = static_cast<unsigned>(g.sizes.value(g[g[i].a].d[k], s));
    to[k] = static_cast<unsigned>(g.sizes.value(g[i].d[k], s));
  }
  // Where its operands do not begin at multiples of 16 bytes, any sum.
  const auto any = static_cast<int>(cuda::sum_form::any);
  return set::sums_of(1U << static_cast<int>(cuda::form_of_sum(size, to)) | 1U << any);
}
cuda::launch_set of_launch(const graph& g, const graft::launch& l, const size_values& s) {
  if (l.product >= 0 || l.sum >= 0) return 0;
  if (l.dropped >= 0) return set::dropped;
  if (l.chained >= 0) return set::chain;
  if (l.stack >= 0) return set::stack;
  if (cuda::is_attention(g[l.anchor].what) || l.rows >= 0 || l.count <= 1) return 0;
  if (l.also >= 0) return set::two_expressions | (l.summed[0] >= 0 ? set::gates : 0U);
  return set::expression | (g[l.anchor].what == op::sum_to ? of_sum(g, l.anchor, s) : 0U);
}
cuda::launch_set of_product(const graph& g, const product_slots& s) {
  cuda::launch_set all = s.turned >= 0 ? set::turn : 0U;
  for (const side_branch& b : s.sides) {
    if (b.a < 0 || b.b < 0) all |= set::sides;
    for (const id i : {b.a, b.b})
      if (i >= 0 && base_leaf(g, i) >= 0) all |= set::sides;
  }
  for (int k = 0; k < g.outs; ++k)
    if (!s.sides.empty() && s.sides[0].kept && g.out[k].at == s.sides[0].s) all |= set::pad;
  return all;
}
// Of what is known before the data: all of it, as when a plan is bound.
cuda::launch_set of_known(const graph& g, const plan& p, const size_values& s) {
  cuda::launch_set all = 0;
  node_set changing(g.size);
  for (id i = 0; i < g.size; ++i)
    if (p.when.of[i] == stage::parameter) changing.add(i);
  cuda::known_expressions found;
  found.find(g, p.when, detail::count_readers(g, p.live), changing);
  for (const sequence<id>& nodes : found.all) {
    all |= set::known_expression;
    if (g[nodes[0]].what == op::sum_to) all |= of_sum(g, nodes[0], s);
  }
  for (id i = 0; i < g.size; ++i)
    if (changing[i] && cuda::meets_weight(g, i)) all |= set::shrink_of(static_cast<int>(g.sizes.value(g[i].d[3], s)));
  return all;
}
cuda::launch_set needs(const graph& g, const target& to, const size_values& known) {
  const plan p = fuse(g, to);
  const size_values s = with_nominals(g, known);
  cuda::launch_set all = of_known(g, p, s);
  for (const graft::launch& l : p.launches) all |= of_launch(g, l, s);
  for (const product_slots& one : p.products) all |= of_product(g, one);
  for (const token_sum& t : p.sums) {
    all |= t.by_column ? set::columns : 0U;
    for (const id i : {t.left, t.right})
      if (!t.by_column && is_brought_operand(g, i) && g.sizes.value(g[i].d[3], s) % 8 != 0) all |= set::pad;
  }
  for (const product_slots& one : p.products)
    if (const grown_weight w = grown_at(g, one.weight); w.found && !w.adds) all |= set::known_expression;
  return all;
}
// On devices with kernels of their own no product whose sizes allow the tensor cores runs without them.
template <class Layer> void check_products(const std::string& name, const graph& g) {
  const cuda::kernel_list own = cuda::type_kernels<Layer>::list_for(g);
  const size_values s = with_nominals(g, static_sizes<Layer>(g));
  const auto size = [&](id i, int axis) { return static_cast<int>(g.sizes.value(g[i].d[axis], s)); };
  const auto takes = [&](product_shape p, const target& to) {
    for (p.m = 1; p.m <= 8192; p.m = 4 * p.m - 1)
      if (p.k % 8 == 0 && (!p.across || p.n % 8 == 0)) CHECK(cuda::choose(p, to, own).how != cuda::way::simt);
  };
  for (const target& to : {cuda::device_target("large", 90, 132, 66), cuda::device_target("small", 90, 78, 39)})
    for (const product_slots& one : fuse(g, to).products) {
      product_shape p{dtype::bf16, 0, size(one.weight, one.weight_by_row ? 2 : 3),
                      size(one.weight, one.weight_by_row ? 3 : 2),
                      cuda::padded_rank(static_cast<int>(side_rank(g, one, s)))};
      p.pre = one.pre >= 0, p.given_side = cuda::given_side_of(one) >= 0;
      const grown_weight grown = grown_at(g, one.weight);
      const bool in_place = base_leaf(g, one.weight) >= 0 || g[unshaped(g, one.weight)].what == op::frozen;
      INFO(name, " on ", std::string(to.name), ": ", p.n, " x ", p.k, ", rank ", p.rank);
      takes(p, to);
      p.across = !one.weight_by_row;
      if (in_place || grown.found) takes(p, to);
      if (!grown.found) continue;  // the product that makes it
      const int rank = cuda::padded_rank(size(grown.left, grown.left_across ? 2 : 3));
      for (const bool across : {false, true})
        takes({.n = size(one.weight, 3), .k = rank, .plain = !grown.adds, .across = across}, to);
    }
}
template <class Layer> void check(const std::string& name, const graph& g, cuda::launch_set has) {
  for (target to : {cuda::device_target("large", 90, 132, 66), cuda::device_target("small", 90, 78, 39), sm_80})
    for (const bool takes_pre : {true, false}) {
      to.takes_pre = takes_pre;
      const cuda::launch_set wanted = needs(g, to, static_sizes<Layer>(g));
      INFO(name, " on ", std::string(to.name), std::string(takes_pre ? "" : ", without a factor of the input"));
      CHECK((wanted & ~has) == 0);
    }
}

}  // namespace

TEST_CASE("launches of layer types: every plan of every adapter finds its own") {
  test::for_all_layers([](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    using type = cuda::type_kernels<layer>;
    const auto g =
        test::captured_at_run_time(layer_of<typename layer::kind, typename layer::adapter, layer::has_bias>());
    for (const graph& one : {graph(g.forward), graph(g.folded), graph(g.backward)})
      if (one.bad.what == fault::none)
        check<layer>(name, one, type::launches_for(one)), check_products<layer>(name, one);
  });
}
TEST_CASE("launches of layer types: sums by the sizes that they have") {
  using cuda::form_of_sum, cuda::sum_form;
  CHECK(form_of_sum({1, 1, 1024, 16}, {1, 1, 1024, 1}) == sum_form::narrow_rows);
  CHECK(form_of_sum({1, 1, 1024, 257}, {1, 1, 1024, 1}) == sum_form::rows);
  CHECK(form_of_sum({1, 1, 1024, 16}, {1, 1, 1, 16}) == sum_form::columns);
  CHECK(form_of_sum({1, 2, 1024, 16}, {1, 1, 1, 16}) == sum_form::any);
  CHECK(form_of_sum({1, 1, 1024, 16}, {1, 1, 1, 1}) == sum_form::any);
}
TEST_CASE("launches of layer types: those that read codes belong to types of codes") {
  CHECK((cuda::type_kernels<linear<1024, 1024, nf4<64>, lora<16>>>::launches & set::codes) != 0);
  CHECK((cuda::type_kernels<linear<1024, 1024, int8, lora<16>>>::launches & set::codes) != 0);
  CHECK((cuda::type_kernels<linear<1024, 1024, bf16, lora<16>>>::launches & set::codes) == 0);
}
TEST_CASE("launches of layer types: a rank that is not known wants all forms of sums that its graphs have") {
  struct wide : linear<dyn, dyn, bf16, dora<dyn>> {};
  struct narrow : linear<1024, 1024, bf16, dora<16>> {};
  CHECK((cuda::type_kernels<wide>::launches & cuda::type_kernels<narrow>::launches) ==
        cuda::type_kernels<narrow>::launches);
}
