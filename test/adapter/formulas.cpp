// SPDX-License-Identifier: Apache-2.0
// Pins each method: its formula, and its tensors, whose names are PEFT's keys (reference: PEFT 0.20).
#include "../support/formula_text.h"

using namespace test;
using enum oft_blocks;
using enum lokr_form;

TEST_CASE("adapters: the formulas of methods on matrices") {
  SAYS(of<none>::formula, "weight");
  SAYS(of<lora<>>::formula, "weight + scaling * (lora_B.weight @ lora_A.weight)");
  SAYS(of<lora_with_bias<>>::formula, "weight + scaling * (lora_B.weight @ lora_A.weight)");
  SAYS(of<dora<>>::formula,
       "lora_magnitude_vector / const(sqrt(row_dot(weight + scaling * (lora_B.weight @ lora_A.weight), "
       "weight + scaling * (lora_B.weight @ lora_A.weight)))) * (weight + scaling * (lora_B.weight @ "
       "lora_A.weight))");
  SAYS(of<residual_lora<>>::formula,
       "weight - scaling * (initial_B @ initial_A) + scaling * (lora_B.weight @ lora_A.weight)");
  SAYS(of<adalora<>>::formula, "weight + scaling * (lora_B @ (lora_E * lora_A))");
  SAYS(of<ia3>::formula, "ia3_l * weight");
  SAYS(of<ia3_feedforward>::formula, "weight * ia3_l");
  SAYS(of<loha<>>::formula, "weight + scaling * (hada_w1_a @ hada_w1_b) * (hada_w2_a @ hada_w2_b)");
  SAYS(of<lokr<>>::formula, "weight + scaling * kron(lokr_w1, lokr_w2_a @ lokr_w2_b)");
  SAYS((of<lokr<dyn, -1, full, full>>::formula), "weight + scaling * kron(lokr_w1, lokr_w2)");
  SAYS((of<lokr<dyn, -1, low_rank, full>>::formula), "weight + scaling * kron(lokr_w1_a @ lokr_w1_b, lokr_w2)");
  SAYS((of<lokr<dyn, -1, low_rank, low_rank>>::formula),
       "weight + scaling * kron(lokr_w1_a @ lokr_w1_b, lokr_w2_a @ lokr_w2_b)");
  SAYS(of<vera<>>::formula, "weight + (vera_lambda_b * vera_B) @ (vera_lambda_d * vera_A)");
  SAYS(of<hra<>>::formula,
       "weight @ (I - (hra_u / sqrt(row_dot(hra_u', hra_u'))') @ inverse(0.5 * I + "
       "strict_upper((hra_u / sqrt(row_dot(hra_u', hra_u'))')' @ (hra_u / sqrt(row_dot(hra_u', hra_u'))'))) @ "
       "(hra_u / sqrt(row_dot(hra_u', hra_u'))')')");
  SAYS(of<hra_gram_schmidt<>>::formula, "weight @ (I - hra_u @ (2 * inverse(hra_u' @ hra_u)) @ hra_u')");
  SAYS(of<oft<dyn>>::formula, "rotate_back(weight, (I - skew(oft_R.weight)) @ inverse(I + skew(oft_R.weight)))");
  SAYS((of<oft<dyn, separate, oft_constraint::projected>>::formula),
       "rotate_back(weight, (I - skew(oft_R.weight + const(min(1, coft_limit / sqrt(row_dot(oft_R.weight, "
       "oft_R.weight))) * oft_R.weight - oft_R.weight))) @ inverse(I + skew(oft_R.weight + const(min(1, coft_limit / "
       "sqrt(row_dot(oft_R.weight, oft_R.weight))) * oft_R.weight - oft_R.weight))))");
  SAYS((of<oft_neumann<dyn, dyn>>::formula), "rotate_back(weight, neumann(skew(oft_R.weight), terms))");
  SAYS((of<boft<dyn, dyn>>::formula),
       "boft_s * rotate_back(weight, (I - 0.5 * (boft_R - boft_R')) @ inverse(I + 0.5 * (boft_R - boft_R')))");
  SAYS(of<miss<>>::formula, "weight + repeat(miss_block', in)");
  SAYS(of<miss_mini<>>::formula, "weight + repeat(repeat(miss_block, out)', in)");
  SAYS(of<miss_bat<>>::formula, "weight @ (I + miss_block) + repeat(miss_block, in)");
  SAYS((of<vblora<dyn, dyn>>::formula),
       "weight + (topk_softmax(vblora_logits_B, topk) @ vblora_vector_bank)' @ "
       "(topk_softmax(vblora_logits_A, topk) @ vblora_vector_bank)");
  SAYS(of<shira<>>::formula, "weight + scatter_elements(shira_weight, shira_indices)");
  SAYS(of<supertuning_with_lora<>>::formula,
       "weight + scatter_elements(supertuning_values, supertuning_indices) + scaling * (supertuning_lora_B.weight @ "
       "supertuning_lora_A.weight)");
  SAYS(of<pvera<>>::formula,
       "weight + (pvera_lambda_b * pvera_B) @ (slice(pvera_lambda_d, axis 2 from 0 size r) * slice(pvera_A, axis 2 "
       "from 0 size r))");
  SAYS((of<tinylora<>>::formula), "weight + tinylora_B @ (tinylora_v' @ tinylora_P @ tinylora_A)");
  SAYS(of<glora<>>::formula, "weight * (1 + glora_A.Xd @ glora_A.Xu) + glora_B.Xd @ glora_B.Xu");
  SAYS((of<glora<dyn, glora_part::numbers>>::formula),
       "weight * (1 + repeat(glora_A.X', out)') + repeat(repeat(glora_B.X', out)', in)");
  SAYS(of<erased>::formula, "type_erased_adapter(weight)");
}

