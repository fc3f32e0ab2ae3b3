// SPDX-License-Identifier: Apache-2.0
// Which samples are trusted, and how the table reports them. The samples are written down here: nothing is timed.
#include <doctest/doctest.h>
#include <graft/bench/synthetic_tensors.h>
#include <graft/graft.h>

using namespace graft;
using namespace graft::bench_detail;

namespace {

// Samples of calls that take `wall` seconds, plus and minus `spread` of it in turn, while `cpus` CPUs work.
std::vector<sample> calls(double wall, double cpus, double spread = 0.01, int count = 51) {
  std::vector<sample> all;
  for (int i = 0; i < count; ++i) {
    const double factor = 1 + spread * (i % 3 - 1);
    all.push_back({wall * factor, wall * factor * cpus});
  }
  return all;
}
bool contains(const std::string& all, const std::string& part) { return all.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("bench: samples of a program that has its CPUs to itself are trusted") {
  const judgement one = judge(calls(1.1e-3, 1), calls(1e-3, 1));
  CHECK(one.disturbed == "");
  CHECK(one.to_bare == doctest::Approx(1.1));
  CHECK(one.seconds == doctest::Approx(1.1e-3));
  const judgement four = judge(calls(1.1e-3, 3.7), calls(1e-3, 3.9));
  CHECK(four.disturbed == "");
  const judgement alone = judge(calls(1e-3, 1), {});
  CHECK(alone.disturbed == "");
  CHECK(alone.to_bare == 1);
}
TEST_CASE("bench: times that hardly vary are not trusted if the program waited for a CPU") {
  const judgement own = judge(calls(9.5e-3, 0.1), calls(1e-3, 1));
  CHECK(own.to_bare == doctest::Approx(9.5));
  CHECK(own.disturbed == "the layer had a processor for 0.10 of its time");
  const judgement beside = judge(calls(1e-3, 1), calls(15.4e-3, 0.07));
  CHECK(beside.to_bare == doctest::Approx(0.065).epsilon(0.01));
  CHECK(beside.disturbed == "the bare product had a processor for 0.07 of its time");
}
TEST_CASE("bench: samples are not trusted if most calls were slowed down or the two clocks disagree about the ratio") {
  std::vector<sample> mostly_slow = calls(4e-3, 2, 0.01, 40);
  for (const sample& s : calls(1e-3, 2, 0.01, 10)) mostly_slow.push_back(s);
  CHECK(judge(mostly_slow, calls(1e-3, 2)).disturbed == "the layer usually took 4.04 times its quickest call");
  // One thread of the bare product was idle while the other waited for a CPU: wall time grew, CPU time did not.
  CHECK(judge(calls(1e-3, 2), calls(4e-3, 1)).disturbed == "to_bare is 0.25 by wall time and 0.50 by processor time");
}
TEST_CASE("bench: samples that a GPU timed with events have no CPU time") {
  const judgement j = judge(calls(2e-3, 0), calls(1e-3, 0));
  CHECK(j.disturbed == "");
  CHECK(j.to_bare == doctest::Approx(2));
}
TEST_CASE("bench: without samples the ratio is 1") {
  const judgement j = judge({}, {});
  CHECK(j.seconds == 0);
  CHECK(j.to_bare == 1);
  CHECK(j.disturbed == "");
}

TEST_CASE("bench: one table has the medians of all repetitions and marks the disturbed ones") {
  results all;
  CHECK(all.empty());
  all.add("q/fused/16", {2e6, 1, 0.5e-3}, calls(1e-3, 1), calls(1e-3, 1));
  all.add("q/fused/16", {2e6, 1, 0.5e-3}, calls(3e-3, 1, 0.01, 9), calls(1e-3, 1, 0.01, 9));
  all.add("q/bare/16", {1.5e6, 1, 0.5e-3}, calls(1e-3, 1), {});
  const std::string good = all.table();
  CHECK(good ==
        "medians             us   to_bare  of_floor       Mflop  launches\n"
        "q/bare/16      1000.00      1.00      0.50        1.50         1\n"
        "q/fused/16     1000.00      1.00      0.50        2.00         1\n");
  all.add("q/eager/16", {4e6, 4, 0.5e-3}, calls(9.5e-3, 0.1), calls(1e-3, 1));
  const std::string bad = all.table();
  CHECK(contains(bad, "(9.50)"));
  CHECK(contains(bad, "disturbed: the layer had a processor for 0.10 of its time"));
  CHECK(contains(bad, "GRAFT_BUSY=1"));
}

TEST_CASE("bench: the eager formula has its own launches and flops") {
  using layer = linear<64, 48, float, lora<8>>;
  constexpr long long out = 64, in = 48, r = 8, tokens = 5;
  const eager_work all = eager_work_at<layer>(tokens, {}, true), kept = eager_work_at<layer>(tokens, {}, false);
  CHECK(all.launches == 4);  // B A, scaled, added to W, multiplied with x
  CHECK(all.does.flops == 2 * out * r * in + 2 * out * in + 2 * tokens * out * in);
  CHECK(all.does.bytes ==
        4 * (r * (in + out) + out * in + (1 + 2 * out * in) + 3 * out * in + (tokens * in + out * in + tokens * out)));
  CHECK(kept.launches == 1);
  CHECK(kept.does.flops == 2 * tokens * out * in);
}
