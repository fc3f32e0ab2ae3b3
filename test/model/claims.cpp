// SPDX-License-Identifier: Apache-2.0
// The static claim, over every method, kind of layer and bias: no value as large as the base weight is computed after
// load. Documented exceptions: MiSS "bat", HiRA, C3A, RandLoRA, FRoD, OSF, GLoRA with low rank and what trains entries
// of the weight (SHiRA, Super-Tuning, WaveFT), whose W' has no cheaper form, and LoHa on convolutions,
// where the two products of rank r r cost more than the small kernel they make. (Folded graphs are a choice by cost,
// at run time.)
#include <doctest/doctest.h>

#include "../support/dense.h"
#include "../support/random_layer.h"

using namespace test;

TEST_CASE("claim: nothing as large as the weight is computed after load, by any method on any layer") {
  int checked = 0, exceptions = 0;
  for (const layer_variant& c : every_layer_variant()) {
    const bool convolved_loha = c.kind == "conv2d" && (c.what == "loha" || c.what == "loha_conv");
    bool dense = c.what == "miss_bat" || c.what == "c3a";
    for (const char* one : {"hira", "randlora", "shira", "supertuning", "waveft", "frod", "osf"})
      dense = dense || c.what.starts_with(one);
    dense = dense ||
            (c.what.starts_with("glora") && !c.what.starts_with("glora_numbers") && !c.what.starts_with("glora_bias"));
    if (dense || convolved_loha) {
      ++exceptions;
      continue;
    }
    // A convolution's patches are rows of channels kh kw numbers, for every pixel: only the matrices are compared.
    for (const graph* g : {&c.graphs.forward, &c.graphs.backward}) {
      const id large = find_weight_sized(*g, c.kind == "conv2d");
      INFO(c.name, ": ", large < 0 ? "" : expression(*g, large, {nullptr, 3}).c_str());
      CHECK(large == none_id);
      ++checked;
    }
  }
  CHECK(checked > 100);
  // miss_bat, hira, c3a, randlora, loha, those of entries, glora, osf
  CHECK(exceptions == 2 + 5 + 2 + 4 + 4 + 2 + 4 + 2 + 4 + 7 + 2);
}

TEST_CASE("claim: the folded graph is one product with a copy of the weight, for every linear method") {
  for (const layer_variant& c : every_layer_variant()) {
    if (c.kind != "linear") continue;
    const graph& g = c.graphs.folded;
    const stages when = schedule(g);
    const node_set live = reachable(g);
    int products = 0;
    for (int i = 0; i < g.size; ++i) products += live[i] && when.has_token_rows[i] && g.n[i].what == op::matmul ? 1 : 0;
    INFO(c.name);
    CHECK(products == 1);
  }
}
