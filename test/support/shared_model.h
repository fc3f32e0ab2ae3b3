// SPDX-License-Identifier: Apache-2.0
// The results of a model, to compare ranks that share it with one process: logits, generated tokens, merged weights,
// losses and trained adapters. Adam divides by the size of a gradient: `eps` prevents it from making a large number of
// the rounding error of a small one.
#pragma once
#include <graft/io/hf/load_adapters.h>
#include <graft/model/generate.h>
#include <graft/model/trainer.h>

#include <cmath>

namespace test {

struct model_numbers {
  std::vector<double> logits, trained_logits;
  std::vector<float> merged, trained;
  std::vector<std::int64_t> tokens;
  std::vector<double> losses;
};

inline std::vector<std::int64_t> some_tokens(int from, int length, int vocabulary) {
  std::vector<std::int64_t> ids;
  for (int t = 0; t < length; ++t) ids.push_back(3 + (from * 37 + t * t * 5 + t) % std::min(250, vocabulary - 3));
  return ids;
}
inline void append(std::vector<float>& to, const graft::view& v) {
  const auto* const p = static_cast<const float*>(v.data);
  if (v.type == graft::dtype::f32) to.insert(to.end(), p, p + v.count());
}

// Logits of a sequence with the adapter; on the CPU also of a batch of two sequences of which the first has the
// adapter.
template <class Engine> graft::result<std::vector<double>> logits_of(graft::causal_lm<Engine>& model) {
  const std::vector<std::int64_t> ids = some_tokens(1, 12, model.config().vocabulary);
  const graft::sequence_chunk run{ids, 0, 0};
  const auto width = static_cast<std::size_t>(model.config().vocabulary);
  std::vector<typename Engine::real> one(ids.size() * width);
  if (graft::status s = model.logits(std::span(&run, 1), one); !s) return s.failure();
  std::vector<double> all(one.begin(), one.end());
  if constexpr (Engine::reads_host_memory) {
    const std::vector<std::int64_t> others = some_tokens(2, 7, model.config().vocabulary);
    const graft::sequence_chunk runs[] = {run, {others, 0, 0}};
    const graft::adapter_registry::names chunk_adapters[] = {{"default"}, {}};
    std::vector<typename Engine::real> mixed((ids.size() + others.size()) * width);
    if (graft::status s = model.logits(runs, mixed, false, chunk_adapters); !s) return s.failure();
    all.insert(all.end(), mixed.begin(), mixed.end());
  }
  return all;
}

// `saved` is a folder for the trained adapter, which the first rank writes.
template <class Engine>
graft::result<model_numbers> numbers_of(const std::string& folder, const std::string& adapter,
                                        std::shared_ptr<graft::communicator> ranks,
                                        graft::step_mode mode = graft::step_mode::standard, double eps = 1e-4,
                                        const std::string& saved = {}) {
  using namespace graft;
  model_options options;
  options.ranks = ranks;
  auto model = io::hf::load_model<Engine>(folder + "/base", options);
  if (!model) return model.failure();
  auto loaded = io::hf::load_adapters(folder + "/" + adapter + "/adapter_init", *model);
  if (!loaded) return loaded.failure();
  if (status s = model->set_adapters(loaded->set); !s) return s.failure();
  model_numbers out;
  const int vocabulary = model->config().vocabulary;
  const std::vector<std::int64_t> ids = some_tokens(1, 12, vocabulary);
  const auto logits = logits_of(*model);
  if (!logits) return logits.failure();
  out.logits = *logits;
  generation_settings settings;
  settings.max_new_tokens = 8, settings.eos_tokens = no_eos_tokens;
  if constexpr (std::is_same_v<typename Engine::real, float>) {  // generation is compared in float only
    auto g = generator<Engine>::make(*model, settings, 1, 24, mode);
    if (!g) return g.failure();
    const auto made = g->run(std::span(&ids, 1));
    if (!made) return made.failure();
    out.tokens = (*made)[0].tokens;
  }
  auto weights = model->merged_weights();
  if (!weights) return weights.failure();
  for (const auto& [name, v] : weights->tensors) append(out.merged, v);
  std::vector<std::vector<std::int64_t>> data;
  for (int s = 0; s < 8; ++s)
    data.push_back(some_tokens(s, mode == step_mode::standard ? 6 + 3 * (s % 4) : 9, vocabulary));
  trainer_settings training;
  training.steps = 4, training.batch = 4, training.seed = 7, training.dropout = false, training.mode = mode;
  training.optimizer.rate = 1e-3, training.optimizer.eps = eps;
  auto t = trainer<Engine>::make(*model, data, training);
  if (!t) return t.failure();
  if (status s = t->run([&](const step_report& r) { return out.losses.push_back(r.loss), true; }); !s)
    return s.failure();
  for (const module_adapter& m : model->adapters().modules)
    for (const auto* tensors : {&m.tensors, &m.base})
      for (const auto& [name, values] : *tensors) append(out.trained, values.value());
  if (status s = model->adapters_changed(); !s) return s.failure();
  const auto after = logits_of(*model);
  if (!after) return after.failure();
  out.trained_logits = *after;
  if (!saved.empty() && (ranks == nullptr || ranks->rank() == 0))
    if (status s = io::hf::save_adapters(saved, *loaded); !s) return s.failure();
  return out;
}

template <class Real> double relative_distance(const std::vector<Real>& a, const std::vector<Real>& b) {
  if (a.size() != b.size()) return 1;
  double size = 1e-30, difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    size += std::pow(static_cast<double>(b[i]), 2);
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::isnan(difference) ? 1 : std::sqrt(difference / size);
}
inline double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double largest_difference = std::abs(a[i] - b[i]);
    most = largest_difference <= most ? most : largest_difference;  // a NaN counts as the largest distance
  }
  return most;
}

}  // namespace test
