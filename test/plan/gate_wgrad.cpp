// SPDX-License-Identifier: Apache-2.0
// Both gradients of a gate and the wgrads that read them are one launch if the layers have factors per output.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/targets.h>

using namespace graft;

namespace {

struct plain : adapted<llama, target_modules<"*_proj", lora<16>>> {};
struct scaled : adapted<llama, target_modules<"*_proj", dora<16>>> {};
struct by_gelu : adapted<gemma, target_modules<"*_proj", dora<16>>> {};

struct planned {
  saved_pair pair;
  launch_plan p;
};
template <class Block> planned backward_of() {
  const block_value v = value_of<Block>();
  planned made{select_saved_tensors(capture_forward(v.formula, v.options), capture_backward(v.formula, v.options)), {}};
  made.p = fuse(made.pair.backward, sm_90);
  return made;
}
int launches_with_sums(const launch_plan& p) {
  int n = 0;
  for (const expression_launch& l : p.all<expression_launch>()) n += l.gate_wgrads[0] >= 0 ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("gate wgrad: DoRA's magnitude gradients of gate and up are part of the launch of the gate's gradients") {
  const planned made = backward_of<scaled>();
  CHECK(launches_with_sums(made.p) == 1);
  for (int k = 0; k < made.p.launches.size(); ++k) {
    const expression_launch* const l = made.p.as<expression_launch>(made.p.launches[k]);
    if (l == nullptr || l->gate_wgrads[0] < 0) continue;
    const id of[2] = {l->root, l->paired_root};
    for (int b = 0; b < 2; ++b) {
      const wgrad_launch& s = made.p.all<wgrad_launch>()[l->gate_wgrads[b]];
      CHECK(s.left == of[b]);
      for (const id i : {s.result, s.product, s.scaled}) CHECK(made.p.launch_of[i] == k);
      for (const launch& other : made.p.launches)
        CHECK((!other.is<wgrad_launch>() || other.index != l->gate_wgrads[b]));
    }
  }
}
TEST_CASE("gate wgrad: none without factors, and none for an activation without such a kernel") {
  CHECK(launches_with_sums(backward_of<plain>().p) == 0);
  CHECK(launches_with_sums(backward_of<by_gelu>().p) == 0);
}
