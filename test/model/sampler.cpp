// SPDX-License-Identifier: Apache-2.0
// The probabilities are those of transformers 5.22: softmax of what its LogitsProcessorList makes of the same logits.
#include <doctest/doctest.h>
#include <graft/model/sampler.h>

using namespace graft;

namespace {

const std::vector<float> logits{-3.880000114F, 3.783999920F, 3.444000006F, 3.104000092F, 2.763999939F, 3.444000006F,
                                2.084000111F,  1.743999958F, 1.404000044F, 1.064000010F, 0.723999977F, 0.384000003F};
const std::vector<std::int64_t> history{3, 3, 7, 0};

sampling_settings settings(double temperature, int top_k, double top_p, double penalty, double min_p = 0) {
  return {true, temperature, top_k, top_p, penalty, 1234, min_p};
}
std::vector<double> probabilities(const sampler& s) {
  std::vector<double> p;
  double sum = 0;
  for (const float v : s.scores()) p.push_back(std::exp(static_cast<double>(v))), sum += p.back();
  for (double& v : p) v /= sum;
  return p;
}

}  // namespace

TEST_CASE("sampling: probabilities are those of transformers, and tokens are drawn with them") {
  const struct {
    sampling_settings run_settings;
    std::vector<double> expected;
  } cases[] = {
      {settings(1, 0, 1, 1.3),
       {4.14029964e-05, 0.28247726, 0.201058954, 0.0699157268, 0.101859868, 0.201058954, 0.0516039506, 0.0245604292,
        0.0261434373, 0.0186081249, 0.013244709, 0.00942719076}},
      {settings(0.7, 0, 1, 1),
       {5.74857086e-06, 0.32693693, 0.201150477, 0.123759404, 0.0761438757, 0.201150477, 0.0288236514, 0.0177339669,
        0.0109109581, 0.00671304949, 0.00413025357, 0.00254117069}},
      {settings(1, 4, 1, 1), {0, 0.341278523, 0.24291195, 0.172897533, 0, 0.24291195, 0, 0, 0, 0, 0, 0}},
      {settings(1, 0, 0.8, 1), {0, 0.303881824, 0.216294095, 0.153951719, 0.109578244, 0.216294095, 0, 0, 0, 0, 0, 0}},
      {settings(0.7, 5, 0.9, 1.3), {0, 0.405940324, 0.249757931, 0, 0.0945438296, 0.249757931, 0, 0, 0, 0, 0, 0}},
      {settings(1, 0, 1, 1, 0.3),
       {0, 0.303881824, 0.216294095, 0.153951719, 0.109578244, 0.216294095, 0, 0, 0, 0, 0, 0}},
      {settings(0.7, 8, 0.95, 1.3, 0.3), {0, 0.448326856, 0.275836557, 0, 0, 0.275836557, 0, 0, 0, 0, 0, 0}},
  };
  for (const auto& c : cases) {
    sampler s(c.run_settings, 12);
    std::vector<int> drawn(12);
    constexpr int rounds = 20000;
    for (int i = 0; i < rounds; ++i) {
      const auto token = s.next(logits, history, static_cast<std::uint64_t>(i), 0);
      REQUIRE(token);
      ++drawn[static_cast<std::size_t>(*token)];
    }
    const std::vector<double> p = probabilities(s);
    for (std::size_t i = 0; i < 12; ++i) {
      CHECK(p[i] == doctest::Approx(c.expected[i]).epsilon(1e-5));
      // five standard deviations of the number of draws
      CHECK(std::abs(drawn[i] - rounds * p[i]) <= 5 * std::sqrt(rounds * p[i] * (1 - p[i])));
    }
  }
}

