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
#include <graft/io/gptq/reader.h>
#include <graft/io/hf/expert_weights.h>
#include <graft/io/hf/generation_config.h>
#include <graft/io/hf/quantization.h>
#include <graft/io/hf/tensor_names.h>
#include <graft/io/microscaling/reader.h>

namespace graft::io::hf {

// Tensors that old versions of transformers wrote and no model reads: GPT-2's masks, inverse frequencies of RoPE.
inline bool is_bookkeeping(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

namespace detail {

struct opened_files {
  model_tensors tensors;
  quant_state_pool states;
  gptq_pool rows;
};
// Adds the views of quantized weights that a reader finds; `used` are the tensors that they are made of.
template <class Reader, class Name>
status read_quantized(Reader& reader, Name weight_name, const model_tensors& from, model_weights& out,
                      std::set<std::string>& used) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::string name = weight_name(from[i].name);
    if (name.empty()) continue;
    const result<std::optional<view>> v = reader.read(from[i]);
    if (!v) return v.failure();
    if (*v && !out.tensors.emplace(name, **v).second)
      return fail_in(from.folder, "tensor ", in_quotes(from[i].name), " and another one are both the weight ",
                     in_quotes(name));
  }
  used = reader.used();
  return ok;
}
inline status read_quantized(const std::optional<quantized_weights>& scheme, scale_granularity blocks,
                             opened_files& files, model_weights& out, std::set<std::string>& used) {
  const model_tensors& from = files.tensors;
  const auto find = [&from](const std::string& name) { return from.get(name); };
  const auto same_name = [](const std::string& name) { return name.ends_with(".weight") ? name : std::string(); };
  switch (scheme ? scheme->stored_as : quantized_storage::bitsandbytes) {
    case quantized_storage::gguf:
    case quantized_storage::bitsandbytes:
    case quantized_storage::fp8: {
      quantized_reader reader(from.folder, find, files.states, blocks);
      return read_quantized(reader, same_name, from, out, used);
    }
    case quantized_storage::gptq:
    case quantized_storage::awq: {
      gptq_reader reader(from.folder, find, files.rows, *scheme);
      return read_quantized(reader, gptq_reader::weight_name, from, out, used);
    }
    case quantized_storage::mxfp4:
    case quantized_storage::nvfp4: {
      microscaling_reader reader(from.folder, find, files.states, scheme->stored_as == quantized_storage::nvfp4);
      return read_quantized(
          reader, [&](const std::string& name) { return reader.weight_name(name); }, from, out, used);
    }
  }
  return fail_in(from.folder, "the quantization of this folder is not known");
}

// AutoGPTQ writes a bias of zeros for every module of some models that have none.
inline bool is_zero_bias(const tensor_view& t, const model_weights& weights, const std::set<std::string>& wanted) {
  constexpr std::string_view bias = ".bias";
  if (!t.name.ends_with(bias) || wanted.contains(t.name)) return false;
  const auto weight = weights.tensors.find(t.name.substr(0, t.name.size() - bias.size()) + ".weight");
  return weight != weights.tensors.end() && weight->second.quant != nullptr &&
         has_zero_points(weight->second.quant->format) &&
         std::ranges::all_of(t.data, [](std::byte b) { return b == std::byte{}; });
}

}  // namespace detail

// Binds the tensors of the files. A quantized weight is several tensors in the files and one in the model.
inline result<model_weights> bind_weights(model_tensors opened, const model_config& c, scale_granularity blocks) {
  auto shared_files = std::make_shared<detail::opened_files>(detail::opened_files{std::move(opened), {}, {}});
  const model_tensors& from = shared_files->tensors;
  model_weights out;
  std::set<std::string> used;
  if (status s = detail::read_quantized(c.quantized, blocks, *shared_files, out, used); !s) return s.failure();
  for (std::size_t i = 0; i < from.size(); ++i)
    for (const auto& [end, method] : {std::pair{".qweight", "gptq or awq"}, std::pair{".weight_blocks", "mxfp4"}})
      if (from[i].name.ends_with(end) && !used.contains(from[i].name))
        return fail_in(from.folder, "tensor ", in_quotes(from[i].name), " is quantized, and config.json has no ",
                       "quantization_config with quant_method ", method);
  const std::set<std::string> wanted = names_of(c);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const tensor_view& t = from[i];
    if (is_bookkeeping(t.name) || used.contains(t.name) || out.tensors.contains(t.name)) continue;
    if (detail::is_zero_bias(t, out, wanted)) continue;
    const result<view> v = bind_in_place(t, from.file_of(i).file);
    if (!v) return v.failure();
    out.tensors[t.name] = *v;
  }
  out.owner = std::move(shared_files);
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
    result<model_weights> weights = bind_weights(std::move(*tensors), *config, blocks);
    if (!weights) return weights.failure();
    if (config->experts > 0)
      if (status s = stack_experts(*weights, folder); !s) return s.failure();
    if (status s = check_quantization(*config, weights->tensors, folder); !s) return s.failure();
    if (config->tied) weights->tensors.erase("lm_head.weight");  // the head is the embedding; some files hold a copy
    if (status s = check_names(*config, *weights, folder); !s) return s.failure();
    return model_files{*config, std::move(*weights)};
  });
}

}  // namespace graft::io::hf
#endif
