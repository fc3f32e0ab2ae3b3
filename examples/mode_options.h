// SPDX-License-Identifier: Apache-2.0
// The option --mode selects how the steps of a model run, with torch.compile's words: standard, reduce-overhead (CUDA
// graphs) or max-autotune, which also times candidates of the launches once per kind of device and stores the results
// in the file of --autotune-cache, by default in the user's cache folder.
#pragma once
#include <graft/model/causal_lm.h>

#include <cstdio>
#include <string>

#include "arguments.h"

struct mode_options {
  std::string mode, choices;
  void declare(arguments& in) {
    in.option("--mode standard|reduce-overhead|max-autotune", mode,
              "how steps run: one launch after the other, as CUDA graphs, or as CUDA graphs with autotuned launches");
    in.option("--autotune-cache FILE", choices,
              "where max-autotune saves its results; not given: the user's cache folder");
  }
};

template <class Engine>
graft::result<graft::step_mode> mode_named(const mode_options& of, graft::step_mode usual,
                                           graft::causal_lm<Engine>& model) {
  using graft::step_mode;
  const std::string& word = of.mode;
  if (word.empty()) return usual;
  if (word == "standard") return step_mode::standard;
  if (word == "reduce-overhead") return step_mode::reduce_overhead;
  if (word != "max-autotune")
    return graft::fail("--mode takes standard, reduce-overhead or max-autotune, not ", word.c_str());
  if (graft::status s = model.enable_autotuning(of.choices); !s) return s.failure();
  if (const std::string note = model.autotune_warning(); !note.empty()) std::fprintf(stderr, "%s\n", note.c_str());
  return step_mode::max_autotune;
}
