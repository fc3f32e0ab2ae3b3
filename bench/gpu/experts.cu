// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts on the GPU, random bf16 weights: token steps, a prompt and a training step of models in the shapes
// of Qwen3-30B-A3B (128 experts of 768, 8 per token) and Mixtral-8x7B (8 experts of 14336, 2 per token), bare and with
// LoRA r16 on all experts and the projections of attention. Prints one line of JSON per shape, microseconds of whole
// calls with the work of the host, and floors: for a token step the bytes of the weights that a random routing touches
// at 4.3 TB/s, for a prompt the products at 760 Tflop/s.
//     bench_gpu_experts [LAYERS [qwen|mixtral [decode|prefill|train]]]
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "model_calls.cuh"

using namespace graft;
using namespace graft::model_calls;

namespace {

double matrices_of_attention(const model_config& c) {
  const double h = c.hidden_size, kv = c.kv_heads * c.head_dim;
  return 2 * h * h + 2 * h * kv;
}
double decode_floor(const model_config& c, int sequences, bool lora) {
  const double h = c.hidden_size, wide = c.expert_intermediate_size,
               touched = c.experts * (1 - std::pow(1 - double(c.experts_per_token) / c.experts, sequences));
  const double expert = 3 * h * wide + (lora ? 16 * (3 * wide + 3 * h) : 0);
  return c.layers * 2 * (matrices_of_attention(c) + c.experts * h + touched * expert) / 4.3e6;
}
double prefill_floor(const model_config& c, int rows) {
  const double per_row =
      matrices_of_attention(c) + 3.0 * c.hidden_size * c.expert_intermediate_size * c.experts_per_token;
  return c.layers * 2 * rows * per_row / 760e6;
}
status put(const std::string& name, const result<double>& v, double floor = 0) {
  if (!v) return v.failure();
  std::printf(", \"%s\": %.1f", name.c_str(), *v);
  if (floor > 0) std::printf(", \"%s_floor\": %.1f", name.c_str(), floor);
  std::fflush(stdout);
  return ok;
}
result<adapter_set> lora_on_experts(causal_lm<engine>& model) {
  const auto names = [](std::initializer_list<const char*> all) {
    io::json list;
    list.what = io::json::kind::list;
    for (const char* one : all) list.items.push_back(io::json_string(one));
    return list;
  };
  const auto config =
      io::make_adapter_config("LORA", {},
                              {{"target_modules", names({"q_proj", "k_proj", "v_proj", "o_proj"})},
                               {"target_parameters", names({"experts.gate_up_proj", "experts.down_proj"})},
                               {"r", io::json_number(16)},
                               {"lora_alpha", io::json_number(32)}});
  if (!config) return config.failure();
  auto made = io::hf::new_adapter(model, *config);
  if (!made) return made.failure();
  return made->set;
}
status measure(const std::string& shape, int layers, const std::string& calls) {
  const auto wanted_call = [&](const char* name) { return calls.empty() || calls == name; };
  const model_config c = shape == "qwen" ? graft::test::mixtral_config(layers, 2048, 768, 128, 8, 1024, 4096)
                                         : graft::test::mixtral_config(layers, 4096, 14336, 8, 2, 1024, 4096);
  auto model = causal_lm<engine>::make(c, graft::test::random_weights(c), {.context = 4096});
  if (!model) return model.failure();
  std::printf("{\"shape\": \"%s\", \"layers\": %d", shape.c_str(), layers);
  for (const bool lora : {false, true}) {
    const std::string name = lora ? "lora" : "bare";
    if (lora) {
      auto set = lora_on_experts(*model);
      if (!set) return set.failure();
      if (status s = model->set_adapters(*set); !s) return s;
    }
    for (const int sequences : {1, 16, 64}) {
      if (!wanted_call("decode")) break;
      if (status s = put(name + "_decode_" + std::to_string(sequences),
                         decode(*model, {sequences, 64}, step_mode::reduce_overhead), decode_floor(c, sequences, lora));
          !s)
        return s;
    }
    if (wanted_call("prefill"))
      if (status s = put(name + "_prefill_2048", prefill(*model, 2048), prefill_floor(c, 2048)); !s) return s;
    if (lora && wanted_call("train"))
      if (status s = put("lora_train_2x2048", train(*model, 2, 2048, step_mode::reduce_overhead)); !s) return s;
  }
  std::printf("}\n");
  return ok;
}

}  // namespace

int main(int count, char** all) {
  const int layers = count > 1 ? std::atoi(all[1]) : 4;
  for (const char* shape : {"qwen", "mixtral"}) {
    if (count > 2 && std::strcmp(all[2], shape) != 0) continue;
    if (const status s = measure(shape, layers, count > 3 ? all[3] : ""); !s)
      return std::fprintf(stderr, "\n%s\n", s.message()), 1;
  }
  return 0;
}
