// SPDX-License-Identifier: Apache-2.0
// The trainer over NCCL with one rank on one GPU: the all-reduce of one rank returns its input, so losses, norms and
// trained adapters have the bits of training without ranks, step by step, with accumulated calls, and captured. With
// LAYERS it also prints the time of a step in the shape of Llama-3-8B without ranks, data parallel and tensor parallel.
//     nccl_training GOLDEN/models/llama [LAYERS]
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_gpu.cuh>
#include <graft/model/trainer.h>
#include <graft/parallel/nccl.h>

#include <cstdio>
#include <cstdlib>

#include "../support/random_model.h"

using namespace graft;
using engine = gpu::engine<__nv_bfloat16>;

namespace {

result<std::shared_ptr<communicator>> one_rank(cudaStream_t stream) {
  single_process nobody;
  auto made = nccl_communicator::make(nobody, {.stream = stream, .timeout = 30});
  if (!made) return made.failure();
  return std::shared_ptr<communicator>(std::move(*made));
}
struct kind {
  const char* name;
  bool nccl;
  step_mode mode;
  int accumulate;
};
struct trained {
  std::vector<double> numbers;  // losses and norms
  std::vector<float> values;
};
result<trained> train(const std::string& folder, const kind& as) {
  auto model = io::hf::load_model<engine>(folder + "/base");
  if (!model) return model.failure();
  auto loaded = io::hf::load_adapters(folder + "/lora_modules_to_save/adapter_init", *model);
  if (!loaded) return loaded.failure();
  if (status s = model->set_adapters(loaded->set); !s) return s.failure();
  const trainer<engine>::sequences data{
      {5, 9, 200, 31, 8, 77}, {100, 101, 102, 103, 104, 105}, {1, 2, 3, 4, 5, 6}, {9, 8, 7, 6, 5, 4, 3}};
  trainer_settings settings;
  settings.steps = 12, settings.batch = 1, settings.accumulate = as.accumulate, settings.clip = 0.01,
  settings.mode = as.mode;
  settings.bucket_bytes = 1;
  if (as.nccl) {
    auto ranks = one_rank(model->programs().queue.stream);
    if (!ranks) return ranks.failure();
    settings.ranks = *ranks;
  }
  auto run = trainer<engine>::make(*model, data, settings);
  if (!run) return run.failure();
  trained out;
  const auto report = [&](const step_report& r) {
    out.numbers.push_back(r.loss), out.numbers.push_back(r.norm);
    return true;
  };
  if (status s = run->run(report); !s) return s.failure();
  for (const module_adapter& m : model->adapters().modules)
    for (const auto* tensors : {&m.tensors, &m.base})
      for (const auto& [name, t] : *tensors) {
        const view v = t.value();
        const auto* const numbers = static_cast<const float*>(v.data);
        if (v.type == dtype::f32) out.values.insert(out.values.end(), numbers, numbers + v.count());
      }
  return out;
}
int compare(const std::string& folder, const kind& one, const kind& other) {
  const auto a = train(folder, one), b = train(folder, other);
  const bool same = a && b && a->numbers == b->numbers && a->values == b->values && a->numbers.size() == 24;
  std::printf("%s against %s: %s\n", other.name, one.name,
              !a     ? a.message()
              : !b   ? b.message()
              : same ? "the same bits"
                     : "other bits");
  return same ? 0 : 1;
}
int refuses_another_stream(const std::string& folder) {
  auto model = io::hf::load_model<engine>(folder + "/base");
  auto ranks = one_rank(nullptr);
  if (!model || !ranks) return std::printf("%s\n", model ? ranks.message() : model.message()), 1;
  trainer_settings settings;
  settings.steps = 1, settings.ranks = *ranks;
  const trainer<engine>::sequences data{{1, 2, 3}};
  const auto t = trainer<engine>::make(*model, data, settings);
  const bool named = !t && std::string(t.message()).find("another stream") != std::string::npos;
  return std::printf("ranks on another stream are refused: %s\n", named ? "yes" : "no"), named ? 0 : 1;
}

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}
// The kinds run alternating steps.
status measure(int layers, step_mode mode) {
  const model_config c = test::llama_config(layers, 4096, 14336, 1024, 4096);
  const model_weights weights = test::random_weights(c);
  const auto config = io::make_adapter_config(
      "LORA", {}, {{"target_modules", io::json_string("all-linear")}, {"r", io::json_number(16)}});
  if (!config) return config.failure();
  trainer<engine>::sequences data(2);
  for (std::size_t s = 0; s < data.size(); ++s)
    for (std::size_t t = 0; t < 2048; ++t)
      data[s].push_back(static_cast<std::int64_t>(splitmix64(4096 * s + t) % 1024));
  std::deque<causal_lm<engine>> models;
  std::deque<trainer<engine>> trainers;
  constexpr std::size_t kinds = 3;  // without ranks, data parallel, tensor parallel
  for (std::size_t k = 0; k < kinds; ++k) {
    model_options options;
    if (k == 2) {
      auto ranks = one_rank(nullptr);
      if (!ranks) return ranks.failure();
      options.ranks = *ranks;
    }
    auto model = causal_lm<engine>::make(c, weights, options);
    if (!model) return model.failure();
    models.push_back(std::move(*model));
    auto adapter = io::hf::new_adapter(models.back(), *config);
    if (!adapter) return adapter.failure();
    if (status s = models.back().set_adapters(adapter->set); !s) return s;
    trainer_settings settings;
    settings.steps = 100, settings.batch = 2, settings.mode = mode;
    if (k == 1) {
      auto ranks = one_rank(models.back().programs().queue.stream);
      if (!ranks) return ranks.failure();
      settings.ranks = *ranks;
    }
    auto t = trainer<engine>::make(models.back(), data, settings);
    if (!t) return t.failure();
    trainers.push_back(std::move(*t));
  }
  std::vector<double> seconds[kinds], ratios[kinds];
  for (std::size_t k = 0; k < 44; ++k) {
    double took[kinds] = {};
    for (std::size_t turn = 0; turn < kinds; ++turn) {
      const std::size_t which = (turn + k) % kinds;
      const auto r = trainers[which].step();
      if (!r) return r.failure();
      took[which] = r->seconds;
    }
    if (k < 4) continue;
    for (std::size_t which = 0; which < kinds; ++which)
      seconds[which].push_back(took[which]), ratios[which].push_back(took[which] / took[0]);
  }
  std::printf("%s, %d layers, 2 x 2048 tokens, median of steps that take turns: %.3f ms without ranks",
              mode == step_mode::standard ? "standard" : "captured", layers, 1e3 * median(seconds[0]));
  for (const std::size_t which : {1U, 2U})
    std::printf(", %.3f ms %s parallel over NCCL with one rank (%.2f %% more)", 1e3 * median(seconds[which]),
                which == 1 ? "data" : "tensor", 100 * (median(ratios[which]) - 1));
  return std::puts(""), ok;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU: nothing to train on"), 0;
  if (argc < 2) return std::fprintf(stderr, "usage: nccl_training MODEL [LAYERS]\n"), 2;
  const kind alone{"alone", false, step_mode::standard, 1}, over_nccl{"over NCCL", true, step_mode::standard, 1},
      captured{"over NCCL, captured", true, step_mode::reduce_overhead, 1},
      alone_twice{"alone, two calls a step", false, step_mode::standard, 2},
      twice{"over NCCL, two calls a step", true, step_mode::standard, 2};
  int wrong = compare(argv[1], alone, over_nccl);
  wrong += compare(argv[1], alone, captured);
  wrong += compare(argv[1], alone_twice, twice);
  wrong += refuses_another_stream(argv[1]);
  if (argc > 2)
    for (const step_mode mode : {step_mode::standard, step_mode::reduce_overhead})
      if (const status s = measure(std::atoi(argv[2]), mode); !s) std::printf("%s\n", s.message()), ++wrong;
  return wrong == 0 ? 0 : 1;
}
