// SPDX-License-Identifier: Apache-2.0
// A new LoRA for a model, as PEFT begins one: A drawn evenly from ±1/√in (Kaiming with a = √5), B zero, so that the model
// is what it was. Other methods begin from a folder that PEFT made.
#pragma once
#include <graft/backend/cpu/dropout.h>
#include <graft/io/hf/load_adapters.h>

namespace graft::io::hf {

struct lora_settings {
  int rank = 8;
  double alpha = 16, dropout = 0;
  std::vector<std::string>
      targets{};  // ends of module paths; none: all linear layers but the one that makes the logits
  std::uint64_t seed = 0;
};

template <class Engine> result<loaded_adapters> new_lora(const causal_lm<Engine>& model, const lora_settings& how) {
  return guarded("a new LoRA", [&]() -> result<loaded_adapters> {
    const std::vector<base_layer> modules = modules_of(model.config(), model.weights());
    std::vector<std::string> targets = how.targets;
    for (const base_layer& b : modules) {
      const std::string name = b.module.substr(b.module.rfind('.') + 1);
      const bool fits = how.targets.empty() && b.kind == "linear" && b.module != "lm_head";
      if (fits && std::find(targets.begin(), targets.end(), name) == targets.end()) targets.push_back(name);
    }
    const bool turned = model.config().family == model_family::gpt2;
    const result<adapter_config> config = make_adapter_config("LORA", targets,
                                                              {{"r", json_number(how.rank)},
                                                               {"lora_alpha", json_number(how.alpha)},
                                                               {"lora_dropout", json_number(how.dropout)},
                                                               {"fan_in_fan_out", json_flag(turned)},
                                                               {"task_type", json_word("CAUSAL_LM")}});
    if (!config) return config.failure();
    std::deque<std::vector<float>> values;
    std::vector<tensor_view> tensors;
    const auto put = [&](const std::string& name, long long rows, long long cols) -> std::vector<float>& {
      std::vector<float>& v = values.emplace_back(static_cast<std::size_t>(rows * cols));
      tensors.push_back({name,
                         dtype::f32,
                         {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cols)},
                         std::as_bytes(std::span(v))});
      return v;
    };
    std::uint64_t drawn = 0;
    for (const base_layer& b : modules) {
      const result<bool> hit = is_target(*config, b.module, {b.kind == "linear", b.module == "lm_head"});
      if (!hit) return hit.failure();
      if (!*hit) continue;
      if (b.kind != "linear")
        return fail(b.module.c_str(), " is no linear layer; LoRA of it begins from a folder of PEFT");
      const double bound = 1 / std::sqrt(static_cast<double>(b.in));
      for (float& a : put("base_model.model." + b.module + ".lora_A.weight", how.rank, b.in)) {
        const double u = static_cast<double>(mixed_bits(how.seed ^ mixed_bits(drawn++)) >> 11U) * 0x1p-53;
        a = static_cast<float>((2 * u - 1) * bound);
      }
      put("base_model.model." + b.module + ".lora_B.weight", b.out, how.rank);
    }
    result<std::vector<std::byte>> packed = pack_safetensors(tensors);
    if (!packed) return packed.failure();
    result<safetensors> weights = parse_safetensors(std::move(*packed), "a new LoRA");
    if (!weights) return weights.failure();
    const peft_folder folder{*config, std::move(*weights)};
    return adapter_loader(folder, model.config(), model.weights()).load();
  });
}

}  // namespace graft::io::hf
