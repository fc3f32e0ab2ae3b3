// SPDX-License-Identifier: Apache-2.0
// The table of families: one row for each model_type, with the formulas of its architecture (block/NAME.h) and what
// follows from the type alone. The numbers of one model are in its model_config. How config.json and GGUF files state a
// family are rows next to their readers: io/hf/config_families.h and io/gguf/families.h.
#pragma once
#include <graft/block/gemma3.h>
#include <graft/block/gpt2.h>
#include <graft/block/gpt_oss.h>
#include <graft/block/granite.h>
#include <graft/block/mixtral.h>
#include <graft/block/olmo2.h>
#include <graft/block/opt.h>
#include <graft/block/phi3.h>
#include <graft/block/qwen2.h>
#include <graft/block/qwen2_moe.h>
#include <graft/block/qwen3.h>
#include <graft/block/qwen3_moe.h>
#include <graft/block/smollm3.h>
#include <graft/core/result.h>

#include <span>

namespace graft {

struct model_config;

// The linear layers of a block in the order in which most models of transformers create them.
inline constexpr const char* usual_creation_order[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                       "gate_proj", "up_proj", "down_proj"};
inline constexpr const char* opt_creation_order[] = {"k_proj", "v_proj", "q_proj", "out_proj", "fc1", "fc2"};
inline constexpr const char* phi3_creation_order[] = {"o_proj", "qkv_proj", "gate_up_proj", "down_proj"};
inline constexpr const char* gpt2_creation_order[] = {"c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"};

// How files have the weights of experts: stacked as the model has them, or one tensor per expert under Mixtral's or the
// usual names (io/hf/expert_weights.h).
enum class expert_files : unsigned char { none, stacked, mixtral, usual };

struct model_family {
  const char* name = "";  // model_type of config.json
  architecture formulas{};
  const char* token_embedding = "model.embed_tokens.weight";  // also the head's weight where embeddings are tied
  bool has_rope = true;                // else positions are learned, in tables with a row for each position
  bool has_padding_index = true;       // the padding token's row of the embedding is not trained
  bool stores_in_out = false;          // projections of blocks are stored [in, out]
  bool may_project_embedding = false;  // embeddings may be narrower than the hidden size
  expert_files experts_in_files = expert_files::none;
  bool experts_in_out = false;  // the weights of experts are stored [experts, in, out]
  // Tensor parallelism divides the heads of attention; not where the formulas make queries, keys and values in one
  // layer, or do not count them in heads.
  bool may_divide_heads = true;
  // Random draws of an adapter that span all of its targets follow this order within a block.
  std::span<const char* const> creation_order = usual_creation_order;
  // Fails for a configuration that the formulas do not support; null: they support every configuration.
  status (*check)(const model_config&) = nullptr;
};

status check_opt(const model_config& c);

namespace families {

inline constexpr model_family llama{.name = "llama", .formulas = architecture_of<graft::llama>()};
inline constexpr model_family mistral{.name = "mistral", .formulas = architecture_of<graft::mistral>()};
inline constexpr model_family qwen2{.name = "qwen2", .formulas = architecture_of<graft::qwen2>()};
inline constexpr model_family qwen3{.name = "qwen3", .formulas = architecture_of<graft::qwen3>()};
inline constexpr model_family mixtral{
    .name = "mixtral", .formulas = architecture_of<graft::mixtral>(), .experts_in_files = expert_files::mixtral};
inline constexpr model_family qwen2_moe{
    .name = "qwen2_moe", .formulas = architecture_of<graft::qwen2_moe>(), .experts_in_files = expert_files::usual};
inline constexpr model_family qwen3_moe{
    .name = "qwen3_moe", .formulas = architecture_of<graft::qwen3_moe>(), .experts_in_files = expert_files::usual};
inline constexpr model_family gpt_oss{.name = "gpt_oss",
                                      .formulas = architecture_of<graft::gpt_oss>(),
                                      .experts_in_files = expert_files::stacked,
                                      .experts_in_out = true};
inline constexpr model_family gemma{.name = "gemma", .formulas = architecture_of<graft::gemma>()};
inline constexpr model_family gemma2{.name = "gemma2", .formulas = architecture_of<graft::gemma2>()};
inline constexpr model_family gemma3{.name = "gemma3_text", .formulas = architecture_of<graft::gemma3>()};
inline constexpr model_family granite{.name = "granite", .formulas = architecture_of<graft::granite>()};
inline constexpr model_family olmo2{.name = "olmo2", .formulas = architecture_of<graft::olmo2>()};
inline constexpr model_family phi3{.name = "phi3",
                                   .formulas = architecture_of<graft::phi3>(),
                                   .may_divide_heads = false,
                                   .creation_order = phi3_creation_order};
inline constexpr model_family smollm3{.name = "smollm3", .formulas = architecture_of<graft::smollm3>()};
inline constexpr model_family opt{.name = "opt",
                                  .formulas = architecture_of<graft::opt>(),
                                  .token_embedding = "model.decoder.embed_tokens.weight",
                                  .has_rope = false,
                                  .may_project_embedding = true,
                                  .may_divide_heads = false,
                                  .creation_order = opt_creation_order,
                                  .check = check_opt};
inline constexpr model_family gpt2{.name = "gpt2",
                                   .formulas = architecture_of<graft::gpt2>(),
                                   .token_embedding = "transformer.wte.weight",
                                   .has_rope = false,
                                   .has_padding_index = false,
                                   .stores_in_out = true,
                                   .may_divide_heads = false,
                                   .creation_order = gpt2_creation_order};

}  // namespace families

}  // namespace graft
