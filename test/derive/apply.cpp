// SPDX-License-Identifier: Apache-2.0
// The derived forward: x is never multiplied by a W' that was built for it.
#include "../support/formula_text.h"

using namespace test;
using enum lokr_form;

TEST_CASE("apply: additive updates are a low-rank branch with the scaling on the smaller factor") {
  SAYS(of<none>::forward, "x @ weight'");
  SAYS(of<lora<>>::forward, "x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)'");
  SAYS(of<adalora<>>::forward, "x @ weight' + x @ (lora_E * lora_A)' @ (scaling * lora_B)'");
  SAYS((of<lora<>, linear_kind, true>::forward),
       "x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)' + bias");
  SAYS((of<lora_with_bias<>, linear_kind, true>::forward),
       "x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)' + bias + scaling * lora_B.bias");
}

TEST_CASE("apply: VeRA's vectors are folded into its projections") {
  SAYS(of<vera<>>::forward, "x @ weight' + x @ (vera_lambda_d * vera_A)' @ (vera_lambda_b * vera_B)'");
}

TEST_CASE("apply: DoRA scales the output, and its norm is expanded") {
  SAYS(of<dora<>>::forward,
       "(x @ weight' + x @ lora_A.weight' @ (scaling * lora_B.weight)') * (lora_magnitude_vector / "
       "sqrt(row_dot(weight, weight) + scaling * row_dot(lora_B.weight, weight @ lora_A.weight') + scaling * "
       "(row_dot(lora_B.weight, weight @ lora_A.weight') + scaling * row_dot(lora_B.weight, lora_B.weight @ "
       "(lora_A.weight @ lora_A.weight')))))");
}

TEST_CASE("apply: LoHa uses Khatri-Rao products of rank r r") {
  SAYS(of<loha<>>::forward,
       "x @ weight' + x @ row_kron(hada_w1_b', hada_w2_b') @ (scaling * row_kron(hada_w1_a, hada_w2_a))'");
}

TEST_CASE("apply: LoKr uses the vec trick in every form of its factors") {
  SAYS((of<lokr<dyn, -1, full, full>>::forward), "x @ weight' + (lokr_w1 * scaling) @ (x @ lokr_w2')");
  SAYS((of<lokr<dyn, -1, full, low_rank>>::forward),
       "x @ weight' + (lokr_w1 * scaling) @ (x @ (lokr_w2_a @ lokr_w2_b)')");
  SAYS((of<lokr<dyn, -1, low_rank, full>>::forward),
       "x @ weight' + ((lokr_w1_a @ lokr_w1_b) * scaling) @ (x @ lokr_w2')");
  SAYS((of<lokr<dyn, -1, low_rank, low_rank>>::forward),
       "x @ weight' + ((lokr_w1_a @ lokr_w1_b) * scaling) @ (x @ (lokr_w2_a @ lokr_w2_b)')");
}

TEST_CASE("apply: HRA in compact WY form is a low-rank branch") {
  SAYS(of<hra_gram_schmidt<>>::forward,
       "x @ weight' - x @ hra_u @ (weight @ (hra_u @ (2 * inverse(hra_u' @ hra_u))))'");
  SAYS(of<hra<>>::forward,
       "x @ weight' - x @ (hra_u / sqrt(row_dot(hra_u', hra_u'))') @ (weight @ ((hra_u / sqrt(row_dot(hra_u', "
       "hra_u'))') @ inverse(0.5 * I + strict_upper((hra_u / sqrt(row_dot(hra_u', hra_u'))')' @ (hra_u / "
       "sqrt(row_dot(hra_u', hra_u'))')))))'");
}

TEST_CASE("apply: rotations are applied to the activations") {
  SAYS(of<oft<dyn>>::forward, "rotate(x, (I - skew(oft_R.weight)) @ inverse(I + skew(oft_R.weight))) @ weight'");
  SAYS((of<oft_neumann<dyn, dyn>>::forward), "rotate(x, neumann(skew(oft_R.weight), terms)) @ weight'");
  SAYS((of<boft<dyn, dyn>>::forward),
       "(rotate(x, (I - 0.5 * (boft_R - boft_R')) @ inverse(I + 0.5 * (boft_R - boft_R'))) @ weight') * "
       "boft_s");
  // The projection of constrained OFT; only a gradient needs its detached term.
  SAYS((of<oft<dyn, oft_blocks::separate, oft_constraint::projected>>::forward),
       "rotate(x, (I - skew(min(1, coft_limit / sqrt(row_dot(oft_R.weight, oft_R.weight))) * oft_R.weight)) @ "
       "inverse(I + skew(min(1, coft_limit / sqrt(row_dot(oft_R.weight, oft_R.weight))) * oft_R.weight))) @ weight'");
}

