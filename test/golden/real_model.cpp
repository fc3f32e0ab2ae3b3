// SPDX-License-Identifier: Apache-2.0
// What a model computes, for comparisons with other programs by hand (compare_real_model.py).
//     real_model greedy MODEL IDS TOKENS [ADAPTER]     a line of TOKENS greedy tokens for each line of token ids in IDS
//     real_model logits MODEL IDS OUT [ADAPTER]        the logits after every token of every line, as float32, in OUT
//     real_model losses MODEL IDS ADAPTER BATCH RATE   a loss for each step of AdamW that trains the adapter, one step
//                                                      on BATCH lines of IDS
//     real_model perplexity MODEL IDS                  of all lines together
// MODEL is a folder or a GGUF file.
#include <graft/io/load_model.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "../../examples/arguments.h"

using namespace graft;
using engine = cpu::engine<float>;
using token_lines = std::vector<std::vector<std::int64_t>>;

namespace {

result<token_lines> read_lines(const std::string& file) {
  const auto bytes = io::read_file(file);
  if (!bytes) return bytes.failure();
  std::istringstream in{std::string(io::as_chars(*bytes))};
  token_lines all;
  for (std::string line; std::getline(in, line);) {
    auto ids = numbers_in(line, " ");
    if (!ids) return io::fail_in(file, ids.message());
    if (!ids->empty()) all.push_back(std::move(*ids));
  }
  return all;
}
status greedy(causal_lm<engine>& model, const token_lines& prompts, int tokens) {
  std::size_t longest = 0;
  for (const auto& p : prompts) longest = std::max(longest, p.size());
  generation_settings settings;
  settings.max_new_tokens = tokens, settings.eos_tokens = no_eos_tokens;
  auto g =
      generator<engine>::make(model, settings, static_cast<int>(prompts.size()), static_cast<int>(longest) + tokens);
  if (!g) return g.failure();
  const auto made = g->run(prompts);
  if (!made) return made.failure();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (std::size_t k = prompts[i].size(); k < (*made)[i].tokens.size(); ++k)
      std::printf("%lld ", static_cast<long long>((*made)[i].tokens[k]));
    std::printf("\n");
  }
  return ok;
}
status logits(causal_lm<engine>& model, const token_lines& data, const std::string& to) {
  std::ofstream out(to, std::ios::binary);
  for (const auto& ids : data) {
    const sequence_chunk rows[] = {{ids, 0, 0}};
    std::vector<float> all(ids.size() * static_cast<std::size_t>(model.config().vocabulary));
    if (status s = model.logits(rows, all); !s) return s;
    out.write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(all.size() * sizeof(float)));
  }
  return out.flush() ? status(ok) : status(io::fail_in(to, "the file cannot be written"));
}
status load_adapter(causal_lm<engine>& model, const std::string& adapter) {
  auto adapters = io::load_adapters(adapter, model);
  if (!adapters) return adapters.failure();
  return model.set_adapters(std::move(adapters->set));
}
status losses(causal_lm<engine>& model, const token_lines& data, const std::string& adapter, std::size_t batch,
              double rate) {
  if (status s = load_adapter(model, adapter); !s) return s;
  auto run = training_run<engine>::make(model, {.dropout = false});
  if (!run) return run.failure();
  auto optimizer = run->optimizer({.rate = rate});
  if (!optimizer) return optimizer.failure();
  for (std::size_t at = 0; at + batch <= data.size(); at += batch) {
    std::vector<labeled_sequence> rows;
    for (std::size_t i = at; i < at + batch; ++i) rows.push_back({data[i]});
    run->clear();
    const result<double> loss = run->add(rows);
    if (!loss) return loss.failure();
    std::printf("%.7f\n", *loss);
    std::fflush(stdout);
    if (status s = optimizer->step(); !s) return s;
    if (status s = run->parameters_changed(); !s) return s;
  }
  return ok;
}
status perplexity(causal_lm<engine>& model, const token_lines& data) {
  const auto words = static_cast<std::size_t>(model.config().vocabulary);
  double sum = 0;
  long long count = 0;
  for (const auto& ids : data) {
    const sequence_chunk rows[] = {{ids, 0, 0}};
    std::vector<float> logits(ids.size() * words);
    if (status s = model.logits(rows, logits); !s) return s;
    for (std::size_t t = 0; t + 1 < ids.size(); ++t, ++count) {
      const float* const row = logits.data() + t * words;
      const double most = *std::max_element(row, row + words);
      double all = 0;
      for (std::size_t w = 0; w < words; ++w) all += std::exp(row[w] - most);
      sum += std::log(all) + most - row[static_cast<std::size_t>(ids[t + 1])];
    }
  }
  std::printf("%.6f over %lld tokens\n", std::exp(sum / static_cast<double>(count)), count);
  return ok;
}
status run(const std::vector<std::string>& all) {
  auto model = io::load_model<engine>(all[1]);
  if (!model) return model.failure();
  const auto data = read_lines(all[2]);
  if (!data) return data.failure();
  if ((all[0] == "greedy" || all[0] == "logits") && all.size() == 5)
    if (status s = load_adapter(*model, all[4]); !s) return s;
  if (all[0] == "greedy" && (all.size() == 4 || all.size() == 5)) return greedy(*model, *data, std::stoi(all[3]));
  if (all[0] == "logits" && (all.size() == 4 || all.size() == 5)) return logits(*model, *data, all[3]);
  if (all[0] == "losses" && all.size() == 6)
    return losses(*model, *data, all[3], std::stoul(all[4]), std::stod(all[5]));
  if (all[0] == "perplexity") return perplexity(*model, *data);
  return fail("there is no task ", all[0].c_str(), " with so many words");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "real_model greedy|logits|losses|perplexity MODEL IDS ...\n"), 2;
  const status s = run({argv + 1, argv + argc});
  if (!s) std::fprintf(stderr, "real_model: %s\n", s.message());
  return s ? 0 : 1;
}
