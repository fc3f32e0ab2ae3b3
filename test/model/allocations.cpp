// SPDX-License-Identifier: Apache-2.0
// A generated token allocates nothing, nor does a step of the optimizer. Counted where C++ allocates: in the operators new.
#include <doctest/doctest.h>
#include <graft/io/hf/load_model.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <graft/model/optimizer.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

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

using namespace graft;
using engine = cpu::engine<float>;

TEST_CASE("allocations: none for a token once a prompt of the length was there") {
  auto model = io::hf::load_model<engine>(GRAFT_GOLDEN_DIR "/models/qwen3/base");
  REQUIRE(model);
  for (const bool sample : {false, true}) {
    generation_settings how;
    how.new_tokens = 40;
    how.sampling = {sample, 0.8, 20, 0.9, 1.2, 3};
    auto g = generator<engine>::make(*model, how, 2, 60);
    REQUIRE(g);
    const std::vector<std::vector<std::int64_t>> prompts{std::vector<std::int64_t>(20, 7), {1, 2, 3}};
    long long at_token[41] = {};
    for (int round = 0; round < 2; ++round) {
      int token = 0;
      REQUIRE(g->run(prompts, [&](std::size_t sequence, std::int64_t) {
        if (sequence == 0) at_token[++token] = allocations;
        return true;
      }));
    }
    CHECK(at_token[40] == at_token[2]);  // from the second token of the second run on
  }
}

TEST_CASE("allocations: none in a step of the optimizer") {
  std::vector<float> w(70000, 1.0F), g(70000, 0.5F);
  auto made = adamw::over({{"w", view_into(w.data(), 70000), view_into(g.data(), 70000)}});
  REQUIRE(made);
  REQUIRE(made->step());
  const long long before = allocations;
  const bool clipped = bool(made->clip(1)), stepped = bool(made->step());
  CHECK(allocations == before);
  CHECK((clipped && stepped));
}
