// SPDX-License-Identifier: Apache-2.0
// kernel_selection: the kernels that a program compiles for a layer type, as one value that template arguments can be.
// It follows from the plans of the type: kernels_of_launch<Kind>, in kernels/*/capabilities.h, states what a launch of
// the kind needs, a plan needs what its launches do (kernels_of_plan.h), and
// runtime/kernel_set.cuh instantiates what is selected.
#pragma once
#include <graft/backend/gpu/dispatch/quantized.h>
#include <graft/backend/gpu/dispatch/reduce_form.h>
#include <graft/graph/op_set.h>
#include <graft/plan/plan.h>

namespace graft::gpu {

// Launches that only some plans have (dispatch/launchers.cuh), as a bit mask.
using launch_mask = unsigned;
namespace launches {
inline constexpr launch_mask dropout_gemms = 1, chain = 2, columns = 4, expression = 8, two_expressions = 16,
                             gates = 32, precomputed_expression = 64, weight_shrink = 1 << 7, stack = 1 << 10,
                             sum = 1 << 11, quantized = 1 << 15, repeated_branches = 1 << 16, fused_rotation = 1 << 17,
                             pad = 1 << 18, any_format = 1 << 19, every = ~0U;
// weight_shrink: three bits by rank; sum: four bits by reduce form; any_format: `quantized` for formats that no layer
// type names
constexpr launch_mask reduce_bits(unsigned forms) { return forms * sum; }
// The rank is 0 if it is unknown; then it may be any.
constexpr launch_mask shrink_bit(int rank) {
  return rank <= 0 ? 7 * weight_shrink : weight_shrink << (rank <= 16 ? 0 : rank <= 32 ? 1 : 2);
}
}  // namespace launches

struct kernel_selection {
  gemm_kernel_mask gemms{};
  launch_mask launches = 0;
  op_set nodes{};  // operations that may run as kernels of their own
  quantized_mask quantized{};

  constexpr kernel_selection operator|(const kernel_selection& o) const {
    return {gemms | o.gemms, launches | o.launches, nodes | o.nodes, quantized | o.quantized};
  }
  friend constexpr bool operator==(const kernel_selection&, const kernel_selection&) = default;
};

// A plan for a layer type. Sizes that the type leaves open are 0.
struct type_plan {
  const graph& g;
  const launch_plan& p;
  const size_values& known;
  quant_format stored{};  // element type of the base weight

  constexpr int size(dim d) const {
    const long long v = g.sizes.value(d, known);
    return v > 0 ? static_cast<int>(v) : 0;
  }
};

// What a launch of a kind needs: add(selection, type_plan, launch). A kind without a specialization needs only what its
// launch_on_gpu::run compiles in every program.
template <class Kind> struct kernels_of_launch {
  static constexpr void add(kernel_selection&, const type_plan&, const Kind&) {}
};

}  // namespace graft::gpu
