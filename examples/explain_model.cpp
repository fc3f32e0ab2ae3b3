// SPDX-License-Identifier: Apache-2.0
// The plan of a model with its adapters: every program that its blocks run (equal blocks run the same one), launch by
// launch, and what a token costs at least, which is reading the weights once.
//     explain_model MODEL [ADAPTER] [--on cpu|cuda]
// run: explain_model test/golden/models/llama/base test/golden/models/llama/lora/adapter_init
#include <graft/models.h>

#include <cstdio>
#include <cstring>

#include "engines.h"

using namespace graft;
namespace hf = graft::io::hf;

template <class Engine> status run(const std::string& folder, const char* adapter) {
  auto model = hf::load_model<Engine>(folder);
  if (!model) return model.failure();
  if (adapter != nullptr) {
    auto loaded = hf::load_adapters(adapter, *model);
    if (!loaded) return loaded.failure();
    if (status s = model->set_adapters(std::move(loaded->set)); !s) return s;
  }
  const std::vector<std::int64_t> ids{1};
  const row_run rows[] = {{ids, 0, 0}};
  std::vector<float> logits(static_cast<std::size_t>(model->config().vocabulary));
  if (status s = model->logits(rows, logits); !s) return s;  // binds every block

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
  if (const auto told = model->explain_rows({&active, 1}); told)
    std::printf("rows of a batch in which others have other adapters, %s", told->c_str());
  for (int k = 0; k < model->programs().count(); ++k) {
    const block_program<Engine>& p = model->programs()[k];
    std::printf("program %d, key %016llx\n", k, p.key());
    explain_graph(p.value(), p.launches(), "forward", static_cast<int>(p.launches().launches.size()), nullptr,
                  print_line);
  }
  return ok;
}

int main(int count, char** all) {
  const char *folder = nullptr, *adapter = nullptr, *on = "cpu";
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(all[i], "--on") == 0 && i + 1 < count)
      on = all[++i];
    else
      (folder == nullptr ? folder : adapter) = all[i];
  }
  if (folder == nullptr) return std::fprintf(stderr, "usage: explain_model MODEL [ADAPTER] [--on cpu|cuda]\n"), 2;
  const status s = on_engine(on, [&]<class Engine>() { return run<Engine>(folder, adapter); });
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
