// SPDX-License-Identifier: Apache-2.0
// One thread replaces, switches and disables adapters while another one generates. A token is computed with one adapter
// or with the other, never with a mixture: each is compared with the next token of a model that has one adapter only.
// Under the thread sanitizer this test also shows that nothing is read while it is written.
#include <doctest/doctest.h>
#include <graft/io/hf/adapters.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>

#include <atomic>
#include <thread>

using namespace graft;
using namespace graft::io;

namespace {

using engine = cpu::engine<float>;
const std::string models = std::string(GRAFT_GOLDEN_DIR) + "/models/opt/";

causal_lm<engine> loaded(const char* folder) {
  auto m = hf::load_model<engine>(models + "base");
  REQUIRE_MESSAGE(m, m.message());
  if (folder[0] == '\0') return std::move(*m);
  REQUIRE(hf::load_adapter(*m, "a", models + "multi/" + folder));
  REQUIRE(m->activate({"a"}));
  return std::move(*m);
}
// The logits of the token after a prompt, which depend on no other call.
std::vector<float> first(causal_lm<engine>& m) {
  const std::vector<std::int64_t> ids{1, 5, 7, 90, 33};
  const sequence_chunk run{ids};
  std::vector<float> out(static_cast<std::size_t>(m.config().vocabulary));
  const status s = m.logits(std::span(&run, 1), out, true);
  REQUIRE_MESSAGE(s, s.message());
  return out;
}

}  // namespace

TEST_CASE("swap: takes effect between two calls, completely") {
  std::vector<std::vector<float>> whole;
  for (const char* folder : {"", "a", "b", "c"}) {
    causal_lm<engine> m = loaded(folder);
    whole.push_back(first(m));
  }
  causal_lm<engine> m = loaded("a");
  std::atomic<bool> stop{false};
  std::atomic<int> swaps{0}, failed{0};
  std::thread other([&] {
    for (int i = 0; !stop; ++i) {
      const char* const folders[] = {"b", "c", "a"};
      if (!hf::replace_adapter(m, "a", models + "multi/" + folders[i % 3])) ++failed;
      if (hf::replace_adapter(m, "a", models + "nowhere")) ++failed;
      if (i % 5 == 0) m.enable(false), m.enable(true);
      if (i % 7 == 0 && (!m.activate({}) || !m.activate({"a"}))) ++failed;
      ++swaps;
    }
  });
  int calls = 0;
  std::vector<bool> seen(whole.size());
  while (swaps < 30 || calls < 60) {
    const std::vector<float> now = first(m);
    const auto at = std::find(whole.begin(), whole.end(), now);
    REQUIRE(at != whole.end());
    seen[static_cast<std::size_t>(at - whole.begin())] = true;
    ++calls;
  }
  stop = true;
  other.join();
  CHECK(failed == 0);
  CHECK(std::count(seen.begin(), seen.end(), true) > 1);
}

TEST_CASE("swap: a running generation uses the new adapter from the next token on") {
  causal_lm<engine> m = loaded("a"), bare = loaded("");
  generation_settings settings;
  settings.max_new_tokens = 12, settings.eos_tokens = no_eos_tokens;
  auto g = generator<engine>::make(m, settings, 1, 20);
  REQUIRE(g);
  const std::vector<std::vector<std::int64_t>> prompts{{1, 5, 7}};
  int tokens = 0;
  status swapped = ok;
  const auto made = g->run(prompts, [&](std::size_t, std::int64_t) {
    if (++tokens == 4) {  // another thread swaps and ends before the next token begins
      std::thread other([&] { swapped = hf::replace_adapter(m, "a", models + "multi/c"); });
      other.join();
    }
    return true;
  });
  REQUIRE_MESSAGE(made, made.message());
  REQUIRE_MESSAGE(swapped, swapped.message());
  // Reference: four tokens with one adapter, then the other adapter continues with the KV cache of those tokens.
  causal_lm<engine> before = loaded("a");
  auto alone = generator<engine>::make(before, settings, 1, 20);
  const auto expected = alone->run(prompts, [n = 0, &before](std::size_t, std::int64_t) mutable {
    if (++n == 4) {
      REQUIRE(before.remove("a"));
      REQUIRE(hf::load_adapter(before, "fresh", models + "multi/c"));
      REQUIRE(before.activate({"fresh"}));
    }
    return true;
  });
  REQUIRE(expected);
  CHECK((*made)[0].tokens == (*expected)[0].tokens);
  CHECK((*made)[0].tokens.size() == 15);
}