TEST_CASE("adapters: the formulas on embeddings, convolutions and norms") {
  SAYS((of<lora_embedding<>, embedding_kind>::formula), "weight + scaling * (lora_embedding_A' @ lora_embedding_B')");
  SAYS((of<dora_embedding<>, embedding_kind>::formula),
       "(weight + scaling * (lora_embedding_A' @ lora_embedding_B')) * (lora_magnitude_vector' / "
       "const(sqrt(row_dot((weight + scaling * (lora_embedding_A' @ lora_embedding_B'))', (weight + scaling "
       "* (lora_embedding_A' @ lora_embedding_B'))'))'))");
  SAYS((of<lora<>, conv2d_kind>::formula), "weight + scaling * (lora_B.weight @ lora_A.weight)");
  SAYS((of<loha<>, conv2d_kind>::formula), "weight + scaling * (hada_w1_a @ hada_w1_b) * (hada_w2_a @ hada_w2_b)");
  SAYS((of<loha_conv<dyn, loha_gradient::exact>, conv2d_kind>::formula),
       "weight + scaling * (hada_w1_a' @ (hada_w1_b' @ hada_t1)) * (hada_w2_a' @ (hada_w2_b' @ hada_t2))");
  SAYS((of<ln_tuning, norm_kind<false>, true>::formula), "ln_tuning_layers.weight");
  SAYS((of<ln_tuning_weight, norm_kind<true>>::formula), "ln_tuning_layers.weight");
}

TEST_CASE("adapters: LoHa on convolutions differs from the exact one only by terms of value zero") {
  // Forward needs values only, and there both are the same.
  CHECK(std::string(of<loha_conv<>, conv2d_kind>::forward.c_str()) ==
        of<loha_conv<dyn, loha_gradient::exact>, conv2d_kind>::forward.c_str());
  static_assert(same_text(of<loha_conv<>, conv2d_kind>::forward.c_str(),
                          of<loha_conv<dyn, loha_gradient::exact>, conv2d_kind>::forward.c_str()));
  static_assert(!same_text(gradient<loha_conv<>, conv2d_kind>("hada_w1_a").c_str(),
                           gradient<loha_conv<dyn, loha_gradient::exact>, conv2d_kind>("hada_w1_a").c_str()));
}

