// SPDX-License-Identifier: Apache-2.0
// The kernels that a layer type selects: those that its plans launch, determined from graphs as
// backend/gpu/runtime/program.cuh does, on devices with different numbers of SMs; and of the GEMM kernels no others.
#include <doctest/doctest.h>
#include <graft/run/type_kernels.h>

#include <algorithm>
#include <string>
#include <vector>

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
gpu::launch_mask of_launch(const graph& g, const launch_plan& p, const graft::launch& l, const size_values& s) {
  if (l.is<dropout_gemm>()) return set::dropout_gemms;
  if (l.is<kronecker_chain>()) return set::chain;
  if (l.is<matrix_stack>()) return set::stack;
  const expression_launch* const e = p.as<expression_launch>(l);
  if (e == nullptr) return 0;
  if (e->paired_root >= 0) return set::two_expressions | (e->gate_wgrads[0] >= 0 ? set::gates : 0U);
  return set::expression | (g[e->root].what == op::sum_to ? of_sum(g, e->root, s) : 0U);
}
gpu::launch_mask of_product(const graph& g, const gemm_slots& s) {
  gpu::launch_mask all = s.output_rotation >= 0 ? set::fused_rotation : 0U;
  for (const low_rank_branch& b : s.branches) {
    if (b.a < 0 || b.b < 0) all |= set::repeated_branches;
    for (const id i : {b.a, b.b})
      if (i >= 0 && base_leaf(g, i) >= 0) all |= set::repeated_branches;
  }
  for (int k = 0; k < g.outs; ++k)
    if (!s.branches.empty() && s.branches[0].stores_shrink && g.out[k].at == s.branches[0].s) all |= set::pad;
  return all;
}
// The launches of precomputed values, all of which run when a plan is bound.
gpu::launch_mask of_known(const graph& g, const launch_plan& p, const size_values& s) {
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
  const launch_plan p = fuse(g, to);
  const size_values s = with_nominals(g, known);
  gpu::launch_mask all = of_known(g, p, s);
  for (const graft::launch& l : p.launches) all |= of_launch(g, p, l, s);
  for (const gemm_slots& one : p.products) all |= of_product(g, one);
  for (const wgrad_launch& t : p.all<wgrad_launch>()) {
    all |= t.by_column ? set::columns : 0U;
    for (const id i : {t.left, t.right})
      if (!t.by_column && is_call_input(g, i) && g.sizes.value(g[i].d[3], s) % 8 != 0) all |= set::pad;
  }
  for (const gemm_slots& one : p.products)
    if (const low_rank_update w = low_rank_update_at(g, one.weight); w.found && !w.adds)
      all |= set::precomputed_expression;
  return all;
}
// Records the kernels that dispatch chooses among those that are compiled.
struct reached_kernels {
  const gpu::gemm_kernel_mask& own;
  gpu::gemm_kernel_mask all{};

  void add(const gemm_problem& p, const target& to) {
    if (gpu::rotation_inside_gemm(p, to, own)) all.add_fused_rotation(p.prologue);
    const gpu::gemm_choice c = gpu::choose(p, to, own);
    const int first = p.nn ? gpu::first_nn : 0;
    const auto skinny = [&](int rank) {
      if (c.skinny.nn) return all.add_skinny_nn(gpu::nn_shape_index(c.skinny.rows), rank);
      all.add_skinny(c.skinny.tokens, gpu::shape_index(c.skinny.rows, c.skinny.any), rank);
    };
    switch (c.path) {
      case gpu::gemm_path::skinny: return skinny(p.rank);
      case gpu::gemm_path::swap_ab: return skinny(0);
      case gpu::gemm_path::split_k: return all.add_split_k();
      case gpu::gemm_path::gemm:
        all.add_gemm(c.tile_n, first + (p.prologue ? gpu::with_prologue : gpu::rank_index(p.rank)));
        return c.fused_wgrads != 0 ? all.add_fused_wgrad(p.rank) : void();
      case gpu::gemm_path::gemm_after_shrink:
        all.add_gemm(c.tile_n, first);
        return c.launches == 1     ? void()
               : c.skinny.rows > 0 ? skinny(0)
               : c.splits > 0      ? all.add_split_k()
                                   : all.add_gemm(128, 0);
      case gpu::gemm_path::mma: return to.capability == 90 ? all.add_mma() : void();
      case gpu::gemm_path::simt: return;
    }
  }
};
constexpr long long token_counts[] = {1,    8,    9,    16,   17,   64,   65,   256,  300,   512,
                                      1024, 1300, 2048, 2600, 4096, 5000, 8192, 9000, 16384, 40000};
