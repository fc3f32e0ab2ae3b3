// SPDX-License-Identifier: Apache-2.0
// im2col and col2im: a convolution as a GEMM over the matrix of the image's patches.
#pragma once
#include <graft/backend/cpu/runtime/tensor.h>

#include <algorithm>

namespace graft::cpu {

struct window {
  long long kernel_h, kernel_w, stride, pad, out_w;
};
// Calls f(index in the image, index in the patch matrix) for every patch element that is not padding.
template <class F> void each_patch(const long long (&image)[4], const long long (&rows)[4], window s, F f) {
  for (long long n = 0; n < image[0]; ++n)
    for (long long p = 0; p < rows[2]; ++p)
      for (long long c = 0; c < image[1]; ++c)
        for (long long y = 0; y < s.kernel_h; ++y)
          for (long long x = 0; x < s.kernel_w; ++x) {
            const long long h = p / s.out_w * s.stride + y - s.pad, w = p % s.out_w * s.stride + x - s.pad;
            if (h < 0 || w < 0 || h >= image[2] || w >= image[3]) continue;
            f(((n * image[1] + c) * image[2] + h) * image[3] + w,
              (n * rows[2] + p) * rows[3] + (c * s.kernel_h + y) * s.kernel_w + x);
          }
}
template <class Real> void im2col(tensor<Real> out, tensor<Real> image, window s) {
  std::fill_n(out.p, out.count(), Real(0));
  each_patch(image.d, {1, out.d[1], out.d[2], out.d[3]}, s,
             [&](long long at, long long to) { out.p[to] = image.p[at]; });
}
template <class Real> void col2im(tensor<Real> image, tensor<Real> rows, window s) {
  each_patch(image.d, {1, rows.d[1], rows.d[2], rows.d[3]}, s,
             [&](long long at, long long from) { image.p[at] += rows.p[from]; });
}

}  // namespace graft::cpu
