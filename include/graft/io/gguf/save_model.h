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
// A tensor of the model as the tensors that files of a family with experts have: gates and ups apart, in `copies`.
inline std::vector<named_view> apart(const gguf_family& family, const std::string& name, const view& v,
                                     std::vector<owned_bytes>& copies) {
  constexpr std::string_view both = "gate_up_proj";
  if (!family.has_experts) return {{name, v}};
  if (name.ends_with("mlp.shared_expert_gate.weight") && v.rank == 2 && v.size[0] == 1) {
    view row = v;
    row.rank = 1, row.size[0] = v.size[1], row.size[1] = 1;
    return {{name, row}};
  }
  if (v.rank != 3) return {{name, v}};
  if (!name.ends_with(both)) return {{name + ".weight", v}};
  const long long bytes = (v.quant != nullptr ? quantized_bytes(v) : v.count() * bits_of(v.type) / 8) / (2 * v.size[0]);
  std::vector<named_view> parts;
  for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
    std::vector<std::byte> to;
    for (long long e = 0; e < v.size[0]; ++e) {
      const auto* const from = static_cast<const std::byte*>(v.data) + (2 * e + (part[0] == 'u' ? 1 : 0)) * bytes;
      to.insert(to.end(), from, from + bytes);
    }
    copies.push_back(make_owned_bytes(std::move(to)));
    view half = v;
    half.data = copies.back().all.data(), half.size[1] /= 2;
    parts.push_back({name.substr(0, name.size() - both.size()) + part, half});
  }
  return parts;
}
// All tensors in the order of the file that the model was loaded from; new ones come last, by name. What is not written
// as the model has it is in `copies`.
inline result<std::vector<gguf_tensor>> gguf_tensors(const model_weights& weights, const gguf* from,
                                                     const gguf_family& family, std::vector<owned_bytes>& copies) {
  std::vector<gguf_tensor> all;
  for (const auto& [whole, tensor] : weights.tensors)
    for (const auto& [name, v] : apart(family, whole, tensor, copies)) {
      const std::string to = name_in_gguf(family, name);
      if (to.empty()) return fail("tensor ", in_quotes(name), " has no name in GGUF files of ", family.name, " models");
      const view* const stored =
          from != nullptr && from->tensors.contains(to) ? &from->tensors.find(to)->second : nullptr;
      all.push_back({to, name, v, stored != nullptr ? stored->data : nullptr});
    }
  if (from != nullptr)
    if (const auto divisors = from->tensors.find("rope_freqs.weight"); divisors != from->tensors.end())
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
  // llama.cpp tells its type 70B from 65B and others by the layers.
  const gguf_model_facts facts{
      tied, c.layers,
      c.layers == 80 && (c.family == &families::qwen2 || (family.family == &families::llama && c.heads != c.kv_heads)),
      c.experts};
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
  result<std::vector<gguf_tensor>> tensors = gguf_tensors(weights, &*read, family, copies.all);
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
  std::vector<float> rope_divisors;
  if (status s = put_folder_metadata(to, folder, *config, rope_divisors); !s) return s;
  to.put("general.file_type", as != nullptr ? as->file_type : file_type_of(weights));
  if (as != nullptr && as->quant != nullptr) to.put("general.quantization_version", std::uint32_t{2});
  const gguf_family& family = *gguf_family_for(*config);
  gguf_copies copies;
  result<std::vector<gguf_tensor>> tensors = gguf_tensors(weights, nullptr, family, copies.all);
  if (!tensors) return fail_in(file, tensors.message());
  if (!rope_divisors.empty())
    tensors->push_back({"rope_freqs.weight", "rope_freqs.weight",
                        view_of(rope_divisors.data(), static_cast<long long>(rope_divisors.size()))});
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
