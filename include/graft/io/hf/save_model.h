// SPDX-License-Identifier: Apache-2.0
// A model as a Hugging Face folder, whole or not at all: model.safetensors with the weights as they are stored, codes as
// bitsandbytes has them, and of the folder it was read from config.json, generation_config.json and the files of the
// tokenizer.
#pragma once
#include <graft/io/hf/load_model.h>

namespace graft::io::hf {

// `from`: the folder that the model was read from.
GRAFT_LIBRARY status save_model(const std::string& folder, const model_weights& weights, const std::string& from);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/bitsandbytes_write.h>
#include <graft/io/folder_write.h>
#include <graft/io/hf/saved_config.h>
#include <graft/io/safetensors_write.h>
#include <graft/io/tensor_bind.h>

#include <deque>

namespace graft::io::hf {

inline std::optional<safetensors_type> stored_as(dtype type) {
  for (const safetensors_type t : {safetensors_type::f32, safetensors_type::f64, safetensors_type::f16,
                                   safetensors_type::bf16, safetensors_type::i64})
    if (computed_as(t) == type) return t;
  return std::nullopt;
}

inline std::vector<std::byte> bytes_of(std::string_view s) {
  const auto all = std::as_bytes(std::span(s.data(), s.size()));
  return {all.begin(), all.end()};
}

// torch's name for the numbers of a model; transformers wrote it as torch_dtype before.
inline std::string dtype_in(const json& config) {
  for (const char* key : {"dtype", "torch_dtype"})
    if (const json* said = config.find(key); said != nullptr && said->is_word()) return said->word;
  return "float32";
}
GRAFT_LIBRARY status save_model(const std::string& folder, const model_weights& weights, const std::string& from) {
  return guarded(folder, [&]() -> status {
    std::vector<tensor_view> tensors;
    std::deque<std::vector<std::byte>> turned;
    result<json> read = read_json(from + "/config.json");
    if (!read) return read.failure();
    const result<model_config> config = read_config(from);
    if (!config) return config.failure();
    result<saved_config> saved = config_for(std::move(*read), *config, weights, folder);
    if (!saved) return saved.failure();
    coded_writer codes(dtype_in(saved->said));
    for (const auto& [name, given] : weights.tensors) {
      const bool turns = saved->turned && given.rank == 2 && name.find(".h.") != name.npos;
      const view v = turns ? given.transposed() : given;
      if (v.beside != nullptr) {
        if (!config->coded)
          return fail_in(folder, "tensor ", in_quotes(name), " is codes, and ", in_quotes(from + "/config.json"),
                         " has no quantization_config; merge the model to numbers first");
        if (status s = codes.add(name, v, tensors); !s) return s;
        continue;
      }
      const std::optional<safetensors_type> type = stored_as(v.type);
      if (!type) return fail_in(folder, "tensor ", in_quotes(name), " has a type that no file of this kind holds");
      const std::size_t each = static_cast<std::size_t>(bits_of(v.type)) / 8;
      auto bytes = std::span(static_cast<const std::byte*>(v.data), static_cast<std::size_t>(v.count()) * each);
      if (!v.contiguous()) {  // GPT-2's weights, merged or no codes any more: row after row again
        std::vector<std::byte>& row = turned.emplace_back(bytes.size());
        for (long long r = 0; r < v.size[0]; ++r)
          for (long long c = 0; c < v.size[1]; ++c)
            std::copy_n(bytes.begin() + (r * v.stride(0) + c * v.stride(1)) * static_cast<long long>(each), each,
                        row.begin() + (r * v.size[1] + c) * static_cast<long long>(each));
        bytes = row;
      }
      tensors.push_back({name, *type, {v.size, v.size + v.rank}, bytes});
    }
    result<safetensors_layout> layout = lay_out_safetensors(tensors, pt_metadata(), folder + "/model.safetensors");
    if (!layout) return layout.failure();
    const std::vector<std::byte> said = bytes_of(json_file(saved->said));
    std::vector<file_to_save> files{{"model.safetensors", layout->parts()}, {"config.json", {said}}};
    std::deque<std::vector<std::byte>> copies;
    for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                             "special_tokens_map.json", "chat_template.jinja"}) {
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
