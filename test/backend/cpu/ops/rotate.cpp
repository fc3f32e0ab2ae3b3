// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/rotate.h>
#include <graft/backend/cpu/ops/vector.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

struct sizes {
  long long b, factors, blocks;
  bool shared, transposed;
};
// Every block size with one factor; butterflies need an even size and a multiple of 2^(factors - 1) blocks.
template <class F> void every_rotation(F f) {
  for (const long long b : {2, 3, 4, 5, 8, 16})
    for (const long long factors : {1, 2, 3}) {
      if (factors > 1 && b % 2 != 0) continue;
      for (const bool shared : {false, true})
        for (const bool transposed : {false, true}) {
          INFO("b ", b, ", factors ", factors, ", shared ", shared, ", transposed ", transposed);
          f(sizes{b, factors, 8, shared, transposed});
        }
    }
}
owned<double> blocks_for(const sizes& s) {
  return random_tensor<double>({s.factors, s.shared ? 1 : s.blocks, s.b, s.b}, 11);
}
// x R or x Rᵀ by the dense matrix.
owned<double> dense(owned<double> x, owned<double> q, bool transposed) {
  const long long n = x.shape.d[3];
  const std::vector<double> r = cpu::dense_rotation(q.t(), n);
  owned<double> y(x.shape);
  each_element(x.shape, [&](long long i, long long j, long long k, long long l) {
    for (long long m = 0; m < n; ++m)
      y.at(i, j, k, l) += x.at(i, j, k, m) * r[static_cast<std::size_t>(transposed ? l * n + m : m * n + l)];
  });
  return y;
}

}  // namespace

TEST_CASE("rotation: block by block equals the dense matrix") {
  every_rotation([](const sizes& s) {
    owned<double> q = blocks_for(s);
    for (const long long rows : {1, 15, 16, 17, 40}) {
      owned<double> x = random_tensor<double>({1, 1, rows, s.b * s.blocks}, 12), y(x.shape);
      cpu::rotate(y.t(), x.t(), q.t(), s.transposed);
      CHECK(furthest(y.v, dense(x, q, s.transposed).v) < 1e-12);
    }
  });
}

TEST_CASE("rotation: stacks of rows") {
  owned<double> q = random_tensor<double>({2, 4, 4, 4}, 1), x = random_tensor<double>({2, 3, 5, 16}, 2), y(x.shape);
  cpu::rotate(y.t(), x.t(), q.t(), false);
  CHECK(furthest(y.v, dense(x, q, false).v) < 1e-13);
}

TEST_CASE("rotation: the transpose of orthogonal blocks is their inverse") {
  owned<double> q = random_tensor<double>({2, 4, 4, 4}, 3);
  for (long long m = 0; m < 8; ++m) {  // Gram-Schmidt on the rows of each block
    double* rows[4];
    for (int c = 0; c < 4; ++c) {
      rows[c] = q.v.data() + m * 16 + c * 4;
      for (int p = 0; p < c; ++p) cpu::axpy(rows[c], -cpu::dot(rows[p], rows[c], 4), rows[p], 4);
      cpu::scale_into(rows[c], 1 / std::sqrt(cpu::dot(rows[c], rows[c], 4)), rows[c], 4);
    }
  }
  owned<double> x = random_tensor<double>({1, 1, 5, 16}, 4), y(x.shape), back(x.shape);
  cpu::rotate(y.t(), x.t(), q.t(), false);
  cpu::rotate(back.t(), y.t(), q.t(), true);
  CHECK(furthest(back.v, x.v) < 1e-12);
  CHECK(furthest(y.v, x.v) > 0.1);
}

TEST_CASE("rotation: the gradient of the blocks agrees with finite differences") {
  every_rotation([](const sizes& s) {
    owned<double> q = blocks_for(s), x = random_tensor<double>({1, 1, 3, s.b * s.blocks}, 13), y(x.shape);
    owned<double> t = random_tensor<double>(x.shape, 14), gradient(q.shape);
    cpu::rotate_grad(gradient.t(), x.t(), t.t(), q.t(), s.transposed);
    auto loss = [&] {
      cpu::rotate(y.t(), x.t(), q.t(), s.transposed);
      return dot(y.v, t.v);
    };
    const std::size_t stride = q.v.size() / 17 + 1;
    for (std::size_t i = 0; i < q.v.size(); i += stride) {
      const double at = q.v[i], eps = 1e-6;
      q.v[i] = at + eps;
      const double above = loss();
      q.v[i] = at - eps;
      const double below = loss();
      q.v[i] = at;
      CHECK(gradient.v[i] == doctest::Approx((above - below) / (2 * eps)).epsilon(1e-6));
    }
  });
}

TEST_CASE("rotation: wide blocks with more rows than are summed at a time") {
  for (const long long b : {24, 32, 64})
    for (const bool transposed : {false, true}) {
      INFO("b ", b, ", transposed ", transposed);
      owned<double> q = random_tensor<double>({1, 2, b, b}, 15), x = random_tensor<double>({1, 1, 70, 2 * b}, 16);
      owned<double> y(x.shape), t = random_tensor<double>(x.shape, 17), gradient(q.shape), expected(q.shape);
      cpu::rotate(y.t(), x.t(), q.t(), transposed);
      CHECK(furthest(y.v, dense(x, q, transposed).v) < 1e-12);
      cpu::rotate_grad(gradient.t(), x.t(), t.t(), q.t(), transposed);
      each_element(q.shape, [&](long long, long long k, long long i, long long j) {
        owned<double>&left = transposed ? t : x, &right = transposed ? x : t;
        for (long long row = 0; row < 70; ++row)
          expected.at(0, k, i, j) += left.at(0, 0, row, k * b + i) * right.at(0, 0, row, k * b + j);
      });
      CHECK(furthest(gradient.v, expected.v) < 1e-12);
    }
}

TEST_CASE("rotation: the gradient is accumulated") {
  owned<double> q = random_tensor<double>({2, 4, 4, 4}, 1), x = random_tensor<double>({1, 1, 3, 16}, 2),
                t = random_tensor<double>({1, 1, 3, 16}, 3), once(q.shape), twice(q.shape);
  cpu::rotate_grad(once.t(), x.t(), t.t(), q.t(), false);
  cpu::rotate_grad(twice.t(), x.t(), t.t(), q.t(), false);
  cpu::rotate_grad(twice.t(), x.t(), t.t(), q.t(), false);
  for (double& v : once.v) v *= 2;
  CHECK(furthest(once.v, twice.v) < 1e-13);
}

TEST_CASE("rotation: the butterfly order is a permutation that pairs chunk j with chunk j + 2^i") {
  for (const long long b : {2, 4, 8})
    for (const long long factor : {0, 1, 2}) {
      const long long in = b * 8;
      std::vector<int> hit(static_cast<std::size_t>(in), 0);
      for (long long i = 0; i < in; ++i) ++hit[static_cast<std::size_t>(cpu::butterfly(i, b, factor))];
      CHECK(std::all_of(hit.begin(), hit.end(), [](int n) { return n == 1; }));
    }
  // b = 4, factor 1: groups of 8 in four chunks of 2; even chunks come first.
  const long long expected[] = {0, 1, 4, 5, 2, 3, 6, 7};
  for (long long i = 0; i < 8; ++i) CHECK(cpu::butterfly(i, 4, 1) == expected[i]);
  CHECK(cpu::butterfly(13, 4, 0) == 13);
}
