// SPDX-License-Identifier: Apache-2.0
// How PEFT begins the tensors of a fresh adapter (peft/tuners/*/layer.py), by the names of the leaves: the model computes
// what it did before, except where VB-LoRA, C3A, FourierFT and Uni-LoRA begin with random numbers.
#pragma once
#include <string_view>

namespace graft::io::peft {

enum class begins : unsigned char {
  zero,
  one,
  even,        // evenly from ±1/√fan_in: Kaiming with a = √5
  in_pairs,    // the same for every second column, and each again beside it: Householder reflections that cancel
  normal,      // with the deviation `value`
  bounded,     // evenly from ±`value`, or from ± the number that the configuration calls `key`
  xavier,      // evenly from ±√(6 / (in + out))
  stated,      // the number that the configuration calls `key`
  shared_out,  // 1 / the longer of the tensor's axes
  identity,
  row_norms,  // of the base weight
  column_norms,
  taken_out,  // what DEFT's projection takes out of the base weight, so that it puts the same in
  weight,
  bias,
};
struct beginning {
  const char* leaf;
  begins how;
  double value = 0;
  const char* key = "";
  int fan_axis = -1;         // of `even`: the axis whose length is fan_in; -1: all but the first
  const char* zero_if = "";  // a key of the configuration with which it begins with zeros
};
inline constexpr beginning beginnings[] = {
    {"lora_A.weight", begins::even},
    {"lora_B.weight", begins::zero},
    {"lora_B.bias", begins::zero},
    {"lora_embedding_A", begins::zero},
    {"lora_embedding_B", begins::normal, 1},
    {"lora_A", begins::normal, 0.02},
    {"lora_E", begins::zero},
    {"lora_B", begins::normal, 0.02},
    {"oft_R.weight", begins::zero},
    {"boft_R", begins::zero},
    {"boft_s", begins::one},
    {"hra_u", begins::in_pairs},
    {"ia3_l", begins::one},
    {"hada_w1_a", begins::even},
    {"hada_w1_b", begins::even},
    {"hada_w2_a", begins::even},
    {"hada_w2_b", begins::zero},
    {"lokr_w1", begins::zero},
    {"lokr_w1_a", begins::zero},
    {"lokr_w1_b", begins::even},
    {"lokr_w2", begins::even},
    {"lokr_w2_a", begins::even},
    {"lokr_w2_b", begins::even},
    {"vera_lambda_b", begins::zero},
    {"vera_lambda_d", begins::stated, 0, "d_initial"},
    {"pvera_lambda_b", begins::zero},
    {"pvera_lambda_d", begins::stated, 0, "d_initial"},
    {"tinylora_v", begins::bounded, 0, "init_v_bound", -1, "init_weights"},
    {"glora_A.Xd", begins::zero},
    {"glora_A.Xu", begins::even},
    {"glora_B.Xd", begins::zero},
    {"glora_B.Xu", begins::even},
    {"glora_C.Xd", begins::zero},
    {"glora_C.Xu", begins::even},
    {"glora_A.X", begins::zero},
    {"glora_B.X", begins::zero},
    {"glora_C.X", begins::zero},
    {"glora_D.X", begins::zero},
    {"glora_E.X", begins::zero},
    {"miss_block", begins::zero},
    {"vblora_vector_bank", begins::bounded, 0.02},
    {"vblora_logits_A", begins::normal, 0.1},
    {"vblora_logits_B", begins::normal, 0.1},
    {"delora_A", begins::even},
    {"delora_B", begins::zero},
    {"delora_lambda", begins::stated, 0, "delora_lambda"},
    {"delora_w_norm", begins::column_norms},
    {"gralora_A", begins::even, 0, "", 1},
    {"gralora_B", begins::zero},
    {"gralora_A_general.weight", begins::even},
    {"gralora_B_general.weight", begins::zero},
    {"randlora_lambda", begins::zero},
    {"randlora_gamma", begins::shared_out},
    {"road_theta", begins::zero},
    {"road_alpha", begins::one},
    {"c3a_kernel", begins::xavier},
    {"hira_A", begins::even},
    {"hira_B", begins::zero},
    {"hira_embedding_A", begins::zero},
    {"hira_embedding_B", begins::normal, 1},
    {"psoft_R.vector_a", begins::one},
    {"psoft_R.vector_b", begins::one},
    {"beft_bias", begins::zero},
    {"deft_P", begins::normal, 0.02},
    {"deft_R", begins::taken_out},
    {"peanut_A.weight", begins::even},
    {"peanut_encoders.0.weight", begins::even},
    {"peanut_encoders.1.weight", begins::even},
    {"peanut_decoders.0.weight", begins::even},
    {"peanut_decoders.1.weight", begins::even},
    {"peanut_B.weight", begins::zero},
    {"shira_weight", begins::zero},
    {"supertuning_values", begins::zero},
    {"supertuning_lora_A.weight", begins::even},
    {"supertuning_lora_B.weight", begins::zero},
    {"fourierft_spectrum", begins::normal, 1, "", -1, "init_weights"},
    {"waveft_spectrum", begins::normal, 0.01, "", -1, "init_weights"},
    {"unilora_theta_d", begins::bounded, 0, "init_theta_d_bound"},
    {"lora_magnitude_vector", begins::row_norms},
    {"ln_tuning_layers.weight", begins::weight},
    {"ln_tuning_layers.bias", begins::bias},
    {"base_layer.bias", begins::bias},
};
inline const beginning* beginning_of(std::string_view leaf) {
  for (const beginning& b : beginnings)
    if (leaf == b.leaf) return &b;
  return nullptr;
}

}  // namespace graft::io::peft
