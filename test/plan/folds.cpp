// SPDX-License-Identifier: Apache-2.0
// When a CPU has the adapter in a copy of the weight: by what its branch costs beside the layer, and for a butterfly by
// the passes over x that it takes.
#include <graft/plan/kernels.h>

#include "../support/formula_text.h"

using namespace test;

namespace {

template <class Adapter>
constexpr bool folds_on_a_cpu(int size, std::initializer_list<named_size> more, dtype stored = dtype::f32) {
  const graph branch = derived<linear_kind, Adapter, false>::forward;
  size_values s;
  for (const named_size& n : {named_size{"tokens", 16}, {"out", size}, {"in", size}})
    if (const int at = branch.sizes.find(n.name); at >= 0) s.v[at] = n.value;
  for (const named_size& n : more)
    if (const int at = branch.sizes.find(n.name); at >= 0) s.v[at] = n.value;
  return folds(cpu_target, branch, derived<linear_kind, Adapter, false>::folded, s, stored);
}

}  // namespace

TEST_CASE("folds: on a CPU a branch above a twentieth of a large layer, above a tenth of a small one") {
  CHECK_FALSE(folds_on_a_cpu<lora<>>(1024, {{"r", 24}}));
  CHECK(folds_on_a_cpu<lora<>>(1024, {{"r", 32}}));
  CHECK_FALSE(folds_on_a_cpu<lora<>>(512, {{"r", 16}}));
  CHECK(folds_on_a_cpu<lora<>>(512, {{"r", 32}}));
  CHECK_FALSE(folds_on_a_cpu<lora<>>(1024, {{"r", 64}}, dtype::bf16));  // the copy would be of wider numbers
}
TEST_CASE("folds: on a CPU a butterfly of several factors on a large weight of floats") {
  CHECK(folds_on_a_cpu<boft<dyn, dyn>>(1024, {{"b", 8}, {"m", 2}}));
  CHECK_FALSE(folds_on_a_cpu<boft<dyn, dyn>>(1024, {{"b", 8}, {"m", 1}}));
  CHECK_FALSE(folds_on_a_cpu<boft<dyn, dyn>>(512, {{"b", 8}, {"m", 2}}));
  CHECK_FALSE(folds_on_a_cpu<boft<dyn, dyn>>(1024, {{"b", 8}, {"m", 2}}, dtype::bf16));
  CHECK_FALSE(folds_on_a_cpu<oft<>>(1024, {{"b", 32}}));
}
