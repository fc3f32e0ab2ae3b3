// SPDX-License-Identifier: Apache-2.0
// A token step on the CPU of a multi-LoRA batch of 16 rows, LoRA of rank 16 on all projections, compared with the rows
// without adapters and with one call per adapter. A random Llama of four layers. Prints one line of JSON, milliseconds,
// medians of calls in turns.
//     bench_multi_lora [WIDTH]
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_cpu.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "../test/support/random_model.h"

using namespace graft;
using engine = cpu::engine<float>;
using names = adapter_registry::names;

namespace {

constexpr std::size_t rows = 16;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count() * 1e3;
}
double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

status measure(int width) {
  const model_config c = test::llama_config(4, width, 4 * width, 1024, 64);
  auto model = causal_lm<engine>::make(c, test::random_weights(c), {.context = 64});
  if (!model) return model.failure();
  const auto config = io::make_adapter_config(
      "LORA", {}, {{"target_modules", io::json_string("all-linear")}, {"r", io::json_number(16)}});
  if (!config) return config.failure();
  names all;
  for (int k = 0; k < 8; ++k) {
    all.push_back("a" + std::to_string(k));
    if (status s = io::hf::add_adapter(*model, all.back(), *config, static_cast<std::uint64_t>(k)); !s) return s;
  }
  std::vector<std::vector<std::int64_t>> tokens;
  for (std::size_t i = 0; i < rows; ++i) tokens.push_back({static_cast<std::int64_t>(i) + 1});
  std::vector<float> out(rows * static_cast<std::size_t>(c.vocabulary));
  const auto call = [&](std::size_t first, std::size_t count, std::span<const names> of) {
    std::vector<sequence_chunk> runs;
    for (std::size_t i = first; i < first + count; ++i) runs.push_back({tokens[i]});
    return model->logits(runs, std::span(out).first(count * static_cast<std::size_t>(c.vocabulary)), false, of);
  };
  std::vector<double> bare, one_batch, groups;
  for (int k = 0; k < 12; ++k) {
    const bool counts = k > 1;  // after warm-up
    double begun = now();
    if (status s = call(0, rows, std::vector<names>(rows)); !s) return s;
    if (counts) bare.push_back(now() - begun);
    std::vector<names> of;
    for (std::size_t i = 0; i < rows; ++i) of.push_back({all[i % all.size()]});
    begun = now();
    if (status s = call(0, rows, of); !s) return s;
    if (counts) one_batch.push_back(now() - begun);
    begun = now();
    for (std::size_t g = 0; g < all.size(); ++g) {
      if (status s = model->activate({all[g]}); !s) return s;
      if (status s = call(2 * g, 2, {}); !s) return s;
    }
    if (counts) groups.push_back(now() - begun);
  }
  std::printf(
      "{\"rows\": %zu, \"adapters\": %zu, \"width\": %d, \"without\": %.2f, \"one_batch\": %.2f, \"one_by_one\": "
      "%.2f}\n",
      rows, all.size(), width, median(bare), median(one_batch), median(groups));
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  const status s = measure(argc > 1 ? std::atoi(argv[1]) : 1024);
  if (!s) std::fprintf(stderr, "bench: %s\n", s.message());
  return s ? 0 : 1;
}
