// SPDX-License-Identifier: Apache-2.0
// A tensor-parallel model with quantized weights over MPI against the model in one process: logits, losses and trained
// adapters. Each rank reads its shard of the stored values; a format whose blocks the ranks would cut is refused with a
// sentence. Exit 0: all correct.
//     mpirun -n 2 tensor_quantized GOLDEN/quantized/models/llama_nf4_double
#include <graft/backend/cpu/quantized/quantize.h>
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

// Quantizes the projections of the layers; other weights stay plain.
result<model_weights> quantize_weights(model_weights plain, const quant_format& format) {
  struct owners {
    std::shared_ptr<const void> plain;
    std::deque<cpu::quantized_weight> quantized;
  };
  auto kept = std::make_shared<owners>();
  kept->plain = plain.owner;
  for (auto& [name, v] : plain.tensors) {
    if (name.find("_proj") == std::string::npos) continue;
    std::vector<float> numbers(static_cast<std::size_t>(v.count()));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = widen(static_cast<const bf16*>(v.data)[i]);
    auto made = cpu::quantize(numbers.data(), v.size[0], v.size[1], format);
    if (!made) return made.failure();
    kept->quantized.push_back(std::move(*made));
    v = kept->quantized.back().as_view();
  }
  plain.owner = kept;
  return plain;
}

struct computed {
  std::vector<float> logits, trained;
  std::vector<double> losses;
};
result<computed> compute(const quant_format& format, std::shared_ptr<communicator> ranks) {
  model_config c = test::llama_config(2, 256, 512, 96, 64);
  c.kv_heads = c.heads;
  c.attention_dropout = 0.2;  // the dropout mask of a head does not depend on its rank
  auto weights = quantize_weights(test::random_weights(c), format);
  if (!weights) return weights.failure();
  model_options options;
  options.ranks = std::move(ranks);
  auto model = causal_lm<engine>::make(c, std::move(*weights), options);
  if (!model) return model.failure();
  const auto config = io::make_adapter_config(
      "LORA", {}, {{"target_modules", io::json_string("all-linear")}, {"r", io::json_number(4)}});
  if (!config) return config.failure();
  auto adapter = io::hf::new_adapter(*model, *config);
  if (!adapter) return adapter.failure();
  if (status s = model->set_adapters(adapter->set); !s) return s.failure();
  std::vector<std::vector<std::int64_t>> data(4);
  for (std::size_t s = 0; s < data.size(); ++s)
    for (std::size_t t = 0; t < 8 + 3 * s; ++t) data[s].push_back(static_cast<std::int64_t>((s * 37 + t * t * 5) % 96));
  computed out;
  const sequence_chunk run{data[0], 0, 0};
  out.logits.resize(data[0].size() * static_cast<std::size_t>(c.vocabulary));
  if (status s = model->logits(std::span(&run, 1), out.logits); !s) return s.failure();
  trainer_settings training;
  training.steps = 3, training.batch = 2, training.seed = 7, training.optimizer.rate = 1e-3;
  training.optimizer.eps = 1e-4;  // as in tensor.cpp: prevents updates from rounding errors
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
template <class Real> double max_difference(const std::vector<Real>& a, const std::vector<Real>& b) {
  double size = 1e-30, difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    size += std::pow(static_cast<double>(b[i]), 2);
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: tensor_quantized MODEL\n"), 2;
  auto made = mpi_communicator::make({.timeout = 120});
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  const std::shared_ptr<communicator> ranks = std::move(*made);
  int wrong = 0;
  quant_format twice{dtype::nf4, scale_granularity::flat_block, 64};
  twice.scales = dtype::u8, twice.second_block = quant_formats::double_quant_block;
  for (const quant_format& format :
       {quant_format{dtype::nf4, scale_granularity::flat_block, 64}, twice,
        quant_format{dtype::int8, scale_granularity::row}, quant_formats::q8_0_format::format()}) {
    const auto together = compute(format, ranks), by_itself = compute(format, nullptr);
    if (!together || !by_itself) {
      std::printf("rank %d, %s: %s\n", ranks->rank(), name_of(format.type),
                  together ? by_itself.message() : together.message());
      ++wrong;
      continue;
    }
    const double logits = max_difference(together->logits, by_itself->logits),
                 losses = max_difference(together->losses, by_itself->losses),
                 trained = max_difference(together->trained, by_itself->trained);
    const bool right = logits < 1e-5 && losses < 1e-6 && trained < 1e-6;
    if (ranks->rank() == 0 || !right)
      std::printf("rank %d of %d, %s: logits %.1e, losses %.1e, adapters %.1e\n", ranks->rank(), ranks->size(),
                  name_of(format.type), logits, losses, trained);
    wrong += right ? 0 : 1;
  }
  model_options options;
  options.ranks = ranks;
  const auto torn = io::hf::load_model<engine>(std::string(argv[1]) + "/base", options);
  if (torn || std::string(torn.message()).find("is not a whole number of blocks") == std::string::npos)
    std::printf("rank %d: cut blocks are not refused: %s\n", ranks->rank(), torn.message()), ++wrong;
  return wrong == 0 ? 0 : 1;
}
