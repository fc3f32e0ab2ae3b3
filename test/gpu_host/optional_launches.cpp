// SPDX-License-Identifier: Apache-2.0
// The launches of plans, determined from graphs as backend/gpu/runtime/program.cuh does, are in the set that a layer
// type compiles: for every adapter, forward and backward, on devices with different numbers of SMs.
#include <doctest/doctest.h>
#include <graft/run/type_kernels.h>

#include <string>

#include "../support/all_layers.h"

using namespace graft;

namespace {

namespace set = gpu::launches;

gpu::launch_mask of_sum(const graph& g, id i, const size_values& s) {
  unsigned size[4], to[4];
  for (int k = 0; k < 4; ++k) {
    size[k] = static_cast<unsigned>(g.sizes.value(g[g[i].a].d[k], s));
    to[k] = static_cast<unsigned>(g.sizes.value(g[i].d[k], s));
  }
  // If its operands are not aligned to 16 bytes, any form of sum may run.
  const auto any = static_cast<int>(gpu::reduce_form::any);
  return set::reduce_bits(1U << static_cast<int>(gpu::reduce_form_of(size, to)) | 1U << any);
}
gpu::launch_mask of_launch(const graph& g, const plan& p, const graft::launch& l, const size_values& s) {
  if (l.is<dropout_gemm>()) return set::dropout_gemms;
  if (l.is<matrix_chain>()) return set::chain;
  if (l.is<matrix_stack>()) return set::stack;
  const expression_launch* const e = p.as<expression_launch>(l);
  if (e == nullptr) return 0;
  if (e->paired_root >= 0) return set::two_expressions | (e->gate_wgrads[0] >= 0 ? set::gates : 0U);
  return set::expression | (g[e->root].what == op::sum_to ? of_sum(g, e->root, s) : 0U);
}
gpu::launch_mask of_product(const graph& g, const gemm_slots& s) {
  gpu::launch_mask all = s.output_rotation >= 0 ? set::fused_rotation : 0U;
  for (const low_rank_branch& b : s.branches) {
    if (b.a < 0 || b.b < 0) all |= set::odd_branches;
    for (const id i : {b.a, b.b})
      if (i >= 0 && base_leaf(g, i) >= 0) all |= set::odd_branches;
  }
  for (int k = 0; k < g.outs; ++k)
    if (!s.branches.empty() && s.branches[0].stores_shrink && g.out[k].at == s.branches[0].s) all |= set::pad;
  return all;
}
// The launches of precomputed values, all of which run when a plan is bound.
gpu::launch_mask of_known(const graph& g, const plan& p, const size_values& s) {
  gpu::launch_mask all = 0;
  node_set changing(g.size);
  for (id i = 0; i < g.size; ++i)
    if (p.when.of[i] == stage::parameter) changing.add(i);
  gpu::precomputed_expressions found;
  found.find(g, p.when, detail::count_readers(g, p.live), changing);
  for (const sequence<id>& nodes : found.all) {
    all |= set::precomputed_expression;
    if (g[nodes[0]].what == op::sum_to) all |= of_sum(g, nodes[0], s);
  }
  for (id i = 0; i < g.size; ++i)
    if (changing[i] && gpu::is_weight_shrink(g, i))
      all |= set::shrink_bit(static_cast<int>(g.sizes.value(g[i].d[3], s)));
  return all;
}
gpu::launch_mask needs(const graph& g, const target& to, const size_values& known) {
  const plan p = fuse(g, to);
  const size_values s = with_nominals(g, known);
  gpu::launch_mask all = of_known(g, p, s);
  for (const graft::launch& l : p.launches) all |= of_launch(g, p, l, s);
  for (const gemm_slots& one : p.products) all |= of_product(g, one);
  for (const wgrad_sum& t : p.all<wgrad_sum>()) {
    all |= t.by_column ? set::columns : 0U;
    for (const id i : {t.left, t.right})
      if (!t.by_column && is_call_input(g, i) && g.sizes.value(g[i].d[3], s) % 8 != 0) all |= set::pad;
  }
  for (const gemm_slots& one : p.products)
    if (const updated_weight w = updated_weight_at(g, one.weight); w.found && !w.adds)
      all |= set::precomputed_expression;
  return all;
}
// On devices with tensor core kernels, no GEMM whose sizes allow them runs without them.
template <class Layer> void check_products(const std::string& name, const graph& g) {
  const gpu::gemm_kernel_mask own = gpu::type_kernels<Layer>::gemm_kernels_for(g);
  const size_values s = with_nominals(g, static_sizes<Layer>(g));
  const auto size = [&](id i, int axis) { return static_cast<int>(g.sizes.value(g[i].d[axis], s)); };
  const auto takes = [&](gemm_problem p, const target& to) {
    for (p.m = 1; p.m <= 8192; p.m = 4 * p.m - 1)
      if (p.k % 8 == 0 && (!p.nn || p.n % 8 == 0)) CHECK(gpu::choose(p, to, own).path != gpu::gemm_path::simt);
  };
  for (const target& to : {gpu::device_target("large", 90, 132, 66), gpu::device_target("small", 90, 78, 39)})
    for (const gemm_slots& one : fuse(g, to).products) {
      gemm_problem p{dtype::bf16, 0, size(one.weight, one.weight_is_nt ? 2 : 3),
                     size(one.weight, one.weight_is_nt ? 3 : 2),
                     gpu::padded_rank(static_cast<int>(branch_rank(g, one, s)))};
      p.prologue = one.prologue >= 0, p.shrink_input = gpu::shrink_input_of(one) >= 0;
      const updated_weight grown = updated_weight_at(g, one.weight);
      const bool in_place = base_leaf(g, one.weight) >= 0 || g[unshaped(g, one.weight)].what == op::frozen;
      INFO(name, " on ", std::string(to.name), ": ", p.n, " x ", p.k, ", rank ", p.rank);
      takes(p, to);
      p.nn = !one.weight_is_nt;
      if (in_place || grown.found) takes(p, to);
      if (!grown.found) continue;  // the GEMM that updates the weight
      const int rank = gpu::padded_rank(size(grown.left, grown.left_transposed ? 2 : 3));
      for (const bool nn : {false, true})
        takes({.n = size(one.weight, 3), .k = rank, .plain = !grown.adds, .nn = nn}, to);
    }
}
template <class Layer> void check(const std::string& name, const graph& g, gpu::launch_mask has) {
  for (target to : {gpu::device_target("large", 90, 132, 66), gpu::device_target("small", 90, 78, 39), sm_80})
    for (const bool fuses_prologue : {true, false}) {
      to.can<gemm_launch>().fuses_prologue = fuses_prologue;
      const gpu::launch_mask wanted = needs(g, to, static_sizes<Layer>(g));
      INFO(name, " on ", std::string(to.name), std::string(fuses_prologue ? "" : ", without a factor of the input"));
      CHECK((wanted & ~has) == 0);
    }
}

}  // namespace

