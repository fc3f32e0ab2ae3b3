// SPDX-License-Identifier: Apache-2.0
// The plan of a model with its adapters: every program that its blocks run (equal blocks run the same one), launch by
// launch, and what a token costs at least, which is reading the weights once. Then some tokens are generated, and each
// launch is timed by itself: what it must move at the speed of memory (floor), with what its kernels cost beside that
// (expected), and what it took (measured: the median over all blocks and steps).
//     explain_model MODEL [ADAPTER] [--on cpu|cuda] [--sequences N] [--context N]
// run: explain_model test/golden/models/llama/base test/golden/models/llama/lora/adapter_init
#include <graft/model/explain_step.h>
#include <graft/models.h>

#include <cstdio>

#include "arguments.h"
#include "engines.h"

using namespace graft;
namespace hf = graft::io::hf;

template <class Engine> status run(const std::string& folder, const std::string& adapter, const explained_step& at) {
  auto model = hf::load_model<Engine>(folder);
  if (!model) return model.failure();
  if (!adapter.empty()) {
    auto loaded = hf::load_adapters(adapter, *model);
    if (!loaded) return loaded.failure();
    if (status s = model->set_adapters(std::move(loaded->set)); !s) return s;
  }
  long long weights = 0, adapters = 0;
  for (const auto& [name, v] : model->weights().tensors) weights += v.count() * bits_of(v.type) / 8;
  for (const module_adapter& m : model->adapters().modules)
    for (const auto& [name, t] : m.tensors) adapters += static_cast<long long>(t.data->size() * sizeof(float));
  std::printf("%s: %d layers, %zu adapted modules; %.2f MB of weights and %.2f MB of adapters\n",
              name_of(model->config().family), model->config().layers, model->adapters().modules.size(),
              static_cast<double>(weights) / 1e6, static_cast<double>(adapters) / 1e6);
  std::printf("a token reads at least %.2f MB, a batch of tokens no more\n",
              static_cast<double>(weights + adapters) / 1e6);
  const named_adapters::names active = model->active();
  if (const auto told = model->explain_rows({&active, 1}); told && !active.empty())
    std::printf("rows of a batch in which others have other adapters, %s", told->c_str());
  return explain_step(*model, at, print_line);
}

int main(int count, char** all) {
  std::string folder, adapter, on = "cpu";
  explained_step at;
  arguments in(count, all);
  while (in.next()) {
    if (in.is("--on"))
      on = in.value();
    else if (in.is("--sequences"))
      at.sequences = in.whole(1);
    else if (in.is("--context"))
      at.context = in.whole(1);
    else
      in.plain_into({&folder, &adapter});
  }
  if (!in.problem().empty()) return std::fprintf(stderr, "explain_model: %s\n", in.problem().c_str()), 2;
  if (folder.empty())
    return std::fprintf(stderr, "usage: explain_model MODEL [ADAPTER] [--on cpu|cuda] [--sequences N] [--context N]\n"),
           2;
  const status s = on_engine(on, [&]<class Engine>() { return run<Engine>(folder, adapter, at); });
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
