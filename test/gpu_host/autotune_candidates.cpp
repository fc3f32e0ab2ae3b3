// SPDX-License-Identifier: Apache-2.0
// The candidates of autotuning: the heuristic's first, each once, and all that the sizes allow.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/autotune_candidates.h>
#include <graft/backend/gpu/dispatch/targets.h>

#include <algorithm>

using namespace graft;
using namespace graft::gpu;

namespace {

const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54);

template <class Choice> bool are_different(const candidates<Choice>& all) {
  bool good = true;
  for (int i = 0; i < all.size(); ++i)
    for (int k = 0; k < i; ++k) good = good && !(all[i].choice == all[k].choice) && all[i].name != all[k].name;
  return good;
}
template <class Choice> bool has(const candidates<Choice>& all, const std::string& name) {
  return std::any_of(all.begin(), all.end(), [&](const auto& w) { return name == w.name; });
}

}  // namespace

TEST_CASE("candidates: the heuristic's is first, and none occurs twice") {
  for (const long long m : {1LL, 16LL, 64LL, 65LL, 512LL, 4096LL})
    for (const int rank : {0, 16, 64, 256})
      for (const bool nn : {false, true}) {
        gemm_problem p{dtype::bf16, m, 4096, 4096, rank};
        p.nn = nn;
        const auto all = candidates_of(p, h200, every_gemm_kernel());
        REQUIRE(!all.empty());
        CHECK(all[0].choice == choose(p, h200));
        CHECK(are_different(all));
      }
}
TEST_CASE("candidates: few tokens have several skinny shapes, many several tiles") {
  const auto few = candidates_of({dtype::bf16, 16, 4096, 4096, 16}, h200, every_gemm_kernel());
  CHECK(few.size() >= 4);
  CHECK((has(few, "tiles of 128") && has(few, "tiles of 256")));
  const auto many = candidates_of({dtype::bf16, 4096, 4096, 4096, 16}, h200, every_gemm_kernel());
  CHECK(many.size() == 2);
  for (const auto& w : many) CHECK((w.choice.path == gemm_path::gemm || w.choice.path == gemm_path::gemm_after_shrink));
}
TEST_CASE("candidates: only compiled kernels, and a single one if there is no choice") {
  gemm_kernel_mask one;
  one.add_skinny(16, 0, 16);
  const auto all = candidates_of({dtype::bf16, 16, 4096, 4096, 16}, h200, one);
  CHECK(all.size() == 1);
  CHECK(candidates_of({dtype::bf16, 16, 4096, 4096, 16}, a100, every_gemm_kernel()).size() == 1);
  CHECK(candidates_of({dtype::f32, 16, 4096, 4096, 16}, h200, every_gemm_kernel()).size() == 1);
}
TEST_CASE("candidates: fused wgrads are fused in all candidates") {
  gemm_problem p{dtype::bf16, 4096, 4096, 4096, 16};
  p.nn = true, p.fused_wgrads[0] = {4096, 16, false}, p.fused_wgrads[1] = {4096, 16, true};
  const gemm_choice rule = choose(p, h200);
  REQUIRE(rule.fused_wgrads != 0);
  for (const auto& w : candidates_of(p, h200, every_gemm_kernel())) CHECK(w.choice.fused_wgrads == rule.fused_wgrads);
}
TEST_CASE("candidates: thread blocks that wait for each other are resident in all candidates") {
  for (const long long m : {512LL, 2048LL, 16384LL})
    for (const auto& w : candidates_of({dtype::bf16, m, 4096, 4096, 16}, h200, every_gemm_kernel()))
      if (w.choice.owners > 0)
        CHECK(owners_are_resident(w.choice.owners, w.choice.group, static_cast<int>((m + 255) / 256), w.choice.pairs));
}
TEST_CASE("candidates: grouped GEMMs, and attention over a KV cache") {
  const gemm_problem three[] = {
      {dtype::bf16, 1, 4096, 4096, 16}, {dtype::bf16, 1, 1024, 4096, 16}, {dtype::bf16, 1, 1024, 4096, 16}};
  const auto grouped = grouped_candidates(three, 3, h200, every_gemm_kernel());
  REQUIRE(grouped.size() >= 3);
  CHECK(grouped[0].choice == choose_grouped(three, 3, h200));
  CHECK(are_different(grouped));
  attention_size p{dtype::bf16, 1, 128, 32, 8, true, true, 4096};
  const auto step = candidates_of(p, h200);
  CHECK(step[0].choice == choose_attention(p, h200));
  CHECK(step.size() == 9);
  CHECK(are_different(step));
  p.slots = 8192;
  const auto long_step = candidates_of(p, h200);
  CHECK(long_step[0].choice.split_kv_blocks > 0);
  CHECK(long_step.size() == 9);
  CHECK(are_different(long_step));
  p.cached = false, p.rows = 2048;
  CHECK(candidates_of(p, h200).size() == 1);
}
TEST_CASE("candidates: size classes are ordered, and the sizes of one class are similar") {
  long long before = 0;
  for (long long m = 1; m < 100000; ++m) {
    const long long c = size_class(m);
    CHECK((c >= before && c >= (m <= 64 ? m : m - 255)));
    if (m > 64) CHECK((c < m + 256 || 4 * c <= 5 * m + 1024));
    before = c;
  }
}
TEST_CASE("candidates: GEMMs that are launched differently have different names") {
  gemm_problem p{dtype::bf16, 16, 4096, 4096, 16}, q = p;
  q.epilogue_steps = true;
  CHECK(gpu::name_of(p) != gpu::name_of(q));
  q = p, q.fused_wgrads[0] = {4096, 16, false};
  CHECK(gpu::name_of(p) != gpu::name_of(q));
  q = p, q.m = 15;
  CHECK(gpu::name_of(p) == gpu::name_of(q));
}
