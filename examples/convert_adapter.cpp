// SPDX-License-Identifier: Apache-2.0
// Writes an adapter in the other format: a PEFT folder as a GGUF file, which llama.cpp loads with --lora, or a GGUF
// file as a PEFT folder. GGUF holds LoRA alone; other adapters leave merged (merge_model).
//     convert_adapter MODEL ADAPTER OUT.gguf
//     convert_adapter MODEL ADAPTER.gguf OUT
// run: convert_adapter test/golden/models/llama/base test/golden/models/llama/lora/adapter_init build/adapter.gguf
#include <graft/io/load_model.h>
#include <graft/model/on_cpu.h>

#include <cstdio>

#include "arguments.h"

namespace io = graft::io;

graft::status run(const std::string& base, const std::string& adapter, const std::string& out) {
  const auto model = io::open_model(base);
  if (!model) return model.failure();
  const auto adapters = io::read_adapters(adapter, model->config, model->weights);
  if (!adapters) return adapters.failure();
  if (graft::status s = io::save_adapters(out, *adapters, model->config); !s) return s;
  std::printf("adapters of %zu modules written to %s\n", adapters->set.modules.size(), out.c_str());
  return graft::ok;
}

int main(int argc, char** argv) {
  std::string base, adapter, out;
  arguments in("convert_adapter", "Writes an adapter of PEFT as a GGUF file, or one of a GGUF file as PEFT does.");
  in.word("MODEL", base, "Hugging Face folder or GGUF file of the adapter's model");
  in.word("ADAPTER", adapter, "PEFT folder or GGUF file of the adapter");
  in.word("OUT", out, "what is written: a name that ends in .gguf is a GGUF file, any other one a PEFT folder");
  if (const auto code = in.read(argc, argv)) return *code;
  const graft::status s = run(base, adapter, out);
  if (!s) std::fprintf(stderr, "convert_adapter: %s\n", s.message());
  return s ? 0 : 1;
}
