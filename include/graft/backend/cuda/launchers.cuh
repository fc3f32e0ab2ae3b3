// SPDX-License-Identifier: Apache-2.0
// Launches that only some plans have, as pointers: to name one is to compile its kernels, so a layer type names those of its
// own plans (launches_of), and programs that learn their plans at run time name all of them. Results are T or floats.
#pragma once
#include <graft/backend/cuda/attention_choice.h>
#include <graft/backend/cuda/column_dots.cuh>
#include <graft/backend/cuda/dropped_products.cuh>
#include <graft/backend/cuda/expression.cuh>
#include <graft/backend/cuda/gate_sums.cuh>
#include <graft/backend/cuda/small_stacks.cuh>
#include <graft/backend/cuda/stack_chain.cuh>
#include <graft/plan/plan.h>

namespace graft::cuda {

// Which of them, as bits.
using launch_set = unsigned;
namespace launches {
inline constexpr launch_set dropped = 1, chain = 2, columns = 4, expression = 8, two_expressions = 16, gates = 32,
                            known_expression = 64, weight_shrink = 128, stack = 1024,
                            every = ~0U;  // weight_shrink: and the next two
constexpr launch_set shrink_of(int rank) { return weight_shrink << (rank <= 16 ? 0 : rank <= 32 ? 1 : 2); }
}  // namespace launches

struct launchers {
  status (*dropped)(cudaStream_t, dropped_product::form, const dropped_args&) = nullptr;
  status (*chain)(cudaStream_t, const chain_args&) = nullptr;
  status (*stack)(cudaStream_t, const stack_args&) = nullptr;
  status (*columns)(cudaStream_t, const target&, const dots_args&) = nullptr;
  status (*expression)(cudaStream_t, const cuda::expression&, const tensor<float>&, const tensor<float>&) = nullptr;
  status (*two_expressions)(cudaStream_t, const cuda::expression&, const cuda::expression&, const tensor<float>&,
                            const tensor<float>&) = nullptr;
  result<bool> (*gates)(cudaStream_t, const target&, const cuda::expression&, const cuda::expression&,
                        const tensor<float>&, const tensor<float>&, const gate_sum&, const gate_sum&) = nullptr;
  // Of values that follow from the parameters: expressions, which are floats, and a weight times a narrow matrix.
  status (*known_expression)(cudaStream_t, const cuda::expression&, const tensor<float>&,
                             const tensor<float>&) = nullptr;
  status (*shrink[3])(cudaStream_t, const dropped_args&) = {};  // up to 16, 32 and 64 ranks

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
  }
};

inline status not_launched(const char* what) {
  return fail("the kernels of ", what, " are not compiled into this program; use cuda::executor for this layer");
}

template <class T, launch_set Which> launchers compiled_launchers() {
  launchers l;
  if constexpr ((Which & launches::dropped) != 0) l.dropped = &multiply_dropped<T>;
  if constexpr ((Which & launches::stack) != 0) l.stack = &run_stack<float>;
  if constexpr ((Which & launches::columns) != 0) l.columns = &dot_columns<T>;
  if constexpr ((Which & launches::expression) != 0) l.expression = &evaluate<T>;
  if constexpr ((Which & launches::two_expressions) != 0) l.two_expressions = &evaluate<T>;
  if constexpr ((Which & launches::known_expression) != 0) l.known_expression = &evaluate<float>;
  if constexpr (sizeof(T) == 2) {
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

// What a plan launches.
constexpr launch_set launches_of(const graph& g, const plan& p) {
  launch_set s = 0;
  for (const graft::launch& l : p.launches) {
    if (l.dropped >= 0) s |= launches::dropped;
    if (l.chained >= 0) s |= launches::chain;
    if (l.stack >= 0) s |= launches::stack;
    const bool other = l.product >= 0 || l.sum >= 0 || l.dropped >= 0 || l.chained >= 0 || l.stack >= 0 || l.rows >= 0;
    if (!other && l.count > 1 && !is_attention(g[l.anchor].what))
      s |= l.also >= 0 ? launches::two_expressions : launches::expression;
    if (l.summed[0] >= 0) s |= launches::gates;
  }
  for (const token_sum& t : p.sums)
    if (t.by_column) s |= launches::columns;
  return s;
}

}  // namespace graft::cuda
