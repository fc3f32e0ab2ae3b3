// SPDX-License-Identifier: Apache-2.0
// The weights of experts in files. Models hold them stacked, as transformers 5 has them in memory:
//     X.mlp.experts.gate_up_proj [experts, 2 I, hidden], the gates first   X.mlp.experts.down_proj [experts, hidden, I]
// Files of Mixtral and Qwen have three tensors per expert instead, which are copied into the stacks while loading, and
// Mixtral calls the layer block_sparse_moe (transformers, conversion_mapping.py):
//     X.block_sparse_moe.experts.E.w1, w3, w2 .weight          X.mlp.experts.E.gate_proj, up_proj, down_proj .weight
#pragma once
#include <graft/io/error_text.h>
#include <graft/model/block_stack.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>

namespace graft::io::hf {

namespace detail {

inline constexpr std::string_view mixtral_part = ".block_sparse_moe.", usual_part = ".mlp.";

// The name of a tensor in the model: Mixtral's layer is called as that of the other families.
inline std::string usual_name(const std::string& name) {
  const std::size_t at = name.find(mixtral_part);
  return at == name.npos ? name : name.substr(0, at) + std::string(usual_part) + name.substr(at + mixtral_part.size());
}

// One tensor of one expert: X.mlp.experts.3.gate_proj.weight.
struct expert_tensor {
  std::string module;  // X.mlp.experts
  long long number = -1;
  int part = -1;  // 0: gate, 1: up, 2: down
};
inline expert_tensor expert_tensor_of(const std::string& name) {
  constexpr std::string_view before = ".mlp.experts.";
  const std::size_t at = name.find(before);
  if (at == name.npos) return {};
  expert_tensor e{name.substr(0, at + before.size() - 1)};
  std::size_t k = at + before.size();
  const std::size_t digits = k;
  long long number = 0;
  for (; k < name.size() && name[k] >= '0' && name[k] <= '9' && number < 1'000'000; ++k)
    number = number * 10 + (name[k] - '0');
  if (k == digits || k >= name.size() || name[k] != '.') return {};
  constexpr std::pair<std::string_view, int> parts[] = {{".w1.weight", 0},      {".w3.weight", 1},
                                                        {".w2.weight", 2},      {".gate_proj.weight", 0},
                                                        {".up_proj.weight", 1}, {".down_proj.weight", 2}};
  for (const auto& [word, part] : parts)
    if (std::string_view(name).substr(k) == word) e.part = part, e.number = number;
  return e.part < 0 ? expert_tensor{} : e;
}

}  // namespace detail

// Replaces the tensors of single experts by stacks, which the weights then own.
inline status stack_experts(model_weights& w, const std::string& folder) {
  struct layer {
    std::map<long long, view> parts[3];
  };
  std::map<std::string, layer> layers;
  for (auto at = w.tensors.begin(); at != w.tensors.end();) {
    const std::string usual = detail::usual_name(at->first);
    const detail::expert_tensor e = detail::expert_tensor_of(usual);
    if (e.part >= 0) {
      if (at->second.quant != nullptr || !is_floating(at->second.type))
        return fail_in(folder, "tensor ", in_quotes(at->first),
                       " is quantized; experts are read in 16 and 32 bits only");
      layers[e.module].parts[e.part][e.number] = at->second;
    } else if (usual != at->first) {
      w.tensors[usual] = at->second;
    } else {
      ++at;
      continue;
    }
    at = w.tensors.erase(at);
  }
  if (layers.empty()) return ok;
  struct stacks {
    std::shared_ptr<const void> files;
    std::deque<std::vector<std::byte>> tensors;
  };
  auto memory = std::make_shared<stacks>();
  memory->files = w.owner;
  for (const auto& layer : layers) {  // clang 14 captures no structured bindings
    const std::string& module = layer.first;
    const auto& l = layer.second;
    const auto count = static_cast<long long>(l.parts[0].size());
    const auto complete = [&](const std::map<long long, view>& part) {
      return !part.empty() && static_cast<long long>(part.size()) == count && part.rbegin()->first == count - 1;
    };
    for (const auto& part : l.parts)
      if (!complete(part))
        return fail_in(folder, in_quotes(module), " does not have gate, up and down of every expert from 0 to ",
                       count - 1);
    const view &gate = l.parts[0].begin()->second, &down = l.parts[2].begin()->second;
    for (const int part : {0, 1, 2})
      for (const auto& [number, v] : l.parts[part]) {
        const view& like = part == 2 ? down : gate;
        if (v.rank == 2 && v.contiguous() && v.type == like.type && v.size[0] == like.size[0] &&
            v.size[1] == like.size[1])
          continue;
        return fail_in(folder, "the tensors of expert ", number, " of ", in_quotes(module),
                       " are not of the type and shape of those of expert 0");
      }
    const auto stack = [&](const char* name, std::initializer_list<int> parts, const view& like) {
      const auto each = static_cast<std::size_t>(like.count() * bits_of(like.type) / 8);
      std::vector<std::byte>& bytes =
          memory->tensors.emplace_back(each * parts.size() * static_cast<std::size_t>(count));
      std::byte* to = bytes.data();
      for (long long e = 0; e < count; ++e)
        for (const int part : parts) std::memcpy(to, l.parts[part].at(e).data, each), to += each;
      w.tensors[module + "." + name] = view{
          bytes.data(), like.type, {count, static_cast<long long>(parts.size()) * like.size[0], like.size[1], 1}, 3};
    };
    stack("gate_up_proj", {0, 1}, gate);
    stack("down_proj", {2}, down);
  }
  w.owner = std::move(memory);
  return ok;
}

// One tensor of a file: its name, and its rows of the model's tensor.
struct stored_tensor {
  std::string name;
  view of;
};
// Splits a tensor of the model into the tensors that files of its family store.
inline std::vector<stored_tensor> stored_tensors_of(const model_config& c, const std::string& name, const view& v) {
  const expert_files in_files = c.family->experts_in_files;
  const bool mixtral = in_files == expert_files::mixtral;
  const std::size_t at = name.find(".mlp.");
  const auto named = [&](const std::string& rest) {
    return name.substr(0, at) + std::string(mixtral ? detail::mixtral_part : detail::usual_part) + rest;
  };
  if (in_files == expert_files::none || in_files == expert_files::stacked || at == name.npos) return {{name, v}};
  const std::string rest = name.substr(at + detail::usual_part.size());
  if (v.rank != 3) return {{mixtral && rest == "gate.weight" ? named(rest) : name, v}};
  const bool gate_up = rest == "experts.gate_up_proj";
  const char* const words[3] = {mixtral ? ".w1.weight" : ".gate_proj.weight",
                                mixtral ? ".w3.weight" : ".up_proj.weight",
                                mixtral ? ".w2.weight" : ".down_proj.weight"};
  const long long parts = gate_up ? 2 : 1, rows = v.size[1] / parts;
  const long long bytes = rows * v.size[2] * bits_of(v.type) / 8;
  std::vector<stored_tensor> all;
  for (long long e = 0; e < v.size[0]; ++e)
    for (long long part = 0; part < parts; ++part)
      all.push_back({named("experts." + std::to_string(e)) + words[gate_up ? part : 2],
                     view{static_cast<const std::byte*>(v.data) + (e * parts + part) * bytes,
                          v.type,
                          {rows, v.size[2], 1, 1},
                          2}});
  return all;
}

}  // namespace graft::io::hf
