// SPDX-License-Identifier: Apache-2.0
// Ops that move or sum elements without arithmetic of their own. Each functor computes one element of the output from
// its place. scattered and unpatched add to what is there, as on the CPU.
#pragma once
#include <graft/backend/cuda/tensor.h>

namespace graft::cuda {

template <class Real> struct filled {
  Real* out;
  Real value;
  __host__ __device__ void operator()(long long i) const { out[i] = value; }
};
template <class Real> struct copied {
  Real* out;
  const Real* a;
  __host__ __device__ void operator()(long long i) const { out[i] = a[i]; }
};
template <class Real> struct identity {
  tensor<Real> out;
  __host__ __device__ void operator()(long long i) const {
    out.p[i] = i / out.d[3] == i % out.d[3] ? Real(1) : Real(0);
  }
};
template <class Real> struct transposed {
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    const long long m = i / out.area(), at = i % out.area();
    out.p[i] = a.p[m * out.area() + at % out.d[3] * a.d[3] + at / out.d[3]];
  }
};
template <class Real> struct inner_swapped {  // [p, q, r, s] -> [p, r, q, s]
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    const long long col = i % out.d[3], row = i / out.d[3];
    const long long q = row % out.d[2], r = row / out.d[2] % out.d[1], p = row / out.d[2] / out.d[1];
    out.p[i] = a.p[((p * a.d[1] + q) * a.d[2] + r) * a.d[3] + col];
  }
};
template <class Real> struct tiled {
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    out.p[i] = a.p[i / out.d[3] * a.d[3] + i % out.d[3] % a.d[3]];
  }
};
template <class Real> struct folded {
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    const Real* const row = a.p + i / out.d[3] * a.d[3];
    Real sum = 0;
    for (long long c = i % out.d[3]; c < a.d[3]; c += out.d[3]) sum += row[c];
    out.p[i] = sum;
  }
};
template <class Real> struct upper_part {
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    out.p[i] = i % a.d[3] > i / a.d[3] % a.d[2] ? a.p[i] : Real(0);
  }
};

// Where the pair (r, c), r < c, lies in a strict upper triangle packed row by row.
__host__ __device__ inline long long packed_at(long long r, long long c, long long b) {
  return r * (2 * b - r - 1) / 2 + c - r - 1;
}
template <class Real> struct skewed {
  tensor<Real> out, packed;
  __host__ __device__ void operator()(long long i) const {
    const long long b = out.d[3], c = i % b, r = i / b % b;
    const Real* const v = packed.p + i / (b * b) * packed.d[3];
    out.p[i] = r < c ? v[packed_at(r, c, b)] : r > c ? -v[packed_at(c, r, b)] : Real(0);
  }
};
// Called for every element of the full matrices; those above the diagonal each own a packed one.
template <class Real> struct unskewed {
  tensor<Real> packed, full;
  __host__ __device__ void operator()(long long i) const {
    const long long b = full.d[3], c = i % b, r = i / b % b, m = i / (b * b);
    if (r < c) packed.p[m * packed.d[3] + packed_at(r, c, b)] = full.p[i] - full.p[m * b * b + c * b + r];
  }
};

template <class Real> struct gathered {
  tensor<Real> out, w;
  const std::int64_t* ids;
  bool by_column;
  __host__ __device__ void operator()(long long i) const {
    const long long c = i % out.d[3], row = ids[i / out.d[3]], rows = by_column ? w.d[3] : w.d[2];
    // The host cannot look at the ids without waiting for them: one outside the table gives no number.
    const bool inside = row >= 0 && row < rows;
    out.p[i] = inside ? w.p[by_column ? c * w.d[3] + row : row * out.d[3] + c] : static_cast<Real>(nan(""));
  }
};
// A team per row (or column) of the table: it walks all ids and adds the rows that are its own, in their order.
template <class Real> struct scattered {
  tensor<Real> w, rows;
  const std::int64_t* ids;
  bool by_column;
  template <class Team> __host__ __device__ void operator()(long long own, Team team) const {
    const long long n = rows.d[3];
    for (long long t = 0; t < rows.d[2]; ++t) {
      if (ids[t] != own) continue;
      for (long long c = team.rank; c < n; c += team.size)
        w.p[by_column ? c * w.d[3] + own : own * n + c] += rows.p[t * n + c];
    }
  }
};

struct window {
  long long kernel_h, kernel_w, stride, pad, out_w;
};
template <class Real> struct patched {
  tensor<Real> out, image;
  window s;
  __host__ __device__ void operator()(long long i) const {
    const long long at = i % out.d[3], p = i / out.d[3] % out.d[2], n = i / out.area();
    const long long x = at % s.kernel_w, y = at / s.kernel_w % s.kernel_h, c = at / (s.kernel_w * s.kernel_h);
    const long long h = p / s.out_w * s.stride + y - s.pad, w = p % s.out_w * s.stride + x - s.pad;
    const bool inside = h >= 0 && w >= 0 && h < image.d[2] && w < image.d[3];
    out.p[i] = inside ? image.p[((n * image.d[1] + c) * image.d[2] + h) * image.d[3] + w] : Real(0);
  }
};
// A pixel lies in the patch at (oh, ow) as its element (y, x) where oh stride + y - pad is its row, likewise its
// column.
template <class Real> struct unpatched {
  tensor<Real> image, rows;
  window s;
  __host__ __device__ void operator()(long long i) const {
    const long long w = i % image.d[3], h = i / image.d[3] % image.d[2];
    const long long c = i / image.area() % image.d[1], n = i / (image.area() * image.d[1]);
    const long long out_h = rows.d[2] / s.out_w;
    Real sum = 0;
    for (long long y = 0; y < s.kernel_h; ++y)
      for (long long x = 0; x < s.kernel_w; ++x) {
        const long long top = h + s.pad - y, left = w + s.pad - x;
        if (top < 0 || left < 0 || top % s.stride != 0 || left % s.stride != 0) continue;
        const long long oh = top / s.stride, ow = left / s.stride;
        if (oh >= out_h || ow >= s.out_w) continue;
        sum += rows.p[(n * rows.d[2] + oh * s.out_w + ow) * rows.d[3] + (c * s.kernel_h + y) * s.kernel_w + x];
      }
    image.p[i] += sum;
  }
};

}  // namespace graft::cuda
