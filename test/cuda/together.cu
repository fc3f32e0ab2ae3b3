// SPDX-License-Identifier: Apache-2.0
// What layers that run together are asked before anything is launched; no device is needed to refuse.
#include <doctest/doctest.h>
#include <graft/run/cuda_together.cuh>

#include <string>

using namespace graft;

namespace {

using bf = __nv_bfloat16;
using layers = std::vector<cuda::projection<bf>>;

view matrix(const bf* p, long long rows, long long cols) { return {p, dtype::bf16, {rows, cols, 1, 1}, 2}; }
mutable_view into(bf* p, long long rows, long long cols) { return {p, dtype::bf16, {rows, cols, 1, 1}, 2}; }
std::string said(const status& s) { return s.message(); }

}  // namespace

TEST_CASE("together: tensors are checked before anything is launched") {
  static bf memory[256];
  auto* const some = reinterpret_cast<cuda::executor<bf>*>(memory);  // never looked into here
  const view x = matrix(memory, 2, 32);
  const layers good{{some, into(memory + 64, 2, 16)}, {some, into(memory + 96, 2, 16)}};
  CHECK(said(cuda::check_together(good, x)) == "");
  CHECK(said(cuda::check_together(good, matrix(nullptr, 2, 32))) == "tensor 'x' has no data, or gaps between its rows");
  CHECK(said(cuda::check_together(good, matrix(memory, 1LL << 60, 32))) ==
        "tensor 'x' has shape [1152921504606846976, 32], more than any memory holds");
  layers bad = good;
  bad[1].layer = nullptr;
  CHECK(said(cuda::check_together(bad, x)) == "layer 1 is null");
  bad = good, bad[0].y.data = nullptr;
  CHECK(said(cuda::check_together(bad, x)) == "output 0 has no data, or gaps between its rows");
  bad = good, bad[0].y.data = memory + 63;
  CHECK(said(cuda::check_together(bad, x)) == "output 0 overlaps tensor 'x'; give it memory of its own");
  bad = good, bad[1].y.data = memory + 95;
  CHECK(said(cuda::check_together(bad, x)) == "output 1 overlaps output 0; give it memory of its own");
}
