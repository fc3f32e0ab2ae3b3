// SPDX-License-Identifier: Apache-2.0
// Runs a linear layer with a LoRA adapter. The layer is a type, from which the library derives how it runs.
//     y = x Wᵀ + s (x Aᵀ) Bᵀ          one kernel: the low-rank branch is fused into the GEMM of the base layer
#include <graft/cpu.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

constexpr int out = 384, in = 512, rank = 8, tokens = 16;

struct q_proj : graft::linear<out, in, float, graft::lora<rank>> {};
struct bare : graft::linear<out, in, float> {};

// The plan is known while this file compiles. `fullgraph` makes anything that cannot be fused a compile error.
using plan = graft::compile<q_proj, graft::fullgraph>;
static_assert(plan::kernels == 1);
static_assert(plan::mergeable && plan::unmergeable);
static_assert(graft::forward_cost<q_proj>(512).flops < 1.04 * graft::forward_cost<bare>(512).flops);

std::vector<float> random_numbers(int count) {
  static std::mt19937 engine(1);
  std::uniform_real_distribution<float> number(-0.1F, 0.1F);
  std::vector<float> v(static_cast<std::size_t>(count));
  for (float& x : v) x = number(engine);
  return v;
}

// Computes the formula with plain loops, in double: W' = W + s B A row by row, then y = x W'ᵀ.
std::vector<double> plain_formula(const std::vector<float>& W, const std::vector<float>& A, const std::vector<float>& B,
                                  double s, const std::vector<float>& x) {
  const auto at = [](const std::vector<float>& m, int row, int col, int cols) {
    return static_cast<double>(m[static_cast<std::size_t>(row * cols + col)]);
  };
  std::vector<double> y(static_cast<std::size_t>(tokens * out));
  for (int o = 0; o < out; ++o)
    for (int i = 0; i < in; ++i) {
      double adapted = at(W, o, i, in);
      for (int r = 0; r < rank; ++r) adapted += s * at(B, o, r, rank) * at(A, r, i, in);
      for (int t = 0; t < tokens; ++t) y[static_cast<std::size_t>(t * out + o)] += at(x, t, i, in) * adapted;
    }
  return y;
}

int main() {
  const std::vector<float> W = random_numbers(out * in), A = random_numbers(rank * in), B = random_numbers(out * rank);
  const std::vector<float> x = random_numbers(tokens * in);
  std::vector<float> y(static_cast<std::size_t>(tokens * out));

  // The layer reads tensors in place, set by the names that PEFT's files use. Every call returns a status: true, or one
  // sentence that says what is wrong.
  graft::cpu::layer<q_proj, graft::fullgraph> q;
  for (const graft::status& s :
       {q.set("weight", graft::view_of(W.data(), out, in)), q.set("lora_A.weight", graft::view_of(A.data(), rank, in)),
        q.set("lora_B.weight", graft::view_of(B.data(), out, rank)), q.set("scaling", 2.0),
        q.forward(graft::view_of(x.data(), tokens, in), graft::view_into(y.data(), tokens, out))})
    if (!s) return std::fprintf(stderr, "%s\n", s.message()), 1;

  const std::vector<double> expected = plain_formula(W, A, B, 2.0, x);
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double difference = std::abs(static_cast<double>(y[i]) - expected[i]);
    if (!(difference <= error)) error = std::isnan(difference) ? INFINITY : difference;
    largest = std::max(largest, std::abs(expected[i]));
  }
  std::printf("LoRA r%d on %d x %d, %d tokens: %d kernel, relative error against the plain formula %.1e\n", rank, out,
              in, tokens, plan::kernels, error / largest);
  return error <= 1e-5 * largest ? 0 : 1;
}
