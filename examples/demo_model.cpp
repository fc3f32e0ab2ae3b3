// SPDX-License-Identifier: Apache-2.0
// Shows a whole model in one minute: loads a tiny Llama from a Hugging Face folder with an adapter from a PEFT folder,
// compares its logits with PEFT's, fine-tunes it, generates tokens, and saves and reloads the trained adapter.
//     demo_model [DIR]      DIR/models holds models and the numbers that PEFT computed (test/golden)
// run: demo_model
#include <graft/models.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "arguments.h"

using engine = graft::cpu::engine<float>;
namespace hf = graft::io::hf;

namespace {

// Returns the largest difference to PEFT's logits, relative to the largest of them.
graft::result<double> difference_to_peft(graft::causal_lm<engine>& model, const std::string& folder) {
  const auto file = graft::io::read_safetensors(folder + "/expected.safetensors");
  if (!file) return file.failure();
  const auto ids_of_file = file->find("ids"), logits_of_file = file->find("logits");
  if (!ids_of_file || !logits_of_file) return graft::fail(folder.c_str(), ": the expected numbers are not there");
  const auto ids = graft::io::to_int64(*ids_of_file);
  const auto wanted = graft::io::to_float(*logits_of_file);
  if (!ids || !wanted) return graft::fail(folder.c_str(), ": the expected numbers cannot be read");
  const auto length = static_cast<std::size_t>(ids_of_file->shape[1]);
  std::vector<graft::sequence_chunk> rows;
  for (std::size_t at = 0; at < ids->size(); at += length) rows.push_back({std::span(*ids).subspan(at, length), 0, 0});
  std::vector<float> ours(wanted->size());
  if (graft::status s = model.logits(rows, ours); !s) return s.failure();
  double largest = 0, most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>((*wanted)[i])));
    most = std::max(most, std::abs(static_cast<double>(ours[i]) - static_cast<double>((*wanted)[i])));
  }
  return most / largest;
}

graft::result<std::vector<std::int64_t>> continued(graft::causal_lm<engine>& model,
                                                   const std::vector<std::int64_t>& prompt) {
  graft::generation_settings settings;
  settings.max_new_tokens = 12;
  auto g = graft::generator<engine>::make(model, settings, 1, 64);
  if (!g) return g.failure();
  auto made = g->run(std::vector<std::vector<std::int64_t>>{prompt});
  if (!made) return made.failure();
  return std::move((*made)[0].tokens);
}
void print(const char* title, const std::vector<std::int64_t>& tokens) {
  std::printf("  %-22s", title);
  for (const std::int64_t t : tokens) std::printf(" %lld", static_cast<long long>(t));
  std::puts("");
}

graft::status run(const std::string& golden) {
  const std::string base = golden + "/models/llama/base", adapter = golden + "/models/llama/lora";
  auto model = hf::load_model<engine>(base);
  if (!model) return model.failure();
  auto adapters = hf::load_adapters(adapter + "/adapter_init", *model);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;
  const graft::result<double> error = difference_to_peft(*model, adapter);
  if (!error) return error.failure();
  std::printf("a Llama of %d layers with LoRA on %zu modules; its logits differ from PEFT's by %.1e\n",
              model->config().layers, adapters->set.modules.size(), *error);

  graft::trainer<engine>::sequences texts(8);  // the model learns to count by threes
  for (std::size_t s = 0; s < texts.size(); ++s)
    for (std::size_t t = 0; t < 16; ++t) texts[s].push_back(static_cast<std::int64_t>(10 + (s + 3 * t) % 40));
  graft::trainer_settings settings;
  settings.steps = 60, settings.batch = 4;
  settings.optimizer.rate = 5e-3;
  auto t = graft::trainer<engine>::make(*model, texts, settings);
  if (!t) return t.failure();
  const std::vector<std::int64_t> prompt{10, 13, 16};
  if (const auto before = continued(*model, prompt)) print("before training", *before);
  double first = 0, last = 0;
  if (graft::status s =
          t->run([&](const graft::step_report& r) { return (r.step == 1 ? first : last) = r.loss, true; });
      !s)
    return s;
  std::printf("  60 steps: the loss falls from %.2f to %.2f\n", first, last);
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;
  const auto tokens = continued(*model, prompt);
  if (!tokens) return tokens.failure();
  print("after training", *tokens);

  const auto folder = std::filesystem::temp_directory_path() / ("graft-demo-" + std::to_string(std::rand()));
  const graft::status saved = hf::save_adapters(folder.string(), *adapters);
  auto fresh = hf::load_model<engine>(base);
  auto again = saved && fresh ? hf::load_adapters(folder.string(), *fresh)
                              : graft::result<hf::loaded_adapters>(graft::fail("not saved"));
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (!saved) return saved;
  if (!again) return again.failure();
  if (graft::status s = fresh->set_adapters(std::move(again->set)); !s) return s;
  const auto same = continued(*fresh, prompt);
  if (!same) return same.failure();
  print("saved and read again", *same);
  if (*error > 2e-4 || last > 0.5 * first || *same != *tokens)
    return graft::fail("that is not what should have happened");
  return graft::ok;
}

}  // namespace

int main(int argc, char** argv) {
  std::string golden;
  arguments in(
      "demo_model",
      "A model with an adapter, compared with PEFT's numbers, a fine-tuning, and the adapter saved and read again.");
  in.optional_word("DIR", golden, "DIR/models holds models and the numbers that PEFT computed; not given: test/golden");
  if (const auto code = in.read(argc, argv)) return *code;
  const graft::status s = run(golden.empty() ? "test/golden" : golden);
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
