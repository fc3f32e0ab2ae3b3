// SPDX-License-Identifier: Apache-2.0
// Types that the matrices of a GGUF file are written in, and how a tensor becomes one of them. As in llama.cpp's
// llama_tensor_get_type, vectors stay as they are, the head of a file in 4 to 6 bits is Q6_K, and a matrix whose rows
// are no whole blocks of 256 has a type in blocks of 32 instead. The mixtures Q4_K_S, Q4_K_M and Q5_K_M give some
// layers more bits by llama.cpp's rule; q4_k and q5_k, as all other names, give every layer the same.
#pragma once
#include <graft/core/library.h>
#include <graft/core/quant_formats.h>
#include <graft/io/mapped_file.h>

#include <string>
#include <string_view>

namespace graft::io {

enum class gguf_mixture : unsigned char { none, q4_k_s, q4_k_m, q5_k_m };

struct gguf_matrix_type {
  const char* name;
  dtype type;                     // ggml: blocks of the format
  const quant_state* quant;       // null for plain numbers
  std::uint32_t file_type;        // general.file_type of a file of it (enum llama_ftype)
  const char* otherwise = "f16";  // for rows that are no whole blocks
  gguf_mixture mixture = gguf_mixture::none;
};
// What the type of a tensor depends on apart from its name and shape.
struct gguf_model_facts {
  bool tied = false;
  int layers = 0;
  // Llama.cpp's 70B rule: with eight query heads per KV head the value projection is stored in more bits.
  bool shares_values = false;
  // Experts per layer; with eight, attention is a small part of the weights and is stored in more bits.
  int experts = 0;
};
// Null for a name that is not in the list.
GRAFT_LIBRARY const gguf_matrix_type* find_gguf_matrix_type(std::string_view name);
GRAFT_LIBRARY text gguf_matrix_type_names();

// The type of one tensor of a file whose matrices have type `as`; null for a tensor that stays as it is.
GRAFT_LIBRARY const gguf_matrix_type* gguf_type_for(const gguf_matrix_type& as, std::string_view tensor, const view& v,
                                                    const gguf_model_facts& of);
// Converts row by row; an element that the type cannot hold is an error.
GRAFT_LIBRARY result<owned_bytes> convert_tensor(const view& from, const gguf_matrix_type& to, std::string_view name);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/backend/cpu/runtime/convert.h>
#include <graft/backend/cpu/runtime/threads.h>
#include <graft/io/gguf/reader.h>

#include <atomic>
#include <cmath>

namespace graft::io {

namespace detail {
template <class Format> gguf_matrix_type in_blocks(std::uint32_t file_type, const char* otherwise = "f16") {
  return {Format::name, dtype::ggml, &ggml_quant_state<Format>(), file_type, otherwise};
}
template <class Format>
gguf_matrix_type as_mixture(const char* name, std::uint32_t file_type, const char* otherwise, gguf_mixture mixture) {
  return {name, dtype::ggml, &ggml_quant_state<Format>(), file_type, otherwise, mixture};
}
inline const std::vector<gguf_matrix_type>& gguf_matrix_types() {
  using namespace quant_formats;
  static const std::vector<gguf_matrix_type> all{{"f32", dtype::f32, nullptr, 0},
                                                 {"f16", dtype::f16, nullptr, 1},
                                                 {"bf16", dtype::bf16, nullptr, 32},
                                                 in_blocks<q8_0_format>(7),
                                                 in_blocks<q4_0_format>(2),
                                                 in_blocks<q4_1_format>(3),
                                                 in_blocks<q5_0_format>(8),
                                                 in_blocks<q5_1_format>(9),
                                                 in_blocks<q4_k_format>(14, "q5_0"),
                                                 in_blocks<q5_k_format>(16, "q5_1"),
                                                 in_blocks<q6_k_format>(18, "q8_0"),
                                                 as_mixture<q4_k_format>("q4_k_s", 14, "q5_0", gguf_mixture::q4_k_s),
                                                 as_mixture<q4_k_format>("q4_k_m", 15, "q5_0", gguf_mixture::q4_k_m),
                                                 as_mixture<q5_k_format>("q5_k_m", 17, "q5_1", gguf_mixture::q5_k_m)};
  return all;
}
// The type that a mixture gives a tensor of a layer instead of its own; null: its own. Values and the down projection
// of the MLP lose most by few bits, so the first and last eighth of the layers and every third between store them in
// Q6_K.
inline const char* type_in_mixture(gguf_mixture mixture, std::string_view tensor, const gguf_model_facts& of) {
  const bool values = tensor.ends_with(".attn_v.weight") || tensor.ends_with(".attn_qkv.weight"),
             // Down projection of the MLP, of experts or of shared experts.
      down = tensor.find(".ffn_down") != tensor.npos;
  int layer = 0;
  if (mixture == gguf_mixture::none || !tensor.starts_with("blk.")) return nullptr;
  if (of.experts == 8) {
    if (values || tensor.ends_with(".attn_k.weight")) return "q8_0";
    if (tensor.ends_with(".attn_output.weight") && mixture != gguf_mixture::q5_k_m) return "q5_k";
  }
  if (!(values || down)) return nullptr;
  for (const char digit : tensor.substr(4, tensor.find('.', 4) - 4)) layer = 10 * layer + (digit - '0');
  const int eighth = of.layers / 8;
  const bool more = layer < eighth || layer >= 7 * of.layers / 8 || (layer - eighth) % 3 == 2;
  switch (mixture) {
    case gguf_mixture::none: return nullptr;
    case gguf_mixture::q4_k_s: return layer < (values ? 4 : eighth) || (values && of.shares_values) ? "q5_k" : nullptr;
    case gguf_mixture::q4_k_m: return more ? "q6_k" : values && of.shares_values ? "q5_k" : nullptr;
    case gguf_mixture::q5_k_m: return more ? "q6_k" : nullptr;
  }
  return nullptr;
}
// False for a number that the type cannot hold.
inline bool store_row(const float* from, long long n, const gguf_matrix_type& type, std::byte* to) {
  const auto all = [&](auto holds) { return std::all_of(from, from + n, holds); };
  if (!all([](float x) { return std::isfinite(x); })) return false;
  if (type.quant == nullptr) {
    cpu::convert_to(from, n, to, type.type, 0);
    return type.type != dtype::f16 || all([](float x) { return std::abs(x) < 65520; });
  }
  bool good = true;
  quant_formats::ggml_formats::visit(type.quant->format, [&](auto f) {
    using format = decltype(f);
    if constexpr (quant_formats::quantizable<format>)
      for (long long b = 0; b < n / format::block; ++b) {
        auto* const block = reinterpret_cast<unsigned char*>(to) + b * format::bytes;
        format::quantize(from + b * format::block, block);
        const quant_formats::affine scale = format::block_scale(block);
        good = good && std::isfinite(scale.scale) && std::isfinite(scale.minimum);
      }
  });
  return good;
}
}  // namespace detail

GRAFT_LIBRARY const gguf_matrix_type* find_gguf_matrix_type(std::string_view name) {
  for (const gguf_matrix_type& t : detail::gguf_matrix_types())
    if (name == t.name) return &t;
  return nullptr;
}
GRAFT_LIBRARY text gguf_matrix_type_names() {
  text all;
  for (const gguf_matrix_type& t : detail::gguf_matrix_types()) all << (all.empty() ? "" : ", ") << t.name;
  return all;
}

GRAFT_LIBRARY const gguf_matrix_type* gguf_type_for(const gguf_matrix_type& as, std::string_view tensor, const view& v,
                                                    const gguf_model_facts& of) {
  // llama.cpp computes with positions and routers as floats.
  if (v.rank < 2 || tensor == "position_embd.weight" || tensor.ends_with(".ffn_gate_inp.weight")) return nullptr;
  const gguf_matrix_type* type = &as;
  if (const char* other = detail::type_in_mixture(as.mixture, tensor, of)) type = find_gguf_matrix_type(other);
  const bool head = tensor == "output.weight" || (of.tied && tensor == "token_embd.weight");
  if (head && as.quant != nullptr && as.quant->format != quant_formats::q8_0_format::format())
    type = find_gguf_matrix_type("q6_k");
  while (type->quant != nullptr && v.size[v.rank - 1] % type->quant->format.block != 0)
    type = find_gguf_matrix_type(type->otherwise);
  return type;
}

GRAFT_LIBRARY result<owned_bytes> convert_tensor(const view& from, const gguf_matrix_type& to, std::string_view name) {
  const long long n = from.size[from.rank - 1], rows = from.count() / n;
  const auto row_bytes = static_cast<std::size_t>(to.quant != nullptr ? quantized_bytes(to.quant->format, 1, n)
                                                                      : n * bits_of(to.type) / 8);
  if (!from.contiguous() || (from.quant == nullptr && !is_floating(from.type)))
    return fail("tensor ", in_quotes(name), " is stored as ", name_of(from.type), " and is not converted");
  std::vector<std::byte> out(row_bytes * static_cast<std::size_t>(rows));
  std::atomic<bool> good{true};
  cpu::parallel_for(rows, from.count(), [&](long long first, long long end) {
    std::vector<float> row(static_cast<std::size_t>(n));
    for (long long r = first; r < end; ++r) {
      cpu::convert(weight_of(from, rows, n), r, 1, row.data());
      if (!detail::store_row(row.data(), n, to, out.data() + static_cast<std::size_t>(r) * row_bytes)) good = false;
    }
  });
  if (!good) return fail("tensor ", in_quotes(name), " has a number that ", to.name, " cannot hold");
  return make_owned_bytes(std::move(out));
}

}  // namespace graft::io
#endif
