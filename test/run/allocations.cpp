// SPDX-License-Identifier: Apache-2.0
// After the first call of a kind, calls allocate nothing. The operators new of this program count allocations.
#include <doctest/doctest.h>
#include <graft/adapter/lora.h>
#include <graft/block/llama.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "../support/random_block.h"
#include "../support/random_layer.h"

namespace {

std::atomic<long long> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  if (void* p = std::aligned_alloc(alignment, whole == 0 ? alignment : whole)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t n) { return counted(n, alignof(std::max_align_t)); }
void* operator new[](std::size_t n) { return counted(n, alignof(std::max_align_t)); }
void* operator new(std::size_t n, std::align_val_t a) { return counted(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return counted(n, static_cast<std::size_t>(a)); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

using namespace test;

namespace {

// True for graphs with derivatives whose kernels allocate scratch memory of the size of one block or row.
bool takes_scratch(const graph& g) {
  for (id i = 0; i < g.size; ++i)
    for (const op o : {op::rotate_grad, op::neumann_grad, op::normalize_grad})
      if (g[i].what == o) return true;
  return false;
}

}  // namespace

TEST_CASE("allocations: none in a forward or a backward call after the first") {
  int backwards = 0;
  for (const long long tokens : {1LL, 7LL, 70LL, 600LL})
    for (const layer_variant& c : every_layer_variant()) {
      if (c.bias && tokens != 7) continue;
      sizes s = usual_sizes();
      s["tokens"] = tokens;
      const random_layer<float> l(c.graphs, s);
      cpu::executor<float> e(c.graphs);
      REQUIRE(bool(l.bind(e)));
      std::vector<float> y = l.buffer_for("y", c.graphs.literal);
      std::map<std::string, std::vector<float>> buffers;
      std::vector<gradient> wanted;
      for (const std::string& p : l.parameters())
        wanted.push_back({p, into(buffers[p] = l.buffer_for(p.c_str(), c.graphs.backward))});
      auto calls = [&] {
        const long long before = allocations;
        const bool ran = bool(e.forward(l.x(), into(y)));
        const long long between = allocations;
        const bool back = c.graphs.backward.outs == 0 || bool(e.backward(l.x(), l.dy(), {}, wanted));
        const long long after = allocations;
        REQUIRE((ran && back));
        return std::pair{between - before, after - between};
      };
      INFO(c.name, ", ", tokens, " tokens");
      CHECK(calls().first > 0);  // binding allocates, which shows that the counter works
      const auto [forward, backward] = calls();
      CHECK(forward == 0);
      if (takes_scratch(c.graphs.backward)) continue;
      CHECK(backward == 0);
      ++backwards;
    }
  CHECK(backwards > 60);
}

TEST_CASE("allocations: none in a call of a block after the first, with a KV cache and in training") {
  random_block b({block_of<llama>(), {{"*_proj", formula_of<lora<>>()}}, {}}, 9);
  std::vector<double> cache(20 * 16);
  b.block.values.tensors["kv_cache"] = view_of(cache.data(), 20, 16);
  for (const pass_kind w : {pass_kind::forward, pass_kind::decode, pass_kind::forward_saved, pass_kind::backward,
                            pass_kind::backward_recompute})
    b.must(b.block.bind(w, {9}));
  const block_call c = b.call();
  for (const pass_kind w : {pass_kind::forward, pass_kind::decode, pass_kind::forward_saved}) {
    b.must(b.block.run(w, c));
    const long long before = allocations;
    const bool fine = bool(b.block.run(w, c));
    CHECK(allocations == before);
    CHECK(fine);
  }
}
