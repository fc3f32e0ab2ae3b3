// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/attention.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

struct shape {
  long long rows, head, queries, groups;
  attention_options with{};
  long long q() const { return queries * head; }
  long long kv() const { return groups * head; }
  long long all() const { return q() + 2 * kv() + (with.sinks ? queries : 0); }
};
constexpr attention_options every_option[] = {{}, {0.7}, {0, true}, {1.5, true}};

using numbers = std::vector<std::int64_t>;
// Causal ranges of sequences in one batch: each row attends to itself and at most `window` - 1 rows before it.
numbers causal(const std::vector<long long>& lengths, long long window = 1 << 20) {
  long long rows = 0, at = 0;
  for (const long long n : lengths) rows += n;
  numbers s(static_cast<std::size_t>(3 * rows));
  for (const long long n : lengths) {
    for (long long i = 0; i < n; ++i) {
      const long long r = at + i;
      s[static_cast<std::size_t>(r)] = at + std::max(0LL, i + 1 - window);
      s[static_cast<std::size_t>(rows + r)] = r + 1, s[static_cast<std::size_t>(2 * rows + r)] = r;
    }
    at += n;
  }
  return s;
}

// Adds a seed for each row and dropout of three of ten probabilities to the ranges.
numbers dropping(numbers ranges) {
  const std::size_t rows = ranges.size() / 3;
  for (std::size_t r = 0; r < rows; ++r) ranges.push_back(static_cast<std::int64_t>(graft::splitmix64(r) >> 1U));
  ranges.insert(ranges.end(), rows, graft::attention_dropout_mask::dropped_count(0.3));
  return ranges;
}
graft::attention_dropout_mask drops_of(const numbers& ranges, shape s) {
  return graft::attention_dropout_mask::of(ranges.data(), static_cast<long long>(ranges.size()) / s.rows, s.rows, 0);
}

// The formula as written, one row and one head after the other.
owned<double> reference(owned<double>& qkv, const numbers& ranges, shape s) {
  const graft::attention_dropout_mask drops = drops_of(ranges, s);
  owned<double> out({1, 1, s.rows, s.q()});
  for (long long r = 0; r < s.rows; ++r)
    for (long long h = 0; h < s.queries; ++h) {
      const long long group = h / (s.queries / s.groups), first = ranges[static_cast<std::size_t>(r)],
                      end = ranges[static_cast<std::size_t>(s.rows + r)];
      std::vector<double> p;
      double total = 0;
      for (long long k = first; k < end; ++k) {
        double score = 0;
        for (long long c = 0; c < s.head; ++c)
          score += qkv.at(0, 0, r, h * s.head + c) * qkv.at(0, 0, k, s.q() + group * s.head + c);
        score /= std::sqrt(static_cast<double>(s.head));
        if (s.with.soft_cap > 0) score = s.with.soft_cap * std::tanh(score / s.with.soft_cap);
        p.push_back(std::exp(score));
        total += p.back();
      }
      if (s.with.sinks) total += std::exp(qkv.at(0, 0, r, s.q() + 2 * s.kv() + h));
      for (long long k = first; k < end; ++k)
        for (long long c = 0; c < s.head; ++c)
          out.at(0, 0, r, h * s.head + c) += drops.factor<double>(r, h, k) * p[static_cast<std::size_t>(k - first)] /
                                             total * qkv.at(0, 0, k, s.q() + s.kv() + group * s.head + c);
    }
  return out;
}
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