TEST_CASE("apply: IA3 scales outputs or inputs") {
  SAYS(of<ia3>::forward, "(x @ weight') * ia3_l");
  SAYS((of<ia3, linear_kind, true>::forward), "(x @ weight') * ia3_l + ia3_l * bias");
  SAYS(of<ia3_feedforward>::forward, "(x * ia3_l) @ weight'");
}

TEST_CASE("apply: MiSS folds x") {
  SAYS(of<miss<>>::forward, "x @ weight' + fold_columns(x, r) @ miss_block");
  SAYS(of<miss_mini<>>::forward, "x @ weight' + repeat(fold_columns(x, r) @ miss_block, out)");
  SAYS(of<miss_bat<>>::forward, "x @ (weight @ (I + miss_block) + repeat(miss_block, in))'");  // W' has no cheaper form
}

TEST_CASE("apply: VB-LoRA composes its factors once per parameter change") {
  SAYS((of<vblora<dyn, dyn>>::forward),
       "x @ weight' + x @ (topk_softmax(vblora_logits_A, topk) @ vblora_vector_bank)' @ "
       "(topk_softmax(vblora_logits_B, topk) @ vblora_vector_bank)''");
}

TEST_CASE("select: a gather moves below sums, factors and products") {
  SAYS((of<none, embedding_kind>::forward), "gather(weight, x)");
  SAYS((of<lora_embedding<>, embedding_kind>::forward),
       "gather(weight, x) + gather_columns(lora_embedding_A, x) @ (scaling * lora_embedding_B)'");
  SAYS((of<dora_embedding<>, embedding_kind>::forward),
       "(gather(weight, x) + gather_columns(lora_embedding_A, x) @ (scaling * lora_embedding_B)') * "
       "(lora_magnitude_vector' / sqrt(row_dot(weight', weight') + scaling * row_dot(lora_embedding_B, "
       "weight' @ lora_embedding_A') + scaling * (row_dot(lora_embedding_B, weight' @ lora_embedding_A') + "
       "scaling * row_dot(lora_embedding_B, lora_embedding_B @ (lora_embedding_A @ lora_embedding_A'))))')");
}

TEST_CASE("apply: convolutions are products with patches") {
  SAYS((of<none, conv2d_kind>::forward), "(im2col(x) @ weight')'");
  SAYS((of<lora<>, conv2d_kind>::forward),
       "(im2col(x) @ weight' + im2col(x) @ lora_A.weight' @ (scaling * lora_B.weight)')'");
}

TEST_CASE("norms: the adapter's tensors replace those of the base") {
  SAYS((of<none, norm_kind<false>, true>::forward), "normalize(x, eps) * weight + bias");
  SAYS((of<ln_tuning, norm_kind<false>, true>::forward),
       "normalize(x, eps) * ln_tuning_layers.weight + ln_tuning_layers.bias");
  SAYS((of<ln_tuning_weight, norm_kind<true>>::forward), "normalize(x, eps) * ln_tuning_layers.weight");
}

// ---- rules that no method uses by itself

namespace {

struct difference_of_products : unnamed {
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    auto A = p.param("A", r, W.cols()), B = p.param("B", W.rows(), r);
    return W - B * A;
  }
};
struct rows_divided : unnamed {
  static constexpr ex weight(scope p, ex W) { return W / p.param("d", W.rows()); }
};
struct columns_divided : unnamed {
  static constexpr ex weight(scope p, ex W) { return W / p.param("d", 1, W.cols()); }
};
struct through_a_transpose : unnamed {
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    return W + t(p.param("A", W.cols(), r) * p.param("B", r, W.rows()));
  }
};
struct rows_of_a_transpose : unnamed {  // W is transposed, so the column scales the inputs
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    auto low = p.param("A", W.cols(), r) * p.param("B", r, W.rows());
    return W + t(mul(p.param("c", W.cols()), low));
  }
};
struct columns_of_a_transpose : unnamed {  // W is transposed, so the row scales the outputs
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    auto low = p.param("A", W.cols(), r) * p.param("B", r, W.rows());
    return W + t(mul(low, p.param("c", 1, W.rows())));
  }
};
struct nonlinear : unnamed {
  static constexpr ex weight(scope, ex W) { return tanh(W); }
};

}  // namespace

TEST_CASE("apply: differences, divisions, transpositions; and W' itself where nothing else holds") {
  SAYS(of<difference_of_products>::forward, "x @ weight' - x @ A' @ B'");
  SAYS(of<rows_divided>::forward, "(x @ weight') / d");
  SAYS(of<columns_divided>::forward, "(x / d) @ weight'");
  SAYS(of<through_a_transpose>::forward, "x @ weight' + x @ A @ B");
  SAYS(of<rows_of_a_transpose>::forward, "x @ weight' + x @ (A * c) @ B");
  SAYS(of<columns_of_a_transpose>::forward, "x @ weight' + x @ A @ (B * c)");
  SAYS(of<nonlinear>::forward, "x @ tanh(weight)'");
}
