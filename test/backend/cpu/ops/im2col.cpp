// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/im2col.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

void adjoint(double left, double right) { CHECK(left == doctest::Approx(right).epsilon(1e-12)); }

}  // namespace

TEST_CASE("im2col: patches of an image, and their adjoint") {
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
