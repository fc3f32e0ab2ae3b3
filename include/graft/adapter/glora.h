// SPDX-License-Identifier: Apache-2.0
// GLoRA: the weight and the bias are scaled and shifted, and the weight adds to the bias (Chavan et al. 2023,
// arXiv 2306.07967).
//     W' = W + A ⊙ W + B,   b' = b + D ⊙ b + E + W c
// A and B are low-rank matrices, or numbers: one for each output, or one for all. D and E are such numbers. c is a
// low-rank product or a column. Each of the three parts may be absent, and those that change the bias exist only on
// layers with one.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

enum class glora_part : unsigned char { low_rank, numbers, none };

// One formula serves all forms, so that a program with all of them compiles it once.
struct glora_formula {
  glora_part of_weight, of_both, of_bias;
  int rank, numbers, bias_numbers;

  // Repeats the numbers, of which there are n or one, to n.
  static constexpr ex broadcast_to(ex numbers, extent n) { return t(repeat(t(numbers), n)); }
  [[gnu::cold, gnu::noinline]] constexpr ex factor(scope p, ex W, bool shifts) const {
    if (of_weight == glora_part::numbers)
      return broadcast_to(p.param(shifts ? "glora_B.X" : "glora_A.X", p.size("glora_numbers", numbers, 1)), W.rows());
    auto r = p.size("r", rank);
    auto down = p.param(shifts ? "glora_B.Xd" : "glora_A.Xd", W.rows(), r);
    return down * p.param(shifts ? "glora_B.Xu" : "glora_A.Xu", r, W.cols());
  }
  // Applies the formula to W, the weight after all earlier adapters; `base` is the weight before any of them.
  [[gnu::cold, gnu::noinline]] constexpr ex weight_with_base(scope p, ex W, ex base) const {
    if (of_weight == glora_part::none) return W;
    const ex A = factor(p, W, false), B = factor(p, W, true);
    const ex shift = of_weight == glora_part::numbers ? repeat(B, W.cols()) : B;
    return (W.i == base.i ? mul(W, 1.0 + A) : W + mul(base, A)) + shift;
  }
  constexpr ex of_outputs(scope p, leaf_name leaf, extent n) const {
    return broadcast_to(p.param(leaf, p.size("glora_bias_numbers", bias_numbers, 1)), n);
  }
  [[gnu::cold, gnu::noinline]] constexpr ex bias(scope p, ex b, base_tensors base) const {
    ex now = b;
    if (of_bias == glora_part::numbers) {
      const ex D = of_outputs(p, "glora_D.X", b.rows());
      now = b.i == base.bias.i ? mul(b, 1.0 + D) : b + mul(base.bias, D);
      now = now + of_outputs(p, "glora_E.X", b.rows());
    }
    if (of_both == glora_part::none) return now;
    const extent in = base.weight.cols();
    if (of_both == glora_part::numbers) return now + base.weight * p.param("glora_C.X", in, 1);
    auto r = p.size("r", rank);
    return now + base.weight * (p.param("glora_C.Xd", in, r) * p.param("glora_C.Xu", r, 1));
  }
};

template <int Rank = dyn, glora_part OfWeight = glora_part::low_rank, glora_part OfBoth = glora_part::low_rank,
          glora_part OfBias = glora_part::numbers, int Numbers = dyn, int BiasNumbers = dyn>
struct glora {
  static_assert(OfBias != glora_part::low_rank);
  static constexpr glora_part of_weight = OfWeight, of_both = OfBoth, of_bias = OfBias;
  static constexpr bool changes_bias = OfBoth != glora_part::none || OfBias != glora_part::none;
  static constexpr const char* methods[3][3][2] = {
      {{"glora", "glora_unshifted"}, {"glora_column", "glora_column_unshifted"}, {"glora_uncoupled", "glora_weight"}},
      {{"glora_numbers", "glora_numbers_unshifted"},
       {"glora_numbers_column", "glora_numbers_column_unshifted"},
       {"glora_numbers_uncoupled", "glora_numbers_weight"}},
      {{"glora_bias", "glora_bias_unshifted"},
       {"glora_bias_column", "glora_bias_column_unshifted"},
       {"glora_bias_uncoupled", "glora_nothing"}}};
  static constexpr const char *name = "GLoRA", *kinds = "linear",
                              *method = methods[static_cast<int>(OfWeight)][static_cast<int>(OfBoth)]
                                               [OfBias == glora_part::numbers ? 0 : 1];
  static constexpr with_bias only = changes_bias ? with_bias::always : with_bias::either;
  using sample = glora<16, OfWeight, OfBoth, OfBias, 1, 1>;

  static constexpr glora_formula form{OfWeight, OfBoth, OfBias, Rank, Numbers, BiasNumbers};
  static constexpr ex weight(scope p, ex W) { return form.weight_with_base(p, W, W); }
  static constexpr ex weight_with_base(scope p, ex W, ex base) { return form.weight_with_base(p, W, base); }
  static constexpr ex bias(scope p, ex b, base_tensors base) requires(changes_bias) { return form.bias(p, b, base); }
};

template <glora_part OfWeight>
using glora_group = adapter_list<glora<dyn, OfWeight, glora_part::low_rank, glora_part::numbers>,
                                 glora<dyn, OfWeight, glora_part::numbers, glora_part::numbers>,
                                 glora<dyn, OfWeight, glora_part::none, glora_part::numbers>,
                                 glora<dyn, OfWeight, glora_part::low_rank, glora_part::none>,
                                 glora<dyn, OfWeight, glora_part::numbers, glora_part::none>>;
using glora_forms =
    join_adapters<glora_group<glora_part::low_rank>, glora_group<glora_part::numbers>, glora_group<glora_part::none>,
                  adapter_list<glora<dyn, glora_part::low_rank, glora_part::none, glora_part::none>,
                               glora<dyn, glora_part::numbers, glora_part::none, glora_part::none>>>;

}  // namespace graft
