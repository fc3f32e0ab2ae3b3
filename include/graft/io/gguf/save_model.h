// SPDX-License-Identifier: Apache-2.0
// Writes a model as a GGUF file: tensors under ggml's names and with what converters change in them, and metadata.
// Those of a model from a GGUF file are the file's, its tokenizer and chat template among them; those of a model from a
// folder are made of its configuration and tokenizer (folder_metadata.h). Matrices keep the type they have, or become
// one of gguf/tensor_types.h.
//     auto merged = model.merged_weights(model.active(), merged_format::f32);
//     save_gguf("merged.gguf", *merged, "model.gguf", find_gguf_matrix_type("q8_0"));
#pragma once
#include <graft/io/gguf/model.h>
#include <graft/io/gguf/tensor_types.h>

namespace graft::io {

// `from` is the GGUF file or folder that the model was loaded from. Without `as` tensors are written as they are
// stored.
GRAFT_LIBRARY status save_gguf(const std::string& file, const model_weights& weights, const std::string& from,
                               const gguf_matrix_type* as = nullptr);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/gguf/folder_metadata.h>
#include <graft/io/gguf/writer.h>
#include <graft/io/hf/config.h>

#include <algorithm>
#include <filesystem>

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
struct named_view {
  std::string name;
  view v;
};
inline std::size_t stored_bytes(const view& v) {
  return static_cast<std::size_t>(v.quant != nullptr ? quantized_bytes(v) : v.count() * bits_of(v.type) / 8);
}
// A copy whose matrices are stored [out, in] of those that the model stores [in, out].
inline view transposed_copy(const view& v, std::vector<owned_bytes>& copies) {
  const std::size_t each = static_cast<std::size_t>(bits_of(v.type)) / 8;
  const long long stacked = v.rank == 3 ? v.size[0] : 1, rows = v.size[v.rank - 2], cols = v.size[v.rank - 1];
  std::vector<std::byte> to(stored_bytes(v));
  const auto* const from = static_cast<const std::byte*>(v.data);
  for (long long e = 0; e < stacked; ++e)
    for (long long r = 0; r < rows; ++r)
      for (long long c = 0; c < cols; ++c)
        std::copy_n(
            from + static_cast<std::size_t>((e * rows + r) * cols + c) * each, each,
            to.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>((e * cols + c) * rows + r) * each));
  copies.push_back(make_owned_bytes(std::move(to)));
  view t = v;
  t.data = copies.back().all.data(), t.size[v.rank - 2] = cols, t.size[v.rank - 1] = rows;
  return t;
}
// MXFP4 of folders, whose codes and scales are apart and whose bytes hold neighbors, as ggml's blocks.
inline view mxfp4_blocks(const view& v, std::vector<owned_bytes>& copies) {
  using of_ggml = quant_formats::mxfp4_block_format;
  const auto blocks = static_cast<std::size_t>(v.count() / 32);
  const auto* codes = static_cast<const unsigned char*>(v.data);
  const auto* const scales = static_cast<const unsigned char*>(v.quant->scales);
  std::vector<std::byte> to;
  to.reserve(17 * blocks);
  const auto code = [&](std::size_t i) { return codes[i / 2] >> (4 * (i % 2)) & 15; };
  for (std::size_t k = 0; k < blocks; ++k, codes += 16) {
    to.push_back(static_cast<std::byte>(scales[k]));
    for (std::size_t i = 0; i < 16; ++i) to.push_back(static_cast<std::byte>(code(i) | code(i + 16) << 4));
  }
  copies.push_back(make_owned_bytes(std::move(to)));
  view t = v;
  t.data = copies.back().all.data(), t.type = dtype::ggml, t.quant = &ggml_quant_state<of_ggml>();
  return t;
}
// The gates or the ups of experts, of a matrix or bias that holds both of every expert.
inline view half_of_experts(const view& v, bool ups, bool alternate, std::vector<owned_bytes>& copies) {
  const auto chunks = static_cast<std::size_t>(v.size[0] * (alternate ? v.size[1] : 2)),
             bytes = stored_bytes(v) / chunks;
  std::vector<std::byte> to;
  to.reserve(bytes * chunks / 2);
  for (std::size_t k = ups ? 1 : 0; k < chunks; k += 2) {
    const auto* const from = static_cast<const std::byte*>(v.data) + k * bytes;
    to.insert(to.end(), from, from + bytes);
  }
  copies.push_back(make_owned_bytes(std::move(to)));
  view half = v;
  half.data = copies.back().all.data(), half.size[1] /= 2;
  return half;
}
// A tensor of the model as the tensors that GGUF files have: matrices [out, in], gates and ups of experts apart.
inline std::vector<named_view> apart(const gguf_family& family, const model_config& c, const std::string& name,
                                     const view& stored, std::vector<owned_bytes>& copies) {
  view v = stored;
  const bool in_out = v.quant == nullptr && ((v.rank == 2 && stored_in_out(c) && is_in_layers(c, name)) ||
                                             (v.rank == 3 && experts_in_out(c)));
  if (in_out) v = transposed_copy(v, copies);
  if (v.quant != nullptr && v.quant->format == quant_formats::mxfp4_format::format()) v = mxfp4_blocks(v, copies);
  if (family.has_sinks && name.ends_with(".self_attn.sinks")) return {{name + ".weight", v}};
  if (!family.has_experts) return {{name, v}};
  if (name.ends_with("mlp.shared_expert_gate.weight") && v.rank == 2 && v.size[0] == 1) {
    v.rank = 1, v.size[0] = v.size[1], v.size[1] = 1;
    return {{name, v}};
  }
  const bool is_bias = name.ends_with("_proj_bias");
  if (v.rank != 3 && !is_bias) return {{name, v}};
  constexpr std::string_view bias = "_bias", both = "gate_up_proj";
  const std::string module = is_bias ? name.substr(0, name.size() - bias.size()) : name;
  const char* const kind = is_bias ? ".bias" : ".weight";
  if (!module.ends_with(both)) return {{module + kind, v}};
  const std::string path = module.substr(0, module.size() - both.size());
  std::vector<named_view> parts;
  for (const bool ups : {false, true})
    parts.push_back(
        {path + (ups ? "up_proj" : "gate_proj") + kind, half_of_experts(v, ups, family.experts_alternate, copies)});
  return parts;
}
// All tensors in the order of the file that the model was loaded from; new ones come last, by name. What is not written
// as the model has it is in `copies`.
inline result<std::vector<gguf_tensor>> gguf_tensors(const model_weights& weights, const model_config& c,
                                                     const gguf* from, const gguf_family& family,
                                                     std::vector<owned_bytes>& copies) {
  std::vector<gguf_tensor> all;
  for (const auto& [whole, tensor] : weights.tensors)
    for (const auto& [name, v] : apart(family, c, whole, tensor, copies)) {
      const std::string to = name_in_gguf(family, name);
      if (to.empty()) return fail("tensor ", in_quotes(name), " has no name in GGUF files of ", family.name, " models");
      const view* const stored =
          from != nullptr && from->tensors.contains(to) ? &from->tensors.find(to)->second : nullptr;
      all.push_back({to, name, v, stored != nullptr ? stored->data : nullptr});
    }
  if (from != nullptr)
    for (const char* name : {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
      if (const auto divisors = from->tensors.find(name); divisors != from->tensors.end())
        all.push_back({divisors->first, divisors->first, divisors->second, divisors->second.data});
  std::sort(all.begin(), all.end(), [](const gguf_tensor& a, const gguf_tensor& b) {
    if ((a.position == nullptr) != (b.position == nullptr)) return b.position == nullptr;
    return a.position == b.position ? a.name < b.name : std::less<>()(a.position, b.position);
  });
  return all;
}

// The memory of tensors that are not written as they are.
struct gguf_copies {
  std::vector<owned_bytes> all;
  void replace(view& v, owned_bytes with) { v.data = all.emplace_back(std::move(with)).all.data(); }
  status convert(gguf_tensor& t, const gguf_matrix_type& type) {
    if (type.type == t.v.type && type.quant == t.v.quant) return ok;
    result<owned_bytes> converted = convert_tensor(t.v, type, t.name);
    if (!converted) return converted.failure();
    replace(t.v, std::move(*converted));
    t.v.type = type.type, t.v.quant = type.quant;
    return ok;
  }
};
inline status add_gguf_tensors(gguf_writer& to, std::vector<gguf_tensor>& tensors, const model_config& c,
                               const gguf_family& family, const gguf_matrix_type* as, bool tied, gguf_copies& copies) {
  const gguf_model_facts facts{tied, c.layers, family.is_70b != nullptr && family.is_70b(c), c.experts};
  const gguf_matrix_type& plain = *find_gguf_matrix_type("f32");
  for (gguf_tensor& t : tensors) {
    const gguf_matrix_type* type = as != nullptr ? gguf_type_for(*as, t.name, t.v, facts) : nullptr;
    // llama.cpp adds and multiplies with vectors as floats; a file of its own has them so.
    if (type == nullptr && t.position == nullptr && t.v.rank < 2) type = &plain;
    if (type != nullptr)
      if (status s = copies.convert(t, *type); !s) return s;
    const int heads = heads_of(c, t.name_in_folder);
    if (family.interleaves_heads && heads > 0) copies.replace(t.v, interleave_halves(t.v, heads));
    if (family.adds_one_to_norms && t.name_in_folder.ends_with("norm.weight")) copies.replace(t.v, plus_one(t.v));
    if (status s = to.add(t.name, t.v); !s) return s;
  }
  return ok;
}
}  // namespace detail

namespace detail {
inline status save_gguf_like(const std::string& file, const model_weights& weights, const std::string& from,
                             const gguf_matrix_type* as) {
  const result<gguf> read = map_gguf(from);
  if (!read) return read.failure();
  const result<model_config> config = config_of(*read);
  if (!config) return config.failure();
  const gguf_family& family = *gguf_family_of(*config->family);
  gguf_copies copies;
  result<std::vector<gguf_tensor>> tensors = gguf_tensors(weights, *config, &*read, family, copies.all);
  if (!tensors) return fail_in(file, tensors.message());
  gguf_writer to;
  for (const auto& [key, value] : read->metadata)
    if (key != "general.alignment" && !(as != nullptr && key == "general.file_type")) to.put(key, value);
  if (as != nullptr) {
    to.put("general.file_type", as->file_type);
    if (as->quant != nullptr && read->find_value("general.quantization_version") == nullptr)
      to.put("general.quantization_version", std::uint32_t{2});
  }
  const bool tied = !weights.tensors.contains("lm_head.weight");
  if (status s = add_gguf_tensors(to, *tensors, *config, family, as, tied, copies); !s)
    return fail_in(file, s.message());
  return to.save(file);
}
// The type of most matrices of a folder.
inline std::uint32_t file_type_of(const model_weights& weights) {
  std::uint32_t type = 0;
  for (const auto& [name, v] : weights.tensors)
    if (v.rank >= 2) type = v.type == dtype::f16 ? 1 : v.type == dtype::bf16 ? 32 : 0;
  return type;
}
inline status save_gguf_of_folder(const std::string& file, const model_weights& weights, const std::string& folder,
                                  const gguf_matrix_type* as) {
  const result<model_config> config = hf::read_config(folder);
  if (!config) return config.failure();
  gguf_writer to;
  gguf_rope_tensors divisors;
  if (status s = put_folder_metadata(to, folder, *config, divisors); !s) return s;
  to.put("general.file_type", as != nullptr ? as->file_type : file_type_of(weights));
  if (as != nullptr && as->quant != nullptr) to.put("general.quantization_version", std::uint32_t{2});
  const gguf_family& family = *gguf_family_of(*config->family);
  gguf_copies copies;
  result<std::vector<gguf_tensor>> tensors = gguf_tensors(weights, *config, nullptr, family, copies.all);
  if (!tensors) return fail_in(file, tensors.message());
  for (const auto& [name, values] : divisors)
    tensors->push_back({name, name, view_of(values.data(), static_cast<long long>(values.size()))});
  if (config->tied) std::erase_if(*tensors, [](const gguf_tensor& t) { return t.name == "output.weight"; });
  if (status s = add_gguf_tensors(to, *tensors, *config, family, as, config->tied, copies); !s)
    return fail_in(file, s.message());
  // What the keys of GGUF files cannot say is noticed before the file has its name.
  const std::string unchecked = temporary_name(file);
  status s = to.save(unchecked);
  if (s) s = check_against_folder(unchecked, folder, *config);
  std::error_code failed;
  if (s) std::filesystem::rename(unchecked, file, failed);
  if (s && failed) s = fail_in(file, "the file cannot be written: ", failed.message().c_str());
  if (!s) std::filesystem::remove(unchecked, failed);
  return s;
}
}  // namespace detail

GRAFT_LIBRARY status save_gguf(const std::string& file, const model_weights& weights, const std::string& from,
                               const gguf_matrix_type* as) {
  return guarded(file, [&] {
    return is_directory(from) ? detail::save_gguf_of_folder(file, weights, from, as)
                              : detail::save_gguf_like(file, weights, from, as);
  });
}

}  // namespace graft::io
#endif
