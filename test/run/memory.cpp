// SPDX-License-Identifier: Apache-2.0
// The memory that a layer holds between calls: no second copy of its weight, and no sorted rows of all tokens of a
// mixture of experts.
#include <doctest/doctest.h>
#include <graft/backend/cpu/runtime/threads.h>
#include <graft/block/mixtral.h>

#include "../support/random_block.h"
#include "../support/random_layer.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

using namespace test;

namespace {

// Bytes of the heap in use; 0 where the C library does not report them, or a sanitizer replaces it.
long long heap_in_use() {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  const auto m = ::mallinfo2();
  return static_cast<long long>(m.uordblks + m.hblkhd);
#else
  return 0;
#endif
}
constexpr long long features = 1024;

sizes large() {
  sizes s = usual_sizes();
  s["out"] = s["in"] = s["dim"] = s["vocab"] = features;
  s["a"] = s["c"] = 32;
  return s;
}
// Upper bound of the scratch memory that the threads of a call hold.
long long workspace() { return 64LL * 1024 * cpu::thread_count(); }
// Bytes that remain in use after a forward and a backward call.
long long saved_by(const char* kind, const char* m) {
  random_layer<float> l(graphs_for(kind, m, false), large());
  std::vector<bf16> half;
  for (const float v : l.data.at("weight")) half.push_back(narrow(v));
  l.views["weight"].data = half.data(), l.views["weight"].type = dtype::bf16;
  std::vector<float> y = l.buffer_for("y", l.graphs.literal);
  cpu::executor<float> e(l.graphs);
  REQUIRE(bool(l.bind(e)));
  const long long before = heap_in_use();
  const status s = e.forward(l.x(), into(y));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  return heap_in_use() - before;
}

}  // namespace

TEST_CASE("memory: a weight in bf16 is never copied to float") {
  for (const char* m : {"none", "lora", "vera", "ia3", "oft", "miss", "lokr"}) {
    INFO(m);
    CHECK(saved_by("linear", m) <
          features * features + workspace());  // a quarter of W in float, plus the threads' scratch memory
  }
  CHECK(saved_by("embedding", "none") < features * features);
  CHECK(saved_by("embedding", "lora_embedding") < features * features);
}

TEST_CASE("memory: a weight in bf16 is not copied to float for precomputed values either") {
  CHECK(saved_by("linear", "dora") < features * features);
  CHECK(saved_by("linear", "hra") < features * features);
  CHECK(saved_by("embedding", "dora_embedding") < features * features);
}

namespace {
// A mixture alone: nothing else of the block needs memory for all rows of a call.
struct mixture_alone {
  static constexpr const char* name = "mixture alone";
  static constexpr ex run(block_scope m, ex h) {
    return h + gated_experts(m, "mlp.experts", h, softmax_router(m, "mlp.gate", h, true));
  }
};
long long grown_by(long long rows, pass_kind w) {
  random_block b({block_of<mixture_alone>(), {{"*_proj", formula_of<lora<>>()}}, {}}, rows);
  const long long before = heap_in_use();
  b.must(b.block.bind(w, {rows}));
  b.must(b.block.run(w, b.call()));
  return heap_in_use() - before;
}
}  // namespace

TEST_CASE("memory: that of the sorted rows of experts does not grow with the rows of a call") {
  const long long rows = 16 * cpu::chunk_rows, sorted = rows * 2 * 16 * static_cast<long long>(sizeof(double));
  for (const pass_kind w : {pass_kind::forward, pass_kind::backward_recompute}) {
    grown_by(rows, w);  // what threads keep
    CHECK(grown_by(rows, w) < grown_by(cpu::chunk_rows, w) + sorted / 2);
  }
}
