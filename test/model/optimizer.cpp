// SPDX-License-Identifier: Apache-2.0
// The numbers are those of torch 2.6: torch.optim.AdamW(foreach=False, fused=False), clip_grad_norm_, and the schedules
// of transformers 5.22.
#include <doctest/doctest.h>
#include <graft/model/lr_schedule.h>
#include <graft/model/optimizer.h>

#include <random>

using namespace graft;

namespace {

std::vector<float> values(int n, int k) {
  std::vector<float> v;
  for (int i = 0; i < n; ++i) v.push_back(static_cast<float>((((i * 7919 + k * 104729) % 2001) - 1000) / 1000.0));
  return v;
}

struct two_parameters {
  std::vector<float> a = values(6, 1), b = values(5, 2), da = std::vector<float>(6), db = std::vector<float>(5);
  std::vector<trained_parameter> list(bool decays = true) {
    return {{"a", view_into(a.data(), 2, 3), view_into(da.data(), 2, 3), decays},
            {"b", view_into(b.data(), 5), view_into(db.data(), 5), decays}};
  }
  void gradients(int step) {
    std::ranges::copy(values(6, 10 + step), da.begin());
    std::ranges::copy(values(5, 20 + step), db.begin());
  }
};

}  // namespace

TEST_CASE("optimizer: AdamW gives torch's numbers") {
  const struct {
    adamw_settings settings;
    double largest;  // norm of the gradients; 0: not clipped
    std::vector<float> expected;
    std::vector<double> norms;
  } cases[] = {
      {{},
       0,
       {-0.321335852F, -0.405710399F, -0.492885977F, -0.577239215F, -0.661608577F, -0.746021748F, 0.353604406F,
        0.269140065F, 0.184622407F, 0.0954778045F, 0.0108405519F},
       {}},
      {{0.02, 0.8, 0.95, 1e-5, 0.3},
       0,
       {-0.281587362F, -0.352007121F, -0.480022699F, -0.549856365F, -0.619897008F, -0.690719664F, 0.338398308F,
        0.266297311F, 0.193115115F, 0.0272059906F, -0.0481489785F},
       {}},
      {{0.05, 0.9, 0.999, 1e-8, 0},
       0.75,
       {-0.224335626F, -0.275895029F, -0.455924809F, -0.508716881F, -0.565382063F, -0.626394331F, 0.300588429F,
        0.244019195F, 0.187699661F, -0.0895250961F, -0.156442687F},
       {1.43247652, 2.10520625, 2.21969676, 1.41799474, 2.11595225}},
  };
  for (const auto& c : cases) {
    two_parameters p;
    auto made = adamw::make(p.list(), c.settings);
    REQUIRE(made);
    for (int s = 0; s < 5; ++s) {
      p.gradients(s);
      if (c.largest > 0)
        CHECK(*made->clip(c.largest) == doctest::Approx(c.norms[static_cast<std::size_t>(s)]).epsilon(1e-6));
      REQUIRE(made->step());
    }
    p.a.insert(p.a.end(), p.b.begin(), p.b.end());
    for (std::size_t i = 0; i < p.a.size(); ++i) CHECK(p.a[i] == doctest::Approx(c.expected[i]).epsilon(2e-6));
  }
}

TEST_CASE("optimizer: what does not decay, and gradients that are small enough") {
  two_parameters p;
  auto made = adamw::make(p.list(false));
  REQUIRE(made);
  const std::vector<float> before = p.a;
  CHECK(*made->clip(1) == 0);
  REQUIRE(made->step());
  CHECK(p.a == before);  // no gradient, no decay, no change
  p.gradients(0);
  const std::vector<float> gradients = p.da;
  CHECK(*made->clip(100) > 1);
  CHECK(p.da == gradients);
  REQUIRE(made->clear_gradients());
  CHECK(p.da == std::vector<float>(6));
}

TEST_CASE("optimizer: any number of threads gives the same bits") {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> real(-1, 1);
  constexpr int n = 100003;
  std::vector<float> start(n), gradient(n);
  for (int i = 0; i < n; ++i) start[static_cast<std::size_t>(i)] = real(random);
  for (int i = 0; i < n; ++i) gradient[static_cast<std::size_t>(i)] = real(random);
  const auto run = [&] {
    std::vector<float> value = start, g = gradient;
    auto made = adamw::make({{"w", view_into(value.data(), n), view_into(g.data(), n)}});
    REQUIRE(made);
    for (int s = 0; s < 3; ++s) REQUIRE((made->clip_to(0.5) && made->step()));
    return value;
  };
  const std::vector<float> many = run();
#if defined(_OPENMP)
  const int threads = omp_get_max_threads();
  for (const int k : {1, 3}) {
    omp_set_num_threads(k);
    CHECK(run() == many);
  }
  omp_set_num_threads(threads);
#endif
  CHECK(many != start);
}

TEST_CASE("optimizer: parameters that it cannot train are refused by name") {
  std::vector<float> a(6);
  std::vector<std::uint16_t> h(6);
  const auto message = [](mutable_view value, mutable_view gradient) {
    return std::string(adamw::make({{"layer.lora_A", value, gradient}}).message());
  };
  const mutable_view half{h.data(), dtype::bf16, {6}, 1};
  CHECK(message(half, view_into(a.data(), 6)).find("layer.lora_A is bf16 with gradients in f32") != std::string::npos);
  CHECK(message(view_into(a.data(), 2, 3), view_into(a.data(), 3, 2)).find("[2, 3] has a gradient [3, 2]") !=
        std::string::npos);
  CHECK(message(view_into(a.data(), 2, 3).transposed(), view_into(a.data(), 3, 2)).find("row-major") !=
        std::string::npos);
}

TEST_CASE("schedule: the factors of transformers") {
  const struct {
    schedule_kind kind;
    std::vector<double> factors;
  } cases[] = {
      {schedule_kind::constant, {0, 0.333333333, 0.666666667, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
      {schedule_kind::linear,
       {0, 0.333333333, 0.666666667, 1, 0.857142857, 0.714285714, 0.571428571, 0.428571429, 0.285714286, 0.142857143, 0,
        0}},
      {schedule_kind::cosine,
       {0, 0.333333333, 0.666666667, 1, 0.950484434, 0.811744901, 0.611260467, 0.388739533, 0.188255099, 0.049515566, 0,
        0.049515566}},
  };
  for (const auto& c : cases)
    for (std::size_t s = 0; s < c.factors.size(); ++s)
      CHECK(lr_schedule{c.kind, 3, 10}.factor(static_cast<long long>(s)) ==
            doctest::Approx(c.factors[s]).epsilon(1e-8));
  CHECK(lr_schedule{}.factor(0) == 1);
  CHECK(lr_schedule{schedule_kind::linear, 0, 4}.factor(1) == 0.75);
}
