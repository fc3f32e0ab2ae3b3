// SPDX-License-Identifier: Apache-2.0
// How the steps of a program's model run, by the word behind --mode: standard, reduce-overhead or max-autotune; the
// last one times launches once on each kind of device and keeps what it found in the file behind --choices, or in the
// usual place.
#pragma once
#include <graft/model/causal_lm.h>

#include <cstdio>
#include <string>

template <class Engine>
graft::result<graft::step_mode> mode_named(const std::string& word, graft::step_mode usual, const std::string& choices,
                                           graft::causal_lm<Engine>& model) {
  using graft::step_mode;
  if (word.empty()) return usual;
  if (word == "standard") return step_mode::standard;
  if (word == "reduce-overhead") return step_mode::reduce_overhead;
  if (word != "max-autotune")
    return graft::fail("--mode takes standard, reduce-overhead or max-autotune, not ", word.c_str());
  if (graft::status s = model.time_choices(choices); !s) return s.failure();
  if (const std::string note = model.note_on_choices(); !note.empty()) std::fprintf(stderr, "%s\n", note.c_str());
  return step_mode::max_autotune;
}
