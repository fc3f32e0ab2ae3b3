// SPDX-License-Identifier: Apache-2.0
// Generates text with a model from a Hugging Face folder and optionally an adapter from a PEFT folder.
//     generate MODEL "Once upon a time" --adapter FOLDER --tokens 64
//     generate MODEL --ids 1,2,3                          token ids need no tokenizer
//     mpirun -n 4 generate … --parallel tensor            tensor parallel, 4 processes, the first of which prints
//     generate … --parallel tensor --on cuda --process 0/4 --rendezvous FILE      one of 4 processes started by hand
// generate --help lists all options.
// run: generate test/golden/models/llama/base --adapter test/golden/models/llama/lora/adapter_init --compare-base --ids 5,9,200
#include <graft/io/hf/load_adapters.h>
#include <graft/io/tokenizer/tokenizer_file.h>
#include <graft/model/generate.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "arguments.h"
#include "engine_options.h"
#include "generation_options.h"
#include "mode_options.h"
#include "parallel_options.h"

namespace hf = graft::io::hf;

struct options {
  std::string model, adapter, text, ids, on = "cpu";
  parallel_options ranks;
  sampling_options sampling;
  context_options context;
  mode_options mode;
  bool compare = false;
  int tokens = 32;
};

template <class Engine>
graft::status generate_text(graft::causal_lm<Engine>& model, const graft::generation_settings& generation,
                            graft::step_mode steps, const std::vector<std::int64_t>& prompt, const hf::tokenizer* words,
                            const char* title, bool is_first_rank) {
  if (is_first_rank) std::printf("%s", title);
  const long long wanted = static_cast<long long>(prompt.size()) + *generation.max_new_tokens;
  const int length = static_cast<int>(std::min<long long>(model.context(), wanted));
  auto g = graft::generator<Engine>::make(model, generation, 1, length, steps);
  if (!g) return g.failure();
  hf::text_stream text;
  const auto begin = std::chrono::steady_clock::now();
  const auto made = g->run(std::span(&prompt, 1), [&](std::size_t, std::int64_t token) {
    if (!is_first_rank) return true;
    if (words != nullptr)
      std::printf("%s", text.feed(words->bytes(token)).c_str());
    else
      std::printf(" %lld", static_cast<long long>(token));
    std::fflush(stdout);
    return true;
  });
  if (!made) return made.failure();
  if (!is_first_rank) return graft::ok;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const graft::generated_sequence& all = (*made)[0];
  const auto n = static_cast<double>(all.tokens.size() - prompt.size());
  std::printf("%s\n%.0f tokens, %.1f per second\n", text.finish().c_str(), n, n / seconds);
  if (all.why == graft::stop_reason::cache_full && n < *generation.max_new_tokens)
    std::fprintf(stderr, "generate: all %d positions are full; %s\n", model.context(),
                 context_options::context_advice(model.context(), model.config().positions).c_str());
  return graft::ok;
}

template <class Engine> graft::status run(const options& o) {
  auto ranks = ranks_for<Engine>(o.ranks);
  if (!ranks) return ranks.failure();
  const bool is_first_rank = (*ranks)->rank() == 0;
  auto loading = o.context.model(o.model);
  if (!loading) return loading.failure();
  if (o.ranks.parallel == "tensor") loading->ranks = *ranks;
  auto model = hf::load_model<Engine>(o.model, *loading);
  if (!model) return model.failure();
  auto generation = o.sampling.settings(o.model, model->config());
  if (!generation) return generation.failure();
  generation->max_new_tokens = o.tokens;
  std::optional<hf::tokenizer> words;
  auto prompt = numbers_in(o.ids, ",");
  if (!prompt) return graft::fail("--ids: ", prompt.message());
  if (o.ids.empty()) {
    auto read = hf::read_tokenizer(o.model);
    if (!read) return graft::fail(read.message(), "; --ids takes token ids and needs none");
    words = std::move(*read);
    const auto ids = words->encode(o.text);
    if (!ids) return ids.failure();
    prompt = *ids;
  }
  if (prompt->empty()) return graft::fail("the prompt has no tokens");
  for (const std::int64_t id : *prompt)
    if (id < 0 || id >= model->config().vocabulary)
      return graft::fail("token ", static_cast<long long>(id), " is none of this model, which has ",
                         model->config().vocabulary);
  if (prompt->size() > static_cast<std::size_t>(model->context()))
    return graft::fail("the prompt has ", static_cast<long long>(prompt->size()), " tokens, and the capacity is ",
                       model->context(), "; ",
                       context_options::context_advice(model->context(), model->config().positions).c_str());
  const auto steps = mode_named(o.mode, graft::step_mode::reduce_overhead, *model);
  if (!steps) return steps.failure();
  const hf::tokenizer* const spoken = words ? &*words : nullptr;
  if (o.compare || o.adapter.empty())
    if (graft::status s = generate_text(*model, *generation, *steps, *prompt, spoken, "the model:", is_first_rank); !s)
      return s;
  if (o.adapter.empty()) return graft::ok;
  auto adapters = hf::load_adapters(o.adapter, *model);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;
  return generate_text(*model, *generation, *steps, *prompt, spoken, "with the adapter:", is_first_rank);
}

int main(int argc, char** argv) {
  options o;
  arguments in("generate", "Generates text with a model from a Hugging Face folder, with an adapter or without.");
  in.word("MODEL", o.model, "folder of the model");
  in.optional_word("TEXT", o.text, "the prompt; it needs the model's tokenizer.json");
  in.option("--ids 1,2,3", o.ids, "token ids as the prompt instead of TEXT");
  in.option("--adapter FOLDER", o.adapter, "adapter that PEFT, or finetune, wrote");
  in.flag("--compare-base", o.compare, "generates without the adapter first");
  in.option("--tokens N", o.tokens, "new tokens, at most: an end token of the model ends the text before", 0);
  o.context.declare(in);
  o.sampling.declare(in);
  declare_engine(in, o.on);
  o.mode.declare(in);
  o.ranks.declare(in);
  if (const auto code = in.read(argc, argv)) return *code;
  if (o.text.empty() == o.ids.empty())
    return in.mistake(o.text.empty() ? "there is no prompt, expected TEXT or --ids"
                                     : "there are two prompts, expected TEXT or --ids");
  const graft::status s = on_engine(o.on, [&]<class Engine>() { return run<Engine>(o); });
  if (!s) std::fprintf(stderr, "generate: %s\n", s.message());
  return s ? 0 : 1;
}
