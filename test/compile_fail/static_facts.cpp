// SPDX-License-Identifier: Apache-2.0
// The facts that a program can assert about a layer; an assertion that does not hold is an ordinary one-line error.
// expected: one kernel holds the GEMM, the low-rank branch and the norm
// expected-gcc: the comparison reduces to '\(1 == 2\)'
// expected-clang: dora_layer::kernels == 2|'1 == 2'
// expected-nvcc: static assertion failed with "one kernel
#include <graft/graft.h>

using namespace graft;

struct q_proj : linear<1024, 4096, bf16, dora<16>> {};
struct k_proj : linear<512, 2048, bf16, dora<16>> {};
struct o_proj : linear<1024, 4096, bf16, lora<16>> {};
struct input_norm : rms_norm<4096, float, ln_tuning_weight> {};
struct by_hand : linear<1024, 4096, bf16, erased> {};
using dora_layer = compile<q_proj, fullgraph, training>;

// Kernels and graph breaks. Layers that differ only in shape have one program.
#ifdef GRAFT_SHOULD_FAIL
static_assert(dora_layer::kernels == 2, "one kernel holds the GEMM, the low-rank branch and the norm");
#endif
static_assert(dora_layer::kernels == 1 && dora_layer::graph_breaks == 0);
static_assert(compile<by_hand>::graph_breaks == 1);
static_assert(dora_layer::key == compile<k_proj>::key && dora_layer::key != compile<o_proj>::key);

// Merging. DoRA's norm reads W as well, so the merge saves one column from which unmerge recovers W.
static_assert(mergeable<q_proj> && !unmergeable<q_proj> && compile<q_proj>::saved_for_unmerge == 1);
static_assert(mergeable<o_proj> && unmergeable<o_proj> && compile<o_proj>::saved_for_unmerge == 0);
static_assert(mergeable<input_norm> && !unmergeable<input_norm>);

// Cost: 2 tokens out in for the GEMM, 2 tokens r (in + out) for the branch, and little more.
constexpr long long tokens = 512, product = 2 * tokens * 1024 * 4096, branch = 2 * tokens * 16 * (1024 + 4096);
constexpr cost base = forward_cost<linear<1024, 4096, bf16>>(tokens), adapted = forward_cost<o_proj>(tokens);
static_assert(base.flops == product && base.parameter_flops == 0 && base.precomputed_bytes == 0);
static_assert(base.bytes == 2 * (1024 * 4096 + tokens * (1024 + 4096)));
static_assert(adapted.flops >= product + branch && adapted.flops < product + branch + 2 * tokens * (1024 + 4096));
static_assert(adapted.largest_precomputed <= 16 * 4096);  // no precomputed out x in matrix
static_assert(forward_cost<q_proj>(tokens).flops < product + product / 20);
static_assert(backward_cost<o_proj>(tokens).flops > 2 * branch);

// The roofline: no machine with these rates needs less time.
constexpr device machine{"a machine", 1e12, 1e11};
static_assert(adapted.roofline_seconds(machine) >= 0.99 * static_cast<double>(adapted.flops) / 1e12);
static_assert(forward_cost<o_proj>(1).roofline_seconds(machine) >= 2.0 * 1024 * 4096 / 1e11);  // one token moves W
