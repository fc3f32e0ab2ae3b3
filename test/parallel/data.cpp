// SPDX-License-Identifier: Apache-2.0
// Data-parallel training over MPI against one process with the same global batch: losses, norms and trained adapters,
// for every method whose folder is given. Every rank also trains without the others and compares; the parallel training
// runs twice and must give the same bits. Exit 0: all correct.
//     mpirun -n 2 data GOLDEN/models/llama lora dora oft lora_modules_to_save
#include <graft/io/hf/load_adapters.h>
#include <graft/model/on_cpu.h>
#include <graft/model/trainer.h>
#include <graft/parallel/mpi.h>

#include <cstdio>

using namespace graft;
using engine = cpu::engine<float>;

namespace {

constexpr int global_batch = 4, steps = 6;

struct trained {
  std::vector<double> numbers;  // losses and norms
  std::vector<std::vector<float>> values;
};

result<trained> train(const std::string& model_folder, const std::string& adapter,
                      const std::vector<std::vector<std::int64_t>>& data, std::shared_ptr<communicator> ranks,
                      int accumulate) {
  auto model = io::hf::load_model<engine>(model_folder + "/base");
  if (!model) return model.failure();
  auto loaded = io::hf::load_adapters(model_folder + "/" + adapter + "/adapter_init", *model);
  if (!loaded) return loaded.failure();
  if (status s = model->set_adapters(loaded->set); !s) return s.failure();
  trainer_settings settings;
  settings.steps = steps, settings.batch = global_batch / ranks->size(), settings.accumulate = accumulate;
  settings.optimizer.rate = 1e-3, settings.seed = 7, settings.dropout = false, settings.ranks = std::move(ranks);
  settings.bucket_bytes = 1;  // one bucket per block, reduced while earlier blocks compute
  auto t = trainer<engine>::make(*model, data, settings);
  if (!t) return t.failure();
  trained out;
  if (status s = t->run([&](const step_report& r) {
        out.numbers.push_back(r.loss), out.numbers.push_back(r.norm);
        out.numbers.push_back(static_cast<double>(r.tokens));
        return true;
      });
      !s)
    return s.failure();
  const result<double> seen = t->evaluate(data);
  if (!seen) return seen.failure();
  out.numbers.push_back(*seen);
  for (const trained_parameter& p : t->optimizer().parameters()) {
    const auto* v = static_cast<const float*>(p.value.data);
    out.values.emplace_back(v, v + p.value.count());
  }
  return out;
}

// Losses and norms are compared by relative error, tensors by the norm of the difference: Adam divides by the size of a
// gradient, so an element with a gradient near zero may differ in more digits than the sums it was computed from.
double max_difference(const trained& a, const trained& b) {
  double worst = a.numbers.size() == b.numbers.size() && a.values.size() == b.values.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.numbers.size() && worst < 1; ++i)
    worst = std::max(worst, std::abs(a.numbers[i] - b.numbers[i]) / std::abs(b.numbers[i]));
  double size = 0, difference = 0;
  for (std::size_t k = 0; k < a.values.size() && worst < 1; ++k)
    for (std::size_t i = 0; i < a.values[k].size(); ++i) {
      size += std::pow(static_cast<double>(b.values[k][i]), 2);
      difference += std::pow(static_cast<double>(a.values[k][i] - b.values[k][i]), 2);
    }
  return std::max(worst, std::sqrt(difference / size));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: data MODEL ADAPTER...\n"), 2;
  auto made = mpi_communicator::make({.timeout = 120});
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  const std::shared_ptr<communicator> ranks = std::move(*made);
  std::vector<std::vector<std::int64_t>> data;
  for (int s = 0; s < 11; ++s) {  // of different lengths, so that ranks have different numbers of labels
    std::vector<std::int64_t>& one = data.emplace_back();
    for (int t = 0; t < 6 + 3 * (s % 4); ++t) one.push_back(3 + (s * 37 + t * t * 5 + t) % 250);
  }
  int wrong = 0;
  for (int a = 2; a < argc; ++a)
    for (int accumulate = 1; accumulate <= (a == 2 ? 2 : 1); ++accumulate) {
      const auto together = train(argv[1], argv[a], data, ranks, accumulate);
      const auto again = train(argv[1], argv[a], data, ranks, accumulate);
      const auto by_itself = train(argv[1], argv[a], data, std::make_shared<single_process>(), accumulate);
      const bool ran = together && by_itself;
      const bool same = together && again && together->numbers == again->numbers && together->values == again->values;
      if (!same)
        std::printf("rank %d of %d, %s: other bits when it runs again\n", ranks->rank(), ranks->size(), argv[a]);
      const double error = ran ? max_difference(*together, *by_itself) : 1;
      if (ranks->rank() == 0 || !(error < 1e-6))
        std::printf("rank %d of %d, %s, accumulate %d: %s %.1e\n", ranks->rank(), ranks->size(), argv[a], accumulate,
                    ran ? "apart by" : (together ? by_itself.message() : together.message()), error);
      wrong += error < 1e-6 && same ? 0 : 1;
    }
  return wrong == 0 ? 0 : 1;
}
