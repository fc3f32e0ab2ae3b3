// SPDX-License-Identifier: Apache-2.0
// What own_architecture and own_method do alike: train an adapter for a few steps, compare two models, and run in a
// temporary folder.
#pragma once
#include <graft/models.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "arguments.h"

using engine = graft::cpu::engine<float>;
using own_model = graft::causal_lm<engine>;

inline graft::result<std::vector<float>> logits(own_model& m) {
  const std::vector<std::int64_t> ids{10, 11, 12, 13, 14};
  const std::vector<graft::sequence_chunk> chunks{{ids}};
  std::vector<float> out(ids.size() * static_cast<std::size_t>(m.config().vocabulary));
  if (graft::status s = m.logits(chunks, out); !s) return s.failure();
  return out;
}
inline graft::status train(own_model& m) {
  auto training = graft::training_run<engine>::make(m);
  if (!training) return training.failure();
  auto optimizer = training->optimizer({.rate = 1e-2});
  if (!optimizer) return optimizer.failure();
  std::vector<std::int64_t> text;  // counts from 10 to 49, repeatedly
  for (std::int64_t i = 0; i < 120; ++i) text.push_back(10 + i % 40);
  const std::vector<graft::labeled_sequence> batch{{text}};
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    training->clear();
    const auto loss = training->add(batch);
    if (!loss) return loss.failure();
    if (graft::status s = optimizer->step(); !s) return s;
    if (graft::status s = training->parameters_changed(); !s) return s;
    last = *loss, first = step == 0 ? last : first;
  }
  std::printf("loss %.4f after 20 steps, %.4f before\n", last, first);
  return last < first ? training->fetch() : graft::status(graft::fail("the loss did not fall"));
}
// Compares the logits of two models up to rounding.
inline graft::status same(const char* what, own_model& a, own_model& b) {
  const auto p = logits(a), q = logits(b);
  if (!p || !q) return p ? q.failure() : p.failure();
  float most = 0;
  for (std::size_t i = 0; i < p->size(); ++i) most = std::max(most, std::abs((*p)[i] - (*q)[i]));
  std::printf("%s: logits differ by at most %.1e\n", what, static_cast<double>(most));
  return most < 1e-4F ? graft::ok : graft::status(graft::fail(what, " has other logits"));
}

// The main function: `run` has a Llama's folder and one for files, which is removed.
inline int run_with_llama(int argc, char** argv, const char* name, const char* does,
                          graft::status (*run)(const std::string& llama, const std::string& at)) {
  std::string llama;
  arguments in(name, does);
  in.word("LLAMA", llama, "folder of a Llama, whose weights the model begins with");
  if (const auto code = in.read(argc, argv)) return *code;
  const auto at = std::filesystem::temp_directory_path() / ("graft-" + std::string(name) + std::to_string(::getpid()));
  std::filesystem::create_directories(at);
  const graft::status s = run(llama, at.string());
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  std::filesystem::remove_all(at);
  return s ? 0 : 1;
}
