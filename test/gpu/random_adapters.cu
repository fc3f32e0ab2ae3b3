// SPDX-License-Identifier: Apache-2.0
// Operations on the adapters of a model in random order, on the GPU: logits, and the tokens of a generator whose steps
// are captured and replayed, equal those of models that are built anew on the CPU.
#include <graft/model/on_gpu.cuh>

#include "../support/gpu_layer.h"
#include "../support/random_adapters.h"

TEST_CASE("gpu adapters: any order of operations below a captured step equals a model built anew") {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) return static_cast<void>(std::printf("no GPU: %s\n", why.c_str()));
  const std::uint64_t operations = test::stated("GRAFT_OPERATIONS", 200), seed = test::stated("GRAFT_SEED", 1);
  CAPTURE(seed);
  test::random_adapters<graft::gpu::engine<float>> d(seed);
  d.generate_captured();
  for (std::uint64_t i = 0; i < operations; ++i) {
    CAPTURE(i);
    d.step();
    d.look();
  }
  CHECK(d.captured() > 0);
}
