// SPDX-License-Identifier: Apache-2.0
// AdaLoRA's budget over the steps, which triplets it leaves, and the slope of its term. Whole training runs are
// compared with PEFT's in test/golden.
#include <doctest/doctest.h>
#include <graft/model/adalora.h>

#include <random>

using namespace graft;

namespace {

struct layer {
  std::vector<float> A, E, B, dA, dE, dB;
  layer(std::size_t r, std::size_t in, std::size_t out, unsigned seed)
      : A(r * in), E(r), B(out * r), dA(r * in), dE(r), dB(out * r) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.3F);
    for (auto* v : {&A, &E, &B, &dA, &dE, &dB})
      for (float& x : *v) x = normal(random);
  }
  adalora_layer view(const char* name) { return {name, A, E, B, dA, dE, dB}; }
};

}  // namespace

TEST_CASE("adalora: the budget falls along a cube, and masked entries stay masked") {
  std::vector<layer> all;
  for (unsigned i = 0; i < 4; ++i) all.emplace_back(8, 16, 12, i + 1);
  std::vector<adalora_layer> layers;
  for (layer& l : all) layers.push_back(l.view("q_proj"));
  adalora_settings s;
  s.target_rank = 4, s.warmup_steps = 1, s.final_steps = 2, s.steps = 8;
  result<rank_allocator> made = rank_allocator::make(layers, s);
  REQUIRE(bool(made));
  const long long expected[] = {32, 32, 24, 19, 17, 16, 16, 16};
  for (long long step = 0; step < 8; ++step) {
    for (layer& l : all)
      for (float& e : l.E) e = e == 0 ? 0.5F : e;  // an optimizer moves masked entries again
    made->allocate(step);
    CHECK(made->ranks() == expected[step]);
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t t = 0; t < 8; ++t) CHECK((all[i].E[t] != 0) == (made->rank_mask(i)[t] == 1));
  }
}

TEST_CASE("adalora: what counts least goes first") {
  layer l(4, 6, 5, 3);
  for (std::size_t t = 0; t < 4; ++t)  // the gradient of triplet 2 is small everywhere
    for (std::size_t k = 0; k < 6; ++k) l.dA[t * 6 + k] = t == 2 ? 1e-4F : 1.0F;
  for (std::size_t k = 0; k < 5; ++k)
    for (std::size_t t = 0; t < 4; ++t) l.dB[k * 4 + t] = t == 2 ? 1e-4F : 1.0F;
  for (std::size_t t = 0; t < 4; ++t) l.dE[t] = t == 2 ? 1e-4F : 1.0F;
  adalora_settings s;
  s.target_rank = 3, s.steps = 2;
  result<rank_allocator> made = rank_allocator::make({l.view("q_proj")}, s);
  REQUIRE(bool(made));
  for (long long step = 0; step < 3; ++step) made->allocate(step);
  const auto rank_mask = made->rank_mask(0);
  CHECK(std::vector<float>(rank_mask.begin(), rank_mask.end()) == std::vector<float>{1, 1, 0, 1});
}

TEST_CASE("adalora: a run that is given its state back goes on as it would have") {
  adalora_settings s;
  s.target_rank = 2, s.warmup_steps = 1, s.final_steps = 1, s.steps = 6;
  layer straight(4, 6, 5, 3), first = straight;
  result<rank_allocator> whole = rank_allocator::make({straight.view("q_proj")}, s);
  result<rank_allocator> begun = rank_allocator::make({first.view("q_proj")}, s);
  REQUIRE((whole && begun));
  for (long long step = 0; step < 3; ++step) whole->allocate(step), begun->allocate(step);
  layer second = first;
  result<rank_allocator> resumed = rank_allocator::make({second.view("q_proj")}, s);
  REQUIRE(bool(resumed));
  const auto from = begun->state(), to = resumed->state();
  REQUIRE(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].first == to[i].first);
    std::copy(from[i].second.begin(), from[i].second.end(), to[i].second.begin());
  }
  for (long long step = 3; step < 7; ++step) whole->allocate(step), resumed->allocate(step);
  CHECK(straight.E == second.E);
  CHECK(resumed->ranks() == 2);
}

TEST_CASE("adalora: a target that is no smaller than what there is prunes nothing") {
  layer l(4, 6, 5, 3);
  adalora_settings s;
  s.target_rank = 4, s.steps = 3;
  result<rank_allocator> made = rank_allocator::make({l.view("q_proj")}, s);
  REQUIRE(bool(made));
  for (long long step = 0; step < 5; ++step) made->allocate(step);
  CHECK(made->ranks() == 4);
}

TEST_CASE("adalora: the term for orthogonality has the slope that is added to the gradients") {
  layer l(3, 7, 5, 9);
  std::fill(l.dA.begin(), l.dA.end(), 0.0F), std::fill(l.dB.begin(), l.dB.end(), 0.0F);
  adalora_settings s;
  s.steps = 10;
  result<rank_allocator> made = rank_allocator::make({l.view("q_proj")}, s);
  REQUIRE(bool(made));
  made->orthogonal_regularization();
  const std::vector<float> dA = l.dA, dB = l.dB;
  auto compare = [&](std::vector<float>& v, const std::vector<float>& d) {
    for (std::size_t i = 0; i < v.size(); i += 3) {
      const float before = v[i], step = 1e-2F;
      v[i] = before + step;
      const double above = made->orthogonal_regularization();
      v[i] = before - step;
      const double below = made->orthogonal_regularization();
      v[i] = before;
      CHECK(static_cast<double>(d[i]) == doctest::Approx((above - below) / (2 * step)).epsilon(1e-2).scale(0.1));
    }
  };
  compare(l.A, dA), compare(l.B, dB);
}

TEST_CASE("adalora: settings that cannot be are refused") {
  layer l(3, 7, 5, 9);
  auto says = [&](const adalora_settings& s) {
    const result<rank_allocator> made = rank_allocator::make({l.view("q_proj")}, s);
    REQUIRE(!made);
    return std::string(made.message());
  };
  adalora_settings s;
  CHECK(says(s) == "AdaLoRA needs the number of all steps, 'total_step', to spread its budget over");
  s.steps = 5, s.final_steps = 3, s.warmup_steps = 2;
  CHECK(says(s) == "AdaLoRA warms up for 2 steps, expected less than the 2 steps before its budget is final");
  s.warmup_steps = 0, l.dE.clear();
  CHECK(says(s) == "q_proj: lora_A, lora_E and lora_B do not have the shapes of one AdaLoRA layer");
}
