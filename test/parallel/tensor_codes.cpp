// SPDX-License-Identifier: Apache-2.0
// A model whose weights are codes, computed by ranks together over MPI, against the same model in one process: logits,
// losses and trained adapters. Each rank reads its part of the codes; blocks that the ranks would tear are refused with a
// sentence. Exit 0: all is right.
//     mpirun -n 2 tensor_codes GOLDEN/quantized/models/llama_nf4_double
#include <graft/backend/cpu/quantize.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_cpu.h>
#include <graft/model/trainer.h>
#include <graft/parallel/mpi.h>

#include <cstdio>

#include "../support/random_model.h"

using namespace graft;
using engine = cpu::engine<float>;

namespace {

// The projections of the layers as codes, everything else as numbers.
result<model_weights> coded(model_weights plain, const encoding& how) {
  struct owners {
    std::shared_ptr<const void> plain;
    std::deque<cpu::coded_weight> codes;
  };
  auto kept = std::make_shared<owners>();
  kept->plain = plain.owner;
  for (auto& [name, v] : plain.tensors) {
    if (name.find("_proj") == std::string::npos) continue;
    std::vector<float> numbers(static_cast<std::size_t>(v.count()));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = widen(static_cast<const bf16*>(v.data)[i]);
    auto made = cpu::quantize(numbers.data(), v.size[0], v.size[1], how);
    if (!made) return made.failure();
    kept->codes.push_back(std::move(*made));
    v = kept->codes.back().as_view();
  }
  plain.owner = kept;
  return plain;
}

struct computed {
  std::vector<float> logits, trained;
  std::vector<double> losses;
};
result<computed> compute(const encoding& how, std::shared_ptr<communicator> ranks) {
  model_config c = test::llama_config(2, 256, 512, 96, 64);
  c.key_heads = c.heads;
  c.attention_dropout = 0.2;  // a head drops the same probabilities wherever it is computed
  auto weights = coded(test::random_weights(c), how);
  if (!weights) return weights.failure();
  model_options options;
  options.ranks = std::move(ranks);
  auto model = causal_lm<engine>::make(c, std::move(*weights), options);
  if (!model) return model.failure();
  const auto config =
      io::make_adapter_config("LORA", {}, {{"target_modules", io::json_word("all-linear")}, {"r", io::json_number(4)}});
  if (!config) return config.failure();
  auto adapter = io::hf::new_adapter(*model, *config);
  if (!adapter) return adapter.failure();
  if (status s = model->set_adapters(adapter->set); !s) return s.failure();
  std::vector<std::vector<std::int64_t>> data(4);
  for (std::size_t s = 0; s < data.size(); ++s)
    for (std::size_t t = 0; t < 8 + 3 * s; ++t) data[s].push_back(static_cast<std::int64_t>((s * 37 + t * t * 5) % 96));
  computed out;
  const row_run run{data[0], 0, 0};
  out.logits.resize(data[0].size() * static_cast<std::size_t>(c.vocabulary));
  if (status s = model->logits(std::span(&run, 1), out.logits); !s) return s.failure();
  trainer_settings training;
  training.steps = 3, training.batch = 2, training.seed = 7, training.optimizer.rate = 1e-3;
  training.optimizer.eps = 1e-4;  // as in tensor.cpp: what is only rounding stays small
  auto t = trainer<engine>::make(*model, data, training);
  if (!t) return t.failure();
  if (status s = t->run([&](const step_report& r) { return out.losses.push_back(r.loss), true; }); !s)
    return s.failure();
  for (const trained_parameter& p : t->optimizer().parameters()) {
    const auto* const v = static_cast<const float*>(p.value.data);
    out.trained.insert(out.trained.end(), v, v + p.value.count());
  }
  return out;
}
template <class Real> double apart(const std::vector<Real>& a, const std::vector<Real>& b) {
  double size = 1e-30, difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    size += std::pow(static_cast<double>(b[i]), 2);
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: tensor_codes MODEL\n"), 2;
  auto made = mpi_communicator::make({.timeout = 120});
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  const std::shared_ptr<communicator> ranks = std::move(*made);
  int wrong = 0;
  encoding twice{dtype::nf4, scaled_by::run, 64};
  twice.scales = dtype::u8, twice.second_block = encodings::nested_block;
  for (const encoding& how : {encoding{dtype::nf4, scaled_by::run, 64}, twice, encoding{dtype::int8, scaled_by::row},
                              encodings::q8_0_codes::how()}) {
    const auto together = compute(how, ranks), by_itself = compute(how, nullptr);
    if (!together || !by_itself) {
      std::printf("rank %d, %s: %s\n", ranks->rank(), name_of(how.codes),
                  together ? by_itself.message() : together.message());
      ++wrong;
      continue;
    }
    const double logits = apart(together->logits, by_itself->logits),
                 losses = apart(together->losses, by_itself->losses),
                 trained = apart(together->trained, by_itself->trained);
    const bool right = logits < 1e-5 && losses < 1e-6 && trained < 1e-6;
    if (ranks->rank() == 0 || !right)
      std::printf("rank %d of %d, %s: logits %.1e, losses %.1e, adapters %.1e\n", ranks->rank(), ranks->size(),
                  name_of(how.codes), logits, losses, trained);
    wrong += right ? 0 : 1;
  }
  model_options options;
  options.ranks = ranks;
  const auto torn = io::hf::load_model<engine>(std::string(argv[1]) + "/base", options);
  if (torn || std::string(torn.message()).find("are not whole blocks") == std::string::npos)
    std::printf("rank %d: torn blocks are not refused: %s\n", ranks->rank(), torn.message()), ++wrong;
  return wrong == 0 ? 0 : 1;
}
