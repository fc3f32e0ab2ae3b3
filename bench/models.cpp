// SPDX-License-Identifier: Apache-2.0
// The cost of a whole model on the CPU: loading, tokens per second with 1 and with 8 sequences, and a training step, as
// one line of JSON. bench/compare_models.py runs it and PyTorch with PEFT on the same folders.
//     bench_models MODEL ADAPTER [PROMPT NEW_TOKENS BATCH LENGTH REPEATS [busy]]
// `busy` measures CPU time instead of wall time, for one thread of a machine with other work.
#include <graft/models.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "cpu_time.h"

namespace {

using namespace graft;
using engine = cpu::engine<float>;

bool busy = false;
double seconds_now() {
  if (busy) return cpu_seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class F> double median_seconds(int times, F f) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const double start = seconds_now();
    f();
    all.push_back(seconds_now() - start);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

std::vector<std::vector<std::int64_t>> sequences(int count, int length, int vocabulary) {
  std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(count));
  for (int s = 0; s < count; ++s)
    for (int t = 0; t < length; ++t)
      all[static_cast<std::size_t>(s)].push_back((static_cast<std::int64_t>(s) * 7919 + t * 104729 + 11) % vocabulary);
  return all;
}

// The largest memory of this program. getrusage() would count that of its parent process.
double peak_megabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::atof(line.c_str() + 6) / 1024;
  return 0;
}

struct shape {
  int prompt = 32, max_new_tokens = 64, batch = 4, length = 128, repeats = 5;
};

status measure(const std::string& folder, const std::string& adapter, const shape& at) {
  const double start = seconds_now();
  auto model = io::hf::load_model<engine>(folder);
  if (!model) return model.failure();
  const double load = seconds_now() - start;
  auto adapters = io::hf::load_adapters(adapter, *model);
  if (!adapters) return adapters.failure();
  if (status s = model->set_adapters(adapters->set); !s) return s;

  status went = ok;
  double rate[2] = {0, 0};
  for (int k = 0; k < 2; ++k) {
    const int n = k == 0 ? 1 : 8;
    generation_settings settings;
    settings.max_new_tokens = at.max_new_tokens, settings.eos_tokens = no_eos_tokens;
    auto g = generator<engine>::make(*model, settings, n, at.prompt + at.max_new_tokens);
    if (!g) return g.failure();
    const auto prompts = sequences(n, at.prompt, model->config().vocabulary);
    if (auto warm = g->run(prompts); !warm) return warm.failure();
    const double each = median_seconds(at.repeats, [&] {
      if (auto made = g->run(prompts); !made) went = made.failure();
    });
    rate[k] = n * at.max_new_tokens / each;
  }
  if (!went) return went;

  auto run = training_run<engine>::make(*model);
  if (!run) return run.failure();
  auto optimizer = run->optimizer();
  if (!optimizer) return optimizer.failure();
  const auto data = sequences(at.batch, at.length, model->config().vocabulary);
  std::vector<labeled_sequence> batch;
  for (const auto& s : data) batch.push_back({s});
  const auto step = [&] {
    run->clear();
    if (auto loss = run->add(batch); !loss) went = loss.failure();
    if (status s = optimizer->step(); !s) went = s;
    if (status s = run->parameters_changed(); !s) went = s;
  };
  step();
  const double train = median_seconds(at.repeats, step);
  if (!went) return went;

  std::printf(
      "{\"load_s\": %.4f, \"tokens_per_second_1\": %.2f, \"tokens_per_second_8\": %.2f, \"step_s\": %.4f, "
      "\"peak_mb\": %.1f}\n",
      load, rate[0], rate[1], train, peak_megabytes());
  return ok;
}

}  // namespace

int main(int count, char** all) {
  if (count != 3 && count != 8 && !(count == 9 && std::string_view(all[8]) == "busy"))
    return std::fprintf(stderr, "usage: bench_models MODEL ADAPTER [PROMPT NEW_TOKENS BATCH LENGTH REPEATS [busy]]\n"),
           2;
  shape at;
  busy = count == 9;
  if (count >= 8)
    at = {std::atoi(all[3]), std::atoi(all[4]), std::atoi(all[5]), std::atoi(all[6]), std::max(1, std::atoi(all[7]))};
  const status s = measure(all[1], all[2], at);
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
