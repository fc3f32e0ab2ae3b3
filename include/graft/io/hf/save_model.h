// SPDX-License-Identifier: Apache-2.0
// Saves a model as a Hugging Face folder, atomically: model.safetensors with the weights as they are stored (quantized
// ones in the tensors that the folder had), config.json adjusted to them, and generation_config.json and the tokenizer
// files of the folder that the model was loaded from.
#pragma once
#include <graft/io/hf/load_model.h>

namespace graft::io::hf {

// `from` is the folder that the model was loaded from.
GRAFT_LIBRARY status save_model(const std::string& folder, const model_weights& weights, const std::string& from,
                                const family_table& families = built_in_families());

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/atomic_folder.h>
#include <graft/io/bitsandbytes/writer.h>
#include <graft/io/gptq/writer.h>
#include <graft/io/hf/expert_weights.h>
#include <graft/io/hf/modules.h>
#include <graft/io/hf/quantization.h>
#include <graft/io/json/writer.h>
#include <graft/io/microscaling/writer.h>
#include <graft/io/safetensors/bind.h>
#include <graft/io/safetensors/writer.h>

#include <algorithm>
#include <deque>

namespace graft::io::hf {

struct saved_config {
  json document;
  bool transposed_storage = false;  // GPT-2 stores projections [in, out], quantized ones [out, in]
};

namespace detail {
inline json& entry(json& of, std::string_view key) {
  for (std::size_t i = 0; i < of.keys.size(); ++i)
    if (of.keys[i] == key) return of.items[i];
  of.keys.emplace_back(key);
  return of.items.emplace_back();
}
inline void erase(json& of, std::string_view key) {
  const auto at = std::find(of.keys.begin(), of.keys.end(), key);
  if (at == of.keys.end()) return;
  of.items.erase(of.items.begin() + (at - of.keys.begin()));
  of.keys.erase(at);
}
// The key of the list of modules that are not quantized; null where the configuration has none.
inline const char* key_of_plain_modules(quantized_storage stored_as) {
  switch (stored_as) {
    case quantized_storage::bitsandbytes: return "llm_int8_skip_modules";
    case quantized_storage::fp8:
    case quantized_storage::awq:
    case quantized_storage::mxfp4: return "modules_to_not_convert";
    case quantized_storage::nvfp4: return "ignore";
    case quantized_storage::gptq:
    case quantized_storage::gguf: break;
  }
  return nullptr;
}
// Appends the tensors of a quantized weight as its folder stores them.
inline status add_quantized(const quantized_weights& scheme, const std::string& name, const view& v,
                            quantized_writer& writer, gptq_writer& rows, std::vector<tensor_view>& to) {
  switch (scheme.stored_as) {
    case quantized_storage::bitsandbytes:
    case quantized_storage::fp8: return writer.add(name, v, to);
    case quantized_storage::gptq:
    case quantized_storage::awq: return rows.add(name, v, to);
    case quantized_storage::mxfp4:
    case quantized_storage::nvfp4: return add_microscaling(name, v, to);
    case quantized_storage::gguf: break;
  }
  return fail_in(name, "weights of type ", graft::name_of(v.quant->format), " are in no file of this kind");
}
}  // namespace detail

// config.json for weights that may differ from those it was read with: a head that is no longer tied is recorded,
// weights that a merge dequantized join the list of modules that are not quantized (transformers, quantizers/base.py:
// that list replaces the default, the head), and quantization_config is removed if no quantized weight is left.
inline result<saved_config> config_for(json document, const model_config& c, const model_weights& weights,
                                       std::string_view folder) {
  saved_config out{std::move(document)};
  if (weights.tensors.contains("lm_head.weight")) detail::entry(out.document, "tie_word_embeddings") = json_bool(false);
  if (!c.quantized) return out;
  std::vector<std::string> plain = c.quantized->unquantized_modules;
  if (plain.empty()) plain.emplace_back("lm_head");
  const std::size_t before = plain.size();
  bool any = false, plain_experts = false;
  for (const base_layer& b : modules_of(c, weights)) {
    if (b.kind == "experts") any = any || b.weight.quant != nullptr, plain_experts |= b.weight.quant == nullptr;
    if (b.kind != "linear") continue;
    if (b.weight.quant != nullptr)
      any = true;
    else if (named_in(plain, b.module + ".weight") == nullptr)
      plain.push_back(b.module);
  }
  if (any && plain_experts && c.family->experts_in_out)
    return fail_in(folder, "some experts are quantized and others are not, which ", c.family->name,
                   " stores transposed; merge to quantized weights, or adapt both parameters of all experts");
  if (!any) {
    detail::erase(out.document, "quantization_config");
    out.transposed_storage = stored_out_in(c);
  } else if (plain.size() > before) {
    if (c.family->stores_in_out)
      return fail_in(folder, "module ", in_quotes(plain[before]), " is not quantized while others are, which ",
                     c.family->name, " stores transposed; merge to quantized weights, or adapt all of its projections");
    const char* const key = detail::key_of_plain_modules(c.quantized->stored_as);
    if (key == nullptr || out.document.find("quantization_config") == nullptr)
      return fail_in(
          folder, "module ", in_quotes(plain[before]),
          " is not quantized while others are, which the configuration of this model cannot state; adapt all "
          "of its linear layers, so that all merged weights are numbers, or keep the adapter beside the model");
    json& list = detail::entry(detail::entry(out.document, "quantization_config"), key);
    list = {};
    list.what = json::kind::list;
    for (const std::string& module : plain) list.items.push_back(json_string(module));
  }
  return out;
}

inline std::optional<safetensors_type> safetensors_type_of(dtype type) {
  for (const safetensors_type t : {safetensors_type::f32, safetensors_type::f64, safetensors_type::f16,
                                   safetensors_type::bf16, safetensors_type::i64})
    if (dtype_of(t) == type) return t;
  return std::nullopt;
}

inline std::vector<std::byte> bytes_of(std::string_view s) {
  const auto all = std::as_bytes(std::span(s.data(), s.size()));
  return {all.begin(), all.end()};
}

// torch's name of the model's dtype; older versions of transformers write it as torch_dtype.
inline std::string dtype_in(const json& config) {
  for (const char* key : {"dtype", "torch_dtype"})
    if (const json* document = config.find(key); document != nullptr && document->is_string()) return document->word;
  return "float32";
}
GRAFT_LIBRARY status save_model(const std::string& folder, const model_weights& weights, const std::string& from,
                                const family_table& families) {
  return guarded(folder, [&]() -> status {
    std::vector<tensor_view> tensors;
    std::deque<std::vector<std::byte>> transposed_storage;
    result<json> read = read_json(from + "/config.json");
    if (!read) return read.failure();
    const result<model_config> config = read_config(from, families);
    if (!config) return config.failure();
    result<saved_config> saved = config_for(std::move(*read), *config, weights, folder);
    if (!saved) return saved.failure();
    quantized_writer writer(dtype_in(saved->document));
    gptq_writer rows(config->quantized.value_or(quantized_weights{}));
    bool any_quantized = false;
    std::vector<stored_tensor> stored;
    for (const auto& [name, v] : weights.tensors)
      for (stored_tensor& t : stored_tensors_of(*config, name, v)) stored.push_back(std::move(t));
    for (const auto& [name, given] : stored) {
      const bool transposes_experts =
          given.rank == 3 && given.quant == nullptr && config->family->experts_in_out && !experts_in_out(*config);
      const bool transposes =
          transposes_experts || (saved->transposed_storage && given.rank == 2 && is_in_layers(*config, name));
      const view v = transposes ? given.transposed() : given;
      if (v.quant != nullptr) {
        if (!config->quantized)
          return fail_in(folder, "tensor ", in_quotes(name), " is quantized, and ", in_quotes(from + "/config.json"),
                         " has no quantization_config; merge the model to bf16 or f32 first");
        if (status s = detail::add_quantized(*config->quantized, name, v, writer, rows, tensors); !s) return s;
        any_quantized = true;
        continue;
      }
      const std::optional<safetensors_type> type = safetensors_type_of(v.type);
      if (!type) return fail_in(folder, "tensor ", in_quotes(name), " has a type that no file of this kind holds");
      const std::size_t each = static_cast<std::size_t>(bits_of(v.type)) / 8;
      auto bytes = std::span(static_cast<const std::byte*>(v.data), static_cast<std::size_t>(v.count()) * each);
      if (!v.contiguous()) {  // copies the transposed views of GPT-2's weights, or of experts, in row-major order
        std::vector<std::byte>& row = transposed_storage.emplace_back(bytes.size());
        const int last = v.rank - 1;
        const long long height = v.size[last - 1], width = v.size[last];
        for (long long e = 0; e < v.count() / (height * width); ++e)
          for (long long r = 0; r < height; ++r)
            for (long long c = 0; c < width; ++c) {
              const long long at = e * height * width + r * v.stride(last - 1) + c * v.stride(last);
              std::copy_n(bytes.begin() + at * static_cast<long long>(each), each,
                          row.begin() + ((e * height + r) * width + c) * static_cast<long long>(each));
            }
        bytes = row;
      }
      tensors.push_back({name, *type, {v.size, v.size + v.rank}, bytes});
    }
    result<safetensors_layout> layout = lay_out_safetensors(tensors, pt_metadata(), folder + "/model.safetensors");
    if (!layout) return layout.failure();
    const std::vector<std::byte> document = bytes_of(json_file(saved->document));
    std::vector<file_to_save> files{{"model.safetensors", layout->parts()}, {"config.json", {document}}};
    std::deque<std::vector<std::byte>> copies;
    for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                             "special_tokens_map.json", "chat_template.jinja", "hf_quant_config.json"}) {
      if (std::string_view(name).starts_with("hf_quant") && !any_quantized) continue;
      if (!exists(from + "/" + name)) continue;
      result<std::vector<std::byte>> copy = read_file(from + "/" + name);
      if (!copy) return copy.failure();
      files.push_back({name, {copies.emplace_back(std::move(*copy))}});
    }
    return save_folder(folder, files);
  });
}

}  // namespace graft::io::hf
#endif