// The expected numbers are softmax(logits - 0.25 count - 0.5 [count > 0]) in torch.
TEST_CASE("sampling: presence and frequency penalties count the tokens of the answer alone") {
  sampling_settings run_settings = settings(1, 0, 1, 1);
  run_settings.presence_penalty = 0.5, run_settings.frequency_penalty = 0.25;
  const std::pair<std::size_t, std::vector<double>> cases[] = {
      {1,
       {6.32379597e-05, 0.285188138, 0.202988476, 0.0682480782, 0.102837399, 0.202988476, 0.0520991832, 0.0175166018,
        0.02639433, 0.0187867023, 0.0133718159, 0.00951766223}},
      {0,
       {6.42072555e-05, 0.289559424, 0.206099838, 0.0539663509, 0.104413658, 0.206099838, 0.0528977439, 0.017785091,
        0.0267988965, 0.0190746598, 0.0135767749, 0.00966354553}}};
  sampler s(run_settings, 12);
  for (int round = 0; round < 2; ++round)  // a call leaves nothing for the next one
    for (const auto& [prompt, expected] : cases) {
      REQUIRE(s.next(logits, history, 0, prompt));
      const std::vector<double> p = probabilities(s);
      for (std::size_t i = 0; i < 12; ++i) CHECK(p[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    }
  run_settings.sample = false, run_settings.presence_penalty = 2, run_settings.frequency_penalty = 0;
  sampler greedy(run_settings, 12);
  CHECK(*greedy.next(logits, std::vector<std::int64_t>{1, 1}, 0, 2) == 1);
  CHECK(*greedy.next(logits, std::vector<std::int64_t>{1, 1, -1, 99}, 0, 1) == 2);
  run_settings.presence_penalty = 0, run_settings.frequency_penalty = -1;
  sampler repeats(run_settings, 12);
  CHECK(*repeats.next(logits, std::vector<std::int64_t>{4, 4}, 0, 0) == 4);
}

TEST_CASE("sampling: without drawing the largest logit wins, of equals the lowest token") {
  sampler greedy({}, 12);
  CHECK(*greedy.next(logits, history, 0, 0) == 1);
  sampler penalised({false, 1, 50, 1, 5.0, 0}, 12);
  const std::vector<std::int64_t> seen{1, 1};
  CHECK(*penalised.next(logits, seen, 0, 0) == 2);  // 2 and 5 are equal
}

TEST_CASE("sampling: a token follows from seed, sequence and position") {
  const auto run = [&](unsigned long long seed, std::uint64_t sequence) {
    sampling_settings run_settings = settings(2, 0, 1, 1);
    run_settings.seed = seed;
    sampler s(run_settings, 12);
    std::vector<std::int64_t> tokens{1};
    for (int i = 0; i < 20; ++i) tokens.push_back(*s.next(logits, tokens, sequence, 0));
    return tokens;
  };
  CHECK(run(1, 0) == run(1, 0));
  CHECK(run(1, 0) != run(2, 0));
  CHECK(run(1, 0) != run(1, 1));
}

TEST_CASE("sampling: logits that are no numbers, or not as many as tokens") {
  sampler s({}, 3);
  const std::vector<float> nan{0, std::nanf(""), 1}, infinite{0, HUGE_VALF, 1}, few{0, 1};
  CHECK_FALSE(s.next(nan, {}, 0, 0));
  CHECK_FALSE(s.next(infinite, {}, 0, 0));
  CHECK(contains(s.next(few, {}, 0, 0).message(), "there are 2 logits, expected one for each of the 3 tokens"));
  const std::vector<float> good{-HUGE_VALF, 1, 0};
  const std::vector<std::int64_t> outside{-1, 99};
  sampler drawn(settings(1, 3, 0.5, 2), 3);
  CHECK(*drawn.next(good, outside, 0, 0) == 1);
}

TEST_CASE("sampling: temperature 0 and top_p 0 are the most likely token, whatever else is set") {
  sampler cold(settings(0, 0, 1, 1), 12), narrow(settings(1.5, 0, 0, 1), 12);
  for (std::uint64_t sequence = 0; sequence < 50; ++sequence) {
    CHECK(*cold.next(logits, history, sequence, 0) == 1);
    CHECK(*narrow.next(logits, history, sequence, 0) == 1);
  }
}

TEST_CASE("sampling: settings that tokens cannot be chosen by are refused by name") {
  CHECK(check_sampling({}));
  for (const double good : {0.0, 1e-6, 0.5, 2.0, 1e6}) CHECK(check_sampling(settings(good, 0, 1, 1)));
  for (const double good : {0.0, 0.5, 1.0}) CHECK(check_sampling(settings(1, 0, good, 1)));
  const double infinite = HUGE_VAL, nan = std::nan("");
  for (const double bad : {-1.0, 1e-7, 1e7, infinite, -infinite, nan}) {
    CHECK(contains(check_sampling(settings(bad, 0, 1, 1)).message(), "temperature is "));
    CHECK(contains(check_sampling(settings(1, 0, 1, bad)).message(), "repetition_penalty is "));
  }
  CHECK(contains(check_sampling(settings(1, 0, 1, 0)).message(), "repetition_penalty is 0, expected"));
  for (const double bad : {-0.1, 7.0, infinite, nan})
    CHECK(contains(check_sampling(settings(1, 0, 1, 1, bad)).message(), "min_p is "));
  for (const double bad : {-1e7, infinite, nan}) {
    sampling_settings run_settings;
    run_settings.presence_penalty = bad;
    CHECK(contains(check_sampling(run_settings).message(), "presence_penalty is "));
    run_settings.presence_penalty = -2, run_settings.frequency_penalty = bad;
    CHECK(contains(check_sampling(run_settings).message(), "frequency_penalty is "));
  }
  for (const double bad : {-0.1, 7.0, infinite, nan})
    CHECK(contains(check_sampling(settings(1, 0, bad, 1)).message(), "top_p is "));
  CHECK(contains(check_sampling(settings(1, 0, 7, 1)).message(), "top_p is 7, expected a number from 0 to 1"));
  CHECK(contains(check_sampling(settings(1, -1, 1, 1)).message(), "top_k is -1"));
}
