// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/rowwise.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

owned<double> one_row(std::vector<double> v) {
  owned<double> t({1, 1, 1, static_cast<long long>(v.size())});
  t.v = std::move(v);
  return t;
}
owned<double> softmax(std::vector<double> v, long long k) {
  owned<double> a = one_row(std::move(v)), p(a.shape, NAN);
  cpu::topk_softmax(p.t(), a.t(), k);
  return p;
}

}  // namespace

TEST_CASE("topk_softmax: the k largest sum to one, the others are zero") {
  const owned<double> p = softmax({0.1, 2.0, -1.0, 1.0}, 2);
  CHECK(p.v[0] == 0);
  CHECK(p.v[2] == 0);
  CHECK(p.v[1] + p.v[3] == doctest::Approx(1));
  CHECK(p.v[1] / p.v[3] == doctest::Approx(std::exp(1.0)));
}

TEST_CASE("topk_softmax: of equal entries the first ones are chosen") {
  CHECK(softmax({1, 1, 1, 1}, 2).v == std::vector<double>{0.5, 0.5, 0, 0});
  CHECK(softmax({0, 3, 3, 3}, 2).v == std::vector<double>{0, 0.5, 0.5, 0});
  CHECK(softmax({3, 0, 3, 3}, 1).v == std::vector<double>{1, 0, 0, 0});
}

TEST_CASE("topk_softmax: the edges of k, and numbers that would overflow") {
  const owned<double> all = softmax({1, 2, 3}, 3);
  CHECK(all.v[0] + all.v[1] + all.v[2] == doctest::Approx(1));
  CHECK(furthest(softmax({1, 2, 3}, 9).v, all.v) == 0);
  CHECK(softmax({5, 7, 6}, 1).v == std::vector<double>{0, 1, 0});
  CHECK(softmax({1e4, -1e4}, 2).v == std::vector<double>{1, 0});
}

TEST_CASE("softmax: whole rows, also if the exponentials would overflow") {
  for (const double shift : {0.0, 1e4, -1e4})
    for (const long long n : {1, 5, 31, 32, 33, 70}) {
      owned<double> a = random_tensor<double>({2, 1, 3, n}, 7), p(a.shape, NAN);
      for (double& x : a.v) x = 5 * x + shift;
      cpu::softmax(p.t(), a.t());
      for (long long r = 0; r < 6; ++r) {
        double total = 0;
        for (long long c = 0; c < n; ++c) total += std::exp(a.at(r / 3, 0, r % 3, c) - shift);
        for (long long c = 0; c < n; ++c) {
          INFO("n ", n, ", shift ", shift);
          CHECK(p.at(r / 3, 0, r % 3, c) == doctest::Approx(std::exp(a.at(r / 3, 0, r % 3, c) - shift) / total));
        }
      }
    }
  owned<double> masked = one_row({1, -INFINITY, 2}), q(masked.shape);
  cpu::softmax(q.t(), masked.t());
  CHECK(q.v[1] == 0);
  CHECK(q.v[0] + q.v[2] == doctest::Approx(1));
}

TEST_CASE("topk_softmax: its gradient agrees with finite differences away from ties") {
  owned<double> a = one_row({0.3, 1.7, -0.4, 0.9, 0.1}), t = random_tensor<double>(a.shape, 3), p(a.shape),
                gradient(a.shape);
  cpu::topk_softmax(p.t(), a.t(), 3);
  cpu::softmax_grad(gradient.t(), p.t(), t.t());
  for (std::size_t i = 0; i < a.v.size(); ++i) {
    const double at = a.v[i], eps = 1e-6;
    double loss[2];
    for (const int side : {0, 1}) {
      a.v[i] = at + (side == 0 ? eps : -eps);
      cpu::topk_softmax(p.t(), a.t(), 3);
      loss[side] = dot(p.v, t.v);
    }
    a.v[i] = at;
    CHECK(gradient.v[i] == doctest::Approx((loss[0] - loss[1]) / (2 * eps)).epsilon(1e-6).scale(1));
  }
}

TEST_CASE("normalize: mean 0 and variance 1, or mean square 1") {
  owned<double> x = random_tensor<double>({1, 1, 3, 9}, 1), y(x.shape);
  for (double& v : x.v) v = 3 * v + 2;
  auto mean = [&](int r, bool squares) {
    double total = 0;
    for (int c = 0; c < 9; ++c) total += squares ? y.at(0, 0, r, c) * y.at(0, 0, r, c) : y.at(0, 0, r, c);
    return total / 9;
  };
  cpu::normalize(y.t(), x.t(), 0.0, false);
  for (int r = 0; r < 3; ++r) {
    CHECK(std::abs(mean(r, false)) < 1e-14);
    CHECK(mean(r, true) == doctest::Approx(1));
  }
  cpu::normalize(y.t(), x.t(), 0.0, true);
  for (int r = 0; r < 3; ++r) {
    CHECK(mean(r, false) > 0.1);  // RMS norm does not subtract the mean
    CHECK(mean(r, true) == doctest::Approx(1));
  }
}

TEST_CASE("normalize: eps is inside the root, and a row of zeros stays zero") {
  owned<double> x = one_row({1, 1, 1, 1}), y(x.shape);
  cpu::normalize(y.t(), x.t(), 3.0, true);
  CHECK(y.v[0] == doctest::Approx(0.5));
  x = one_row({0, 0, 0});
  owned<double> z(x.shape, NAN);
  cpu::normalize(z.t(), x.t(), 1e-5, false);
  CHECK(z.v == std::vector<double>{0, 0, 0});
}

TEST_CASE("normalize: its gradient agrees with finite differences") {
  for (const bool rms : {false, true}) {
    owned<double> x = random_tensor<double>({1, 1, 2, 7}, 5), t = random_tensor<double>(x.shape, 6), y(x.shape),
                  gradient(x.shape);
    cpu::normalize_grad(gradient.t(), x.t(), 0.1, t.t(), rms);
    for (std::size_t i = 0; i < x.v.size(); ++i) {
      const double at = x.v[i], eps = 1e-6;
      double loss[2];
      for (const int side : {0, 1}) {
        x.v[i] = at + (side == 0 ? eps : -eps);
        cpu::normalize(y.t(), x.t(), 0.1, rms);
        loss[side] = dot(y.v, t.v);
      }
      x.v[i] = at;
      INFO("rms ", rms);
      CHECK(gradient.v[i] == doctest::Approx((loss[0] - loss[1]) / (2 * eps)).epsilon(1e-6).scale(1));
    }
  }
}