TEST_CASE("attention: equals the formula, for every grouping, length, window and head size") {
  for (shape s : {shape{7, 4, 4, 2}, shape{1, 8, 2, 2}, shape{150, 5, 3, 1}, shape{70, 16, 4, 4}})
    for (const long long window : {3LL, 1LL << 20})
      for (int k = 0; k < 8; ++k) {
        const bool two = k % 2 == 1;
        s.with = every_option[k / 2];
        const numbers all =
            causal(two && s.rows > 1 ? std::vector{s.rows / 2, s.rows - s.rows / 2} : std::vector{s.rows}, window);
        for (const numbers& ranges : {all, dropping(all)}) {
          owned<double> qkv = random_tensor<double>({1, 1, s.rows, s.all()}, 7), out({1, 1, s.rows, s.q()}, 9.0);
          cpu::attention(out.t(), qkv.t(), ranges.data(), s.head, drops_of(ranges, s), s.with);
          CHECK(largest_difference(out.v, reference(qkv, ranges, s).v) < 1e-12);
        }
      }
}

TEST_CASE("attention: the dropout rate is met, and a head's mask does not depend on where it is computed") {
  const numbers ranges = dropping(causal({400}));
  const shape s{400, 4, 4, 4};
  const graft::attention_dropout_mask all = drops_of(ranges, s);
  graft::attention_dropout_mask later = all;
  later.first_head = 2;
  double kept = 0, others = 0;
  for (long long r = 0; r < 400; ++r)
    for (long long k = 0; k < 100; ++k) {
      const double here = all.factor<double>(r, 2, k);
      CHECK((here == 0 || here == doctest::Approx(1 / 0.7)));
      CHECK(here == later.factor<double>(r, 0, k));
      kept += here, others += here != all.factor<double>(r, 3, k) ? 1 : 0;
    }
  CHECK(kept / 40000 == doctest::Approx(1).epsilon(0.02));
  CHECK(others / 40000 == doctest::Approx(2 * 0.3 * 0.7).epsilon(0.05));
}

TEST_CASE("attention: a row with an empty range is zero") {
  for (const attention_options& with : every_option) {
    const shape s{5, 4, 2, 1, with};
    numbers ranges = causal({5});
    ranges[0] = ranges[5] = 0, ranges[1] = ranges[6] = 1;  // left padding
    for (const std::size_t r : {2U, 3U, 4U}) ranges[r] = 2;
    owned<double> qkv = random_tensor<double>({1, 1, 5, s.all()}, 8), out({1, 1, 5, s.q()}, 9.0);
    cpu::attention(out.t(), qkv.t(), ranges.data(), s.head, {}, with);
    CHECK(largest_difference(out.v, reference(qkv, ranges, s).v) < 1e-12);
    for (long long c = 0; c < s.q(); ++c) CHECK(out.at(0, 0, 0, c) == 0);
    owned<double> t = random_tensor<double>({1, 1, 5, s.q()}, 9), d({1, 1, 5, s.all()}, 5.0);
    cpu::attention_grad(d.t(), qkv.t(), ranges.data(), t.t(), s.head, {}, with);
    for (long long c = 0; with.sinks && c < s.queries; ++c) CHECK(d.at(0, 0, 0, s.q() + 2 * s.kv() + c) == 0);
  }
}

TEST_CASE("attention: a large sink takes all of the probability, and large scores stay finite") {
  const shape s{3, 2, 2, 2, {0, true}};
  owned<double> qkv = random_tensor<double>({1, 1, 3, s.all()}, 2), out({1, 1, 3, s.q()}, 9.0);
  for (long long r = 0; r < 3; ++r) qkv.at(0, 0, r, s.q() + 2 * s.kv()) = 5000;
  for (long long c = 0; c < s.q(); ++c) qkv.at(0, 0, 2, c) *= 1e4;
  cpu::attention(out.t(), qkv.t(), causal({3}).data(), s.head, {}, s.with);
  for (long long r = 0; r < 3; ++r)
    for (long long c = 0; c < s.q(); ++c)
      CHECK((c < s.head ? out.at(0, 0, r, c) == 0 : std::isfinite(out.at(0, 0, r, c))));
}

