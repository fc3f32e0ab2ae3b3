// SPDX-License-Identifier: Apache-2.0
// Forward passes of a model on the CPU, for bench/compare_experts.py, which times them in turns with those of PyTorch.
// A line "sequences length passes" on stdin is answered by a line with the wall seconds and the CPU seconds of the
// fastest pass, and a line "logits length" by the logits of one sequence.
//     bench_experts MODEL [ADAPTER]
#include <graft/models.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "cpu_time.h"

namespace {

using namespace graft;
using engine = cpu::engine<float>;

std::vector<std::int64_t> sequence(int number, int length, int vocabulary) {
  std::vector<std::int64_t> all;
  for (int t = 0; t < length; ++t)
    all.push_back((static_cast<std::int64_t>(number) * 7919 + t * 104729LL + 11) % vocabulary);
  return all;
}
double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

status answer(causal_lm<engine>& model, const char* line) {
  int count = 1, length = 0, passes = 1;
  const bool prints = std::sscanf(line, "logits %d", &length) == 1;
  if (!prints && std::sscanf(line, "%d %d %d", &count, &length, &passes) != 3)
    return fail("expected 'sequences length passes' or 'logits length', not ", line);
  const int vocabulary = model.config().vocabulary;
  std::vector<std::vector<std::int64_t>> ids;
  for (int s = 0; s < count; ++s) ids.push_back(sequence(s, length, vocabulary));
  std::vector<sequence_chunk> chunks;
  for (const auto& one : ids) chunks.push_back({one});
  std::vector<float> out(static_cast<std::size_t>(count) * static_cast<std::size_t>(length) *
                         static_cast<std::size_t>(vocabulary));
  double wall = 1e30, processor = 1e30;
  for (int k = 0; k < passes; ++k) {
    const double wall_before = wall_seconds(), before = cpu_seconds();
    if (status s = model.logits(chunks, out); !s) return s;
    wall = std::min(wall, wall_seconds() - wall_before), processor = std::min(processor, cpu_seconds() - before);
  }
  if (prints)
    for (const float v : out) std::printf("%.7g ", static_cast<double>(v));
  else
    std::printf("%.9f %.9f", wall, processor);
  std::printf("\n"), std::fflush(stdout);
  return ok;
}

status run(int argc, char** argv) {
  auto model = io::hf::load_model<engine>(argv[1]);
  if (!model) return model.failure();
  if (argc > 2) {
    auto adapter = io::hf::load_adapters(argv[2], *model);
    if (!adapter) return adapter.failure();
    if (status s = model->set_adapters(adapter->set); !s) return s;
  }
  char line[256];
  while (std::fgets(line, sizeof line, stdin) != nullptr)
    if (status s = answer(*model, line); !s) return s;
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) return std::fprintf(stderr, "usage: bench_experts MODEL [ADAPTER]\n"), 2;
  const status s = run(argc, argv);
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
