// SPDX-License-Identifier: Apache-2.0
// A generated token allocates nothing, nor does a step of the optimizer, and a model that has seen prompts of many
// lengths keeps no more than one that has seen the longest. Counted where C++ allocates: in the operators new.
#include <doctest/doctest.h>
#include <graft/io/hf/load_model.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <graft/model/optimizer.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<long long> allocations{0}, live_bytes{0};

// Each allocation stores its size in front of what the caller gets.
std::size_t capacity_for_size(std::size_t alignment) { return std::max(alignment, alignof(std::max_align_t)); }
void* counted_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  const std::size_t front = capacity_for_size(alignment), whole = (bytes + 2 * front - 1) / front * front;
  void* const p = std::aligned_alloc(front, whole);
  if (p == nullptr) return nullptr;
  ++allocations, live_bytes += static_cast<long long>(whole);
  std::memcpy(p, &whole, sizeof(whole));
  return static_cast<char*>(p) + front;
}
void* counted(std::size_t bytes, std::size_t alignment) {
  void* const p = counted_or_null(bytes, alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void release(void* p, std::size_t alignment) {
  if (p == nullptr) return;
  void* const begin = static_cast<char*>(p) - capacity_for_size(alignment);
  std::size_t whole = 0;
  std::memcpy(&whole, begin, sizeof(whole));
  live_bytes -= static_cast<long long>(whole);
  std::free(begin);
}
constexpr std::size_t usual = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t n) { return counted(n, usual); }
void* operator new[](std::size_t n) { return counted(n, usual); }
void* operator new(std::size_t n, std::align_val_t a) { return counted(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return counted(n, static_cast<std::size_t>(a)); }
// std::stable_sort allocates with nothrow. libstdc++'s versions call those above, but a sanitizer's do not, so these
// are replaced too.
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return counted_or_null(n, usual); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return counted_or_null(n, usual); }
void operator delete(void* p) noexcept { release(p, usual); }
void operator delete[](void* p) noexcept { release(p, usual); }
void operator delete(void* p, std::size_t) noexcept { release(p, usual); }
void operator delete[](void* p, std::size_t) noexcept { release(p, usual); }
void operator delete(void* p, std::align_val_t a) noexcept { release(p, static_cast<std::size_t>(a)); }
void operator delete[](void* p, std::align_val_t a) noexcept { release(p, static_cast<std::size_t>(a)); }
void operator delete(void* p, std::size_t, std::align_val_t a) noexcept { release(p, static_cast<std::size_t>(a)); }
void operator delete[](void* p, std::size_t, std::align_val_t a) noexcept { release(p, static_cast<std::size_t>(a)); }

using namespace graft;
using engine = cpu::engine<float>;

TEST_CASE("allocations: none for a token once a prompt of the length was there") {
  auto model = io::hf::load_model<engine>(GRAFT_GOLDEN_DIR "/models/qwen3/base");
  REQUIRE(model);
  for (const bool sample : {false, true}) {
    generation_settings settings;
    settings.max_new_tokens = 40, settings.eos_tokens = no_eos_tokens;
    settings.sampling = {sample, 0.8, 20, 0.9, 1.2, 3};
    auto g = generator<engine>::make(*model, settings, 2, 60);
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

TEST_CASE("allocations: prompts of many lengths leave no more than the longest") {
  auto model = io::hf::load_model<engine>(GRAFT_GOLDEN_DIR "/models/qwen3/base");
  REQUIRE(model);
  const auto generate = [&](int sequences, int prompt) {
    generation_settings settings;
    settings.max_new_tokens = 2, settings.eos_tokens = no_eos_tokens;
    auto g = generator<engine>::make(*model, settings, sequences, prompt + 3);
    REQUIRE(g);
    REQUIRE(g->run(std::vector(static_cast<std::size_t>(sequences), std::vector<std::int64_t>(prompt, 7))));
  };
  generate(4, 60);
  const long long after_the_longest = live_bytes;
  const int programs = model->programs().count();
  for (int k = 0; k < 50; ++k) generate(1 + k % 4, 1 + k);
  CHECK(live_bytes <= after_the_longest + 65536);  // products of other sizes pack other pieces
  CHECK(model->programs().count() == programs);
}

TEST_CASE("allocations: none in a step of the optimizer") {
  std::vector<float> w(70000, 1.0F), g(70000, 0.5F);
  auto made = adamw::make({{"w", view_into(w.data(), 70000), view_into(g.data(), 70000)}});
  REQUIRE(made);
  REQUIRE(made->step());
  const long long before = allocations;
  const bool clipped = bool(made->clip(1)), stepped = bool(made->step());
  CHECK(allocations == before);
  CHECK((clipped && stepped));
}
