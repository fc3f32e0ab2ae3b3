// SPDX-License-Identifier: Apache-2.0
// Writes the names of the GEMM kernels that a layer type selects for forward and backward, one per line, as c++filt
// spells them; and after "without" each further kernel that belongs to launches and operations which the type does not
// have. It is compiled without nvcc, and names what the bits of a selection mean a second time.
#include <graft/run/type_kernels.h>

#include <cstdio>
#include <initializer_list>
#include <string>

#include "layer.h"

using namespace graft::gpu;

namespace {

std::string number(int n) { return std::to_string(n); }
std::string boolean(bool b) { return b ? "true" : "false"; }
void kernel(const std::string& name, const std::string& arguments) {
  std::printf("%s<__nv_bfloat16%s>\n", name.c_str(), arguments.c_str());
}
void gemms(const gemm_kernel_mask& have) {
  for (const int tile : {128, 256})
    for (const bool nn : {false, true}) {
      const int first = nn ? first_nn : 0;
      for (const int rank : {0, 16, 32, 64})
        if (have.has_gemm(tile, first + rank_index(rank)))
          kernel("gemm_kernel", ", " + number(tile) + ", " + number(rank) + ", false, " + boolean(nn));
      if (have.has_gemm(tile, first + with_prologue))
        kernel("gemm_kernel", ", " + number(tile) + ", 0, true, " + boolean(nn));
    }
  for (const int rank : {16, 32, 64, 128})
    if (have.has_wgrad_kernel(rank)) kernel("wgrad_kernel", ", " + number(rank) + ", (graft::gpu::wgrad_form)0");
  if (have.has_split_k()) kernel("wgrad_kernel", ", 128, (graft::gpu::wgrad_form)2");
  for (const int rank : {16, 32, 64})
    if (have.has_fused_wgrad(rank)) kernel("gemm_fused_wgrad_kernel", ", " + number(rank));
  if (have.has_fused_wgrad(0)) kernel("gemm_fused_column_wgrad_kernel", ", false");
  for (const bool prologue : {false, true})
    if (have.has_fused_rotation(prologue)) kernel("gemm_rotation_kernel", ", " + boolean(prologue));
  if (have.has_fused_rotation(true)) kernel("gemm_fused_column_wgrad_kernel", ", true");
  for (const int tokens : {8, 16, 64})
    for (int shape = 0; shape < skinny_shape_count; ++shape)
      for (const int rank : {0, 16, 32, 64})
        if (have.has_skinny(tokens, shape, rank))
          kernel("skinny_kernel", ", " + number(tokens) + ", " + number(skinny_shapes[shape].rows) + ", " +
                                      number(skinny_shapes[shape].splits) + ", " + number(rank) + ", " +
                                      boolean(shape == fallback_shape) + ", false");
  for (int shape = 0; shape < skinny_nn_shape_count; ++shape)
    for (const int rank : {0, 16, 32, 64})
      if (have.has_skinny_nn(shape, rank))
        kernel("skinny_kernel", ", 64, " + number(skinny_nn_shapes[shape].rows) + ", " +
                                    number(skinny_nn_shapes[shape].splits) + ", " + number(rank) + ", false, true");
  kernel("gemm_mma_kernel", ", " + boolean(have.has_mma()));  // other devices than Hopper need it
  kernel("gemm_simt_kernel", "");
}
void quantized(const quantized_mask& have) {
  if (have.layout == quant_layout::none) return;
  const std::string layout = ", (graft::gpu::quant_layout)" + number(static_cast<int>(have.layout));
  for (const bool branch : {true, false}) {
    if (!(branch ? have.with_branch : have.without_branch)) continue;
    for (const int tiles : {1, 2})
      for (const bool whole : {false, true})
        for (const bool grouped : {false, true})
          if (have.whole_units || !whole)
            kernel("quantized_skinny_kernel", layout + ", " + number(tiles) + ", " + boolean(branch) + ", " +
                                                  boolean(whole) + ", " + boolean(grouped));
    if (branch) kernel("shrink_kernel", "");
  }
}

void others(const kernel_selection& have) {
  const auto launched = [&](launch_mask bits, std::initializer_list<const char*> names) {
    for (const char* const name : names)
      if ((have.launches & bits) == 0) std::printf("without %s\n", name);
  };
  const launch_mask shrinks = launches::shrink_bit(16) | launches::shrink_bit(32) | launches::shrink_bit(64);
  launched(launches::dropout_gemms | shrinks, {"dropout_shrink_kernel"});
  launched(launches::dropout_gemms, {"dropout_wgrad_kernel", "dropout_expand_kernel", "dropout_entry"});
  launched(launches::chain, {"chain_kernel", "chain_partials"}), launched(launches::stack, {"stack_kernel"});
  launched(launches::columns, {"column_wgrad_kernel", "column_wgrad_by_column"});
  launched(launches::gates, {"gate_wgrad_kernel"});
  launched(launches::expression | launches::two_expressions | launches::precomputed_expression,
           {"expression_elements", "expression_vec8"});
  launched(launches::two_expressions, {"both_expressions"});
  launched(launches::quantized, {"dequantize_kernel", "dequantized_elements", "gathered_dequantized"});
  launched(launches::any_format, {"dequantize_blocks_kernel", "dequantize_rows_kernel", "gathered_parts"});
  launched(launches::repeated_branches, {"pack_fold", "pack_repeat", "tile_a", "tile_b"});
  launched(launches::fused_rotation, {"pack_rotation"}), launched(launches::pad, {"pad_rows"});
  const auto evaluated = [&](graft::op what, std::initializer_list<const char*> names) {
    for (const char* const name : names)
      if (!(have.nodes & graft::op_bit(what)).any()) std::printf("without %s\n", name);
  };
  evaluated(graft::op::rotate, {"rotate_rows_kernel"});
  evaluated(graft::op::rotate_grad, {"(graft::gpu::wgrad_form)1"});
  evaluated(graft::op::attention, {"attention_rows_kernel"});
  evaluated(graft::op::inverse, {"inverse_functor", "warp_inverses"}),
      evaluated(graft::op::softmax, {"softmax_functor"});
  evaluated(graft::op::neumann, {"neumann_functor", "block_neumanns"}),
      evaluated(graft::op::gather, {"gather_functor"});
  evaluated(graft::op::cross_entropy, {"cross_entropies"}), evaluated(graft::op::row_dot, {"row_dots"});
  for (const char* const name : {"flush_l2_kernel", "multi_lora_epilogue_kernel", "sample_row", "prefill_kernel"})
    std::printf("without %s\n", name);  // autotuning, batches of several adapters, models
}

}  // namespace

int main() {
  using selections = type_kernels<tested::layer>;
  const kernel_selection all = selections::forward | selections::backward;
  gemms(all.gemms), quantized(all.quantized), others(all);
}
