// SPDX-License-Identifier: Apache-2.0
// A whole model on the GPU, random bf16 weights in the shape of Llama-3-8B: a token step over a cache, a prompt, and a
// training step with LoRA of rank 16 on all seven projections. Prints one line of JSON; compare_models_gpu.py runs PEFT in
// the same shape. Times are of whole calls, with all that the host does.
//     bench_cuda_model [LAYERS [VOCABULARY]]
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/training.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "../../test/support/gpu_instances.h"

using namespace graft;
using engine = graft::cuda::engine<__nv_bfloat16>;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count() * 1e6;
}
double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}
double used_megabytes() {
  std::size_t left = 0, all = 0;
  return cudaMemGetInfo(&left, &all) == cudaSuccess ? static_cast<double>(all - left) / 1e6 : 0;
}

model_config shape(int layers, int vocabulary) {
  model_config c;
  c.vocabulary = vocabulary, c.width = 4096, c.inner = 14336, c.layers = layers;
  c.heads = 32, c.key_heads = 8, c.head_size = 128, c.positions = 8192;
  c.window.assign(static_cast<std::size_t>(layers), 0);
  c.norm_eps = 1e-5, c.embedding_width = c.width, c.attention_scale = 1 / std::sqrt(128.0), c.rope.theta = 500000;
  return c;
}
// Small numbers, so that rows stay of order one.
model_weights random_weights(const model_config& c) {
  model_weights w;
  auto memory = std::make_shared<std::deque<std::vector<std::uint16_t>>>();
  std::uint64_t drawn = 0;
  const auto put = [&](const std::string& name, long long rows, long long cols) {
    auto& v = memory->emplace_back(static_cast<std::size_t>(rows * cols));
    const bool norm = cols == 1;
    for (std::uint16_t& e : v) {
      const std::uint64_t bits = norm ? 0 : mixed_bits(drawn++);
      e = norm ? 0x3f80 : static_cast<std::uint16_t>((bits & 0x8000U) | 0x3c00U | (bits >> 20U & 0x7fU));
    }
    w.tensors[name] = {v.data(), dtype::bf16, {rows, cols, 1, 1}, norm ? 1 : 2};
  };
  const long long kv = static_cast<long long>(c.key_heads) * c.head_size;
  put("model.embed_tokens.weight", c.vocabulary, c.width), put("lm_head.weight", c.vocabulary, c.width);
  put("model.norm.weight", c.width, 1);
  for (int l = 0; l < c.layers; ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".";
    put(at + "input_layernorm.weight", c.width, 1), put(at + "post_attention_layernorm.weight", c.width, 1);
    put(at + "self_attn.q_proj.weight", c.width, c.width), put(at + "self_attn.o_proj.weight", c.width, c.width);
    put(at + "self_attn.k_proj.weight", kv, c.width), put(at + "self_attn.v_proj.weight", kv, c.width);
    put(at + "mlp.gate_proj.weight", c.inner, c.width), put(at + "mlp.up_proj.weight", c.inner, c.width);
    put(at + "mlp.down_proj.weight", c.width, c.inner);
  }
  w.owner = memory;
  return w;
}
std::vector<std::vector<std::int64_t>> tokens(int sequences, int length, int vocabulary) {
  std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(sequences));
  std::uint64_t drawn = 77;
  for (auto& s : all)
    for (int i = 0; i < length; ++i)
      s.push_back(static_cast<std::int64_t>(mixed_bits(drawn++) % static_cast<std::uint64_t>(vocabulary)));
  return all;
}

result<double> decode(causal_lm<engine>& model, int sequences, int context, step_mode how) {
  constexpr int steps = 64;
  generation_settings settings;
  settings.new_tokens = steps;
  auto g = generator<engine>::make(model, settings, sequences, context + steps, how);
  if (!g) return g.failure();
  std::vector<double> at;
  const auto made = g->run(tokens(sequences, context, model.config().vocabulary), [&](std::size_t i, std::int64_t) {
    if (i == 0) at.push_back(now());
    return true;
  });
  if (!made) return made.failure();
  std::vector<double> each;
  for (std::size_t k = 8; k < at.size(); ++k) each.push_back(at[k] - at[k - 1]);
  return median(each);
}
result<double> prefill(causal_lm<engine>& model, int length) {
  const auto ids = tokens(1, length, model.config().vocabulary);
  const row_run run[] = {{ids[0], 0, 0}};
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocabulary));
  std::vector<double> each;
  for (int k = 0; k < 8; ++k) {
    const double begin = now();
    if (status s = model.logits(run, logits, true); !s) return s.failure();
    if (k > 2) each.push_back(now() - begin);
  }
  return median(each);
}
result<double> train(causal_lm<engine>& model, int sequences, int length) {
  auto run = training_run<engine>::make(model);
  if (!run) return run.failure();
  auto optimizer = run->optimizer();
  if (!optimizer) return optimizer.failure();
  const auto ids = tokens(sequences, length, model.config().vocabulary);
  std::vector<labelled_sequence> batch;
  for (const auto& s : ids) batch.push_back({s});
  std::vector<double> each;
  for (int k = 0; k < 8; ++k) {
    const double begin = now();
    run->clear();
    if (auto loss = run->add(batch); !loss) return loss.failure();
    if (status s = optimizer->clip_to(1); !s) return s.failure();
    if (status s = optimizer->step(1e-4); !s) return s.failure();
    if (status s = run->parameters_changed(); !s) return s.failure();
    if (auto norm = optimizer->norm(); !norm) return norm.failure();
    if (k > 2) each.push_back(now() - begin);
  }
  return median(each);
}

status measure(int layers, int vocabulary) {
  const model_config c = shape(layers, vocabulary);
  auto model = causal_lm<engine>::make(c, random_weights(c), {.context = 8192});
  if (!model) return model.failure();
  std::printf("{\"layers\": %d, \"vocabulary\": %d", layers, vocabulary);
  const auto say = [](const char* name, const result<double>& v) {
    if (v) std::printf(", \"%s\": %.1f", name, *v);
    std::fflush(stdout);
    return v ? status(ok) : status(v.failure());
  };
  for (const bool adapted : {false, true}) {
    if (adapted) {
      const auto config = io::make_adapter_config("LORA", {},
                                                  {{"target_modules", io::json_word("all-linear")},
                                                   {"r", io::json_number(16)},
                                                   {"lora_alpha", io::json_number(32)}});
      if (!config) return config.failure();
      auto adapters = io::hf::new_adapter(*model, *config);
      if (!adapters) return adapters.failure();
      if (status s = model->set_adapters(adapters->set); !s) return s;
    }
    const std::string which = adapted ? "lora" : "bare";
    for (const int n : {1, 16})
      if (status s = say((which + "_decode_" + std::to_string(n)).c_str(),
                         decode(*model, n, 1024, step_mode::reduce_overhead));
          !s)
        return s;
    if (status s = say((which + "_prefill_2048").c_str(), prefill(*model, 2048)); !s) return s;
  }
  if (status s = say("lora_decode_1_standard", decode(*model, 1, 1024, step_mode::standard)); !s) return s;
  if (status s = say("lora_train_2x2048", train(*model, 2, 2048)); !s) return s;
  std::printf(", \"used_mb\": %.0f}\n", used_megabytes());
  return ok;
}

}  // namespace

int main(int count, char** all) {
  const status s = measure(count > 1 ? std::atoi(all[1]) : 4, count > 2 ? std::atoi(all[2]) : 1024);
  return s ? 0 : (std::fprintf(stderr, "\n%s\n", s.message()), 1);
}