TEST_CASE("attention: decoding token by token over a KV cache equals one call") {
  for (const attention_options& with : every_option) {
    const shape s{40, 6, 4, 2, with};
    const long long slots = 64;
    owned<double> qkv = random_tensor<double>({1, 1, s.rows, s.all()}, 3), whole({1, 1, s.rows, s.q()});
    cpu::attention(whole.t(), qkv.t(), causal({25, 15}).data(), s.head, {}, with);
    owned<double> cache({1, 1, slots, 2 * s.kv()}), out({1, 1, s.rows, s.q()});
    // First the prompts of both sequences, of different lengths, then one row of each per call.
    auto call = [&](const std::vector<std::pair<long long, long long>>& rows) {  // row of the whole, its slot
      const auto n = static_cast<long long>(rows.size());
      owned<double> part({1, 1, n, s.all()}), result({1, 1, n, s.q()});
      numbers ranges(static_cast<std::size_t>(3 * n));
      for (long long i = 0; i < n; ++i) {
        const auto [r, slot] = rows[static_cast<std::size_t>(i)];
        std::copy_n(qkv.v.data() + r * s.all(), s.all(), part.v.data() + i * s.all());
        ranges[static_cast<std::size_t>(i)] = slot >= 30 ? 30 : 0;
        ranges[static_cast<std::size_t>(n + i)] = slot + 1, ranges[static_cast<std::size_t>(2 * n + i)] = slot;
      }
      cpu::cached_attention(result.t(), part.t(), ranges.data(), cache.t(), s.head, with);
      for (long long i = 0; i < n; ++i)
        std::copy_n(result.v.data() + i * s.q(), s.q(), out.v.data() + rows[static_cast<std::size_t>(i)].first * s.q());
    };
    std::vector<std::pair<long long, long long>> prompt;
    for (long long i = 0; i < 20; ++i) prompt.emplace_back(i, i);
    for (long long i = 0; i < 10; ++i) prompt.emplace_back(25 + i, 30 + i);
    call(prompt);
    for (long long i = 0; i < 5; ++i) call({{20 + i, 20 + i}, {35 + i, 40 + i}});
    CHECK(largest_difference(out.v, whole.v) < 1e-12);
  }
}

TEST_CASE("attention: the gradient agrees with finite differences") {
  for (shape s : {shape{6, 4, 4, 2}, shape{9, 3, 2, 2}, shape{1, 4, 2, 1}, shape{70, 2, 2, 1}})
    for (const attention_options& with : every_option)
      for (const long long window : {-2LL, 2LL, -1LL << 20, 1LL << 20}) {  // negative: with dropout
        s.with = with;
        const numbers plain =
            s.rows > 4 ? causal({s.rows - 3, 3}, std::abs(window)) : causal({s.rows}, std::abs(window));
        const numbers ranges = window < 0 ? dropping(plain) : plain;
        owned<double> qkv = random_tensor<double>({1, 1, s.rows, s.all()}, 11), out({1, 1, s.rows, s.q()}),
                      t = random_tensor<double>({1, 1, s.rows, s.q()}, 12), d({1, 1, s.rows, s.all()}, 5.0);
        cpu::attention_grad(d.t(), qkv.t(), ranges.data(), t.t(), s.head, drops_of(ranges, s), with);
        auto loss = [&] {
          cpu::attention(out.t(), qkv.t(), ranges.data(), s.head, drops_of(ranges, s), with);
          double sum = 0;
          for (std::size_t i = 0; i < out.v.size(); ++i) sum += out.v[i] * t.v[i];
          return sum;
        };
        for (std::size_t i = 0; i < qkv.v.size(); i += 1 + qkv.v.size() / 200) {
          const double before = qkv.v[i], step = 1e-5;
          qkv.v[i] = before + step;
          const double up = loss();
          qkv.v[i] = before - step;
          const double down = loss();
          qkv.v[i] = before;
          CHECK(d.v[i] == doctest::Approx((up - down) / (2 * step)).epsilon(1e-6).scale(1));
        }
      }
}
