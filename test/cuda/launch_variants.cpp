// SPDX-License-Identifier: Apache-2.0
// The ways that are timed against each other: the rule's first, each once, and each one that the sizes allow.
#include <doctest/doctest.h>
#include <graft/backend/cuda/launch_variants.h>
#include <graft/backend/cuda/targets.h>

#include <algorithm>

using namespace graft;
using namespace graft::cuda;

namespace {

const target h200 = device_target("", 90, 132, 66), a100 = device_target("", 80, 108, 54);

template <class Choice> bool are_different(const ways<Choice>& all) {
  bool good = true;
  for (int i = 0; i < all.size(); ++i)
    for (int k = 0; k < i; ++k) good = good && !(all[i].how == all[k].how) && all[i].name != all[k].name;
  return good;
}
template <class Choice> bool has(const ways<Choice>& all, const std::string& name) {
  return std::any_of(all.begin(), all.end(), [&](const auto& w) { return name == w.name; });
}

}  // namespace

TEST_CASE("ways: the rule's comes first, and none comes twice") {
  for (const long long m : {1LL, 16LL, 64LL, 65LL, 512LL, 4096LL})
    for (const int rank : {0, 16, 64, 256})
      for (const bool across : {false, true}) {
        product_shape p{dtype::bf16, m, 4096, 4096, rank};
        p.across = across;
        const auto all = ways_of(p, h200, every_kernel());
        REQUIRE(!all.empty());
        CHECK(all[0].how == choose(p, h200));
        CHECK(are_different(all));
      }
}
TEST_CASE("ways: few tokens have several shapes, many several tiles") {
  const auto few = ways_of({dtype::bf16, 16, 4096, 4096, 16}, h200, every_kernel());
  CHECK(few.size() >= 4);
  CHECK(has(few, "tiles"));
  const auto many = ways_of({dtype::bf16, 4096, 4096, 4096, 16}, h200, every_kernel());
  CHECK(has(many, "tiles of 256 by 4"));
  CHECK(has(many, "tiles after a shrink"));
  for (const auto& w : many) CHECK((w.how.how == way::gemm || w.how.how == way::gemm_two));
}
TEST_CASE("ways: only what a program has compiled, and one where there is nothing to choose") {
  kernel_list one;
  one.add_stream(16, 0, 16);
  const auto all = ways_of({dtype::bf16, 16, 4096, 4096, 16}, h200, one);
  CHECK(all.size() == 1);
  CHECK(ways_of({dtype::bf16, 16, 4096, 4096, 16}, a100, every_kernel()).size() == 1);
  CHECK(ways_of({dtype::f32, 16, 4096, 4096, 16}, h200, every_kernel()).size() == 1);
}
TEST_CASE("ways: sums beside a product run beside it in all of them") {
  product_shape p{dtype::bf16, 4096, 4096, 4096, 16};
  p.across = true, p.beside[0] = {4096, 16, false}, p.beside[1] = {4096, 16, true};
  const linear_choice rule = choose(p, h200);
  REQUIRE(rule.beside != 0);
  for (const auto& w : ways_of(p, h200, every_kernel())) CHECK(w.how.beside == rule.beside);
}
TEST_CASE("ways: thread blocks that wait for each other are resident in all of them") {
  for (const long long m : {512LL, 2048LL, 16384LL})
    for (const auto& w : ways_of({dtype::bf16, m, 4096, 4096, 16}, h200, every_kernel()))
      if (w.how.owners > 0)
        CHECK(owners_are_resident(w.how.owners, w.how.group, static_cast<int>((m + 255) / 256), w.how.pairs));
}
TEST_CASE("ways: of products together, and of attention over a cache") {
  const product_shape three[] = {
      {dtype::bf16, 1, 4096, 4096, 16}, {dtype::bf16, 1, 1024, 4096, 16}, {dtype::bf16, 1, 1024, 4096, 16}};
  const auto together = ways_together(three, 3, h200, every_kernel());
  REQUIRE(together.size() >= 3);
  CHECK(together[0].how == choose_together(three, 3, h200));
  CHECK(are_different(together));
  attention_size p{dtype::bf16, 1, 128, 32, 8, true, true, 4096};
  const auto step = ways_of(p, h200);
  CHECK(step[0].how == choose_attention(p, h200));
  CHECK(step.size() == 9);
  CHECK(are_different(step));
  p.places = 8192;
  const auto long_step = ways_of(p, h200);
  CHECK(long_step[0].how.spread > 0);
  CHECK(long_step.size() == 9);
  CHECK(are_different(long_step));
  p.cached = false, p.rows = 2048;
  CHECK(ways_of(p, h200).size() == 1);
}
TEST_CASE("ways: classes of sizes have an order, and calls of one class are close to each other") {
  long long before = 0;
  for (long long m = 1; m < 100000; ++m) {
    const long long c = size_class(m);
    CHECK((c >= before && c >= (m <= 64 ? m : m - 255)));
    if (m > 64) CHECK((c < m + 256 || 4 * c <= 5 * m + 1024));
    before = c;
  }
}
TEST_CASE("ways: names tell products apart that are launched differently") {
  product_shape p{dtype::bf16, 16, 4096, 4096, 16}, q = p;
  q.posts = true;
  CHECK(cuda::name_of(p) != cuda::name_of(q));
  q = p, q.beside[0] = {4096, 16, false};
  CHECK(cuda::name_of(p) != cuda::name_of(q));
  q = p, q.m = 15;
  CHECK(cuda::name_of(p) == cuda::name_of(q));
}
