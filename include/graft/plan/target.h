// SPDX-License-Identifier: Apache-2.0
// target: a machine as a value, which plans are made for: what its launches can fuse, how many kernels they take, its
// rates. The CPU runs row-wise work in chunks of rows, many ops per launch; a GPU runs GEMMs with prologue, branches
// and epilogue, and each remaining op as a kernel of its own. Targets for GPUs are defined with their kernels
// (backend/gpu/dispatch/targets.h); this folder contains no constants of a backend.
#pragma once
#include <graft/core/quant_format.h>
#include <graft/core/text.h>
#include <graft/graph/graph.h>

#include <cstddef>
#include <type_traits>

namespace graft {

namespace detail {
struct planner;  // plan/fuse.h
}

// A wgrad Zᵀ Q, or Σ Z ⊙ Q per column, that runs in the launch of a GEMM on multiprocessors that its tiles leave idle.
struct fused_wgrad_shape {
  int columns = 0, rank = 0;      // columns of Z and of Q; columns 0: no wgrad; rank 0: a sum per column
  bool waits_for_shrink = false;  // Q is the shrink result of the GEMM
  friend constexpr bool operator==(const fused_wgrad_shape&, const fused_wgrad_shape&) = default;
};

// One GEMM with its slots and sizes, for which a backend chooses a kernel. U = x Aᵀ is the shrink result.
struct gemm_problem {
  dtype type = dtype::bf16;
  long long m = 0;
  int n = 0, k = 0;
  int rank = 0;                   // of the low-rank branches together; 0: none
  bool aligned = true;            // all pointers are multiples of 16 bytes
  bool plain = true;              // neither activation nor residual
  bool epilogue_steps = false;    // there is a factor or a summand per output column
  bool prologue = false;          // there is a factor per column of x
  bool nn = false;                // W is stored [in, out] and read in that layout
  bool stores_extra = false;      // U, or the accumulators before the epilogue, are stored besides y
  bool outputs_shrink = false;    // U is an output of the graph, without padding
  bool shrink_input = false;      // U comes from an earlier launch, without padding
  long long output_rotation = 0;  // columns that the rotation of y mixes; 0: there is none
  fused_wgrad_shape fused_wgrads[2]{};
  quant_format stored{};  // format of a quantized weight
};

// A function that a target may have. A flag says whether it has one: under -fsanitize=undefined g++ does not know while
// compiling that the address of a function is not null.
template <class Function> class target_function {
 public:
  constexpr target_function() = default;
  template <class F>
  requires(std::is_convertible_v<F, Function*>) constexpr target_function(F f) : function_(f), has_(true) {}
  constexpr explicit operator bool() const { return has_; }
  template <class... Args> constexpr auto operator()(Args&&... args) const {
    return function_(static_cast<Args&&>(args)...);
  }

 private:
  Function* function_ = nullptr;
  bool has_ = false;
};

struct target {
  enum class work : unsigned char { by_rows, by_products, by_nodes };  // how nodes are gathered into launches
  const char* name = "";
  work granularity = work::by_rows;
  // Groups nodes into GEMM launches (plan/fuse_gemms.h); null: one launch per node. It is a pointer so that programs
  // without such a target do not compile it.
  target_function<void(const detail::planner&)> fuse_gemms{};
  int capability = 0;                  // CUDA compute capability, 90 for 9.0; 0: a CPU
  int sm_count = 0;                    // multiprocessors
  double bytes_per_second = 0;         // memory bandwidth of a long copy; 0: unknown
  double flops_per_second = 0;         // of GEMMs; 0: unknown
  double launch_overhead_seconds = 0;  // per kernel in a sequence of kernels
  int resident_pairs = 0;              // clusters of two thread blocks of the GEMM kernel that are resident at once
  int max_branch_rank = 0;             // of a branch in a GEMM; adapters of larger rank are folded
  bool reads_nn_weight = false;        // GEMMs read stored weights [in, out] as well as [out, in]
  bool fuses_prologue = true;          // GEMMs apply a factor per column of x
  bool prologue_with_branch = false;   // they also do so with low-rank branches
  bool has_wgrad = false;              // there is a wgrad kernel
  bool wgrad_fusion = false;           // wgrads run in the launch of a dgrad (plan/fused_wgrad.h)
  bool fuses_dropout = false;          // narrow GEMMs apply dropout (plan/dropout_branch.h)
  int max_chain_size = 0;              // largest matrix of a chain per token (plan/kronecker_chain.h); 0: no kernel
  int max_stack_size = 0;              // largest matrix of a stack (plan/matrix_stack.h); 0: no kernel
  bool fuses_elementwise = false;      // pointwise ops are fused (plan/expression.h)
  bool fuses_rowwise = false;          // norms with gain, and concatenated heads, are one launch (plan/rowwise.h)
  int max_grouped_gemms = 1;           // most products of a grouped GEMM (plan/grouped.h)
  bool fuses_gates = false;            // grouped GEMMs of two products multiply their results (SwiGLU)
  bool fuses_norms = false;            // RMS norms between GEMMs are fused into them (plan/fused_norm.h)
  bool fuses_input_rotation = false;   // the rotation of x belongs to the launch of the GEMM that reads it
  bool fuses_output_rotation = false;  // the rotation of dx = dy W belongs to its launch
  // True for the ops that the target has a kernel for; null: it has kernels for all of them.
  target_function<bool(op)> runs{};
  // The number of kernels of one GEMM, and at the end of a node that is a launch of its own; null: one.
  target_function<int(const gemm_problem&, const target&)> gemm_kernels{};
  // The reason why one GEMM takes several kernels, which names what to change; it may be null or return no text.
  target_function<text(const gemm_problem&, const target&)> why_several{};
  // The number of kernels of a grouped GEMM of these sizes; 0: its products run one after the other.
  target_function<int(const gemm_problem*, int count, const target&)> grouped_kernels{};
  // The number of kernels of a grouped GEMM with its gate; 0: the gate is a kernel of its own.
  target_function<int(const gemm_problem*, const target&)> gated_kernels{};
  // True where a norm is fused into the GEMM that computes its input and into the GEMMs that read it.
  target_function<bool(const gemm_problem& before, const gemm_problem* norm_readers, int count, const target&)>
      norm_is_fused{};
  // True where one kernel rotates all inputs of a launch; otherwise each has its own.
  target_function<bool(const graph&, const id* rotations, int count, const size_values&, dtype, const target&)>
      rotations_share_kernel{};
  // True where the kernel of the GEMM rotates its result; otherwise a kernel after it does.
  target_function<bool(const gemm_problem&, const target&)> rotation_is_fused{};
  // True where a wgrad operand with this many columns is copied with padding before the launch.
  target_function<bool(long long columns, dtype, const target&)> operand_is_padded{};
  // True where the kernel of a gate's gradients also computes their two column wgrads; otherwise each has its own.
  target_function<bool(const graph&, id, const size_values&, dtype, const target&)> gate_wgrad_is_fused{};
  // True where the attention kernel concatenates heads and applies RoPE itself.
  target_function<bool(const graph&, id, const size_values&, dtype, const target&)> fuses_heads{};
  target_function<int(const graph&, id, const size_values&, dtype, const target&)> node_kernels{};

  constexpr bool is_graph_break(op what) const { return what == op::host || (runs && !runs(what)); }
  constexpr bool is_cpu() const { return capability == 0; }
};

inline constexpr target cpu_target{.name = "cpu"};
// Eager mode, one launch per node: the oracle of tests, and the cost of a formula without fusion.
inline constexpr target eager_target{.name = "eager", .granularity = target::work::by_nodes};

// on<…> as an option names a target; as an adapter rule of a block it names the layers whose paths match a pattern.
//     compile<q_proj, fullgraph, on<sm_90>>          adapted<llama, on<"*_proj", lora<16>>>
template <std::size_t N> struct where {
  char pattern[N]{};
  const target* to = nullptr;
  bool is_target = false;
  constexpr where(const char (&text)[N]) {
    for (std::size_t i = 0; i < N; ++i) pattern[i] = text[i];
  }
  constexpr where(const target& t) : to(&t), is_target(true) {}
};
where(const target&)->where<1>;
template <where Where, class Adapter = void> struct on {
  using adapter = Adapter;
  static constexpr auto at = Where;
};

}  // namespace graft
