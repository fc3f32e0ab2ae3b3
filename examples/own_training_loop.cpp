// SPDX-License-Identifier: Apache-2.0
// Fine-tunes an adapter with a training loop of your own, and saves it as a PEFT folder.
//     own_training_loop MODEL ADAPTER [OUT]
// run: own_training_loop test/golden/models/llama/base test/golden/models/llama/lora/adapter_init
#include <graft/io/hf/load_adapters.h>
#include <graft/io/load_model.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

#include <cstdio>
#include <filesystem>

#include "arguments.h"

using engine = graft::cpu::engine<float>;
namespace io = graft::io;
namespace hf = graft::io::hf;

graft::status run(const std::string& base, const std::string& folder, const std::string& out) {
  auto model = io::load_model<engine>(base);
  if (!model) return model.failure();
  auto adapters = io::load_adapters(folder, *model);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;

  auto training = graft::training_run<engine>::make(*model);
  if (!training) return training.failure();
  auto optimizer = training->optimizer({.rate = 5e-3});
  if (!optimizer) return optimizer.failure();
  std::vector<std::int64_t> text;  // counts from 10 to 49, repeatedly
  for (std::int64_t i = 0; i < 120; ++i) text.push_back(10 + i % 40);
  const std::vector<graft::labeled_sequence> batch{{text}};
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    training->clear();
    const auto loss = training->add(batch);
    if (!loss) return loss.failure();
    if (graft::status s = optimizer->clip_to(1); !s) return s;
    if (graft::status s = optimizer->step(); !s) return s;
    if (graft::status s = training->parameters_changed(); !s) return s;
    last = *loss, first = step == 0 ? last : first;
    if (step % 5 == 0) std::printf("step %2d  loss %.4f\n", step, last);
  }
  std::printf("loss %.4f after 20 steps, %.4f before\n", last, first);
  if (!(last < first)) return graft::fail("the loss did not fall");
  if (graft::status s = training->fetch(); !s) return s;
  return hf::save_adapters(out, *adapters);
}

int main(int argc, char** argv) {
  std::string base, adapter, out;
  arguments in("own_training_loop", "Fine-tunes an adapter with a loop of one's own.");
  in.word("MODEL", base, "Hugging Face folder or GGUF file of the model");
  in.word("ADAPTER", adapter, "folder of the adapter that the training begins with");
  in.optional_word("OUT", out, "folder that the trained adapter is written to; not given: it is not saved");
  if (const auto code = in.read(argc, argv)) return *code;
  const auto temporary = std::filesystem::temp_directory_path() / ("graft-own-loop-" + std::to_string(::getpid()));
  const graft::status s = run(base, adapter, out.empty() ? temporary.string() : out);
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  if (out.empty()) std::filesystem::remove_all(temporary);
  return s ? 0 : 1;
}
