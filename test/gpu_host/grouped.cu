// SPDX-License-Identifier: Apache-2.0
// Checks of grouped layers before anything is launched, which need no GPU.
#include <doctest/doctest.h>
#include <graft/run/gpu_grouped.cuh>

#include <string>

using namespace graft;

namespace {

using bf = __nv_bfloat16;
using layers = std::vector<gpu::projection<bf>>;

view matrix(const bf* p, long long rows, long long cols) { return {p, dtype::bf16, {rows, cols, 1, 1}, 2}; }
mutable_view into(bf* p, long long rows, long long cols) { return {p, dtype::bf16, {rows, cols, 1, 1}, 2}; }
std::string message_of(const status& s) { return s.message(); }

}  // namespace

TEST_CASE("grouped: tensors are checked before anything is launched") {
  static bf memory[256];
  auto* const some = reinterpret_cast<gpu::executor<bf>*>(memory);  // never dereferenced here
  const view x = matrix(memory, 2, 32);
  const layers good{{some, into(memory + 64, 2, 16)}, {some, into(memory + 96, 2, 16)}};
  CHECK(message_of(gpu::check_grouped(good, x)) == "");
  CHECK(message_of(gpu::check_grouped(good, matrix(nullptr, 2, 32))) ==
        "tensor 'x' has no data, or gaps between its rows");
  CHECK(message_of(gpu::check_grouped(good, matrix(memory, 1LL << 60, 32))) ==
        "tensor 'x' has shape [1152921504606846976, 32], more than any memory holds");
  layers bad = good;
  bad[1].layer = nullptr;
  CHECK(message_of(gpu::check_grouped(bad, x)) == "layer 1 is null");
  bad = good, bad[0].y.data = nullptr;
  CHECK(message_of(gpu::check_grouped(bad, x)) == "output 0 has no data, or gaps between its rows");
  bad = good, bad[0].y.data = memory + 63;
  CHECK(message_of(gpu::check_grouped(bad, x)) == "output 0 overlaps tensor 'x'; give it memory of its own");
  bad = good, bad[1].y.data = memory + 95;
  CHECK(message_of(gpu::check_grouped(bad, x)) == "output 1 overlaps output 0; give it memory of its own");
}
