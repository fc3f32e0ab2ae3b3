// SPDX-License-Identifier: Apache-2.0
// Defines an adapter of your own, which is one formula. This one is LoRA with a learned gate on every output and every
// input; a gate is 1 where its parameter is 0:
//     W' = 2 σ(g_out) ⊙ (W + s B A) ⊙ 2 σ(g_in)
// The rest of this file uses what the library derives from the formula, and checks that it is right.
#include <cmath>
#include <cstdio>
#include <numeric>

#include "random_tensors.h"

template <int Rank> struct gated_lora {
  static constexpr const char* name = "gated LoRA";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("lora_A.weight", Rank, W.cols()), B = p.param("lora_B.weight", W.rows(), Rank);
    auto outputs = 2.0 * sigmoid(p.param("gate_out", W.rows()));
    auto inputs = t(2.0 * sigmoid(p.param("gate_in", W.cols())));
    return outputs * mul(W + p.scalar("scaling") * (B * A), inputs);
  }
};

constexpr int out = 64, in = 96, tokens = 5;
struct q_proj : graft::linear<out, in, double, gated_lora<4>> {};

// The gates become prologue and epilogue of the base layer's GEMM and LoRA its low-rank branch, in one kernel.
using plan = graft::compile<q_proj, graft::fullgraph, graft::training>;
static_assert(plan::kernels == 1 && plan::mergeable && plan::unmergeable);

bool fine(const graft::status& s) {
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  return static_cast<bool>(s);
}
bool close(const char* what, const std::vector<double>& ours, const std::vector<double>& expected) {
  const double error = relative_error(ours, expected);
  std::printf("  %-18s %4zu numbers, relative error %.1e\n", what, ours.size(), error);
  return error < 1e-6;
}

struct proof {
  random_tensors<q_proj> numbers{{{"tokens", tokens}}};
  graft::cpu::layer<q_proj, graft::fullgraph, graft::training> q;
  std::vector<double> y = std::vector<double>(tokens * out), dy = y;

  double loss() {  // Σ dy ⊙ y; parameters_changed() because the caller wrote to a parameter
    if (!fine(q.parameters_changed()) || !fine(q.forward(numbers.x(), whole(y)))) return NAN;
    return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
  }
  std::vector<double> central_differences(std::vector<double>& at) {
    std::vector<double> slope;
    for (double& v : at) {
      const double middle = v, step = 1e-6;
      v = middle + step;
      const double above = loss();
      v = middle - step;
      slope.push_back((above - loss()) / (2 * step));
      v = middle;
    }
    return slope;
  }
  bool gradients() {  // of the input and of every trained tensor
    for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = std::sin(static_cast<double>(i));
    std::map<std::string, std::vector<double>> derived;
    std::vector<graft::gradient> wanted;
    for (const auto& [name, t] : numbers.tensors)
      if (t.trained) wanted.push_back({name, whole(derived[name] = t.data)});
    std::vector<double> dx = numbers.input.data;
    if (!fine(q.backward(numbers.x(), graft::view_of(dy.data(), tokens, out), whole(dx), wanted))) return false;
    bool good = close("x", dx, central_differences(numbers.input.data));
    for (const auto& [name, gradient] : derived)
      good &= close(name.c_str(), gradient, central_differences(numbers.tensors.at(name).data));
    return good;
  }
  bool round_trip() {
    const std::vector<double>& weight = numbers.tensors.at("weight").data;
    std::vector<double> merged(weight.size()), unmerged(weight.size());
    return fine(q.merge(whole(merged))) &&
           fine(q.unmerge("weight", graft::view_of(merged.data(), out, in), whole(unmerged))) &&
           close("unmerge(merge(W))", unmerged, weight);
  }
};

int main() {
  graft::explain<q_proj>(512);
  proof p;
  if (!fine(p.numbers.bind(p.q))) return 1;
  std::printf("\nderived gradients against central differences, and unmerge of a merged weight\n");
  const bool gradients = p.gradients(), merging = p.round_trip();
  return gradients && merging ? 0 : 1;
}
