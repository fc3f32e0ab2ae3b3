// SPDX-License-Identifier: Apache-2.0
// Ops that move elements, each against its definition; and each pair of adjoints: <f(a), b> = <a, f*(b)>.
#include <doctest/doctest.h>
#include <graft/backend/cpu/layout.h>

#include "../support/tensors.h"

using namespace test;

namespace {

void adjoint(double left, double right) { CHECK(left == doctest::Approx(right).epsilon(1e-12)); }

}  // namespace

TEST_CASE("layout: transpose and swap_inner") {
  owned<double> a = random_tensor<double>({2, 3, 4, 5}, 1), t({2, 3, 5, 4}), s({2, 4, 3, 5});
  cpu::transpose(t.t(), a.t());
  cpu::swap_inner(s.t(), a.t());
  bool transposed = true, swapped = true;
  each_element(a.shape, [&](long long i, long long j, long long k, long long l) {
    transposed = transposed && t.at(i, j, l, k) == a.at(i, j, k, l);
    swapped = swapped && s.at(i, k, j, l) == a.at(i, j, k, l);
  });
  CHECK(transposed);
  CHECK(swapped);
}

TEST_CASE("layout: tile repeats, fold sums, also where the width is no multiple") {
  for (const long long width : {4, 8, 10, 3}) {
    owned<double> a = random_tensor<double>({1, 2, 3, 4}, 1), wide({1, 2, 3, width}),
                  b = random_tensor<double>(wide.shape, 2), back(a.shape, NAN);
    cpu::tile(wide.t(), a.t());
    bool right = true;
    each_element(wide.shape, [&](long long i, long long j, long long k, long long l) {
      right = right && wide.at(i, j, k, l) == a.at(i, j, k, l % 4);
    });
    CHECK(right);
    cpu::fold(back.t(), b.t());
    adjoint(dot(wide.v, b.v), dot(a.v, back.v));
  }
}

