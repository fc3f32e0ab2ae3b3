// SPDX-License-Identifier: Apache-2.0
// Unmerge: the formula solved for W, and the values that it needs from the merge.
#include "../support/formula_text.h"

using namespace test;
using enum lokr_form;

namespace {

template <class Adapter, class Kind = linear_kind, bool Bias = false>
constexpr bool facts(bool possible, int kept = 0) {
  const unmerge_facts& f = derived<Kind, Adapter, Bias>::unmerging;
  return f.weight == possible && f.saved == kept;
}

}  // namespace

TEST_CASE("unmerge: additive updates are subtracted") {
  SAYS(of<none>::unmerge, "merged");
  SAYS(of<lora<>>::unmerge, "merged - scaling * (lora_B.weight @ lora_A.weight)");
  SAYS(of<adalora<>>::unmerge, "merged - scaling * (lora_B @ (lora_E * lora_A))");
  SAYS(of<loha<>>::unmerge, "merged - scaling * (hada_w1_a @ hada_w1_b) * (hada_w2_a @ hada_w2_b)");
  SAYS(of<lokr<>>::unmerge, "merged - scaling * kron(lokr_w1, lokr_w2_a @ lokr_w2_b)");
  SAYS(of<vera<>>::unmerge, "merged - (vera_lambda_b * vera_B) @ (vera_lambda_d * vera_A)");
  SAYS(of<miss<>>::unmerge, "merged - repeat(miss_block', in)");
  SAYS(of<miss_mini<>>::unmerge, "merged - repeat(repeat(miss_block, out)', in)");
  SAYS((of<vblora<dyn, dyn>>::unmerge),
       "merged - (topk_softmax(vblora_logits_B, topk) @ vblora_vector_bank)' @ "
       "(topk_softmax(vblora_logits_A, topk) @ vblora_vector_bank)");
  SAYS((of<lora_embedding<>, embedding_kind>::unmerge), "merged - scaling * (lora_embedding_A' @ lora_embedding_B')");
  SAYS((of<lora<>, conv2d_kind>::unmerge), "merged - scaling * (lora_B.weight @ lora_A.weight)");
}

TEST_CASE("unmerge: factors are divided out, rotations are inverted") {
  SAYS(of<ia3>::unmerge, "merged / ia3_l");
  SAYS(of<ia3_feedforward>::unmerge, "merged / ia3_l");
  SAYS(of<oft<dyn>>::unmerge, "rotate(merged, (I - skew(oft_R.weight)) @ inverse(I + skew(oft_R.weight)))");
  SAYS((of<oft_neumann<dyn, dyn>>::unmerge),  // not orthogonal: the exact inverse, as in PEFT
       "rotate_back(merged, inverse(neumann(skew(oft_R.weight), terms)))");
  SAYS((of<boft<dyn, dyn>>::unmerge),
       "rotate(merged / boft_s, (I - 0.5 * (boft_R - boft_R')) @ inverse(I + 0.5 * (boft_R - boft_R')))");
  SAYS(of<hra_gram_schmidt<>>::unmerge, "merged @ (I - hra_u @ (2 * inverse(hra_u' @ hra_u)) @ hra_u')'");
  BOTH(contains(of<hra<>>::unmerge.c_str(), "merged @ (I - (hra_u / "));
  SAYS(of<miss_bat<>>::unmerge, "(merged - repeat(miss_block, in)) @ inverse(I + miss_block)");
}

TEST_CASE("unmerge: DoRA needs the value of its factor at the merge") {
  SAYS(of<dora<>>::unmerge, "merged / saved0 - scaling * (lora_B.weight @ lora_A.weight)");
  SAYS((of<dora_embedding<>, embedding_kind>::unmerge),
       "merged / saved0 - scaling * (lora_embedding_A' @ lora_embedding_B')");
  using d = derived<linear_kind, dora<>, false>;
  static constexpr node kept = d::merge[d::merge.result("saved")];
  BOTH(kept.what == op::div);  // m / norm, one number per output
  BOTH(kept.d[3] == dim{1});
  static constexpr node read = d::unmerge_weight[d::unmerge_weight.find("saved")];
  BOTH(read.what == op::saved);
  BOTH(read.k[0] == dim{0});  // the first of the saved values
}

