// SPDX-License-Identifier: Apache-2.0
// Writes a model as a GGUF file: tensors under ggml's names and with what converters change in them, and all metadata
// of the file that the model was loaded from, its tokenizer and chat template among them. Matrices keep the type they
// have, or become one of gguf/tensor_types.h.
//     auto merged = model.merged_weights(model.active(), merged_format::f32);
//     save_gguf("merged.gguf", *merged, "model.gguf", find_gguf_matrix_type("q8_0"));
#pragma once
#include <graft/io/gguf/model.h>
#include <graft/io/gguf/tensor_types.h>

namespace graft::io {

// `from` is the GGUF file that the model was loaded from. Without `as` tensors are written as they are stored.
GRAFT_LIBRARY status save_gguf(const std::string& file, const model_weights& weights, const std::string& from,
                               const gguf_matrix_type* as = nullptr);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/gguf/writer.h>

#include <algorithm>

namespace graft::io {

namespace detail {
// Permutes the rows of Q or K as converters do: row h * size / 2 + j of a head becomes row 2 j + h, for h = 0 and 1.
inline owned_bytes interleave_halves(const view& v, int heads) {
  const long long rows = v.size[0], size = rows / heads;
  const auto row_bytes = static_cast<std::size_t>(v.quant != nullptr ? quantized_bytes(v.quant->format, 1, v.size[1])
                                                                     : v.count() / rows * bits_of(v.type) / 8);
  std::vector<std::byte> to(static_cast<std::size_t>(rows) * row_bytes);
  const auto* const from = static_cast<const std::byte*>(v.data);
  for (long long r = 0; r < rows; ++r) {
    const long long in_head = r % size, target = r - in_head + in_head % (size / 2) * 2 + in_head / (size / 2);
    std::copy_n(from + static_cast<std::size_t>(r) * row_bytes, row_bytes,
                to.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(target) * row_bytes));
  }
  return make_owned_bytes(std::move(to));
}
inline owned_bytes plus_one(const view& v) {
  std::vector<float> to(static_cast<std::size_t>(v.count()));
  cpu::convert(v, to.data());
  for (float& w : to) w += 1;
  const auto bytes = std::as_bytes(std::span(to));
  return make_owned_bytes({bytes.begin(), bytes.end()});
}
// The rows of a tensor that RoPE rotates, in heads; 0 for all other tensors.
inline int heads_of(const model_config& c, std::string_view name) {
  if (name.find("self_attn.q_proj.") != name.npos) return c.heads;
  return name.find("self_attn.k_proj.") != name.npos ? c.kv_heads : 0;
}
struct gguf_tensor {
  std::string name, name_in_folder;
  view v;
  const void* position = nullptr;  // in the file that the model was loaded from; null where that has no such tensor
};
// All tensors in the order of the file that the model was loaded from; new ones come last.
inline result<std::vector<gguf_tensor>> gguf_tensors(const model_weights& weights, const gguf& from,
                                                     const gguf_family& family) {
  std::vector<gguf_tensor> all;
  for (const auto& [name, v] : weights.tensors) {
    const std::string to = name_in_gguf(family, name);
    if (to.empty()) return fail("tensor ", in_quotes(name), " has no name in GGUF files of ", family.name, " models");
    const auto at = from.tensors.find(to);
    all.push_back({to, name, v, at != from.tensors.end() ? at->second.data : nullptr});
  }
  if (const auto divisors = from.tensors.find("rope_freqs.weight"); divisors != from.tensors.end())
    all.push_back({divisors->first, divisors->first, divisors->second, divisors->second.data});
  std::stable_sort(all.begin(), all.end(), [](const gguf_tensor& a, const gguf_tensor& b) {
    return (a.position == nullptr) != (b.position == nullptr) ? b.position == nullptr
                                                              : std::less<>()(a.position, b.position);
  });
  return all;
}
}  // namespace detail

GRAFT_LIBRARY status save_gguf(const std::string& file, const model_weights& weights, const std::string& from,
                               const gguf_matrix_type* as) {
  if (is_directory(from))
    return fail_in(
        from,
        "this is a folder, and a GGUF file is written with the metadata and the tokenizer of one; convert the "
        "folder with llama.cpp's convert_hf_to_gguf.py and load that file");
  return guarded(file, [&]() -> status {
    const result<gguf> read = map_gguf(from);
    if (!read) return read.failure();
    const result<model_config> config = config_of(*read);
    if (!config) return config.failure();
    const detail::gguf_family* const family = detail::gguf_family_of(*config->family);
    result<std::vector<detail::gguf_tensor>> tensors = detail::gguf_tensors(weights, *read, *family);
    if (!tensors) return fail_in(file, tensors.message());
    gguf_writer to;
    for (const auto& [key, value] : read->metadata)
      if (key != "general.alignment" && !(as != nullptr && key == "general.file_type")) to.put(key, value);
    if (as != nullptr) {
      to.put("general.file_type", as->file_type);
      if (as->quant != nullptr && read->find_value("general.quantization_version") == nullptr)
        to.put("general.quantization_version", std::uint32_t{2});
    }
    std::vector<owned_bytes> copies;
    for (detail::gguf_tensor& t : *tensors) {
      const auto replace = [&](owned_bytes with) { t.v.data = copies.emplace_back(std::move(with)).all.data(); };
      const bool tied = !weights.tensors.contains("lm_head.weight");
      const gguf_matrix_type* const type = as != nullptr ? gguf_type_for(*as, t.name, t.v, tied) : nullptr;
      if (type != nullptr && (type->type != t.v.type || type->quant != t.v.quant)) {
        result<owned_bytes> converted = convert_tensor(t.v, *type, t.name);
        if (!converted) return fail_in(file, converted.message());
        replace(std::move(*converted));
        t.v.type = type->type, t.v.quant = type->quant;
      }
      const int heads = detail::heads_of(*config, t.name_in_folder);
      if (family->interleaves_heads && heads > 0) replace(detail::interleave_halves(t.v, heads));
      if (family->adds_one_to_norms && t.name_in_folder.ends_with("norm.weight")) replace(detail::plus_one(t.v));
      if (status s = to.add(t.name, t.v); !s) return fail_in(file, s.message());
    }
    return to.save(file);
  });
}

}  // namespace graft::io
#endif
