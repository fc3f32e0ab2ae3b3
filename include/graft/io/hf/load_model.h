// SPDX-License-Identifier: Apache-2.0
// A model from a Hugging Face folder. Weights are used where they lie in the mapped files; every tensor of the files must
// be one that the model's formulas read, and every one that they read must be there.
#pragma once
#include <graft/io/hf/config.h>
#include <graft/io/hf/shards.h>
#include <graft/model/causal_lm.h>

namespace graft::io::hf {

// What a folder holds, before anything is made of it.
struct model_folder {
  model_config config;
  model_weights weights;
};
GRAFT_LIBRARY result<model_folder> open_model_folder(const std::string& folder, scaled_by blocks = scaled_by::run);

template <class Engine>
result<causal_lm<Engine>> load_model(const std::string& folder, const model_options& options = {}) {
  result<model_folder> opened = open_model_folder(folder, options.blocks);
  if (!opened) return opened.failure();
  return guarded(folder, [&]() -> result<causal_lm<Engine>> {
    result<causal_lm<Engine>> made = causal_lm<Engine>::make(opened->config, std::move(opened->weights), options);
    if (!made) return fail_in(folder, made.message());
    return made;
  });
}

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/bitsandbytes.h>
#include <graft/io/hf/quantization.h>
#include <graft/io/hf/tensor_names.h>

namespace graft::io::hf {

// Tensors that old versions wrote and nobody reads: masks of GPT-2, frequencies of rotary positions.
inline bool is_bookkeeping(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

// A weight that is codes is several tensors of the files, and one of the model.
inline result<model_weights> bind_weights(model_tensors opened, scaled_by blocks = scaled_by::run) {
  struct files {
    model_tensors tensors;
    kept_planes planes;
  };
  auto kept = std::make_shared<files>(files{std::move(opened), {}});
  const model_tensors& from = kept->tensors;
  coded_reader codes(
      from.folder, [&](const std::string& name) { return from.get(name); }, kept->planes, blocks);
  model_weights out;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const tensor_view& t = from[i];
    if (!t.name.ends_with(".weight")) continue;
    const result<std::optional<view>> coded = codes.read(t);
    if (!coded) return coded.failure();
    if (*coded) out.tensors[t.name] = **coded;
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

GRAFT_LIBRARY result<model_folder> open_model_folder(const std::string& folder, scaled_by blocks) {
  return guarded(folder, [&]() -> result<model_folder> {
    const result<model_config> config = read_config(folder);
    if (!config) return config.failure();
    result<model_tensors> tensors = open_model_tensors(folder);
    if (!tensors) return tensors.failure();
    result<model_weights> weights = bind_weights(std::move(*tensors), blocks);
    if (!weights) return weights.failure();
    if (status s = check_quantization(*config, weights->tensors, folder); !s) return s.failure();
    if (config->tied) weights->tensors.erase("lm_head.weight");  // a copy, where a file has one
    if (status s = check_names(*config, *weights, folder); !s) return s.failure();
    return model_folder{*config, std::move(*weights)};
  });
}

}  // namespace graft::io::hf
#endif
