// SPDX-License-Identifier: Apache-2.0
// Generates text with a model from a Hugging Face folder and, where one is named, an adapter from a PEFT folder.
//     generate MODEL [--adapter FOLDER] [--compare-base] [--tokens N] [--sample SEED] [--on cpu|cuda] (--ids 1,2,3 | TEXT)
//              [--mode standard|reduce-overhead|max-autotune] [--choices FILE]
//     mpirun -n 4 generate … --parallel tensor            4 processes that each compute a part of the model; one speaks
//     generate … --parallel tensor --on cuda --process 0/4 --meet FILE      one of 4 that were started by hand, with a GPU each
// Text needs the tokenizer.json of the model; token ids always work.
// run: generate test/golden/models/llama/base --adapter test/golden/models/llama/lora/adapter_init --compare-base --ids 5,9,200
#include <graft/io/hf/generation_config.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/tokenizer_file.h>
#include <graft/model/generate.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "arguments.h"
#include "engines.h"
#include "modes.h"
#include "ranks.h"

namespace hf = graft::io::hf;

struct wishes {
  std::string model, adapter, text, ids, on;
  parallel_wishes ranks;
  bool compare = false;
  int tokens = 32;
  std::optional<unsigned long long> seed;
  std::string mode, choices;
};

template <class Engine>
graft::status say(graft::causal_lm<Engine>& model, const graft::generation_settings& how, graft::step_mode steps,
                  const std::vector<std::int64_t>& prompt, const hf::tokenizer* words, const char* title, bool aloud) {
  if (aloud) std::printf("%s", title);
  const int length = std::min(model.context(), static_cast<int>(prompt.size()) + *how.new_tokens);
  auto g = graft::generator<Engine>::make(model, how, 1, length, steps);
  if (!g) return g.failure();
  hf::text_stream text;
  const auto begin = std::chrono::steady_clock::now();
  const auto made = g->run(std::span(&prompt, 1), [&](std::size_t, std::int64_t token) {
    if (!aloud) return true;
    if (words != nullptr)
      std::printf("%s", text.feed(words->bytes(token)).c_str());
    else
      std::printf(" %lld", static_cast<long long>(token));
    std::fflush(stdout);
    return true;
  });
  if (!made) return made.failure();
  if (!aloud) return graft::ok;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto n = static_cast<double>((*made)[0].tokens.size() - prompt.size());
  std::printf("%s\n%.0f tokens, %.1f per second\n", text.finish().c_str(), n, n / seconds);
  return graft::ok;
}

template <class Engine> graft::status run(const wishes& w) {
  auto ranks = ranks_for<Engine>(w.ranks);
  if (!ranks) return ranks.failure();
  const bool aloud = (*ranks)->rank() == 0;
  graft::model_options options;
  if (w.ranks.parallel == "tensor") options.ranks = *ranks;
  auto model = hf::load_model<Engine>(w.model, options);
  if (!model) return model.failure();
  const auto settings = hf::read_generation_config(w.model, model->config().tokens);
  if (!settings) return settings.failure();
  graft::generation_settings how = *settings;
  how.new_tokens = w.tokens;
  if (w.seed) how.sampling.sample = true, how.sampling.seed = *w.seed;
  std::optional<hf::tokenizer> words;
  auto prompt = numbers_in(w.ids, ",");
  if (!prompt) return graft::fail("--ids: ", prompt.message());
  if (w.ids.empty()) {
    auto read = hf::read_tokenizer(w.model);
    if (!read) return read.failure();
    words = std::move(*read);
    const auto ids = words->encode(w.text);
    if (!ids) return ids.failure();
    prompt = *ids;
  }
  if (prompt->empty()) return graft::fail("the prompt has no tokens");
  for (const std::int64_t id : *prompt)
    if (id < 0 || id >= model->config().vocabulary)
      return graft::fail("token ", static_cast<long long>(id), " is none of this model, which has ",
                         model->config().vocabulary);
  const auto steps = mode_named(w.mode, graft::step_mode::reduce_overhead, w.choices, *model);
  if (!steps) return steps.failure();
  const hf::tokenizer* const spoken = words ? &*words : nullptr;
  if (w.compare || w.adapter.empty())
    if (graft::status s = say(*model, how, *steps, *prompt, spoken, "the model:", aloud); !s) return s;
  if (w.adapter.empty()) return graft::ok;
  auto adapters = hf::load_adapters(w.adapter, *model);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;
  return say(*model, how, *steps, *prompt, spoken, "with the adapter:", aloud);
}

int main(int argc, char** argv) {
  wishes w;
  arguments in(argc, argv);
  while (in.next()) {
    if (in.is("--adapter"))
      w.adapter = in.value();
    else if (in.is("--compare-base"))
      w.compare = true;
    else if (in.is("--mode"))
      w.mode = in.value();
    else if (in.is("--choices"))
      w.choices = in.value();
    else if (in.is("--tokens"))
      w.tokens = in.whole(0);
    else if (in.is("--sample"))
      w.seed = static_cast<unsigned long long>(in.whole(0));
    else if (in.is("--on"))
      w.on = in.value();
    else if (in.is("--ids"))
      w.ids = in.value();
    else if (!takes(w.ranks, in))
      in.plain_into({&w.model, &w.text});
  }
  if (!in.problem().empty()) return std::fprintf(stderr, "generate: %s\n", in.problem().c_str()), 2;
  if (w.model.empty() || (w.text.empty() && w.ids.empty())) {
    std::fputs(
        "usage: generate MODEL [--adapter FOLDER] [--compare-base] [--tokens N] [--sample SEED] "
        "[--on cpu|cuda] [--mode standard|reduce-overhead|max-autotune] [--choices FILE] (--ids 1,2 | TEXT)\n",
        stderr);
    return 2;
  }
  const graft::status s = on_engine(w.on, [&]<class Engine>() { return run<Engine>(w); });
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  return s ? 0 : 1;
}
