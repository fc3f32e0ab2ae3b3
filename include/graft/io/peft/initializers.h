// SPDX-License-Identifier: Apache-2.0
// How PEFT initializes the tensors of a new adapter (peft/tuners/*/layer.py), by the name of the leaf. A new adapter
// leaves the model unchanged, except for VB-LoRA, C3A, FourierFT and Uni-LoRA, which start with random numbers.
#pragma once
#include <string_view>

namespace graft::io::peft {

enum class initializer : unsigned char {
  zero,
  one,
  kaiming_uniform,   // uniform in ±1/√fan_in: Kaiming with a = √5
  paired_columns,    // kaiming_uniform with equal pairs of columns: Householder reflections that cancel
  normal,            // with standard deviation `value`
  bounded,           // uniform in ±`value`, or in ± the number of the configuration key `key`
  xavier,            // uniform in ±√(6 / (in + out))
  from_config,       // the number of the configuration key `key`
  one_over_longest,  // 1 / the longest axis of the tensor
  identity,
  row_norms,  // row_norms, column_norms, weight, bias: computed from the base layer
  column_norms,
  deft_inverse,  // the part of the base weight that DEFT's projection removes, so that the sum is unchanged
  weight,
  bias,
};
struct leaf_initializer {
  const char* leaf;
  initializer kind;
  double value = 0;
  const char* key = "";
  int fan_axis = -1;         // kaiming_uniform: the axis whose length is fan_in; -1: all but the first
  const char* zero_if = "";  // a configuration key that selects zeros
};
inline constexpr leaf_initializer leaf_initializers[] = {
    {"lora_A.weight", initializer::kaiming_uniform},
    {"lora_B.weight", initializer::zero},
    {"lora_B.bias", initializer::zero},
    {"lora_embedding_A", initializer::zero},
    {"lora_embedding_B", initializer::normal, 1},
    {"lora_A", initializer::normal, 0.02},
    {"lora_E", initializer::zero},
    {"lora_B", initializer::normal, 0.02},
    {"oft_R.weight", initializer::zero},
    {"boft_R", initializer::zero},
    {"boft_s", initializer::one},
    {"hra_u", initializer::paired_columns},
    {"ia3_l", initializer::one},
    {"hada_w1_a", initializer::kaiming_uniform},
    {"hada_w1_b", initializer::kaiming_uniform},
    {"hada_w2_a", initializer::kaiming_uniform},
    {"hada_w2_b", initializer::zero},
    {"lokr_w1", initializer::zero},
    {"lokr_w1_a", initializer::zero},
    {"lokr_w1_b", initializer::kaiming_uniform},
    {"lokr_w2", initializer::kaiming_uniform},
    {"lokr_w2_a", initializer::kaiming_uniform},
    {"lokr_w2_b", initializer::kaiming_uniform},
    {"vera_lambda_b", initializer::zero},
    {"vera_lambda_d", initializer::from_config, 0, "d_initial"},
    {"pvera_lambda_b", initializer::zero},
    {"pvera_lambda_d", initializer::from_config, 0, "d_initial"},
    {"tinylora_v", initializer::bounded, 0, "init_v_bound", -1, "init_weights"},
    {"glora_A.Xd", initializer::zero},
    {"glora_A.Xu", initializer::kaiming_uniform},
    {"glora_B.Xd", initializer::zero},
    {"glora_B.Xu", initializer::kaiming_uniform},
    {"glora_C.Xd", initializer::zero},
    {"glora_C.Xu", initializer::kaiming_uniform},
    {"glora_A.X", initializer::zero},
    {"glora_B.X", initializer::zero},
    {"glora_C.X", initializer::zero},
    {"glora_D.X", initializer::zero},
    {"glora_E.X", initializer::zero},
    {"miss_block", initializer::zero},
    {"vblora_vector_bank", initializer::bounded, 0.02},
    {"vblora_logits_A", initializer::normal, 0.1},
    {"vblora_logits_B", initializer::normal, 0.1},
    {"delora_A", initializer::kaiming_uniform},
    {"delora_B", initializer::zero},
    {"delora_lambda", initializer::from_config, 0, "delora_lambda"},
    {"delora_w_norm", initializer::column_norms},
    {"gralora_A", initializer::kaiming_uniform, 0, "", 1},
    {"gralora_B", initializer::zero},
    {"gralora_A_general.weight", initializer::kaiming_uniform},
    {"gralora_B_general.weight", initializer::zero},
    {"randlora_lambda", initializer::zero},
    {"randlora_gamma", initializer::one_over_longest},
    {"road_theta", initializer::zero},
    {"road_alpha", initializer::one},
    {"c3a_kernel", initializer::xavier},
    {"hira_A", initializer::kaiming_uniform},
    {"hira_B", initializer::zero},
    {"hira_embedding_A", initializer::zero},
    {"hira_embedding_B", initializer::normal, 1},
    {"psoft_R.vector_a", initializer::one},
    {"psoft_R.vector_b", initializer::one},
    {"beft_bias", initializer::zero},
    {"deft_P", initializer::normal, 0.02},
    {"deft_R", initializer::deft_inverse},
    {"peanut_A.weight", initializer::kaiming_uniform},
    {"peanut_encoders.0.weight", initializer::kaiming_uniform},
    {"peanut_encoders.1.weight", initializer::kaiming_uniform},
    {"peanut_decoders.0.weight", initializer::kaiming_uniform},
    {"peanut_decoders.1.weight", initializer::kaiming_uniform},
    {"peanut_B.weight", initializer::zero},
    {"shira_weight", initializer::zero},
    {"supertuning_values", initializer::zero},
    {"supertuning_lora_A.weight", initializer::kaiming_uniform},
    {"supertuning_lora_B.weight", initializer::zero},
    {"fourierft_spectrum", initializer::normal, 1, "", -1, "init_weights"},
    {"waveft_spectrum", initializer::normal, 0.01, "", -1, "init_weights"},
    {"unilora_theta_d", initializer::bounded, 0, "init_theta_d_bound"},
    {"lora_magnitude_vector", initializer::row_norms},
    {"ln_tuning_layers.weight", initializer::weight},
    {"ln_tuning_layers.bias", initializer::bias},
    {"base_layer.bias", initializer::bias},
};
inline const leaf_initializer* initializer_of(std::string_view leaf) {
  for (const leaf_initializer& b : leaf_initializers)
    if (leaf == b.leaf) return &b;
  return nullptr;
}

}  // namespace graft::io::peft
