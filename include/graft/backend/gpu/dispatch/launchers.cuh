// SPDX-License-Identifier: Apache-2.0
// Launches that only some plans have, as function pointers: a program compiles the kernels of those that it names. A
// layer type names those of its own plans (kernel_selection.h); a program that learns its plans at run time names all
// of them. Results are stored as T or float.
#pragma once
#include <graft/backend/gpu/dispatch/kernel_selection.h>
#include <graft/backend/gpu/kernels/elementwise/expression.cuh>
#include <graft/backend/gpu/kernels/gemm/pack.cuh>
#include <graft/backend/gpu/kernels/linalg/kronecker_chain.cuh>
#include <graft/backend/gpu/kernels/linalg/matrix_stack.cuh>
#include <graft/backend/gpu/kernels/quantized/dequantize_parts.cuh>
#include <graft/backend/gpu/kernels/skinny/dropout_branch.cuh>
#include <graft/backend/gpu/kernels/wgrad/column_scale.cuh>
#include <graft/backend/gpu/kernels/wgrad/swiglu_column_scale.cuh>

namespace graft::gpu {

struct launchers {
  status (*dropout_gemms)(cudaStream_t, dropout_gemm::form, const dropout_gemm_args&) = nullptr;
  status (*chain)(cudaStream_t, const chain_args&) = nullptr;
  status (*stack)(cudaStream_t, const stack_args&) = nullptr;
  status (*columns)(cudaStream_t, const target&, const column_wgrad_args&) = nullptr;
  status (*expression)(cudaStream_t, const reduce_functions&, const gpu::expression&, const tensor<float>&,
                       const tensor<float>&) = nullptr;
  status (*two_expressions)(cudaStream_t, const gpu::expression&, const gpu::expression&, const tensor<float>&,
                            const tensor<float>&) = nullptr;
  result<bool> (*gates)(cudaStream_t, const target&, const gpu::expression&, const gpu::expression&,
                        const tensor<float>&, const tensor<float>&, const gate_wgrad&, const gate_wgrad&) = nullptr;
  // For precomputed values: expressions in float, and the shrink of a stored weight.
  status (*precomputed_expression)(cudaStream_t, const reduce_functions&, const gpu::expression&, const tensor<float>&,
                                   const tensor<float>&) = nullptr;
  status (*shrink[3])(cudaStream_t, const dropout_gemm_args&) = {};  // for ranks up to 16, 32 and 64
  reduce_functions sums{};                                           // reductions of expressions
  dequantize_functions quantized{};
  pack_functions packs{};

  // Takes those launches of `more` that `which` names.
  void add(const launchers& more, launch_mask which = launches::every) {
    auto take = [&](auto& mine, auto theirs, launch_mask bit) {
      if (theirs != nullptr && (which & bit) != 0) mine = theirs;
    };
    take(dropout_gemms, more.dropout_gemms, launches::dropout_gemms), take(chain, more.chain, launches::chain);
    take(stack, more.stack, launches::stack);
    take(columns, more.columns, launches::columns), take(expression, more.expression, launches::expression);
    take(two_expressions, more.two_expressions, launches::two_expressions), take(gates, more.gates, launches::gates);
    take(precomputed_expression, more.precomputed_expression, launches::precomputed_expression);
    for (int k = 0; k < 3; ++k) take(shrink[k], more.shrink[k], launches::weight_shrink << k);
    for (int k = 0; k < reduce_form_count - 1; ++k)
      take(sums.special[k], more.sums.special[k], launches::reduce_bits(1U << k));
    take(sums.any, more.sums.any, launches::reduce_bits(1U << static_cast<int>(reduce_form::any)));
    take(packs.fold, more.packs.fold, launches::repeated_branches),
        take(packs.repeat, more.packs.repeat, launches::repeated_branches);
    take(packs.tile, more.packs.tile, launches::repeated_branches),
        take(packs.fused_rotation, more.packs.fused_rotation, launches::fused_rotation);
    take(packs.pad, more.packs.pad, launches::pad);
    take(quantized.dequantize, more.quantized.dequantize, launches::quantized),
        take(quantized.gather, more.quantized.gather, launches::quantized);
  }
};

template <class T, launch_mask Which> launchers compiled_launchers() {
  launchers l;
  if constexpr ((Which & launches::dropout_gemms) != 0) l.dropout_gemms = &launch_dropout_gemm<T>;
  if constexpr ((Which & launches::stack) != 0) l.stack = &run_stack<float>;
  if constexpr ((Which & launches::columns) != 0) l.columns = &run_column_wgrad<T>;
  if constexpr ((Which & launches::expression) != 0) l.expression = &evaluate<T>;
  if constexpr ((Which & launches::two_expressions) != 0) l.two_expressions = &evaluate<T>;
  if constexpr ((Which & launches::precomputed_expression) != 0) l.precomputed_expression = &evaluate<float>;
  const auto sum = [&]<reduce_form Form>() {
    constexpr int k = static_cast<int>(Form);
    if constexpr ((Which & launches::reduce_bits(1U << k)) == 0)
      return;
    else if constexpr (Form == reduce_form::any)
      l.sums.any = &reduce_expression_any<>;
    else
      l.sums.special[k] = &reduce_expression<Form>;
  };
  sum.template operator()<reduce_form::narrow_rows>(), sum.template operator()<reduce_form::rows>();
  sum.template operator()<reduce_form::columns>(), sum.template operator()<reduce_form::any>();
  if constexpr ((Which & launches::repeated_branches) != 0)
    l.packs.fold = &fold_branch<T>, l.packs.repeat = &repeat_branch<T>;
  if constexpr ((Which & launches::pad) != 0) l.packs.pad = &pad_shrink<T>;
  if constexpr ((Which & launches::any_format) != 0)
    l.quantized = {&dequantize_any<T>, &gather_any<>};
  else if constexpr ((Which & launches::quantized) != 0)
    l.quantized = {&dequantize_weight<T>, &gather_dequantized<>};
  if constexpr (sizeof(T) == 2) {
    if constexpr ((Which & launches::repeated_branches) != 0) l.packs.tile = &tile_branch<T>;
    if constexpr ((Which & launches::fused_rotation) != 0) l.packs.fused_rotation = &pack_rotation_rows<T>;
    if constexpr ((Which & launches::chain) != 0) l.chain = &multiply_chain<T>;
    if constexpr ((Which & launches::shrink_bit(16)) != 0) l.shrink[0] = &run_dropout_shrink<T, 1>;
    if constexpr ((Which & launches::shrink_bit(32)) != 0) l.shrink[1] = &run_dropout_shrink<T, 2>;
    if constexpr ((Which & launches::shrink_bit(64)) != 0) l.shrink[2] = &run_dropout_shrink<T, 4>;
  }
  if constexpr (dtype_of<T> == dtype::bf16 && (Which & launches::gates) != 0) l.gates = &run_gate_wgrads<T>;
  return l;
}
template <class T> launchers all_launchers() { return compiled_launchers<T, launches::every>(); }

}  // namespace graft::gpu
