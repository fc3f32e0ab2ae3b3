// SPDX-License-Identifier: Apache-2.0
// QLoRA: a LoRA is trained on a base whose weights stay codes of four bits, saved as a PEFT folder, read again onto a
// fresh base, and generates. The 16-bit weights never exist.
//     qlora MODEL OUT [--on cpu|cuda]
// run: qlora test/golden/quantized/models/llama_nf4_double/base build/qlora_adapter
#include <graft/io/folder_write.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/trainer.h>

#include <cstdio>

#include "arguments.h"
#include "engines.h"

namespace hf = graft::io::hf;

// Bytes of the linear layers as they are stored, and what they would take as float.
void show_weights(const graft::model_weights& w) {
  long long stored = 0, numbers = 0;
  for (const auto& [name, v] : w.tensors)
    if (v.beside != nullptr) stored += graft::bytes_of(v.beside->how, v.size[0], v.size[1]), numbers += v.count();
  std::printf("%lld weights in %lld bytes: %.2f bits each, %.1f times less than float\n", numbers, stored,
              8.0 * static_cast<double>(stored) / static_cast<double>(numbers),
              4.0 * static_cast<double>(numbers) / static_cast<double>(stored));
}

template <class Engine> graft::result<std::vector<std::int64_t>> continued(graft::causal_lm<Engine>& model) {
  graft::generation_settings how;
  how.new_tokens = 8;
  auto g = graft::generator<Engine>::make(model, how, 1, 16);
  if (!g) return g.failure();
  const std::vector<std::vector<std::int64_t>> prompts{{3, 10, 17, 24}};
  const auto made = g->run(prompts);
  if (!made) return made.failure();
  return (*made)[0].tokens;
}

template <class Engine> graft::status run(const std::string& folder, const std::string& out) {
  if (graft::status s = graft::io::can_save_folder(out); !s) return s;
  auto model = hf::load_model<Engine>(folder);
  if (!model) return model.failure();
  if (!model->config().coded)
    return graft::fail(folder.c_str(), ": its weights are no codes; finetune trains on plain ones");
  show_weights(model->weights());
  const auto config = graft::io::make_adapter_config(
      "LORA", {}, {{"target_modules", graft::io::json_word("all-linear")}, {"lora_alpha", graft::io::json_number(16)}});
  if (!config) return config.failure();
  auto adapters = hf::new_adapter(*model, *config);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;

  typename graft::trainer<Engine>::sequences counting;  // tokens in steps of seven
  for (std::int64_t s = 0; s < 24; ++s) {
    counting.emplace_back();
    for (std::int64_t t = 0; t < 16; ++t) counting.back().push_back((s + 7 * t) % 200);
  }
  graft::trainer_settings how;
  how.steps = 60, how.batch = 8, how.optimizer.rate = 1e-2;
  auto trained = graft::trainer<Engine>::make(*model, counting, how);
  if (!trained) return trained.failure();
  double first = 0, last = 0;
  if (graft::status s = trained->run([&](const graft::step_report& r) {
        (r.step == 1 ? first : last) = r.loss;
        return true;
      });
      !s)
    return s;
  std::printf("loss %.3f -> %.3f in %d steps\n", first, last, static_cast<int>(how.steps));
  if (!(last < first)) return graft::fail("training did not lower the loss");
  if (graft::status s = hf::save_adapters(out, *adapters); !s) return s;

  auto fresh = hf::load_model<Engine>(folder);
  if (!fresh) return fresh.failure();
  auto again = hf::load_adapters(out, *fresh);
  if (!again) return again.failure();
  if (graft::status s = fresh->set_adapters(again->set); !s) return s;
  if (graft::status s = model->set_adapters(model->adapters()); !s) return s;
  const auto tokens = continued(*fresh), expected = continued(*model);
  if (!tokens) return tokens.failure();
  if (!expected) return expected.failure();
  std::printf("tokens:");
  for (const std::int64_t t : *tokens) std::printf(" %lld", static_cast<long long>(t));
  std::printf("\nthe adapter is in %s\n", out.c_str());
  return *tokens == *expected ? graft::status(graft::ok)
                              : graft::status(graft::fail("the adapter that was read again gives other tokens"));
}

int main(int argc, char** argv) {
  std::string model, out, on;
  arguments in(argc, argv);
  while (in.next()) {
    if (in.is("--on"))
      on = in.value();
    else
      in.plain_into({&model, &out});
  }
  if (!in.problem().empty()) return std::fprintf(stderr, "qlora: %s\n", in.problem().c_str()), 2;
  if (out.empty()) return std::fputs("usage: qlora MODEL OUT [--on cpu|cuda]\n", stderr), 2;
  const graft::status s = on_engine(on, [&]<class Engine>() { return run<Engine>(model, out); });
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  return s ? 0 : 1;
}