TEST_CASE("layout: skew spreads a packed row-major triangle, unskew is its adjoint") {
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

TEST_CASE("layout: strict_upper keeps what is above the diagonal, and is its own adjoint") {
  owned<double> a = random_tensor<double>({1, 2, 4, 4}, 1), u(a.shape, NAN), b = random_tensor<double>(a.shape, 2),
                w(a.shape, NAN);
  cpu::strict_upper(u.t(), a.t());
  each_element(a.shape, [&](long long i, long long j, long long k, long long l) {
    CHECK(u.at(i, j, k, l) == (l > k ? a.at(i, j, k, l) : 0.0));
  });
  cpu::strict_upper(w.t(), b.t());
  adjoint(dot(u.v, b.v), dot(a.v, w.v));
}

TEST_CASE("layout: sum_to over any axes, added to what is there") {
  owned<double> a = random_tensor<double>({2, 3, 4, 5}, 1);
  for (int mask = 0; mask < 16; ++mask) {
    four s = a.shape;
    for (int k = 0; k < 4; ++k)
      if ((mask >> k & 1) != 0) s.d[k] = 1;
    owned<double> found(s, 1.0), expected(s, 1.0);
    cpu::sum_to(found.t(), a.t());
    each_element(a.shape, [&](long long i, long long j, long long k, long long l) {
      expected.at(i, j, k, l) += a.at(i, j, k, l);
    });
    INFO("mask ", mask);
    CHECK(furthest(found.v, expected.v) < 1e-13);
  }
}

TEST_CASE("layout: dots of rows, Kronecker products of matrices and of rows") {
  owned<double> a = random_tensor<double>({1, 1, 3, 4}, 1), b = random_tensor<double>({1, 1, 3, 4}, 2), d({1, 1, 3, 1});
  cpu::row_dot(d.t(), a.t(), b.t());
  for (long long r = 0; r < 3; ++r) {
    double sum = 0;
    for (long long c = 0; c < 4; ++c) sum += a.at(0, 0, r, c) * b.at(0, 0, r, c);
    CHECK(d.at(0, 0, r, 0) == doctest::Approx(sum));
  }
  owned<double> w2 = random_tensor<double>({1, 1, 2, 5}, 3), k({1, 1, 6, 20}), rk({1, 1, 3, 16});
  cpu::kron(k.t(), a.t(), w2.t());
  each_element(k.shape, [&](long long, long long, long long r, long long c) {
    CHECK(k.at(0, 0, r, c) == a.at(0, 0, r / 2, c / 5) * w2.at(0, 0, r % 2, c % 5));
  });
  cpu::row_kron(rk.t(), a.t(), b.t());
  each_element(rk.shape, [&](long long, long long, long long r, long long c) {
    CHECK(rk.at(0, 0, r, c) == a.at(0, 0, r, c / 4) * b.at(0, 0, r, c % 4));
  });
}

TEST_CASE("layout: gather by rows and by columns, and scatter, its adjoint, also for ids that repeat") {
  const std::int64_t ids[] = {4, 0, 4, 2, 6};
  for (const bool by_column : {false, true}) {
    owned<double> w = random_tensor<double>(by_column ? four{1, 1, 3, 7} : four{1, 1, 7, 3}, 1), y({1, 1, 5, 3});
    cpu::gather(y.t(), w.t(), ids, by_column);
    for (long long t = 0; t < 5; ++t)
      for (long long c = 0; c < 3; ++c)
        CHECK(y.at(0, 0, t, c) == (by_column ? w.at(0, 0, c, ids[t]) : w.at(0, 0, ids[t], c)));
    owned<double> dy = random_tensor<double>(y.shape, 2), dw(w.shape);
    cpu::scatter(dw.t(), dy.t(), ids, by_column);
    adjoint(dot(y.v, dy.v), dot(w.v, dw.v));
    CHECK((by_column ? dw.at(0, 0, 0, 1) : dw.at(0, 0, 1, 0)) == 0);  // an id that does not occur
  }
}

TEST_CASE("layout: patches of an image, and their adjoint") {
  struct geometry {
    long long kh, kw, stride, pad;
  };
  for (const geometry& s :
       {geometry{1, 1, 1, 0}, geometry{3, 3, 1, 1}, geometry{3, 2, 2, 1}, geometry{5, 6, 1, 0}, geometry{2, 2, 3, 2}}) {
    const long long n = 2, c = 3, h = 5, w = 6;
    const long long oh = (h + 2 * s.pad - s.kh) / s.stride + 1, ow = (w + 2 * s.pad - s.kw) / s.stride + 1;
    owned<double> x = random_tensor<double>({n, c, h, w}, 1), rows({1, n, oh * ow, c * s.kh * s.kw});
    const cpu::window window{s.kh, s.kw, s.stride, s.pad, ow};
    cpu::each_patch(x.t().d, rows.t().d, window, [&](long long at, long long to) {
      rows.v[static_cast<std::size_t>(to)] = x.v[static_cast<std::size_t>(at)];
    });
    bool right = true;
    for (long long i = 0; i < n; ++i)
      for (long long p = 0; p < oh * ow; ++p)
        for (long long q = 0; q < c * s.kh * s.kw; ++q) {
          const long long y = p / ow * s.stride + q / s.kw % s.kh - s.pad, z = p % ow * s.stride + q % s.kw - s.pad;
          const bool inside = y >= 0 && z >= 0 && y < h && z < w;
          right = right && rows.at(0, i, p, q) == (inside ? x.at(i, q / (s.kh * s.kw), y, z) : 0.0);
        }
    INFO("kernel ", s.kh, " x ", s.kw, ", stride ", s.stride, ", padding ", s.pad);
    CHECK(right);
    owned<double> r = random_tensor<double>(rows.shape, 2), image(x.shape);
    cpu::each_patch(image.t().d, rows.t().d, window, [&](long long at, long long from) {
      image.v[static_cast<std::size_t>(at)] += r.v[static_cast<std::size_t>(from)];
    });
    adjoint(dot(rows.v, r.v), dot(x.v, image.v));
  }
}
