// SPDX-License-Identifier: Apache-2.0
// Routing, sorted rows and grouped products against plain loops, and each op with its adjoint.
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/experts.h>

#include <cmath>

#include "../../../support/tensors.h"

using namespace test;

namespace {

struct routed {
  owned<double> scores, table;
  routed(long long tokens, long long experts, long long k, unsigned seed)
      : scores(random_tensor<double>({1, 1, tokens, experts}, seed)), table({1, 1, tokens * k, 3}) {
    cpu::route(table.t(), scores.t(), k);
  }
  long long token(long long p) const { return static_cast<long long>(table.v[static_cast<std::size_t>(3 * p)]); }
  long long expert(long long p) const { return static_cast<long long>(table.v[static_cast<std::size_t>(3 * p + 1)]); }
  long long row(long long pair) const {
    return static_cast<long long>(table.v[static_cast<std::size_t>(3 * pair + 2)]);
  }
};

}  // namespace

TEST_CASE("experts: rows are sorted by expert, each token has its k best once, and ties take the first") {
  for (const long long tokens : {1, 2, 7, 100})
    for (const long long experts : {1, 2, 5, 64})
      for (const long long k : {1LL, 2LL, experts}) {
        if (k > experts) continue;
        routed r(tokens, experts, k, 3);
        for (long long p = 0; p < tokens * k; ++p) {
          if (p > 0) CHECK(r.expert(p - 1) <= r.expert(p));
          if (p > 0 && r.expert(p - 1) == r.expert(p)) CHECK(r.token(p - 1) < r.token(p));
        }
        for (long long t = 0; t < tokens; ++t) {
          double least = INFINITY;
          for (long long j = 0; j < k; ++j) {
            const long long p = r.row(t * k + j);
            CHECK(r.token(p) == t);
            if (j > 0) CHECK(r.expert(r.row(t * k + j - 1)) < r.expert(p));
            least = std::min(least, r.scores.at(0, 0, t, r.expert(p)));
          }
          long long better = 0;
          for (long long e = 0; e < experts; ++e) better += r.scores.at(0, 0, t, e) > least ? 1 : 0;
          CHECK(better == k - 1);
        }
      }
  owned<double> equal({1, 1, 2, 4}), table({1, 1, 4, 3});
  std::fill(equal.v.begin(), equal.v.end(), 1.0);
  equal.v[5] = NAN;  // the smallest
  cpu::route(table.t(), equal.t(), 2);
  CHECK(table.v == std::vector<double>{0, 0, 0, 1, 0, 2, 0, 1, 1, 1, 2, 3});
}

TEST_CASE("experts: dispatch and combine are adjoint") {
  routed r(9, 4, 2, 5);
  struct example {
    routed_by how;
    four from;
  };
  for (const example& e : {example{routed_by::token, {1, 1, 9, 3}}, example{routed_by::expert, {1, 4, 1, 3}},
                           example{routed_by::both, {1, 1, 9, 4}}}) {
    owned<double> a = random_tensor<double>(e.from, 1), back(e.from);
    const long long n = e.how == routed_by::both ? 1 : 3;
    owned<double> rows({1, 1, 18, n}), t = random_tensor<double>({1, 1, 18, n}, 2);
    cpu::dispatch(rows.t(), a.t(), r.table.t(), e.how);
    cpu::combine(back.t(), t.t(), r.table.t(), e.how);
    CHECK(dot(rows.v, t.v) == doctest::Approx(dot(a.v, back.v)).epsilon(1e-12));
    for (long long p = 0; p < 18; ++p)
      CHECK(rows.at(0, 0, p, 0) == (e.how == routed_by::token    ? a.at(0, 0, r.token(p), 0)
                                    : e.how == routed_by::expert ? a.at(0, r.expert(p), 0, 0)
                                                                 : a.at(0, 0, r.token(p), r.expert(p))));
  }
}

TEST_CASE("experts: grouped products equal a product per expert, for weights as they are stored") {
  for (const long long tokens : {1, 3, 70}) {
    const long long experts = 6, k = 2, out = 37, in = 45;
    routed r(tokens, experts, k, 7);
    owned<float> table({1, 1, tokens * k, 3});
    std::copy(r.table.v.begin(), r.table.v.end(), table.v.begin());
    owned<float> x = random_tensor<float>({1, 1, tokens * k, in}, 1),
                 w = random_tensor<float>({1, experts, out, in}, 2);
    std::vector<bf16> narrow_w;
    for (float& v : w.v) narrow_w.push_back(narrow(v)), v = widen(narrow_w.back());
    const weight_view stored = weight_of(view_of(narrow_w.data(), experts * out, in), experts * out, in);
    for (const bool tb : {true, false})
      for (const bool is_stored : {false, true}) {
        owned<float> rows = tb ? x : random_tensor<float>({1, 1, tokens * k, out}, 3);
        const long long n = tb ? out : in, depth = tb ? in : out;
        owned<float> y({1, 1, tokens * k, n}), again({1, 1, tokens * k, n});
        cpu::tensor<float> weight = w.t();
        if (is_stored) weight.p = nullptr, weight.stored = &stored;
        cpu::grouped_matmul(y.t(), rows.t(), weight, table.t(), tb);
        cpu::grouped_matmul(again.t(), rows.t(), weight, table.t(), tb);
        CHECK(y.v == again.v);
        for (long long p = 0; p < tokens * k; ++p)
          for (long long c = 0; c < n; ++c) {
            double sum = 0;
            for (long long i = 0; i < depth; ++i)
              sum += static_cast<double>(rows.at(0, 0, p, i)) *
                     static_cast<double>(tb ? w.at(0, r.expert(p), c, i) : w.at(0, r.expert(p), i, c));
            CHECK(static_cast<double>(y.at(0, 0, p, c)) == doctest::Approx(sum).epsilon(1e-4).scale(1));
          }
      }
    owned<float> t = random_tensor<float>({1, 1, tokens * k, out}, 4), dw({1, experts, out, in});
    std::fill(dw.v.begin(), dw.v.end(), 0.5F);  // what earlier chunks of rows gave
    cpu::grouped_wgrad(dw.t(), t.t(), x.t(), table.t());
    for (long long e = 0; e < experts; ++e)
      for (long long o = 0; o < out; ++o)
        for (long long i = 0; i < in; i += 11) {
          double sum = 0.5;
          for (long long p = 0; p < tokens * k; ++p)
            if (r.expert(p) == e) sum += static_cast<double>(t.at(0, 0, p, o)) * static_cast<double>(x.at(0, 0, p, i));
          CHECK(static_cast<double>(dw.at(0, e, o, i)) == doctest::Approx(sum).epsilon(1e-4).scale(1));
        }
  }
}
