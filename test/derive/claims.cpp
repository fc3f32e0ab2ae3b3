// SPDX-License-Identifier: Apache-2.0
// No method computes a matrix of the weight's size after load, in its forward or backward graph; PEFT computes out x in
// or in x in matrices in every call. The one documented exception is MiSS "bat", whose W' has no cheaper form.
// test/model/claims.cpp checks the same for every method, kind of layer and bias at run time.
#include "../support/dense.h"
#include "../support/formula_text.h"

using namespace test;
using enum lokr_form;

namespace {

template <class Adapter, bool Bias = false> constexpr bool builds_nothing_large() {
  using d = derived<linear_kind, Adapter, Bias>;
  return find_weight_sized(d::forward) == none_id && find_weight_sized(d::backward) == none_id;
}

}  // namespace

TEST_CASE("claim: nothing of the weight's size is computed after load") {
  BOTH(builds_nothing_large<none>());
  BOTH(builds_nothing_large<lora<>>());
  BOTH(builds_nothing_large<lora<>, true>());
  BOTH(builds_nothing_large<lora_with_bias<>, true>());
  BOTH(builds_nothing_large<dora<>>());
  BOTH(builds_nothing_large<dora<>, true>());
  BOTH(builds_nothing_large<residual_lora<>>());
  BOTH(builds_nothing_large<residual_dora<>>());
  BOTH(builds_nothing_large<adalora<>>());
  BOTH(builds_nothing_large<ia3, true>());
  BOTH(builds_nothing_large<ia3_feedforward>());
  BOTH(builds_nothing_large<loha<>>());
  BOTH(builds_nothing_large<lokr<dyn, -1, full, full>>());
  BOTH(builds_nothing_large<lokr<dyn, -1, full, low_rank>>());
  BOTH(builds_nothing_large<lokr<dyn, -1, low_rank, full>>());
  BOTH(builds_nothing_large<lokr<dyn, -1, low_rank, low_rank>>());
  BOTH(builds_nothing_large<vera<>>());
  BOTH(builds_nothing_large<hra<>>());
  BOTH(builds_nothing_large<hra_gram_schmidt<>>());
  BOTH(builds_nothing_large<oft<dyn>>());
  BOTH(builds_nothing_large<oft<dyn, oft_blocks::shared, oft_constraint::projected>>());
  BOTH(builds_nothing_large<oft_neumann<dyn, dyn>>());
  BOTH(builds_nothing_large<boft<dyn, dyn>>());
  BOTH(builds_nothing_large<miss<>>());
  BOTH(builds_nothing_large<miss_mini<>>());
  BOTH(builds_nothing_large<vblora<dyn, dyn>>());
}

TEST_CASE("claim: the check detects a large value") {
  BOTH(!builds_nothing_large<miss_bat<>>());
  BOTH(find_weight_sized(derived<linear_kind, lora<>, false>::folded) != none_id);
  BOTH(find_weight_sized(derived<linear_kind, lora<>, false>::literal) != none_id);
  BOTH(find_weight_sized(derived<linear_kind, hra<>, false>::literal) != none_id);
  BOTH(find_weight_sized(derived<linear_kind, loha<>, false>::literal_backward) != none_id);
}

TEST_CASE("claim: DoRA's norm is expanded, also if the type states the rank") {
  BOTH(builds_nothing_large<dora<4>>());
  BOTH(builds_nothing_large<dora<4>, true>());
}
