// SPDX-License-Identifier: Apache-2.0
// What a machine can do, as a value: a plan is made for one. The CPU runs everything that acts row by row a few tokens at a
// time in one launch; a GPU runs products with their slots as one launch each, and every other operation by a kernel of
// its own. No backend's constant lives in this folder: the targets for GPUs are stated beside their kernels
// (backend/cuda/targets.h).
#pragma once
#include <graft/core/encoding.h>
#include <graft/graph/graph.h>

namespace graft {

namespace detail {
struct planner;  // fuse.h
}

// A sum over the tokens Zᵀ Q that may run beside a product, on processors that the product leaves idle; or Σ Z ⊙ Q.
struct beside_shape {
  int columns = 0, rank = 0;  // of Z, and of Q; no columns: there is none; no rank: a sum per column
  bool waits = false;         // Q is S of the product
  friend constexpr bool operator==(const beside_shape&, const beside_shape&) = default;
};

// One product with its slots, as a backend is asked for it.
struct product_shape {
  dtype type = dtype::bf16;
  long long m = 0;
  int n = 0, k = 0;
  int rank = 0;             // of the side branch; 0: none
  bool aligned = true;      // all pointers are multiples of 16 bytes
  bool plain = true;        // neither activation nor residual
  bool posts = false;       // a factor or a summand for each output
  bool pre = false;         // a factor for each column of x
  bool across = false;      // W is stored [in, out], and read as it lies
  bool keeps = false;       // more than y is stored: S of the side branch, or the sum before factor and summand
  bool gives_side = false;  // S is an output of the layer, without padding
  bool given_side = false;  // S was made before, without padding
  long long turned = 0;     // columns that the rotation behind it keeps together; 0: there is none
  beside_shape beside[2]{};
  encoding stored{};  // of the weight, where it is codes
};

struct target {
  enum class work : unsigned char { by_rows, by_products, by_nodes };  // how nodes are gathered into launches
  const char* name = "";
  work gathers = work::by_rows;
  // By products: how; null: a launch for each node. A pointer, so that a program without such a target does not compile it
  // (fuse_products.h).
  void (*gather_products)(const detail::planner&) = nullptr;
  int capability = 0;              // of a CUDA device: 90 for compute capability 9.0
  int processors = 0;              // multiprocessors
  double bytes_per_second = 0;     // that its memory gives to a long copy; 0: not known
  double flops_per_second = 0;     // of its products; 0: not known
  double kernel_seconds = 0;       // what a kernel costs beside its work, one behind the other
  int resident_pairs = 0;          // pairs of thread blocks of the gemm family that run at the same time
  int largest_branch_rank = 0;     // of a side branch inside a product; one of a larger rank is folded into a copy of W
  bool weight_either_way = false;  // a product reads a stored weight [out, in] and [in, out]
  bool takes_pre = true;           // a product has room for a factor of its input,
  bool pre_beside_side = false;    // and beside a side branch as well
  bool sums_tokens = false;        // a product over the tokens is a launch of its own form,
  bool sums_beside = false;        // or runs beside another product
  bool takes_dropout = false;      // a narrow product has room for dropout in it (dropped.h)
  int largest_chained_side = 0;    // a chain of small products of every token is a launch of its own form (chained.h)
  int largest_stack_side = 0;      // stacks of small matrices are taken through several products (small_stacks.h)
  bool joins_elements = false;     // operations on the elements of values without tokens are joined to expressions
  bool joins_rows = false;         // a norm with its factors, and heads side by side, are a launch (row_launch.h)
  int joins_products = 1;          // so many products that read the same input may be a launch,
  bool joins_gates = false;        // and two of them with the multiplication of their results
  bool carries_norms = false;      // a norm between products may be part of their kernels (norm_between.h)
  bool turns_inputs = false;       // rotations of what products read are part of their launch, ahead of them,
  bool turns_results = false;      // and of dx = dy W behind it
  // What it has a kernel for; null: every operation of the language.
  bool (*runs)(op) = nullptr;
  // How many kernels one product takes, and one node on its own; null: one.
  int (*product_kernels)(const product_shape&, const target&) = nullptr;
  // How many kernels products of one launch take together with these sizes; 0: they run one after the other.
  int (*run_together)(const product_shape*, int count, const target&) = nullptr;
  // The same with that multiplication inside; 0: it is behind them.
  int (*run_gated)(const product_shape*, const target&) = nullptr;
  // Is a norm inside the kernel of the product before it and those of the products behind it, or between them?
  bool (*run_normed)(const product_shape& before, const product_shape* behind, int count, const target&) = nullptr;
  // Are the inputs of a launch turned by one kernel with these sizes, or one after the other?
  bool (*run_turned)(const graph&, const id* turns, int count, const size_values&, dtype, const target&) = nullptr;
  // Is the rotation of a result inside the kernel of its product with these sizes, or behind it?
  bool (*run_turning)(const product_shape&, const target&) = nullptr;
  // Is an operand of a sum over the tokens that comes with so many columns copied with padding first?
  bool (*run_padded)(long long columns, dtype, const target&) = nullptr;
  // Are the two sums over the tokens of a gate's gradients made by the kernel of the gradients, or a kernel each?
  bool (*run_summed)(const graph&, id, const size_values&, dtype, const target&) = nullptr;
  // Does attention put heads side by side and turn them itself?
  bool (*takes_heads)(const graph&, id, const size_values&, dtype, const target&) = nullptr;
  int (*node_kernels)(const graph&, id, const size_values&, dtype, const target&) = nullptr;

  constexpr bool breaks_at(op what) const { return what == op::host || (runs != nullptr && !runs(what)); }
  constexpr bool is_cpu() const { return capability == 0; }
};

inline constexpr target cpu_target{.name = "cpu"};
// One launch per node: what the oracle runs, and what a formula costs without fusion.
inline constexpr target eager_target{.name = "eager", .gathers = target::work::by_nodes};

// On what: a target, or the layers of a block whose paths a pattern fits.
//     compile<q_proj, fullgraph, on<sm_90>>          adapted<llama, on<"*_proj", lora<16>>>
template <int N> struct where {
  char pattern[N]{};
  const target* to = nullptr;
  constexpr where(const char (&text)[N]) {
    for (int i = 0; i < N; ++i) pattern[i] = text[i];
  }
  constexpr where(const target& t) : to(&t) {}
};
where(const target&)->where<1>;
template <where Where, class Adapter = void> struct on {
  using adapter = Adapter;
  static constexpr auto at = Where;
};

}  // namespace graft