TEST_CASE("launches of layer types: every plan of every adapter finds its own") {
  test::for_all_layers([](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    using type = gpu::type_kernels<layer>;
    const auto g =
        test::captured_at_run_time(layer_of<typename layer::kind, typename layer::adapter, layer::has_bias>());
    for (const graph& one : {graph(g.forward), graph(g.folded), graph(g.backward)})
      if (one.bad.what == fault::none)
        check<layer>(name, one, type::launches_for(one)), check_products<layer>(name, one);
  });
}
TEST_CASE("launches of layer types: forms of sums follow from their sizes") {
  using gpu::reduce_form_of, gpu::reduce_form;
  CHECK(reduce_form_of({1, 1, 1024, 16}, {1, 1, 1024, 1}) == reduce_form::narrow_rows);
  CHECK(reduce_form_of({1, 1, 1024, 257}, {1, 1, 1024, 1}) == reduce_form::rows);
  CHECK(reduce_form_of({1, 1, 1024, 16}, {1, 1, 1, 16}) == reduce_form::columns);
  CHECK(reduce_form_of({1, 2, 1024, 16}, {1, 1, 1, 16}) == reduce_form::any);
  CHECK(reduce_form_of({1, 1, 1024, 16}, {1, 1, 1, 1}) == reduce_form::any);
}
TEST_CASE("launches of layer types: launches for quantized weights belong to types with such weights") {
  CHECK((gpu::type_kernels<linear<1024, 1024, nf4<64>, lora<16>>>::launches & set::quantized) != 0);
  CHECK((gpu::type_kernels<linear<1024, 1024, int8, lora<16>>>::launches & set::quantized) != 0);
  CHECK((gpu::type_kernels<linear<1024, 1024, bf16, lora<16>>>::launches & set::quantized) == 0);
}
TEST_CASE("launches of layer types: an unknown rank needs all forms of sums of its graphs") {
  struct wide : linear<dyn, dyn, bf16, dora<dyn>> {};
  struct narrow : linear<1024, 1024, bf16, dora<16>> {};
  CHECK((gpu::type_kernels<wide>::launches & gpu::type_kernels<narrow>::launches) ==
        gpu::type_kernels<narrow>::launches);
}
