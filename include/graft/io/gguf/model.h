// SPDX-License-Identifier: Apache-2.0
// Loads a model from a GGUF file, without its tokenizer: metadata become a model_config (config.h), and tensors get the
// names that they have in Hugging Face files. Two things that convert_hf_to_gguf.py changes are copied back: it
// permutes the rows of Q and K of some families so that RoPE rotates neighboring pairs instead of halves of a head, and
// it adds 1 to the weights of Gemma's norms. All other tensors are views into the mapped file.
#pragma once
#include <graft/io/gguf/config.h>
#include <graft/io/hf/load_model.h>

namespace graft::io {

GRAFT_LIBRARY result<model_weights> weights_of(gguf from, const model_config& c);
GRAFT_LIBRARY result<hf::model_files> open_gguf_model(const std::string& file);

template <class Engine>
result<causal_lm<Engine>> load_gguf(const std::string& file, const model_options& options = {}) {
  result<hf::model_files> opened = open_gguf_model(file);
  if (!opened) return opened.failure();
  return guarded(file, [&]() -> result<causal_lm<Engine>> {
    result<causal_lm<Engine>> made = causal_lm<Engine>::make(opened->config, std::move(opened->weights), options);
    if (!made) return fail_in(file, made.message());
    return made;
  });
}

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/hf/tensor_names.h>

namespace graft::io {

namespace detail {
// Undoes the RoPE permutation of Q or K: row 2 j + h of a head becomes row h * size / 2 + j, for h = 0 and 1.
inline owned_bytes deinterleave_halves(const view& v, int heads) {
  const long long rows = v.size[0], size = rows / heads;
  const auto row_bytes = static_cast<std::size_t>(v.quant != nullptr ? quantized_bytes(v.quant->format, 1, v.size[1])
                                                                     : v.count() / rows * bits_of(v.type) / 8);
  std::vector<std::byte> to(static_cast<std::size_t>(rows) * row_bytes);
  const auto* const from = static_cast<const std::byte*>(v.data);
  for (long long r = 0; r < rows; ++r) {
    const long long in_head = r % size, target = r - in_head + in_head % 2 * (size / 2) + in_head / 2;
    std::copy_n(from + static_cast<std::size_t>(r) * row_bytes, row_bytes,
                to.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(target) * row_bytes));
  }
  return make_owned_bytes(std::move(to));
}
// The weight of a norm less 1, as Gemma's Hugging Face files store it.
inline owned_bytes less_one(const view& v) {
  std::vector<std::byte> to(static_cast<std::size_t>(v.count()) * sizeof(float));
  const auto* const from = static_cast<const std::byte*>(v.data);
  for (std::size_t at = 0; at < to.size(); at += sizeof(float)) {
    float w = 0;
    std::memcpy(&w, from + at, sizeof w);
    w -= 1;
    std::memcpy(to.data() + at, &w, sizeof w);
  }
  return make_owned_bytes(std::move(to));
}
// One matrix (or bias) of every expert after another: of each expert the rows of `gates`, then those of `ups`, or in
// turns.
inline result<view> stack_gates_and_ups(const std::string& file, const std::string& module, const view& gates,
                                        const view& ups, bool alternate, std::vector<owned_bytes>& copies) {
  const bool fits = gates.rank >= 2 && gates.rank <= 3 && ups.rank == gates.rank && gates.type == ups.type &&
                    gates.quant == ups.quant && std::equal(gates.size, gates.size + 3, ups.size);
  if (!fits)
    return fail_in(file, "the gates and the ups of ", in_quotes(module),
                   " are not tensors of three axes with the same type and sizes, expected [experts, rows, columns]; "
                   "quantize both to one type");
  const auto chunks = static_cast<std::size_t>(gates.size[0] * (alternate ? gates.size[1] : 1));
  const auto bytes = static_cast<std::size_t>(gates.quant != nullptr ? quantized_bytes(gates)
                                                                     : gates.count() * bits_of(gates.type) / 8) /
                     chunks;
  std::vector<std::byte> to;
  to.reserve(2 * bytes * chunks);
  for (std::size_t k = 0; k < chunks; ++k)
    for (const view* part : {&gates, &ups}) {
      const auto* const from = static_cast<const std::byte*>(part->data) + k * bytes;
      to.insert(to.end(), from, from + bytes);
    }
  copies.push_back(make_owned_bytes(std::move(to)));
  view both = gates;
  both.data = copies.back().all.data(), both.size[1] *= 2;
  return both;
}
// Models have the weights of experts as parameters, gates and ups in one, and so their biases.
inline status join_experts(const std::string& file, bool alternate, model_weights& w,
                           std::vector<owned_bytes>& copies) {
  std::vector<std::string> names;
  for (const auto& [name, v] : w.tensors) names.push_back(name);
  for (const auto& [kind, ending] : {std::pair<std::string, const char*>{".weight", ""}, {".bias", "_bias"}}) {
    const std::string gate = ".experts.gate_proj" + kind, up = ".experts.up_proj" + kind,
                      down = ".experts.down_proj" + kind;
    for (const std::string& name : names) {
      const auto module = [&](const std::string& end) { return name.substr(0, name.size() - end.size()) + ".experts"; };
      if (name.ends_with(down)) {
        w.tensors[module(down) + ".down_proj" + ending] = w.tensors.at(name);
        w.tensors.erase(name);
      } else if (name.ends_with(gate)) {
        const auto ups = w.tensors.find(module(gate) + ".up_proj" + kind);
        if (ups == w.tensors.end()) return fail_in(file, in_quotes(module(gate)), " has gates and no ups");
        const result<view> both =
            stack_gates_and_ups(file, module(gate), w.tensors.at(name), ups->second, alternate, copies);
        if (!both) return both.failure();
        w.tensors[module(gate) + ".gate_up_proj" + ending] = *both;
        w.tensors.erase(ups), w.tensors.erase(name);
      } else if (name.ends_with(up) && !w.tensors.contains(module(up) + ".gate_up_proj" + ending) &&
                 !w.tensors.contains(module(up) + ".gate_proj" + kind)) {
        return fail_in(file, in_quotes(module(up)), " has ups and no gates");
      }
    }
  }
  return ok;
}
}  // namespace detail

GRAFT_LIBRARY result<model_weights> weights_of(gguf from, const model_config& c) {
  struct files {
    gguf tensors;
    std::vector<owned_bytes> copies;
  };
  auto shared_files = std::make_shared<files>(files{std::move(from), {}});
  const gguf& in = shared_files->tensors;
  model_weights out;
  const detail::gguf_family* const family = detail::gguf_family_of(*c.family);
  if (family == nullptr) return fail_in(in.file, "no GGUF files of ", c.family->name, " models are read");
  for (const auto& [name, stored] : in.tensors) {
    // The configuration has the divisors of RoPE's frequencies.
    const bool is_longrope = c.rope.kind == rope_kind::longrope && name.starts_with("rope_factors_");
    if (name == "rope_freqs.weight" || is_longrope) continue;
    std::string to = detail::name_in_folder(*family, name);
    if (to.empty()) return fail_in(in.file, "tensor ", in_quotes(name), " is not part of a ", c.family->name, " model");
    if (constexpr std::string_view kind = ".weight"; family->has_sinks && to.ends_with(".self_attn.sinks.weight"))
      to.resize(to.size() - kind.size());
    view v = stored;
    const bool query = to.find("self_attn.q_proj.") != to.npos, key = to.find("self_attn.k_proj.") != to.npos;
    if (family->interleaves_heads && (query || key)) {
      const int heads = query ? c.heads : c.kv_heads;
      if (v.size[0] != static_cast<long long>(heads) * c.head_dim)
        return fail_in(in.file, "tensor ", in_quotes(name), " has ", v.size[0], " rows, expected ", heads, " heads of ",
                       c.head_dim);
      shared_files->copies.push_back(detail::deinterleave_halves(v, heads));
      v.data = shared_files->copies.back().all.data();
    }
    if (family->adds_one_to_norms && to.ends_with("norm.weight")) {
      if (v.type != dtype::f32)
        return fail_in(in.file, "tensor ", in_quotes(name), " is stored as ", name_of(v.type), ", expected F32");
      shared_files->copies.push_back(detail::less_one(v));
      v.data = shared_files->copies.back().all.data();
    }
    if (family->has_experts && to.ends_with("mlp.shared_expert_gate.weight") && v.rank == 1)
      v.rank = 2, v.size[1] = v.size[0], v.size[0] = 1;  // ggml drops axes of one row
    out.tensors[to] = v;
  }
  if (family->has_experts)
    if (status s = detail::join_experts(in.file, family->experts_alternate, out, shared_files->copies); !s)
      return s.failure();
  out.owner = std::move(shared_files);
  return out;
}

GRAFT_LIBRARY result<hf::model_files> open_gguf_model(const std::string& file) {
  return guarded(file, [&]() -> result<hf::model_files> {
    result<gguf> in = map_gguf(file);
    if (!in) return in.failure();
    result<model_config> config = config_of(*in);
    if (!config) return config.failure();
    result<model_weights> weights = weights_of(std::move(*in), *config);
    if (!weights) return weights.failure();
    if (status s = hf::check_names(*config, *weights, file); !s) return s.failure();
    return hf::model_files{*config, std::move(*weights)};
  });
}

}  // namespace graft::io
#endif
