// SPDX-License-Identifier: Apache-2.0
// Both gradients of a gate, and the sums over the tokens that are read of them: one launch where layers have factors.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/targets.h>

using namespace graft;

namespace {

struct plain : adapted<llama, on<"*_proj", lora<16>>> {};
struct scaled : adapted<llama, on<"*_proj", dora<16>>> {};
struct by_gelu : adapted<gemma, on<"*_proj", dora<16>>> {};

struct planned {
  kept_pair pair;
  plan p;
};
template <class Block> planned backward_of() {
  const block_value v = value_of<Block>();
  planned made{keep(capture_forward(v.formula, v.how), capture_backward(v.formula, v.how)), {}};
  made.p = fuse(made.pair.backward, sm_90);
  return made;
}
int launches_with_sums(const plan& p) {
  int n = 0;
  for (const launch& l : p.launches) n += l.summed[0] >= 0 ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("gate sums: the gradients of DoRA's magnitudes of gate and up are made where the gate's gradients are") {
  const planned made = backward_of<scaled>();
  CHECK(launches_with_sums(made.p) == 1);
  for (int k = 0; k < made.p.launches.size(); ++k) {
    const launch& l = made.p.launches[k];
    if (l.summed[0] < 0) continue;
    const id of[2] = {l.anchor, l.also};
    for (int b = 0; b < 2; ++b) {
      const token_sum& s = made.p.sums[l.summed[b]];
      CHECK(s.left == of[b]);
      for (const id i : {s.result, s.product, s.scaled}) CHECK(made.p.launch_of[i] == k);
      for (const launch& other : made.p.launches) CHECK(other.sum != l.summed[b]);
    }
  }
}
TEST_CASE("gate sums: none without factors, and none for a gate that no kernel knows") {
  CHECK(launches_with_sums(backward_of<plain>().p) == 0);
  CHECK(launches_with_sums(backward_of<by_gelu>().p) == 0);
}
