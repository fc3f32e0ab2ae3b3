// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/matmul.h>

#include "../support/tensors.h"

using namespace test;

namespace {

// The definition: c[i, j] (+)= a[i, j] b[i, j] for each matrix of the stacks, operands of one matrix shared.
owned<double> plain(owned<double> c, owned<double> a, owned<double> b, cpu::product_mode m) {
  const long long n0 = std::max(a.shape.d[0], b.shape.d[0]), n1 = std::max(a.shape.d[1], b.shape.d[1]);
  if (m.accumulate == 0) std::fill(c.v.begin(), c.v.end(), 0.0);
  const double sign = m.accumulate < 0 ? -1 : 1;
  const long long inner = a.shape.d[m.ta ? 2 : 3];
  for (long long i = 0; i < n0; ++i)
    for (long long j = 0; j < n1; ++j)
      for (long long r = 0; r < c.shape.d[2]; ++r)
        for (long long s = 0; s < c.shape.d[3]; ++s)
          for (long long k = 0; k < inner; ++k)
            c.at(m.sum ? 0 : i, m.sum ? 0 : j, r, s) +=
                sign * (m.ta ? a.at(i, j, k, r) : a.at(i, j, r, k)) * (m.tb ? b.at(i, j, s, k) : b.at(i, j, k, s));
  return c;
}
struct stacks {
  long long a0, a1, b0, b1;
};

}  // namespace

TEST_CASE("matmul: every transposition, stack, sum and way to accumulate against the definition") {
  const long long rows = 5, inner = 7, cols = 6;
  for (const stacks& s : {stacks{1, 1, 1, 1}, stacks{1, 4, 1, 1}, stacks{1, 1, 1, 4}, stacks{1, 4, 1, 4},
                          stacks{2, 3, 2, 3}, stacks{2, 3, 1, 1}, stacks{2, 1, 2, 3}, stacks{1, 3, 2, 3}})
    for (int flags = 0; flags < 8; ++flags)
      for (const int accumulate : {0, 1, -1}) {
        const cpu::product_mode m{(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, accumulate};
        owned<double> a = random_tensor<double>({s.a0, s.a1, m.ta ? inner : rows, m.ta ? rows : inner}, 1);
        owned<double> b = random_tensor<double>({s.b0, s.b1, m.tb ? cols : inner, m.tb ? inner : cols}, 2);
        const four shape =
            m.sum ? four{1, 1, rows, cols} : four{std::max(s.a0, s.b0), std::max(s.a1, s.b1), rows, cols};
        owned<double> found = random_tensor<double>(shape, 3);
        const owned<double> expected = plain(found, a, b, m);
        cpu::matmul(found.t(), a.t(), b.t(), m);
        INFO("stacks ", s.a0, " ", s.a1, " and ", s.b0, " ", s.b1, ", flags ", flags, ", accumulate ", accumulate);
        CHECK(furthest(found.v, expected.v) < 1e-13);
      }
}

TEST_CASE("matmul: an old value that is not a number does not survive being overwritten") {
  owned<double> a = random_tensor<double>({1, 1, 3, 4}, 1), b = random_tensor<double>({1, 1, 4, 2}, 2);
  owned<double> c({1, 1, 3, 2}, NAN), clean({1, 1, 3, 2});
  cpu::matmul(c.t(), a.t(), b.t(), {});
  cpu::matmul(clean.t(), a.t(), b.t(), {});
  CHECK(furthest(c.v, clean.v) == 0);
}

TEST_CASE("matmul: no rows, and stacks of no matrices") {
  owned<double> a({1, 1, 0, 4}), b = random_tensor<double>({1, 1, 4, 2}, 2), none({1, 1, 0, 2});
  cpu::matmul(none.t(), a.t(), b.t(), {});
  CHECK(none.v.empty());
  owned<double> stack({1, 0, 3, 4}), one = random_tensor<double>({1, 1, 5, 3}, 3), out({1, 0, 5, 4});
  cpu::matmul(out.t(), one.t(), stack.t(), {});
  CHECK(out.v.empty());
  owned<double> left({1, 0, 3, 4}), sum({1, 1, 3, 3}, 5.0);
  cpu::matmul(sum.t(), left.t(), left.t(), {false, true, true});  // the sum over none is zero
  CHECK(furthest(sum.v, owned<double>({1, 1, 3, 3}).v) == 0);
  owned<double> wide({1, 1, 3, 0}), tall({1, 1, 0, 3}), empty_sum({1, 1, 3, 3}, 5.0);
  cpu::matmul(empty_sum.t(), wide.t(), tall.t(), {});
  CHECK(furthest(empty_sum.v, owned<double>({1, 1, 3, 3}).v) == 0);
}

TEST_CASE("matmul: a weight in bf16 gives what its widened copy gives") {
  // Around the 128 rows that are widened at a time.
  for (const long long out : {1, 127, 128, 129, 300})
    for (const bool tb : {false, true})
      for (const int accumulate : {0, 1, -1}) {
        const long long rows = 9, in = 33;
        const long long inner = tb ? in : out, cols = tb ? out : in;  // a W' or a W
        owned<float> w = random_tensor<float>({1, 1, out, in}, 5);
        std::vector<bf16> stored(w.v.size());
        for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = narrow(w.v[i]), w.v[i] = widen(stored[i]);
        owned<float> a = random_tensor<float>({1, 1, rows, inner}, 6), y = random_tensor<float>({1, 1, rows, cols}, 7);
        owned<float> wide = y;
        cpu::matmul(wide.t(), a.t(), w.t(), {false, tb, false, accumulate});
        cpu::tensor<float> as_stored = w.t();
        as_stored.p = nullptr;
        as_stored.narrow = stored.data();
        cpu::matmul(y.t(), a.t(), as_stored, {false, tb, false, accumulate});
        INFO("out ", out, ", tb ", tb, ", accumulate ", accumulate);
        CHECK(furthest(y.v, wide.v) < 2e-5);
      }
}

TEST_CASE("storage: into and out of every element type") {
  const float numbers[] = {0.0F, -1.5F, 3.25F, 1e-20F};
  double wide[4];
  cpu::decode(numbers, dtype::f32, 0, 4, wide);
  for (int i = 0; i < 4; ++i) CHECK(wide[i] == static_cast<double>(numbers[i]));
  bf16 half[6]{};
  cpu::encode(numbers, 3, half, dtype::bf16, 2);  // with an offset
  CHECK(half[1].bits == 0);
  CHECK(half[2].bits == narrow(0.0F).bits);
  CHECK(half[4].bits == narrow(3.25F).bits);
  float back[2];
  cpu::decode(half, dtype::bf16, 3, 2, back);
  CHECK(back[0] == -1.5F);
  CHECK(back[1] == 3.25F);
  double large[2] = {0, 0};
  cpu::encode(numbers + 1, 2, large, dtype::f64, 0);
  CHECK(large[1] == 3.25);
}
