// SPDX-License-Identifier: Apache-2.0
// Dropout of what a side branch sees is part of its narrow products on a GPU, forward and backward, and of no others.
#include <doctest/doctest.h>
#include <graft/adapter/hira.h>
#include <graft/adapter/lora.h>
#include <graft/derive/block.h>
#include <graft/derive/keep.h>

#include "../support/both.h"
#include "../support/gpu_target.h"
#include "../support/launches.h"

using namespace graft;
using namespace test;

namespace {

constexpr ex one_layer(block_scope m, ex x) { return m.linear("q_proj", x, m.size("hidden")); }

kept_pair trained(const formula& of, left_out drops) {
  const adaption rules[] = {{"*", of, "", false, drops}};
  block_options how;
  how.adapters = {rules, 1}, how.dropped = true;
  const block_formula f{"one", &one_layer};
  return keep(capture_forward(f, how), capture_backward(f, how));
}

}  // namespace

TEST_CASE("dropped: the products of a low-rank branch take dropout in") {
  target to = gpu;
  to.takes_dropout = true;
  const kept_pair lora_pair = trained(formula_of<lora<16>>(), {.elements = true});
  SAYS_NOW(launches(lora_pair.forward, to),
           "product: product=matmul | product: pre=dropout product=matmul | product: product=matmul post=add");
  const plan back = fuse(lora_pair.backward, to);
  CHECK(back.dropped.size() == 2);
  int expands = 0, sums = 0;
  for (const dropped_product& d : back.dropped) {
    expands += d.how == dropped_product::form::expand ? 1 : 0, sums += d.how == dropped_product::form::sum ? 1 : 0;
    CHECK(lora_pair.backward.n[d.dropout].what == op::dropout);
  }
  CHECK(expands == 1);
  CHECK(sums == 1);
  for (id i = 0; i < lora_pair.backward.n.size(); ++i)
    if (lora_pair.backward.n[i].what == op::dropout && back.live[i]) CHECK(back.place[i] != slot::alone);
  // A target without such kernels, and a product with a matrix as wide as the weight, have it as a launch of its own.
  CHECK(fuse(lora_pair.forward, gpu).dropped.size() == 0);
  CHECK(fuse(trained(formula_of<hira<16>>(), {.elements = true}).forward, to).dropped.size() == 0);
}
