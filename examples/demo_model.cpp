// SPDX-License-Identifier: Apache-2.0
// A whole model in one minute: a tiny Llama from a Hugging Face folder with an adapter from a PEFT folder, its logits beside
// those that PEFT computed, a fine-tuning, tokens, and the trained adapter saved and read again.
// run: demo_model
#include <graft/models.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

using namespace graft;
using engine = cpu::engine<float>;
namespace hf = graft::io::hf;

namespace {

// The largest difference to PEFT's logits, relative to the largest of them.
result<double> beside_peft(causal_lm<engine>& model, const std::string& folder) {
  const auto file = io::read_safetensors(folder + "/expected.safetensors");
  if (!file) return file.failure();
  const auto ids_of_file = file->find("ids"), logits_of_file = file->find("logits");
  if (!ids_of_file || !logits_of_file) return fail(folder.c_str(), ": the expected numbers are not there");
  const auto ids = io::to_int64(*ids_of_file);
  const auto wanted = io::to_float(*logits_of_file);
  if (!ids || !wanted) return fail(folder.c_str(), ": the expected numbers cannot be read");
  const auto length = static_cast<std::size_t>(ids_of_file->shape[1]);
  std::vector<row_run> rows;
  for (std::size_t at = 0; at < ids->size(); at += length) rows.push_back({std::span(*ids).subspan(at, length), 0, 0});
  std::vector<float> ours(wanted->size());
  if (status s = model.logits(rows, ours); !s) return s.failure();
  double largest = 0, most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>((*wanted)[i])));
    most = std::max(most, std::abs(static_cast<double>(ours[i]) - static_cast<double>((*wanted)[i])));
  }
  return most / largest;
}

result<std::vector<std::int64_t>> continued(causal_lm<engine>& model, const std::vector<std::int64_t>& prompt) {
  generation_settings how;
  how.new_tokens = 12;
  auto g = generator<engine>::make(model, how, 1, 64);
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

status run(const std::string& golden) {
  const std::string base = golden + "/models/llama/base", adapter = golden + "/models/llama/lora";
  auto model = hf::load_model<engine>(base);
  if (!model) return model.failure();
  auto adapters = hf::load_adapters(adapter + "/adapter_init", *model);
  if (!adapters) return adapters.failure();
  if (status s = model->set_adapters(adapters->set); !s) return s;
  const result<double> error = beside_peft(*model, adapter);
  if (!error) return error.failure();
  std::printf("a Llama of %d layers with LoRA on %zu modules; its logits differ from PEFT's by %.1e\n",
              model->config().layers, adapters->set.modules.size(), *error);

  trainer<engine>::sequences texts(8);  // counting by threes, to be learned
  for (std::size_t s = 0; s < texts.size(); ++s)
    for (std::size_t t = 0; t < 16; ++t) texts[s].push_back(static_cast<std::int64_t>(10 + (s + 3 * t) % 40));
  trainer_settings how;
  how.steps = 60, how.batch = 4;
  how.optimizer.rate = 5e-3;
  auto t = trainer<engine>::make(*model, texts, how);
  if (!t) return t.failure();
  const std::vector<std::int64_t> prompt{10, 13, 16};
  if (const auto before = continued(*model, prompt)) print("before training", *before);
  double first = 0, last = 0;
  if (status s = t->run([&](const step_report& r) { return (r.step == 1 ? first : last) = r.loss, true; }); !s)
    return s;
  std::printf("  60 steps: the loss falls from %.2f to %.2f\n", first, last);
  if (status s = model->set_adapters(adapters->set); !s) return s;
  const auto tokens = continued(*model, prompt);
  if (!tokens) return tokens.failure();
  print("after training", *tokens);

  const auto folder = std::filesystem::temp_directory_path() / ("graft-demo-" + std::to_string(std::rand()));
  const status saved = hf::save_adapters(folder.string(), *adapters);
  auto fresh = hf::load_model<engine>(base);
  auto again =
      saved && fresh ? hf::load_adapters(folder.string(), *fresh) : result<hf::loaded_adapters>(fail("not saved"));
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (!saved) return saved;
  if (!again) return again.failure();
  if (status s = fresh->set_adapters(std::move(again->set)); !s) return s;
  const auto same = continued(*fresh, prompt);
  if (!same) return same.failure();
  print("saved and read again", *same);
  if (*error > 2e-4 || last > 0.5 * first || *same != *tokens) return fail("that is not what should have happened");
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  const status s = run(argc > 1 ? argv[1] : "test/golden");
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
