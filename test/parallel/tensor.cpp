// SPDX-License-Identifier: Apache-2.0
// A model that ranks compute together over MPI against the same model in one process: logits, generated tokens, losses and
// trained adapters, for every method whose folder is named. Every rank also computes alone, and compares. What rank 0 saves
// is compared with the folder that one process saves. Exit 0: all is right.
//     mpirun -n 2 tensor GOLDEN/models/llama lora dora oft
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <graft/model/trainer.h>
#include <graft/parallel/mpi.h>

#include <cstdio>

using namespace graft;
using engine = cpu::engine<float>;

namespace {

struct computed {
  std::vector<float> logits, merged, trained;
  std::vector<std::int64_t> tokens;
  std::vector<double> losses;
};

std::vector<std::int64_t> sequence(int from, int length) {
  std::vector<std::int64_t> ids;
  for (int t = 0; t < length; ++t) ids.push_back(3 + (from * 37 + t * t * 5 + t) % 250);
  return ids;
}
void append(std::vector<float>& to, const view& v) {
  const auto* const p = static_cast<const float*>(v.data);
  if (v.type == dtype::f32) to.insert(to.end(), p, p + v.count());
}

result<computed> compute(const std::string& folder, const std::string& adapter, std::shared_ptr<communicator> ranks) {
  model_options options;
  options.ranks = std::move(ranks);
  auto model = io::hf::load_model<engine>(folder + "/base", options);
  if (!model) return model.failure();
  auto loaded = io::hf::load_adapters(folder + "/" + adapter + "/adapter_init", *model);
  if (!loaded) return loaded.failure();
  if (status s = model->set_adapters(loaded->set); !s) return s.failure();
  computed out;
  const std::vector<std::int64_t> ids = sequence(1, 12);
  const row_run run{ids, 0, 0};
  out.logits.resize(ids.size() * static_cast<std::size_t>(model->config().vocabulary));
  if (status s = model->logits(std::span(&run, 1), out.logits); !s) return s.failure();
  generation_settings how;
  how.new_tokens = 8;
  auto g = generator<engine>::make(*model, how, 1, 24);
  if (!g) return g.failure();
  const auto made = g->run(std::span(&ids, 1));
  if (!made) return made.failure();
  out.tokens = (*made)[0].tokens;
  auto weights = model->merged_weights();
  if (!weights) return weights.failure();
  for (const auto& [name, v] : weights->tensors) append(out.merged, v);
  std::vector<std::vector<std::int64_t>> data;
  for (int s = 0; s < 8; ++s) data.push_back(sequence(s, 6 + 3 * (s % 4)));
  trainer_settings training;
  training.steps = 4, training.batch = 4, training.seed = 7, training.dropout = false;
  // Adam divides by the size of a gradient: without a limit it makes a large number of the rounding of a small one.
  training.optimizer.rate = 1e-3, training.optimizer.eps = 1e-4;
  auto t = trainer<engine>::make(*model, data, training);
  if (!t) return t.failure();
  if (status s = t->run([&](const step_report& r) { return out.losses.push_back(r.loss), true; }); !s)
    return s.failure();
  for (const trained_parameter& p : t->optimizer().parameters())
    append(out.trained, {p.value.data, p.value.type, {p.value.count()}, 1});
  return out;
}

template <class Real> double apart(const std::vector<Real>& a, const std::vector<Real>& b) {
  if (a.size() != b.size()) return 1;
  double size = 1e-30, difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    size += std::pow(static_cast<double>(b[i]), 2);
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}
double furthest(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: tensor MODEL ADAPTER...\n"), 2;
  auto made = mpi_communicator::make({.timeout = 120});
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  const std::shared_ptr<communicator> ranks = std::move(*made);
  int wrong = 0;
  for (int a = 2; a < argc; ++a) {
    const auto together = compute(argv[1], argv[a], ranks);
    const auto by_itself = compute(argv[1], argv[a], nullptr);
    if (!together || !by_itself) {
      std::printf("rank %d, %s: %s\n", ranks->rank(), argv[a], together ? by_itself.message() : together.message());
      ++wrong;
      continue;
    }
    const double logits = furthest(together->logits, by_itself->logits),
                 losses = apart(together->losses, by_itself->losses),
                 trained = apart(together->trained, by_itself->trained);
    const bool right = logits < 1e-5 && losses < 1e-6 && trained < 1e-6 && together->tokens == by_itself->tokens &&
                       together->merged == by_itself->merged;
    if (ranks->rank() == 0 || !right)
      std::printf("rank %d of %d, %s: logits %.1e, losses %.1e, adapters %.1e%s%s\n", ranks->rank(), ranks->size(),
                  argv[a], logits, losses, trained, together->tokens == by_itself->tokens ? "" : ", other tokens",
                  together->merged == by_itself->merged ? "" : ", other merged weights");
    wrong += right ? 0 : 1;
  }
  return wrong == 0 ? 0 : 1;
}
