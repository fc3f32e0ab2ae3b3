// SPDX-License-Identifier: Apache-2.0
// Timed calls of whole models on the GPU: a token step over a KV cache, a prompt and a training step, each in
// microseconds of whole calls with the work of the host; and the adapters that the benchmarks put on all projections.
#pragma once
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/on_gpu.cuh>
#include <graft/model/training_run.h>

#include <chrono>
#include <cstdio>

#include "../../test/support/random_model.h"

namespace graft::model_calls {

using engine = graft::gpu::engine<__nv_bfloat16>;

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count() * 1e6;
}
inline double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}
// The length of a sequence; ragged: 1 / n, 2 / n, ... of the longest one.
inline int length_of(int sequence, int sequences, int longest_one, bool ragged) {
  return ragged ? std::max(1, static_cast<int>(static_cast<long long>(longest_one) * (sequence + 1) / sequences))
                : longest_one;
}
inline std::vector<std::vector<std::int64_t>> tokens(int sequences, int length, int vocabulary, bool ragged = false) {
  std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(sequences));
  std::uint64_t drawn = 77;
  for (int k = 0; k < sequences; ++k)
    for (int i = 0; i < length_of(k, sequences, length, ragged); ++i)
      all[static_cast<std::size_t>(k)].push_back(
          static_cast<std::int64_t>(splitmix64(drawn++) % static_cast<std::uint64_t>(vocabulary)));
  return all;
}

struct wanted {
  int sequences, context;
  bool every_adapter = false;  // otherwise for the bare model and LoRA only
  bool ragged = false;
};

inline result<double> decode(causal_lm<engine>& model, const wanted& w, step_mode how, int steps = 40) {
  generation_settings settings;
  settings.max_new_tokens = steps, settings.eos_tokens = no_eos_tokens;
  auto g = generator<engine>::make(model, settings, w.sequences, w.context + steps, how);
  if (!g) return g.failure();
  std::vector<double> at;
  const auto made =
      g->run(tokens(w.sequences, w.context, model.config().vocabulary, w.ragged), [&](std::size_t i, std::int64_t) {
        if (i == 0) at.push_back(now());
        return true;
      });
  if (!made) return made.failure();
  std::vector<double> each;
  for (std::size_t k = at.size() / 4; k < at.size(); ++k) each.push_back(at[k] - at[k - 1]);
  return median(each);
}
inline result<double> prefill(causal_lm<engine>& model, int length) {
  const auto ids = tokens(1, length, model.config().vocabulary);
  const sequence_chunk run[] = {{ids[0], 0, 0}};
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocabulary));
  std::vector<double> each;
  for (int k = 0; k < 8; ++k) {
    const double begin = now();
    if (status s = model.logits(run, logits, true); !s) return s.failure();
    if (k > 2) each.push_back(now() - begin);
  }
  return median(each);
}
inline result<double> train(causal_lm<engine>& model, int sequences, int length, step_mode how, int rounds = 8) {
  auto run = training_run<engine>::make(model, {.steps = how});
  if (!run) return run.failure();
  auto optimizer = run->optimizer();
  if (!optimizer) return optimizer.failure();
  const auto ids = tokens(sequences, length, model.config().vocabulary);
  std::vector<labeled_sequence> batch;
  for (const auto& s : ids) batch.push_back({s});
  std::vector<double> each;
  const auto saved = run->saved_bytes(static_cast<long long>(sequences) * length);
  if (!saved) return saved.failure();
  std::printf(", \"planned_for_backward_mb\": %.0f", static_cast<double>(*saved) / 1e6);
  for (int k = 0; k < rounds; ++k) {
    const double begin = now();
    if (auto made = run->step(batch, *optimizer, 1e-4, 1); !made) return made.failure();
    if (k > 2 || k + 1 == rounds) each.push_back(now() - begin);
  }
  std::printf(", \"held_for_backward_mb\": %.0f", static_cast<double>(run->saved_allocation_bytes()) / 1e6);
  return median(each);
}

inline result<adapter_set> adapter_named(causal_lm<engine>& model, const std::string& name) {
  std::vector<std::pair<std::string, io::json>> with{{"target_modules", io::json_string("all-linear")}};
  if (name == "oft")
    with.insert(with.end(), {{"oft_block_size", io::json_number(32)}, {"r", io::json_number(0)}});
  else
    with.insert(with.end(), {{"r", io::json_number(16)}, {"lora_alpha", io::json_number(32)}});
  if (name == "dora") with.push_back({"use_dora", io::json_bool(true)});
  if (name == "lora_dropout") with.push_back({"lora_dropout", io::json_number(0.1)});
  const auto config = io::make_adapter_config(name == "oft" ? "OFT" : "LORA", {}, with);
  if (!config) return config.failure();
  auto made = io::hf::new_adapter(model, *config);
  if (!made) return made.failure();
  return made->set;
}

}  // namespace graft::model_calls