TEST_CASE("adapters: the formula of the bias") {
  SAYS(bias_formula<none>(), "bias");
  SAYS(bias_formula<lora<>>(), "bias");
  SAYS(bias_formula<dora<>>(), "bias");  // the magnitude does not scale the bias
  SAYS(bias_formula<boft<>>(), "bias");  // BOFT's scale does not scale the bias
  SAYS(bias_formula<lora_with_bias<>>(), "bias + scaling * lora_B.bias");
  SAYS((bias_formula<lora_with_bias<>, linear_kind, false>()), "scaling * lora_B.bias");
  SAYS(bias_formula<ia3>(), "ia3_l * bias");
  SAYS((bias_formula<ia3, linear_kind, false>()), "as it is");
  SAYS(bias_formula<ia3_feedforward>(), "bias");
  SAYS((bias_formula<ln_tuning, norm_kind<false>>()), "ln_tuning_layers.bias");
}

TEST_CASE("adapters: tensors have the names and shapes of PEFT's files") {
  SAYS(of<none>::leaves, "");
  SAYS(of<lora<>>::leaves, "scaling; lora_B.weight[out, r]; lora_A.weight[r, in]");
  SAYS((of<lora_with_bias<>, linear_kind, true>::leaves),
       "scaling; lora_B.weight[out, r]; lora_A.weight[r, in]; lora_B.bias[out]");
  SAYS(of<dora<>>::leaves, "lora_magnitude_vector[out]; scaling; lora_B.weight[out, r]; lora_A.weight[r, in]");
  SAYS(of<adalora<>>::leaves, "scaling; lora_B[out, r]; lora_E[r, 1]; lora_A[r, in]");
  SAYS(of<ia3>::leaves, "ia3_l[out, 1]");
  SAYS(of<ia3_feedforward>::leaves, "ia3_l[1, in]");
  SAYS(of<loha<>>::leaves, "scaling; hada_w1_a[out, r]; hada_w1_b[r, in]; hada_w2_a[out, r]; hada_w2_b[r, in]");
  SAYS(of<lokr<>>::leaves, "scaling; lokr_w1[a, c]; lokr_w2_a[out/a, r]; lokr_w2_b[r, in/c]");
  SAYS((of<lokr<dyn, -1, full, full>>::leaves), "scaling; lokr_w1[a, c]; lokr_w2[out/a, in/c]");
  SAYS((of<lokr<dyn, -1, low_rank, full>>::leaves), "scaling; lokr_w1_a[a, r]; lokr_w1_b[r, c]; lokr_w2[out/a, in/c]");
  SAYS((of<lokr<dyn, -1, low_rank, low_rank>>::leaves),
       "scaling; lokr_w1_a[a, r]; lokr_w1_b[r, c]; lokr_w2_a[out/a, r]; lokr_w2_b[r, in/c]");
  SAYS(of<vera<>>::leaves, "vera_lambda_b[out]; frozen vera_B[out, r]; vera_lambda_d[r]; frozen vera_A[r, in]");
  SAYS(of<hra<>>::leaves, "hra_u[in, r]");
  SAYS(of<hra_gram_schmidt<>>::leaves, "hra_u[in, r]");
  SAYS(of<oft<dyn>>::leaves, "oft_R.weight[in/b, b(b-1)/2]");
  SAYS((of<oft<dyn, shared>>::leaves), "oft_R.weight[1, b(b-1)/2]");
  SAYS((of<oft<dyn, separate, oft_constraint::projected>>::leaves), "oft_R.weight[in/b, b(b-1)/2]; coft_limit");
  SAYS((of<oft_neumann<dyn, dyn>>::leaves), "oft_R.weight[in/b, b(b-1)/2]");
  SAYS((of<oft_neumann<dyn, dyn, shared, oft_constraint::projected>>::leaves), "oft_R.weight[1, b(b-1)/2]; coft_limit");
  SAYS((of<boft<dyn, dyn>>::leaves), "boft_s[out, 1]; boft_R[m, in/b, b, b]");
  SAYS(of<miss<>>::leaves, "miss_block[r, out]");
  SAYS(of<miss_mini<>>::leaves, "miss_block[r, mini_r]");
  SAYS(of<miss_bat<>>::leaves, "miss_block[out/r, r, r]");
  SAYS((of<vblora<dyn, dyn>>::leaves),
       "vblora_logits_B[out/vector_length, r, num_vectors]; vblora_vector_bank[num_vectors, vector_length]; "
       "vblora_logits_A[r, in/vector_length, num_vectors]");
  SAYS((of<lora_embedding<>, embedding_kind>::leaves), "scaling; lora_embedding_A[r, vocab]; lora_embedding_B[dim, r]");
  SAYS((of<dora_embedding<>, embedding_kind>::leaves),
       "scaling; lora_embedding_A[r, vocab]; lora_embedding_B[dim, r]; lora_magnitude_vector[dim]");
  SAYS((of<lora<>, conv2d_kind>::leaves),
       "scaling; lora_B.weight[out, r]; lora_A.weight[r, channels (kernel_h kernel_w)]");
  SAYS((of<loha_conv<>, conv2d_kind>::leaves),
       "scaling; hada_w1_a[r, out]; hada_w1_b[r, channels]; hada_t1[r, r, kernel_h, kernel_w]; hada_w2_b[r, channels]; "
       "hada_t2[r, r, kernel_h, kernel_w]; hada_w2_a[r, out]");
  SAYS((of<ln_tuning, norm_kind<false>, true>::leaves), "ln_tuning_layers.weight[n]; ln_tuning_layers.bias[n]");
  SAYS((of<ln_tuning_weight, norm_kind<true>>::leaves), "ln_tuning_layers.weight[n]");
}

