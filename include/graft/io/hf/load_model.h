// SPDX-License-Identifier: Apache-2.0
// Loads a causal language model from a Hugging Face folder. Weights are views into the mapped safetensors files. The
// files must contain exactly the tensors that the model's formulas read.
#pragma once
#include <graft/io/hf/config.h>
#include <graft/io/hf/shards.h>
#include <graft/model/causal_lm.h>

namespace graft::io::hf {

// Configuration and weights of a folder, from which a model on any engine can be made.
struct model_files {
  model_config config;
  model_weights weights;
};
GRAFT_LIBRARY result<model_files> open_model_folder(const std::string& folder,
                                                    scale_granularity blocks = scale_granularity::flat_block,
                                                    const family_table& families = built_in_families());

template <class Engine>
result<causal_lm<Engine>> load_model(const std::string& folder, const model_options& options = {},
                                     const family_table& families = built_in_families()) {
  result<model_files> opened = open_model_folder(folder, options.blocks, families);
  if (!opened) return opened.failure();
  return guarded(folder, [&]() -> result<causal_lm<Engine>> {
    result<causal_lm<Engine>> made = causal_lm<Engine>::make(opened->config, std::move(opened->weights), options);
    if (!made) return fail_in(folder, made.message());
    return made;
  });
}

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/bitsandbytes/reader.h>
#include <graft/io/hf/expert_weights.h>
#include <graft/io/hf/generation_config.h>
#include <graft/io/hf/quantization.h>
#include <graft/io/hf/tensor_names.h>

namespace graft::io::hf {

// Tensors that old versions of transformers wrote and no model reads: GPT-2's masks, inverse frequencies of RoPE.
inline bool is_bookkeeping(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

// Binds the tensors of the files. A quantized weight is several tensors in the files and one in the model.
inline result<model_weights> bind_weights(model_tensors opened,
                                          scale_granularity blocks = scale_granularity::flat_block) {
  struct files {
    model_tensors tensors;
    quant_state_pool quant_state;
  };
  auto kept = std::make_shared<files>(files{std::move(opened), {}});
  const model_tensors& from = kept->tensors;
  quantized_reader codes(
      from.folder, [&](const std::string& name) { return from.get(name); }, kept->quant_state, blocks);
  model_weights out;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const tensor_view& t = from[i];
    if (!t.name.ends_with(".weight")) continue;
    const result<std::optional<view>> quantized = codes.read(t);
    if (!quantized) return quantized.failure();
    if (*quantized) out.tensors[t.name] = **quantized;
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    const tensor_view& t = from[i];
    if (is_bookkeeping(t.name) || codes.used().contains(t.name) || out.tensors.contains(t.name)) continue;
    const result<view> v = bind_in_place(t, from.file_of(i).file);
    if (!v) return v.failure();
    out.tensors[t.name] = *v;
  }
  out.owner = std::move(kept);
  return out;
}

GRAFT_LIBRARY result<model_files> open_model_folder(const std::string& folder, scale_granularity blocks,
                                                    const family_table& families) {
  return guarded(folder, [&]() -> result<model_files> {
    result<model_config> config = read_config(folder, families);
    if (!config) return config.failure();
    const result<std::vector<int>> end = read_eos_tokens(folder, config->tokens.eos_tokens);
    if (!end) return end.failure();
    config->tokens.eos_tokens = *end;
    result<model_tensors> tensors = open_model_tensors(folder);
    if (!tensors) return tensors.failure();
    result<model_weights> weights = bind_weights(std::move(*tensors), blocks);
    if (!weights) return weights.failure();
    if (config->experts > 0)
      if (status s = stack_experts(*weights, folder); !s) return s.failure();
    if (status s = check_quantization(*config, weights->tensors, folder); !s) return s.failure();
    if (config->tied) weights->tensors.erase("lm_head.weight");  // some files hold a copy of the tied head
    if (status s = check_names(*config, *weights, folder); !s) return s.failure();
    return model_files{*config, std::move(*weights)};
  });
}

}  // namespace graft::io::hf
#endif
