// SPDX-License-Identifier: Apache-2.0
// Shows two mistakes in formulas: the error of the compiler, and the error value of a program whose sizes are known
// only at run time. This file compiles; with -DSHOW_THE_ERROR=1 or =2 it shows one of the compiler's errors.
#include <graft/cpu.h>

#include <cstdio>
#include <vector>

using graft::ex, graft::scope, graft::view_into, graft::view_of;

// 1. An operation of the formula is a function of the host program, which the compiler cannot put into a kernel.
template <int Rank> struct clipped_lora {
  static constexpr const char* name = "clipped LoRA";
  static constexpr ex weight(scope p, ex W) {
    auto A = p.param("lora_A.weight", Rank, W.cols()), B = p.param("lora_B.weight", W.rows(), Rank);
    return W + host("clip", B * A);
  }
};
struct clipped : graft::linear<64, 96, float, clipped_lora<4>> {};
#if defined SHOW_THE_ERROR && SHOW_THE_ERROR == 1
static_assert(graft::compile<clipped, graft::fullgraph>::kernels == 1);
#endif
// What g++ 12 prints, folded to fit the page, without the list of includes and the line numbers of the headers:
//
//   include/graft/plan/diagnostic.h: In instantiation of ‘struct graft::diagnostic::host_function_breaks_the_graph<
//     clipped, clipped_lora<4>, graft::diagnostic::expression<graft::diagnostic::str<82>{"clip(lora_B.weight @
//     lora_A.weight) with (lora_B.weight @ lora_A.weight)[out, in]"}>, 16, 1>’:
//   examples/fullgraph_error.cpp:21:56:   required from here
//   include/graft/plan/diagnostic.h: error: static assertion failed: graft: fullgraph, but a host function cannot
//     become part of a kernel: write it with the operations of the language, or drop fullgraph and run the layer in
//     eager mode (host_function_breaks_the_graph lists layer, adapter, expression, line of the formula, number of
//     breaks)
//
// The name of the struct is the mistake. The template arguments say where it is: the layer, its adapter, the expression
// with the shapes of its operands, the line of the formula (16), the number of breaks (1). "required from here" is
// where the layer was compiled, and the sentence after "graft:" says what to do.

// 2. B is stored transposed, and the formula forgets to say t(B).
template <int Rank> struct transposed_lora {
  static constexpr const char* name = "LoRA with a transposed factor";
  static constexpr ex weight(scope p, ex W) {
    auto A = p.param("lora_A.weight", Rank, W.cols()), B = p.param("lora_B.weight", Rank, W.rows());
    return W + B * A;
  }
};
#if defined SHOW_THE_ERROR && SHOW_THE_ERROR == 2
struct transposed : graft::linear<64, 96, float, transposed_lora<4>> {};
static_assert(graft::compile<transposed, graft::fullgraph>::kernels == 1);
#endif
//   include/graft/plan/diagnostic.h: In instantiation of ‘struct graft::diagnostic::inner_sizes_differ<transposed,
//     transposed_lora<4>, graft::diagnostic::expression<graft::diagnostic::str<82>{"lora_B.weight @ lora_A.weight with
//     lora_B.weight[4, out] and lora_A.weight[4, in]"}>, 42, 64, 4>’:
//   … error: static assertion failed: graft: this matrix product does not fit: make the columns of the left operand
//     equal to the rows of the right operand (inner_sizes_differ lists layer, adapter, expression, …)
//
// Line 42 multiplies [4, out] by [4, in]; the inner sizes, which must be equal, are 64 and 4.

int main() {
  // Without fullgraph the first layer compiles: explain() shows the graph break, fused mode fails, eager mode runs.
  graft::explain<clipped>();
  std::vector<float> W(64 * 96, 1), A(4 * 96, 1), B(64 * 4, 1), x(96, 1), y(64);
  graft::cpu::layer<clipped> fused, eager(graft::execution_mode::eager);
  for (auto* q : {&fused, &eager})
    for (const graft::status& s :
         {q->set("weight", view_of(W.data(), 64, 96)), q->set("lora_A.weight", view_of(A.data(), 4, 96)),
          q->set("lora_B.weight", view_of(B.data(), 64, 4))})
      if (!s) return std::fprintf(stderr, "%s\n", s.message()), 1;
  const graft::status refused = fused.forward(view_of(x.data(), 1, 96), view_into(y.data(), 64));
  eager.host([](const char*, graft::cpu::tensor<float> in, graft::cpu::tensor<float> out) {
    for (long long i = 0; i < in.count(); ++i) out.p[i] = in.p[i] > 3 ? 3 : in.p[i];
  });
  const graft::status ran = eager.forward(view_of(x.data(), 1, 96), view_into(y.data(), 64));
  std::printf("\nfused: %s\neager: %s, y[0] = %g\n", refused.message(), ran ? "ran" : ran.message(), y[0]);

  // With sizes that are known only at run time, the second mistake is an error value with the same words.
  graft::cpu::layer<graft::linear<graft::dyn, graft::dyn, float, transposed_lora<4>>> loaded;
  const graft::status wrong = loaded.set("weight", view_of(W.data(), 64, 96));
  std::printf("dyn:   %s\n", wrong.message());
  return !refused && ran && y[0] == 96 * (1 + 3) && !wrong ? 0 : 1;
}
