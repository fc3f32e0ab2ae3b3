// SPDX-License-Identifier: Apache-2.0
// A case of a model in bf16. The weights themselves are rounded, so the engine is compared with float arithmetic on the
// rounded weights.
//
// How far bf16 may be from float depends on the model: tiny random ones, and logits after training, amplify every
// rounding. The runner measures it: it computes the float results again with every element of every matrix moved up or
// down by 2^-9, the size of a rounding error of bf16, in two independent draws, and allows a multiple of the larger
// change. Distances are norms over all logits, because the largest of some thousand differences depends on chance.
//
// The multiples are what bf16 costs PEFT itself, whose modules round after every operation: in the cases of
// test/golden/models its logits in bf16 differ from its own in float by 1.0 to 2.0 of these changes (0.6 % to 2.1 % of
// the norm), after training by 0.6 to 2.4 of them, while their largest elements differ by 0.4 to 2.9 changes
// (bench/compare_bf16.py, bench/results/cpu-bf16.txt). An adapter that is scaled by 1.1 has first
// gradients whose lengths are off by 7 % to 26 %, more than the bound, and in most cases logits that are off by 2 to 16
// changes.
#pragma once
#include <array>

#include "gpu_models.h"

namespace golden {

// The float results of a case, as they are and near by.
struct float_results {
  model_numbers expected;
  std::array<model_numbers, 2> nearby;

  model_comparison comparison() const {
    model_comparison how;
    how.losses = 1e-2, how.angle = 1e-2, how.length = 5e-2, how.multiple = 2, how.multiple_trained = 3;
    how.exact = false, how.rounded = true, how.expected = &expected, how.nearby = nearby;
    return how;
  }
};
template <class Engine> result<float_results> float_results_of(const std::filesystem::path& folder) {
  float_results all;
  model_comparison how;
  how.rounded = true, how.seen = &all.expected;
  if (auto at = run_model<Engine>(folder, {}, how); !at) return at.failure();
  for (model_numbers& one : all.nearby) {
    ++how.move.draw;
    how.move.by = 0x1p-9, how.seen = &one;
    if (auto moved = run_model<Engine>(folder, {}, how); !moved) return moved.failure();
  }
  return all;
}
template <class Narrow, class Wide>
result<model_checks> run_bf16_model(const std::filesystem::path& folder, const std::filesystem::path& keep) {
  const result<float_results> wide = float_results_of<Wide>(folder);
  if (!wide) return wide.failure();
  return run_model<Narrow, Wide>(folder, keep, wide->comparison());
}

}  // namespace golden
