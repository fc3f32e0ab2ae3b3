// SPDX-License-Identifier: Apache-2.0
// What an adapter_config.json of PEFT says about the mathematics of an adapter. Member defaults are PEFT's own
// (peft/tuners/*/config.py, 0.20) and stand where a key is absent; `r` differs by method and is set while reading.
// Three keys must be present although a member has a value here: see read_adapter_config.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace graft::io {

enum class peft_type { lora, adalora, oft, boft, hra, ia3, loha, lokr, vera, ln_tuning, miss, vblora, own };

struct peft_method {
  const char* name;       // value of "peft_type"
  const char* bias_only;  // third value of "bias" beside none and all; null: the method has no such key
  int default_r;          // 0: the method has no rank
};

inline constexpr peft_method peft_methods[] = {
    {"LORA", "lora_only", 8},   {"ADALORA", "lora_only", 8}, {"OFT", "oft_only", 0},    {"BOFT", "boft_only", 0},
    {"HRA", "hra_only", 8},     {"IA3", nullptr, 0},         {"LOHA", nullptr, 8},      {"LOKR", nullptr, 8},
    {"VERA", "vera_only", 256}, {"LN_TUNING", nullptr, 0},   {"MISS", "MiSS_only", 64}, {"VBLORA", "vblora_only", 4},
};

inline constexpr peft_method own_method{"", nullptr, 0};
constexpr const peft_method& facts(peft_type t) {
  return t == peft_type::own ? own_method : peft_methods[static_cast<int>(t)];
}
constexpr const char* name_of(peft_type t) { return facts(t).name; }

// Which biases of the base model were trained with the adapter and are in its file.
enum class trained_bias { none, all, targeted };

// MiSS stores its mathematics under init_weights: true and false are `standard`.
enum class miss_kind { standard, mini, bat };

// A list of names, or one regular expression, or "all-linear"; an empty list is a key that is absent or null.
struct name_pattern {
  enum class form { list, regex, all_linear };
  form kind = form::list;
  std::vector<std::string> names{};
  std::string regex{};
  bool empty() const { return kind == form::list && names.empty(); }
};

struct adalora_fields {
  int init_r = 12, target_r = 8, tinit = 0, tfinal = 0, delta_t = 1;
  int total_step = 0;  // 0: null or absent, as in files of older releases; such an adapter can run but not train
  double beta1 = 0.85, beta2 = 0.85, orth_reg_weight = 0.5;
  std::vector<std::pair<std::string, std::vector<bool>>> kept{};  // rank_pattern: "<module>.lora_E" and init_r flags
};

struct oft_fields {  // exactly one of r (blocks) and block_size is not 0
  int block_size = 32;
  bool coft = false, block_share = false, use_cayley_neumann = true;
  double eps = 6e-5;
  int num_cayley_neumann_terms = 5;
};

struct boft_fields {  // exactly one of block_size and block_num is not 0
  int block_size = 4, block_num = 0, n_butterfly_factor = 1;
};

struct lokr_fields {
  bool decompose_both = false, rank_dropout_scale = false;
  int decompose_factor = -1;
};

struct vera_fields {
  std::uint64_t projection_prng_key = 0;
  bool save_projection = true;
};

struct vblora_fields {
  int num_vectors = 256, vector_length = 256, topk = 2;
  bool save_only_topk_weights = false;
};

struct miss_fields {
  miss_kind kind = miss_kind::standard;
  int mini_r = 1;
};

struct adapter_config {
  peft_type type{};
  std::string own{};  // the name of a method that the program added, where the type is `own`
  std::map<std::string, double, std::less<>> numbers{};  // and the numbers its file states
  std::string peft_version{}, base_model{}, task_type{};
  int r = 0;           // 0 where the method has none
  double alpha = 8;    // lora_alpha, or alpha of LoHa and LoKr
  double dropout = 0;  // lora_, boft_, vera_, vblora_ or miss_dropout
  bool use_rslora = false, use_dora = false, lora_bias = false, fan_in_fan_out = false;
  trained_bias bias = trained_bias::none;
  name_pattern target_modules{}, exclude_modules{}, feedforward_modules{};
  std::vector<std::string> modules_to_save{}, layers_pattern{};
  std::vector<int> layers_to_transform{};
  std::vector<std::pair<std::string, int>> rank_pattern{};      // in file order: the first hit counts
  std::vector<std::pair<std::string, double>> alpha_pattern{};  // likewise
  double rank_dropout = 0, module_dropout = 0;                  // LoHa, LoKr; OFT has the key but PEFT never applies it
  bool use_effective_conv2d = false;                            // LoHa, LoKr
  bool apply_gs = false;                                        // HRA
  adalora_fields adalora{};
  oft_fields oft{};
  boft_fields boft{};
  lokr_fields lokr{};
  vera_fields vera{};
  vblora_fields vblora{};
  miss_fields miss{};
};

}  // namespace graft::io
