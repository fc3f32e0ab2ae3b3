// SPDX-License-Identifier: Apache-2.0
// main GOLDEN: what a message suggests ("did you mean ...?") is looked for when the message is written, and at no other
// time: not while an adapter is read whose optional tensors are absent.
#include <graft/cpu.h>
#include <graft/io.h>
#include <graft/io/hf/load_adapters.h>

#include <cstdio>
#include <filesystem>

using namespace graft;

int main(int argc, char** argv) {
  const std::filesystem::path models = std::filesystem::path(argc > 1 ? argv[1] : ".") / "models";
  int folders = 0;
  for (const char* family : {"llama", "gpt2", "opt"}) {
    const auto model = io::hf::open_model_folder(models / family / "base");
    if (!model) return std::printf("%s\n", model.message()), 1;
    for (const auto& e : std::filesystem::directory_iterator(models / family)) {
      const std::string folder = e.path() / "adapter_init";
      if (!std::filesystem::exists(folder)) continue;
      const auto opened = io::open_peft_folder(folder);
      if (!opened) return std::printf("%s\n", opened.message()), 1;
      const auto adapters = io::hf::adapters_from(*opened, model->config, model->weights);
      if (!adapters) return std::printf("%s\n", adapters.message()), 1;
      ++folders;
      if (names_offered != 0)
        return std::printf("%s: %lld names were compared for a message that nobody wrote\n", folder.c_str(),
                           names_offered),
               1;
    }
  }
  const auto file = io::read_adapter_weights(models / "llama" / "lora" / "adapter_init");
  if (!file) return std::printf("%s\n", file.message()), 1;
  const auto absent = file->find("base_model.model.model.layers.0.self_attn.q_proj.lora_a.weight");
  const bool suggested = !absent && contains(absent.message(),
                                             "did you mean 'base_model.model.model.layers.0.self_attn."
                                             "q_proj.lora_A.weight'?");
  if (!suggested || names_offered == 0) return std::printf("a misspelt name has no suggestion\n"), 1;
  if (folders < 20) return std::printf("only %d folders were read\n", folders), 1;
  return 0;
}
