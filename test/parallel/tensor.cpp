// SPDX-License-Identifier: Apache-2.0
// A tensor-parallel model over MPI against the model in one process: logits, generated tokens, losses and trained
// adapters, for every method whose folder is given. Every rank also computes the whole model and compares; and the
// first one loads the adapter that the ranks trained and saved. Exit 0: all correct. Compiled with EXACT it computes in
// double and trains with Adam's default eps, for which float rounding alone could make an update of the size of the
// rate.
//     mpirun -n 2 tensor GOLDEN/models/llama lora dora oft
#include <graft/model/on_cpu.h>
#include <graft/parallel/mpi.h>

#include <cstdio>
#include <filesystem>

#include "../support/shared_model.h"

using namespace graft;
#ifdef EXACT
using engine = cpu::engine<double>;
constexpr double eps = 1e-8, same_logits = 1e-12, same_losses = 1e-12, same_adapters = 1e-9;
#else
using engine = cpu::engine<float>;
constexpr double eps = 1e-4, same_logits = 1e-5, same_losses = 1e-6, same_adapters = 1e-6;
#endif

namespace {

// Logits of one process with an adapter from a folder.
result<std::vector<double>> logits_with(const std::string& base, const std::string& adapter) {
  auto model = io::hf::load_model<engine>(base);
  if (!model) return model.failure();
  auto loaded = io::hf::load_adapters(adapter, *model);
  if (!loaded) return loaded.failure();
  if (status s = model->set_adapters(loaded->set); !s) return s.failure();
  return test::logits_of(*model);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: tensor MODEL ADAPTER...\n"), 2;
  auto made = mpi_communicator::make({.timeout = 120});
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  const std::shared_ptr<communicator> ranks = std::move(*made);
  int wrong = 0;
  for (int a = 2; a < argc; ++a) {
    const std::filesystem::path saved =
        std::filesystem::temp_directory_path() /
        ("graft_saved_by_" + std::to_string(ranks->size()) + (eps < 1e-4 ? "_exact_" : "_") + argv[a]);
    std::filesystem::remove_all(saved);
    const auto together = test::numbers_of<engine>(argv[1], argv[a], ranks, step_mode::standard, eps, saved.string());
    const auto by_itself = test::numbers_of<engine>(argv[1], argv[a], nullptr, step_mode::standard, eps);
    if (!together || !by_itself) {
      std::printf("rank %d, %s: %s\n", ranks->rank(), argv[a], together ? by_itself.message() : together.message());
      ++wrong;
      continue;
    }
    const double logits = test::furthest(together->logits, by_itself->logits),
                 losses = test::relative_distance(together->losses, by_itself->losses),
                 trained = test::relative_distance(together->trained, by_itself->trained);
    const bool right = logits < same_logits && losses < same_losses && trained < same_adapters &&
                       together->tokens == by_itself->tokens && together->merged == by_itself->merged;
    if (ranks->rank() == 0 || !right)
      std::printf("rank %d of %d, %s: logits %.1e, losses %.1e, adapters %.1e%s%s\n", ranks->rank(), ranks->size(),
                  argv[a], logits, losses, trained, together->tokens == by_itself->tokens ? "" : ", other tokens",
                  together->merged == by_itself->merged ? "" : ", other merged weights");
    wrong += right ? 0 : 1;
    if (ranks->rank() != 0) continue;
    const auto again = logits_with(std::string(argv[1]) + "/base", saved.string());
    const bool reads = again && test::furthest(*again, together->trained_logits) < same_logits;
    if (!reads)
      std::printf("%s as it was saved: %s, %.1e off\n", argv[a], again ? "other logits" : again.message(),
                  again ? test::furthest(*again, together->trained_logits) : 0.0),
          ++wrong;
    std::filesystem::remove_all(saved);
  }
  return wrong == 0 ? 0 : 1;
}
