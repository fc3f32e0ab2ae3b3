// SPDX-License-Identifier: Apache-2.0
// Ops that move elements, each compared with its definition; and each pair of adjoints: <f(a), b> = <a, f*(b)>.
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/circulant.h>
#include <graft/backend/cpu/ops/layout.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

void adjoint(double left, double right) { CHECK(left == doctest::Approx(right).epsilon(1e-12)); }

}  // namespace

TEST_CASE("layout: transpose, also of matrices larger than a cache block") {
  for (const four s : {four{2, 3, 4, 5}, four{1, 2, 17, 33}, four{1, 1, 1, 40}}) {
    owned<double> a = random_tensor<double>(s, 1), t({s.d[0], s.d[1], s.d[3], s.d[2]}, NAN);
    cpu::transpose(t.t(), a.t());
    bool right = true;
    each_element(a.shape, [&](long long i, long long j, long long k, long long l) {
      right = right && t.at(i, j, l, k) == a.at(i, j, k, l);
    });
    CHECK(right);
  }
}

TEST_CASE("layout: permute with every order of the axes") {
  owned<double> a = random_tensor<double>({2, 3, 4, 5}, 1);
  int from[4] = {0, 1, 2, 3};
  int orders = 0;
  do {
    four s{};
    for (int k = 0; k < 4; ++k) s.d[k] = a.shape.d[from[k]];
    owned<double> out(s, NAN);
    cpu::permute(out.t(), a.t(), from);
    bool right = true;
    each_element(s, [&](long long i, long long j, long long k, long long l) {
      const long long at[4] = {i, j, k, l};
      long long of_a[4]{};
      for (int axis = 0; axis < 4; ++axis) of_a[from[axis]] = at[axis];
      right = right && out.at(i, j, k, l) == a.at(of_a[0], of_a[1], of_a[2], of_a[3]);
    });
    INFO("order ", from[0], from[1], from[2], from[3]);
    CHECK(right);
    ++orders;
  } while (std::next_permutation(from, from + 4));
  CHECK(orders == 24);
}

TEST_CASE("layout: slice, pad and concat along every axis; pad is the adjoint of slice") {
  for (int axis = 0; axis < 4; ++axis)
    for (const long long start : {0, 1, 2}) {
      owned<double> a = random_tensor<double>({4, 5, 6, 7}, 1);
      four s = a.shape, rest = a.shape;
      s.d[axis] = 2, rest.d[axis] -= 2;
      owned<double> part(s, NAN), b = random_tensor<double>(s, 2), wide(a.shape, NAN),
                                  c = random_tensor<double>(rest, 3), joined(a.shape, NAN);
      cpu::slice(part.t(), a.t(), axis, start);
      cpu::pad(wide.t(), b.t(), axis, start);
      cpu::concat(joined.t(), b.t(), c.t(), axis);
      bool sliced = true, padded = true, both = true;
      each_element(a.shape, [&](long long i, long long j, long long k, long long l) {
        const long long at[4] = {i, j, k, l};
        auto shifted = [&](owned<double>& t, long long by) {
          long long to[4] = {i, j, k, l};
          to[axis] -= by;
          return t.at(to[0], to[1], to[2], to[3]);
        };
        const bool inside = at[axis] >= start && at[axis] < start + 2;
        if (inside) sliced = sliced && shifted(part, start) == a.at(i, j, k, l);
        padded = padded && wide.at(i, j, k, l) == (inside ? shifted(b, start) : 0.0);
        both = both && joined.at(i, j, k, l) == (at[axis] < 2 ? b.at(i, j, k, l) : shifted(c, 2));
      });
      INFO("axis ", axis, ", start ", start);
      CHECK(sliced);
      CHECK(padded);
      CHECK(both);
      adjoint(dot(part.v, b.v), dot(a.v, wide.v));
    }
}

TEST_CASE("layout: tile repeats, fold sums, also if the width is no multiple") {
  for (const long long width : {4, 8, 10, 3}) {
    owned<double> a = random_tensor<double>({1, 2, 3, 4}, 1), wide({1, 2, 3, width}),
                  b = random_tensor<double>(wide.shape, 2), back(a.shape, NAN);
    cpu::repeat(wide.t(), a.t());
    bool right = true;
    each_element(wide.shape, [&](long long i, long long j, long long k, long long l) {
      right = right && wide.at(i, j, k, l) == a.at(i, j, k, l % 4);
    });
    CHECK(right);
    cpu::fold_columns(back.t(), b.t());
    adjoint(dot(wide.v, b.v), dot(a.v, back.v));
  }
}

TEST_CASE("layout: skew expands a packed row-major triangle, unskew is its adjoint") {
  owned<double> v = random_tensor<double>({1, 1, 3, 6}, 1), q({1, 3, 4, 4}, NAN);
  cpu::skew(q.t(), v.t());
  for (long long m = 0; m < 3; ++m) {
    long long at = 0;
    for (long long r = 0; r < 4; ++r) {
      CHECK(q.at(0, m, r, r) == 0);
      for (long long c = r + 1; c < 4; ++c, ++at) {
        CHECK(q.at(0, m, r, c) == v.at(0, 0, m, at));
        CHECK(q.at(0, m, c, r) == -v.at(0, 0, m, at));
      }
    }
  }
  owned<double> t = random_tensor<double>(q.shape, 2), back(v.shape, NAN);
  cpu::unskew(back.t(), t.t());
  adjoint(dot(q.v, t.v), dot(v.v, back.v));
}

TEST_CASE("layout: a circulant shifts each row by one, and its sum is its adjoint") {
  for (const bool mirrored : {false, true})
    for (const long long b : {1, 2, 5, 16}) {
      owned<double> a = random_tensor<double>({2, 3, 4, b}, 1), c({2, 3, b, 4 * b}, NAN);
      cpu::circulant(c.t(), a.t(), mirrored);
      bool right = true;
      each_element(c.shape, [&](long long i, long long j, long long k, long long l) {
        const long long from = mirrored ? (l + k) % b : (l % b - k + b) % b;
        right = right && c.at(i, j, k, l) == a.at(i, j, l / b, from % b);
      });
      CHECK(right);
      owned<double> t = random_tensor<double>(c.shape, 2), back(a.shape, NAN);
      cpu::circulant_sum(back.t(), t.t(), mirrored);
      adjoint(dot(c.v, t.v), dot(a.v, back.v));
    }
}

TEST_CASE("layout: strict_upper copies the elements above the diagonal, and is its own adjoint") {
  owned<double> a = random_tensor<double>({1, 2, 4, 4}, 1), u(a.shape, NAN), b = random_tensor<double>(a.shape, 2),
                w(a.shape, NAN);
  cpu::strict_upper(u.t(), a.t());
  each_element(a.shape, [&](long long i, long long j, long long k, long long l) {
    CHECK(u.at(i, j, k, l) == (l > k ? a.at(i, j, k, l) : 0.0));
  });
  cpu::strict_upper(w.t(), b.t());
  adjoint(dot(u.v, b.v), dot(a.v, w.v));
}
