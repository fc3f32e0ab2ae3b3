// SPDX-License-Identifier: Apache-2.0
// Prints the plan of a model with its adapters: the launches of every program that its blocks run (equal blocks share
// one), and the bytes that a token reads at least, which is all weights once. Then it generates tokens and times each
// launch: the time for its bytes and flops (floor), with the overhead of its kernels (expected), and the median over
// all blocks and steps (measured).
//     explain_model MODEL ADAPTER --sequences 8 --context 1024
// explain_model --help lists all options.
// run: explain_model test/golden/models/llama/base test/golden/models/llama/lora/adapter_init
#include <graft/model/explain_step.h>
#include <graft/models.h>

#include <cstdio>

#include "arguments.h"
#include "engine_options.h"

namespace hf = graft::io::hf;

template <class Engine>
graft::status run(const std::string& folder, const std::string& adapter, const graft::step_shape& at) {
  const auto config = hf::read_config(folder);
  if (!config) return config.failure();
  constexpr int timed = graft::step_shape::timed_steps;
  if (at.context > config->positions - timed)
    return graft::fail("--context ", at.context, " and ", timed, " tokens that are timed do not fit the ",
                       config->positions, " positions of the model; ask for ", config->positions - timed, " or fewer");
  graft::model_options loading;
  loading.context = at.context + timed;
  auto model = hf::load_model<Engine>(folder, loading);
  if (!model) return model.failure();
  if (!adapter.empty()) {
    auto loaded = hf::load_adapters(adapter, *model);
    if (!loaded) return loaded.failure();
    if (graft::status s = model->set_adapters(std::move(loaded->set)); !s) return s;
  }
  long long weights = 0, adapters = 0;
  for (const auto& [name, v] : model->weights().tensors) weights += v.count() * graft::bits_of(v.type) / 8;
  for (const graft::module_adapter& m : model->adapters().modules)
    for (const auto& [name, t] : m.tensors) adapters += static_cast<long long>(t.data->size() * sizeof(float));
  std::printf("%s: %d layers, %zu adapted modules; %.2f MB of weights and %.2f MB of adapters\n",
              model->config().family->name, model->config().layers, model->adapters().modules.size(),
              static_cast<double>(weights) / 1e6, static_cast<double>(adapters) / 1e6);
  std::printf("a token reads at least %.2f MB, a batch of tokens no more\n",
              static_cast<double>(weights + adapters) / 1e6);
  const graft::adapter_registry::names active = model->active();
  if (const auto told = model->explain_multi_lora({&active, 1}); told && !active.empty())
    std::printf("multi-LoRA batch (one adapter per row), %s", told->c_str());
  return graft::explain_step(*model, at, graft::print_line);
}

int main(int argc, char** argv) {
  std::string folder, adapter, on = "cpu";
  graft::step_shape at;
  arguments in("explain_model",
               "The launches of a generation step, each with what it reads, its floor and the time it took.");
  in.word("MODEL", folder, "folder of the model");
  in.optional_word("ADAPTER", adapter, "folder of an adapter");
  in.option("--sequences N", at.sequences, "sequences of the step", 1);
  in.option("--context N", at.context, "tokens that each sequence has before it", 1);
  declare_engine(in, on);
  if (const auto code = in.read(argc, argv)) return *code;
  const graft::status s = on_engine(on, [&]<class Engine>() { return run<Engine>(folder, adapter, at); });
  if (!s) std::fprintf(stderr, "explain_model: %s\n", s.message());
  return s ? 0 : 1;
}
