// SPDX-License-Identifier: Apache-2.0
// Throughput of data-parallel training: the number of sequences per rank is constant, so that n ranks on n cores would
// train n times as many tokens in the same time. Prints the medians of a step's wall time and of its CPU time on a
// rank, and the tokens of all ranks per second of both; and the 5th percentile of the wall time, which other work on
// the machine disturbs least. Start it with one thread for each rank.
//     OMP_NUM_THREADS=1 mpirun -n 2 bench_ranks MODEL ADAPTER [STEPS BATCH LENGTH]
#include <graft/models.h>
#include <graft/parallel/mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "../cpu_time.h"

using namespace graft;
using engine = cpu::engine<float>;

namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double lower_than(std::vector<double> all, double share) {
  std::sort(all.begin(), all.end());
  return all[static_cast<std::size_t>(share * static_cast<double>(all.size()))];
}

status measure(const std::string& folder, const std::string& adapter, int steps, int batch, int length) {
  auto made = mpi_communicator::make({.timeout = 60});
  if (!made) return made.failure();
  const std::shared_ptr<communicator> ranks = std::move(*made);
  auto model = io::hf::load_model<engine>(folder);
  if (!model) return model.failure();
  auto adapters = io::hf::load_adapters(adapter, *model);
  if (!adapters) return adapters.failure();
  if (status s = model->set_adapters(adapters->set); !s) return s;
  trainer<engine>::sequences data(static_cast<std::size_t>(8 * batch * ranks->size()));
  for (std::size_t s = 0; s < data.size(); ++s)
    for (int t = 0; t < length; ++t)
      data[s].push_back((static_cast<std::int64_t>(s) * 7919 + t * 104729 + 11) % model->config().vocabulary);
  trainer_settings settings;
  settings.steps = steps + 1, settings.batch = batch, settings.ranks = ranks;
  auto t = trainer<engine>::make(*model, data, settings);
  if (!t) return t.failure();
  std::vector<double> wall, processor;
  for (int k = 0; k <= steps; ++k) {
    const double begin = wall_seconds(), worked = cpu_seconds();
    if (auto r = t->step(); !r) return r.failure();
    if (k == 0) continue;  // warm-up
    wall.push_back(wall_seconds() - begin), processor.push_back(cpu_seconds() - worked);
  }
  const double tokens = static_cast<double>(batch) * length * ranks->size();
  const double all = lower_than(wall, 0.5), fast = lower_than(wall, 0.05), worked = lower_than(processor, 0.5);
  if (ranks->rank() == 0)
    std::printf(
        "{\"ranks\": %d, \"wall\": %.6f, \"wall_p5\": %.6f, \"cpu_seconds\": %.6f, "
        "\"tokens_per_wall_second\": %.0f, \"of_the_fastest\": %.0f, \"tokens_per_processor_second\": %.0f, "
        "\"steps\": %d}\n",
        ranks->size(), all, fast, worked, tokens / all, tokens / fast, tokens / worked, steps);
  return ranks->barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: bench_ranks MODEL ADAPTER [STEPS BATCH LENGTH]\n"), 2;
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const status s = measure(argv[1], argv[2], number(3, 100), number(4, 4), number(5, 64));
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