TEST_CASE("unmerge: possible or not, and the number of saved tensors, for every method") {
  BOTH(facts<none>(true));
  BOTH(facts<lora<>>(true));
  BOTH(facts<lora_with_bias<>>(true));
  BOTH(facts<dora<>>(true, 1));
  BOTH(facts<residual_lora<>>(true));
  BOTH(facts<residual_dora<>>(true, 1));
  BOTH(facts<adalora<>>(true));
  BOTH(facts<ia3>(true));
  BOTH(facts<ia3_feedforward>(true));
  BOTH(facts<loha<>>(true));
  BOTH(facts<lokr<dyn, -1, full, full>>(true));
  BOTH(facts<lokr<dyn, -1, full, low_rank>>(true));
  BOTH(facts<lokr<dyn, -1, low_rank, full>>(true));
  BOTH(facts<lokr<dyn, -1, low_rank, low_rank>>(true));
  BOTH(facts<vera<>>(true));
  BOTH(facts<hra<>>(true));
  BOTH(facts<hra_gram_schmidt<>>(true));
  BOTH(facts<oft<dyn>>(true));
  BOTH(facts<oft<dyn, oft_blocks::shared>>(true));
  BOTH(facts<oft<dyn, oft_blocks::separate, oft_constraint::projected>>(true));
  BOTH(facts<oft_neumann<dyn, dyn>>(true));
  BOTH(facts<boft<dyn, dyn>>(true));
  BOTH(facts<miss<>>(true));
  BOTH(facts<miss_mini<>>(true));
  BOTH(facts<miss_bat<>>(true));
  BOTH(facts<vblora<dyn, dyn>>(true));
  BOTH(facts<lora_embedding<>, embedding_kind>(true));
  BOTH(facts<dora_embedding<>, embedding_kind>(true, 1));
  BOTH(facts<lora<>, conv2d_kind>(true));
  BOTH(facts<dora<>, conv2d_kind>(true, 1));
  BOTH(facts<loha_conv<>, conv2d_kind>(true));
  BOTH(facts<ln_tuning, norm_kind<false>, true>(false));
  BOTH(facts<ln_tuning_weight, norm_kind<true>>(false));
  BOTH(facts<erased>(false));
}

TEST_CASE("unmerge: the bias, where the method changes it") {
  using with = derived<linear_kind, lora_with_bias<>, true>;
  SAYS(written(with::unmerge_bias, "bias"), "merged - scaling * lora_B.bias");
  SAYS(written(derived<linear_kind, ia3, true>::unmerge_bias, "bias"), "merged / ia3_l");
  SAYS(written(derived<linear_kind, lora<>, true>::unmerge_bias, "bias"), "merged");
  BOTH((!derived<linear_kind, lora_with_bias<>, false>::unmerging.bias));  // the base layer has no bias
  BOTH((!derived<norm_kind<false>, ln_tuning, true>::unmerging.bias));
}

// ---- steps of solving for W that no method needs

namespace {

struct from_a_constant : unnamed {
  static constexpr ex weight(scope p, ex W) { return p.param("c", W.rows(), W.cols()) - W; }
};
struct over_weight : unnamed {
  static constexpr ex weight(scope p, ex W) { return p.param("c", W.rows(), W.cols()) / W; }
};
struct squared : unnamed {
  static constexpr ex weight(scope, ex W) { return tanh(W); }
};
struct transposed_twice : unnamed {
  static constexpr ex weight(scope p, ex W) { return t(t(W) + p.param("c", W.cols(), W.rows())); }
};
struct from_the_left : unnamed {
  static constexpr ex weight(scope p, ex W) { return p.param("L", W.rows(), W.rows()) * W; }
};
struct from_the_right : unnamed {
  static constexpr ex weight(scope p, ex W) { return W * p.param("R", W.cols(), W.cols()); }
};

}  // namespace

namespace {

// W occurs in five factors, each of which must be saved at the merge.
struct five_norms : unnamed {
  static constexpr ex weight(scope p, ex W) {
    ex V = W;
    for (const char* m : {"m0", "m1", "m2", "m3", "m4"}) V = (p.param(m, W.rows()) / row_norm(V)) * V;
    return V;
  }
};

}  // namespace

TEST_CASE("unmerge: one saved value for each factor that depends on W") {
  BOTH(facts<five_norms>(true, 5));
  const layer_formula f = layer_of<linear_kind, five_norms, false>();
  SAYS_NOW(written(capture_unmerge_weight(f), "weight"), "merged / saved0 / saved1 / saved2 / saved3 / saved4");
  const builder merge = capture_merge(f);
  int kept = 0;
  for (const output& o : merge.out) kept += same_text(o.name, "saved") ? 1 : 0;
  CHECK(kept == 5);
  // The outermost factor is the first.
  SAYS_NOW(expression(merge, merge.out[1].at, {nullptr, 1}).c_str(),
           "m4 / t" + std::to_string(merge.n[merge.out[1].at].b));
}

TEST_CASE("unmerge: other formulas") {
  SAYS(of<from_a_constant>::unmerge, "c - merged");
  SAYS(of<transposed_twice>::unmerge, "(merged' - c)'");
  SAYS(of<from_the_right>::unmerge, "merged @ inverse(R)");
  SAYS(of<over_weight>::unmerge, "impossible");
  SAYS(of<squared>::unmerge, "impossible");
  SAYS(of<from_the_left>::unmerge, "impossible");  // the walk solves for W on the left only
}
