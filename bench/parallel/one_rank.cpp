// SPDX-License-Identifier: Apache-2.0
// The cost of data-parallel training with one rank: steps with MPI and steps without a communicator alternate in one
// process, so that other work of the machine affects both. Prints the medians of CPU time, and their ratio, which is
// the most reliable figure.
//     mpirun -n 1 bench_one_rank MODEL ADAPTER [STEPS BATCH LENGTH]
#include <graft/models.h>
#include <graft/parallel/mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "../cpu_time.h"

using namespace graft;
using engine = cpu::engine<float>;

namespace {

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

struct tuned {
  causal_lm<engine> model;
  static result<tuned> load(const std::string& folder, const std::string& adapter) {
    auto model = io::hf::load_model<engine>(folder);
    if (!model) return model.failure();
    auto adapters = io::hf::load_adapters(adapter, *model);
    if (!adapters) return adapters.failure();
    if (status s = model->set_adapters(adapters->set); !s) return s.failure();
    return tuned{std::move(*model)};
  }
};

status measure(const std::string& folder, const std::string& adapter, int steps, int batch, int length) {
  auto ranks = mpi_communicator::make({.timeout = 60});
  if (!ranks) return ranks.failure();
  if ((*ranks)->size() != 1) return fail("this measures one rank: start it with mpirun -n 1");
  auto first = tuned::load(folder, adapter), second = tuned::load(folder, adapter);
  if (!first || !second) return first ? second.failure() : first.failure();
  trainer<engine>::sequences data(static_cast<std::size_t>(8 * batch));
  for (std::size_t s = 0; s < data.size(); ++s)
    for (int t = 0; t < length; ++t)
      data[s].push_back((static_cast<std::int64_t>(s) * 7919 + t * 104729 + 11) % first->model.config().vocabulary);
  trainer_settings settings;
  settings.steps = steps + 1, settings.batch = batch;
  auto without = trainer<engine>::make(first->model, data, settings);
  settings.ranks = std::move(*ranks);
  auto with = trainer<engine>::make(second->model, data, settings);
  if (!without || !with) return without ? with.failure() : without.failure();
  std::vector<double> seconds[2], ratios;
  for (int k = 0; k <= steps; ++k) {
    double took[2] = {0, 0};
    for (int turn = 0; turn < 2; ++turn) {
      const int which = turn ^ (k & 1);  // neither is always the first
      const double begin = cpu_seconds();
      if (auto r = (which == 0 ? *without : *with).step(); !r) return r.failure();
      took[which] = cpu_seconds() - begin;
    }
    if (k == 0) continue;  // warm-up
    seconds[0].push_back(took[0]), seconds[1].push_back(took[1]), ratios.push_back(took[1] / took[0]);
  }
  std::printf(
      "{\"without\": %.6f, \"with\": %.6f, \"overhead_percent\": %.3f, \"of_pairs_percent\": %.3f, \"steps\": %d}\n",
      median(seconds[0]), median(seconds[1]), 100 * (median(seconds[1]) / median(seconds[0]) - 1),
      100 * (median(ratios) - 1), steps);
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: bench_one_rank MODEL ADAPTER [STEPS BATCH LENGTH]\n"), 2;
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const status s = measure(argv[1], argv[2], number(3, 100), number(4, 4), number(5, 64));
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
