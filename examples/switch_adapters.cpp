// SPDX-License-Identifier: Apache-2.0
// Loads several adapters onto one model, then switches, disables, combines and merges them while the model stays in
// memory. Each output line says what is active and which tokens follow the prompt; docs/switching.md explains it.
//     switch_adapters MODEL --ids 1,2,3 NAME=FOLDER [NAME=FOLDER …]
// run: switch_adapters test/golden/models/llama/base --ids 5,9,200 a=test/golden/models/llama/multi/a c=test/golden/models/llama/multi/c oft=test/golden/models/llama/oft/adapter_init ia3=test/golden/models/llama/ia3/adapter_init
#include <graft/io/hf/combine_adapters.h>
#include <graft/io/load_model.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>

#include <chrono>
#include <cstdio>

#include "arguments.h"

using engine = graft::cpu::engine<float>;
using graft::status;
namespace io = graft::io;
namespace hf = graft::io::hf;
using names = graft::adapter_registry::names;

struct session {
  graft::causal_lm<engine>& model;
  graft::generator<engine>& tokens;
  std::vector<std::int64_t> prompt;

  status print_tokens(const char* what) {
    const auto made = tokens.run(std::span(&prompt, 1));
    if (!made) return made.failure();
    std::printf("%-24s", what);
    for (std::size_t i = prompt.size(); i < (*made)[0].tokens.size(); ++i)
      std::printf(" %lld", static_cast<long long>((*made)[0].tokens[i]));
    std::printf("\n");
    return graft::ok;
  }
  status with(const names& active, const char* what) {
    if (status s = model.activate(active); !s) return s;
    return print_tokens(what);
  }
};

status run(const std::string& folder, const std::vector<std::int64_t>& prompt,
           const std::vector<std::pair<std::string, std::string>>& adapters) {
  auto model = io::load_model<engine>(folder);
  if (!model) return model.failure();
  graft::generation_settings settings;
  settings.max_new_tokens = 8;
  auto g = graft::generator<engine>::make(*model, settings, 1, static_cast<int>(prompt.size()) + 8);
  if (!g) return g.failure();
  session s{*model, *g, prompt};
  if (status done = s.print_tokens("the base"); !done) return done;
  names all;
  for (const auto& [name, from] : adapters) {
    if (status done = hf::load_adapter(*model, name, from); !done) return done;
    all.push_back(name);
    if (status done = s.with({name}, name.c_str()); !done) return done;
  }
  if (status done = s.with(all, "all at once"); !done) return done;
  {
    const auto off = model->disabled();
    if (status done = s.print_tokens("disabled"); !done) return done;
  }
  const names two(all.begin(), all.begin() + std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(all.size())));
  graft::combination_settings cat;
  cat.type = graft::combination::cat;
  const status combined = hf::combine(*model, "half and half", two, std::vector<double>(two.size(), 0.5), cat);
  if (!combined) std::printf("%-24s %s\n", "half and half", combined.message());
  if (combined)
    if (status done = s.with({"half and half"}, "half and half"); !done) return done;
  if (status done = model->merge({all[0]}); !done) return done;
  if (status done = s.print_tokens((all[0] + ", merged").c_str()); !done) return done;
  std::printf("%-24s %lld bytes in addition to the base\n", "", model->merged_bytes());
  if (status done = model->unmerge(); !done) return done;

  const auto begin = std::chrono::steady_clock::now();
  constexpr int times = 1000;
  for (int i = 0; i < times; ++i)
    if (status done = model->activate({all[static_cast<std::size_t>(i) % all.size()]}); !done) return done;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("switching takes %.1f microseconds with %zu adapters\n", 1e6 * seconds / times, all.size());
  return graft::ok;
}

int main(int argc, char** argv) {
  std::string model, ids;
  arguments::pairs adapters;
  arguments in("switch_adapters",
               "Several adapters on one model: loaded, switched, disabled, combined, merged and replaced.");
  in.word("MODEL", model, "Hugging Face folder or GGUF file of the model");
  in.named_words("NAME=FOLDER", adapters, "adapters and their names, at least one");
  in.option("--ids 1,2,3", ids, "the prompt, as token ids");
  if (const auto code = in.read(argc, argv)) return *code;
  const auto prompt = numbers_in(ids, ",");
  if (!prompt) return in.mistake(std::string("--ids: ") + prompt.message());
  if (prompt->empty()) return in.mistake("there is no prompt, expected --ids");
  if (adapters.empty()) return in.mistake("there is no adapter, expected NAME=FOLDER");
  const status s = run(model, *prompt, adapters);
  if (!s) std::fprintf(stderr, "switch_adapters: %s\n", s.message());
  return s ? 0 : 1;
}