TEST_CASE("adapters: a number in the type replaces the name of a size") {
  SAYS(of<lora<16>>::leaves, "scaling; lora_B.weight[out, 16]; lora_A.weight[16, in]");
  SAYS(of<oft<32>>::leaves, "oft_R.weight[in/32, 496]");
  SAYS((of<oft_neumann<32, 5>>::formula), "rotate_back(weight, neumann(skew(oft_R.weight), 5))");
  SAYS((of<boft<4, 2>>::leaves), "boft_s[out, 1]; boft_R[2, in/4, 4, 4]");
  SAYS(of<miss_bat<16>>::leaves, "miss_block[out/16, 16, 16]");
}

TEST_CASE("adapters: which formulas state that a matrix is orthogonal") {
  auto rotation = [](const graph& g) {
    const node& root = g[g.result("weight")];
    const node& rotated = root.what == op::mul ? g[root.b] : root;
    return g[rotated.b].orthogonal;
  };
  CHECK(rotation(of<oft<dyn>>::d::merge));
  CHECK(rotation(of<boft<dyn, dyn>>::d::merge));
  CHECK(rotation(of<hra<>>::d::merge));
  CHECK(rotation(of<hra_gram_schmidt<>>::d::merge));
  CHECK_FALSE(rotation(of<oft_neumann<dyn, dyn>>::d::merge));  // the truncated series is not exactly orthogonal
}

namespace test {

struct no_formula {
  static constexpr const char* name = "x";
};
struct no_name {
  static constexpr ex weight(scope, ex W) { return W; }
};

}  // namespace test

TEST_CASE("adapters: what makes a type an adapter") {
  BOTH(adapter_formula<lora<>>);
  BOTH(adapter_formula<none>);
  BOTH(!adapter_formula<no_formula>);
  BOTH(!adapter_formula<no_name>);
  BOTH(!adapter_formula<int>);
  BOTH(formula_of<lora<>>().adapter_size("r", 64, 48) == unknown);
}