// On devices with tensor core kernels, no GEMM whose sizes allow them runs without them; and each GEMM kernel that the
// type compiles is chosen for some number of tokens.
template <class Layer> void check_products(const std::string& name, const graph& g) {
  const gpu::gemm_kernel_mask own = gpu::type_kernels<Layer>::of(g).gemms;
  reached_kernels reached{own};
  const size_values s = with_nominals(g, static_sizes<Layer>(g));
  const auto size = [&](id i, int axis) { return static_cast<int>(g.sizes.value(g[i].d[axis], s)); };
  const auto takes = [&](gemm_problem p, const target& to, bool checked = true) {
    for (const long long m : token_counts) {
      p.m = m;
      if (checked && p.k % 8 == 0 && (!p.nn || p.n % 8 == 0))
        CHECK(gpu::choose(p, to, own).path != gpu::gemm_path::simt);
      reached.add(p, to);
    }
  };
  for (const target& to :
       {gpu::device_target("large", 90, 132, 66), gpu::device_target("medium", 90, 114, 57),
        gpu::device_target("small", 90, 78, 39), gpu::device_target("part of a device", 90, 16, 8)}) {
    const launch_plan p = fuse(g, to);
    for (const gemm_launch& l : p.all<gemm_launch>())
      l.each_product([&](int k) {
        const gemm_slots& one = p.products[k];
        gemm_problem q = shape_of(g, one, s, dtype::bf16, {});
        q.rank = gpu::padded_rank(q.rank), q.nn = false;
        for (int sum = 0; sum < 2; ++sum)
          if (l.fused_wgrads[sum] >= 0) {
            q.fused_wgrads[sum] = shape_of(g, one, p.all<wgrad_launch>()[l.fused_wgrads[sum]], s);
            q.fused_wgrads[sum].rank = gpu::padded_rank(q.fused_wgrads[sum].rank);
          }
        const low_rank_update grown = low_rank_update_at(g, one.weight);
        const bool in_place = base_leaf(g, one.weight) >= 0 || g[unshaped(g, one.weight)].what == op::frozen;
        INFO(name, " on ", std::string(to.name), ": ", q.n, " x ", q.k, ", rank ", q.rank);
        takes(q, to);
        gemm_problem further = q;  // room for an adapter of rank 16 that is not there
        further.rank = 16, further.prologue = false;
        if (q.rank == 0) takes(further, to);
        if (!one.weight_is_nt && (in_place || grown.found)) q.nn = true, takes(q, to);
        if (q.nn && q.rank == 0) further.nn = true, takes(further, to);
        if (!grown.found) return;  // the GEMM that updates the weight
        const int rank = gpu::padded_rank(size(grown.left, grown.left_transposed ? 2 : 3));
        for (const bool nn : {false, true})
          takes({.n = size(one.weight, 3), .k = rank, .plain = !grown.adds, .nn = nn}, to);
      });
    for (const wgrad_launch& w : p.all<wgrad_launch>())
      if (!w.by_column) {
        const int left = size(w.left, 3), right = size(w.right, 3);
        for (const long long m : token_counts)
          if (const int rank =
                  gpu::choose_wgrad({dtype::bf16, m, std::max(left, right), std::min(left, right)}, to, own).rank;
              rank > 0)
            reached.all.add_wgrad(rank);
      }
  }
  INFO(name, ": kernels that dispatch never chooses, GEMMs ", own.gemms & ~reached.all.gemms, ", skinny GEMMs ",
       own.skinny & ~reached.all.skinny);
  CHECK((own.gemms & ~reached.all.gemms) == 0);
  CHECK((own.skinny & ~reached.all.skinny) == 0);
  CHECK((own.skinny_nn & ~reached.all.skinny_nn) == 0);
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

TEST_CASE("kernel selection: every plan of every adapter finds its kernels, and no others are compiled") {
  test::for_all_layers([](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    using type = gpu::type_kernels<layer>;
    const auto g = test::captured_at_run_time(test::formula_at_run_time<layer>());
    std::vector<graph> all = {g.forward, g.folded, g.backward};
    saved_pair training;
    if (graph(g.backward).bad.what == formula_error::none)
      training = select_saved_tensors(g.forward, g.backward), all.push_back(training.forward),
      all.push_back(training.backward);
    for (const graph& one : all)
      if (one.bad.what == formula_error::none)
        check<layer>(name, one, type::of(one).launches), check_products<layer>(name, one);
  });
}
TEST_CASE("kernel selection: backward finds its kernels whichever gradients are asked for") {
  test::for_all_layers([](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    const layer_formula f = test::formula_at_run_time<layer>();
    const auto g = test::captured_at_run_time(f);
    const graph whole = g.backward;
    if (whole.bad.what != formula_error::none) return;
    const saved_pair training = select_saved_tensors(g.forward, g.backward);
    const op_set nodes = ops_of(capture_literal_backward(f)) | ops_of(capture_literal(f));
    for (const graph& from : {whole, graph(training.backward)}) {
      const gpu::kernel_selection has = gpu::type_kernels<layer>::of_gradients(from);
      for (int bits = 1; bits < 1 << from.outs; ++bits) {
        sequence<bool> wanted;
        for (int k = 0; k < from.outs; ++k) wanted.push((bits >> k & 1) != 0);
        const builder part = requested_outputs(from, wanted);
        check<layer>(name, part, has.launches);
        const gpu::kernel_selection needs = gpu::type_kernels<layer>::of(part);
        INFO(std::string(name), ", gradients ", bits, " of ", from.outs, ", GEMMs ",
             needs.gemms.gemms & ~has.gemms.gemms, ", skinny GEMMs ", needs.gemms.skinny & ~has.gemms.skinny);
        CHECK(((needs.gemms | has.gemms) == has.gemms));
        CHECK(((needs.nodes | has.nodes | nodes) == (has.nodes | nodes)));
      }
    }
  });
}
TEST_CASE("kernel selection: forms of sums follow from their sizes") {
  using gpu::reduce_form_of, gpu::reduce_form;
  CHECK(reduce_form_of({1, 1, 1024, 16}, {1, 1, 1024, 1}) == reduce_form::narrow_rows);
  CHECK(reduce_form_of({1, 1, 1024, 257}, {1, 1, 1024, 1}) == reduce_form::rows);
  CHECK(reduce_form_of({1, 1, 1024, 16}, {1, 1, 1, 16}) == reduce_form::columns);
  CHECK(reduce_form_of({1, 2, 1024, 16}, {1, 1, 1, 16}) == reduce_form::any);
  CHECK(reduce_form_of({1, 1, 1024, 16}, {1, 1, 1, 1}) == reduce_form::any);
}
TEST_CASE("kernel selection: launches for quantized weights belong to types with such weights") {
  CHECK((gpu::type_kernels<linear<1024, 1024, nf4<64>, lora<16>>>::forward.launches & set::quantized) != 0);
  CHECK((gpu::type_kernels<linear<1024, 1024, int8, lora<16>>>::forward.launches & set::quantized) != 0);
  CHECK((gpu::type_kernels<linear<1024, 1024, bf16, lora<16>>>::forward.launches & set::quantized) == 0);
}
TEST_CASE("kernel selection: an unknown rank needs all forms of sums of its graphs") {
  struct wide : linear<dyn, dyn, bf16, dora<dyn>> {};
  struct narrow : linear<1024, 1024, bf16, dora<16>> {};
  const gpu::launch_mask few = gpu::type_kernels<narrow>::forward.launches;
  CHECK((gpu::type_kernels<wide>::forward.launches & few) == few);
}
