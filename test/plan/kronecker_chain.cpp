// SPDX-License-Identifier: Apache-2.0
// The GEMMs with both factors of LoKr on a row as a matrix, and the gradients of the factors, are one launch on a GPU
// with a kernel for it; training then saves no intermediate value.
#include <doctest/doctest.h>
#include <graft/adapter/gralora.h>
#include <graft/adapter/lokr.h>
#include <graft/derive/layers.h>
#include <graft/derive/saved_tensors.h>
#include <graft/plan/kernel_count.h>

#include <string>

#include "../support/gpu_target.h"
#include "../support/launches.h"

using namespace graft;
using namespace test;

namespace {

constexpr target chaining = [] {
  target to = gpu_target_nn;
  to.can<kronecker_chain>().max_size = 64;
  return to;
}();
template <class Adapter> saved_pair trained() {
  const layer_formula f = layer_of<linear_kind, Adapter, false>();
  return select_saved_tensors(capture_forward(f), capture_backward(f));
}
size_values sizes_of(const graph& g, long long edge) {
  size_values s = with_nominals(g, {});
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0) {
      const text name = e.name;
      if (same_text(name.c_str(), "in") || same_text(name.c_str(), "out")) s.v[e.index] = 64 * edge;
      if (same_text(name.c_str(), "a") || same_text(name.c_str(), "c")) s.v[e.index] = 64;
    }
  g.sizes.set_tokens(s, 512);
  return s;
}

}  // namespace

TEST_CASE("kronecker chain: both GEMMs of LoKr are one launch, and so are their gradients") {
  const saved_pair pair = trained<lokr<8>>();
  CHECK(pair.leaf.size() == 0);
  CHECK(std::string(launches(pair.forward, chaining).c_str()) == "GEMM, prologue matmul | GEMM, epilogue add");
  const launch_plan back = fuse(pair.backward, chaining);
  REQUIRE(back.all<kronecker_chain>().size() == 1);
  const kronecker_chain& c = back.all<kronecker_chain>()[0];
  const graph g = pair.backward;
  CHECK(c.sums());
  CHECK(c.left_transposed);
  CHECK(!c.right_transposed);
  CHECK(std::string(g.name(unshaped(g, c.z)).c_str()) == "dy");
  CHECK(std::string(g.name(unshaped(g, c.x)).c_str()) == "x");
  int without = 0;  // no GEMM of small matrices is outside of the chain
  for (const launch& l : back.launches)
    without += !l.is<kronecker_chain>() && g[back.anchor_of(l)].d[1] != dim{1} ? 1 : 0;
  CHECK(without == 0);
  CHECK(fuse(pair.backward, gpu_target_nn).all<kronecker_chain>().size() == 0);
}
TEST_CASE("kronecker chain: larger matrices, floats and rows that are no multiple of 16 bytes run as separate GEMMs") {
  const saved_pair pair = trained<lokr<8>>();
  const graph g = pair.backward;
  const launch_plan p = fuse(g, chaining);
  const kronecker_chain& c = p.all<kronecker_chain>()[0];
  CHECK(fuses_chain(g, c, sizes_of(g, 64), dtype::bf16, chaining.can<kronecker_chain>()));
  CHECK(!fuses_chain(g, c, sizes_of(g, 72), dtype::bf16, chaining.can<kronecker_chain>()));
  CHECK(!fuses_chain(g, c, sizes_of(g, 60), dtype::bf16, chaining.can<kronecker_chain>()));
  CHECK(!fuses_chain(g, c, sizes_of(g, 64), dtype::f32, chaining.can<kronecker_chain>()));
  for (const launch& l : p.launches)
    if (l.is<kronecker_chain>()) {
      CHECK(kernel_count(g, p, l, sizes_of(g, 64), dtype::bf16, {}) == 2);
      CHECK(kernel_count(g, p, l, sizes_of(g, 72), dtype::bf16, {}) == 5);
    }
}
TEST_CASE("kronecker chain: a block-diagonal product is no chain") {
  CHECK(fuse(trained<gralora<8>>().forward, chaining).all<kronecker_chain>().size() == 0);
}
