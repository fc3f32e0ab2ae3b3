// SPDX-License-Identifier: Apache-2.0
// Launches that only some plans have, as pointers: to name one is to compile its kernels, so a layer type names those of its
// own plans (launch_set.h), and programs that learn their plans at run time name all of them. Results are T or floats.
#pragma once
#include <graft/backend/cuda/code_panel.cuh>
#include <graft/backend/cuda/column_dots.cuh>
#include <graft/backend/cuda/dropped_products.cuh>
#include <graft/backend/cuda/expression.cuh>
#include <graft/backend/cuda/gate_sums.cuh>
#include <graft/backend/cuda/launch_set.h>
#include <graft/backend/cuda/lookup_norm.cuh>
#include <graft/backend/cuda/pack_functions.cuh>
#include <graft/backend/cuda/small_stacks.cuh>
#include <graft/backend/cuda/stack_chain.cuh>

namespace graft::cuda {

struct launchers {
  status (*dropped)(cudaStream_t, dropped_product::form, const dropped_args&) = nullptr;
  status (*chain)(cudaStream_t, const chain_args&) = nullptr;
  status (*stack)(cudaStream_t, const stack_args&) = nullptr;
  status (*columns)(cudaStream_t, const target&, const dots_args&) = nullptr;
  status (*expression)(cudaStream_t, const sum_functions&, const cuda::expression&, const tensor<float>&,
                       const tensor<float>&) = nullptr;
  status (*two_expressions)(cudaStream_t, const cuda::expression&, const cuda::expression&, const tensor<float>&,
                            const tensor<float>&) = nullptr;
  result<bool> (*gates)(cudaStream_t, const target&, const cuda::expression&, const cuda::expression&,
                        const tensor<float>&, const tensor<float>&, const gate_sum&, const gate_sum&) = nullptr;
  // Of values that follow from the parameters: expressions, which are floats, and a weight times a narrow matrix.
  status (*known_expression)(cudaStream_t, const sum_functions&, const cuda::expression&, const tensor<float>&,
                             const tensor<float>&) = nullptr;
  status (*shrink[3])(cudaStream_t, const dropped_args&) = {};  // up to 16, 32 and 64 ranks
  sum_functions sums{};                                         // of expressions of either kind
  code_functions codes{};
  pack_functions packs{};
  status (*look_up)(cudaStream_t, const look_up_args&) = nullptr;  // rows that the norm of the block behind reads

  // Those of `more` that the set names.
  void add(const launchers& more, launch_set which = launches::every) {
    auto take = [&](auto& mine, auto theirs, launch_set bit) {
      if (theirs != nullptr && (which & bit) != 0) mine = theirs;
    };
    take(dropped, more.dropped, launches::dropped), take(chain, more.chain, launches::chain);
    take(stack, more.stack, launches::stack);
    take(columns, more.columns, launches::columns), take(expression, more.expression, launches::expression);
    take(two_expressions, more.two_expressions, launches::two_expressions), take(gates, more.gates, launches::gates);
    take(known_expression, more.known_expression, launches::known_expression);
    for (int k = 0; k < 3; ++k) take(shrink[k], more.shrink[k], launches::weight_shrink << k);
    for (int k = 0; k < sum_forms - 1; ++k) take(sums.special[k], more.sums.special[k], launches::sums_of(1U << k));
    take(sums.any, more.sums.any, launches::sums_of(1U << static_cast<int>(sum_form::any)));
    take(look_up, more.look_up, launches::look_up);
    take(packs.fold, more.packs.fold, launches::sides), take(packs.repeat, more.packs.repeat, launches::sides);
    take(packs.tile, more.packs.tile, launches::sides), take(packs.turn, more.packs.turn, launches::turn);
    take(packs.pad, more.packs.pad, launches::pad);
    take(codes.decode, more.codes.decode, launches::codes), take(codes.gather, more.codes.gather, launches::codes);
  }
};

template <class T, launch_set Which> launchers compiled_launchers() {
  launchers l;
  if constexpr ((Which & launches::dropped) != 0) l.dropped = &multiply_dropped<T>;
  if constexpr ((Which & launches::stack) != 0) l.stack = &run_stack<float>;
  if constexpr ((Which & launches::columns) != 0) l.columns = &dot_columns<T>;
  if constexpr ((Which & launches::expression) != 0) l.expression = &evaluate<T>;
  if constexpr ((Which & launches::two_expressions) != 0) l.two_expressions = &evaluate<T>;
  if constexpr ((Which & launches::known_expression) != 0) l.known_expression = &evaluate<float>;
  const auto sum = [&]<sum_form Form>() {
    constexpr int k = static_cast<int>(Form);
    if constexpr ((Which & launches::sums_of(1U << k)) == 0)
      return;
    else if constexpr (Form == sum_form::any)
      l.sums.any = &add_up_any<>;
    else
      l.sums.special[k] = &add_up<Form>;
  };
  sum.template operator()<sum_form::narrow_rows>(), sum.template operator()<sum_form::rows>();
  sum.template operator()<sum_form::columns>(), sum.template operator()<sum_form::any>();
  if constexpr (dtype_of<T> == dtype::bf16 && (Which & launches::look_up) != 0) l.look_up = &look_up_for_norm<T>;
  if constexpr ((Which & launches::sides) != 0) l.packs.fold = &fold_side<T>, l.packs.repeat = &repeat_side<T>;
  if constexpr ((Which & launches::pad) != 0) l.packs.pad = &pad_side<T>;
  if constexpr ((Which & launches::codes) != 0) l.codes = {&decode_codes<T>, &gather_codes<>};
  if constexpr (sizeof(T) == 2) {
    if constexpr ((Which & launches::sides) != 0) l.packs.tile = &tile_side<T>;
    if constexpr ((Which & launches::turn) != 0) l.packs.turn = &pack_turned<T>;
    if constexpr ((Which & launches::chain) != 0) l.chain = &multiply_chain<T>;
    if constexpr ((Which & launches::shrink_of(16)) != 0) l.shrink[0] = &shrink_dropped<T, 1>;
    if constexpr ((Which & launches::shrink_of(32)) != 0) l.shrink[1] = &shrink_dropped<T, 2>;
    if constexpr ((Which & launches::shrink_of(64)) != 0) l.shrink[2] = &shrink_dropped<T, 4>;
  }
  if constexpr (dtype_of<T> == dtype::bf16 && (Which & launches::gates) != 0) l.gates = &sum_gates<T>;
  return l;
}
template <class T> launchers all_launchers() { return compiled_launchers<T, launches::every>(); }
// Those of a set: compiled here, or found in graft::cuda_compiled.
template <class T, launch_set Which> launchers launchers_for() {
#if defined(GRAFT_CUDA_COMPILED)
  launchers l;
  return l.add(all_launchers<T>(), Which), l;
#else
  return compiled_launchers<T, Which>();
#endif
}

}  // namespace graft::cuda
