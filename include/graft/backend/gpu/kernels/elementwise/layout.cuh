// SPDX-License-Identifier: Apache-2.0
// Layout operations: fill, transpose, permute, slice, pad, concat, repeat, triangles and skew-symmetric packing,
// circulants, im2col patches. Each functor computes one element of the output from its index. unpatched adds to the
// output, as on the CPU.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>

namespace graft::gpu {

template <class Real> struct fill_functor {
  element_ptr<Real> out;
  Real value;
  __host__ __device__ void operator()(long long i) const { out.put(i, value); }
};
template <class Real> struct identity {
  tensor<Real> out;
  __host__ __device__ void operator()(long long i) const {
    out.p.put(i, i / out.d[3] == i % out.d[3] ? Real(1) : Real(0));
  }
};
template <class Real> struct transpose_functor {
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    const long long m = i / out.area(), at = i % out.area();
    out.p.put(i, a.p[m * out.area() + at % out.d[3] * a.d[3] + at / out.d[3]]);
  }
};
template <class Real> struct permute_functor {
  tensor<Real> out, a;
  long long step[4];  // stride in `a` of each axis of `out`

  permute_functor(const tensor<Real>& to, const tensor<Real>& from, const dim (&axes)[4]) : out(to), a(from) {
    for (int k = 0; k < 4; ++k) {
      step[k] = 1;
      for (int inner = axes[k].v + 1; inner < 4; ++inner) step[k] *= a.d[inner];
    }
  }
  __host__ __device__ void operator()(long long i) const {
    long long at = 0, rest = i;
    for (int k = 3; k >= 0; --k) {
      at += rest % out.d[k] * step[k];
      rest /= out.d[k];
    }
    out.p.put(i, a.p[at]);
  }
};

// Index arithmetic along one axis: consecutive entries of the axis are `inner` elements apart.
struct along_axis {
  long long size, inner = 1;
  template <class Real> along_axis(const tensor<Real>& t, int axis) : size(t.d[axis]) {
    for (int k = axis + 1; k < 4; ++k) inner *= t.d[k];
  }
  __host__ __device__ long long at(long long i) const { return i / inner % size; }
  // The index of element i, moved by `shift` entries, in a tensor whose size differs along this axis only.
  __host__ __device__ long long moved(long long i, long long shift, const along_axis& to) const {
    return ((i / inner / size) * to.size + at(i) + shift) * inner + i % inner;
  }
};
template <class Real> struct slice_functor {
  tensor<Real> out, a;
  along_axis to, from;
  long long start;
  __host__ __device__ void operator()(long long i) const { out.p.put(i, a.p[to.moved(i, start, from)]); }
};
// Slices columns of a matrix in vectors of eight.
struct slice_vec8 {
  tensor<float> out, a;
  unsigned vectors, start;  // vectors per row of `out`; first column in `a`

  static bool fits(const slice_functor<float>& f) {
    return f.to.inner == 1 && f.out.d[3] % 8 == 0 && f.a.d[3] % 8 == 0 && f.start % 8 == 0 &&
           f.out.count() < 1LL << 32 && f.start < 1LL << 32 && is_aligned16(f.out.p) && is_aligned16(f.a.p);
  }
  __device__ void operator()(long long i) const {
    const auto at = static_cast<unsigned>(i);
    float v[8];
    load_vec8(v, a.p, at / vectors * a.d[3] + start + at % vectors * 8);
    store_vec8(v, out.p, 8 * i);
  }
};
template <class On, class Real> status slice(const On& on, const slice_functor<Real>& f, const char* name) {
  return on.elements(f.out.count(), f, name);
}
template <runs_on_stream On> status slice(const On& on, const slice_functor<float>& f, const char* name) {
  if (!slice_vec8::fits(f)) return on.elements(f.out.count(), f, name);
  const slice_vec8 by{f.out, f.a, static_cast<unsigned>(f.out.d[3] / 8), static_cast<unsigned>(f.start)};
  return on.elements(f.out.count() / 8, by, name);
}
template <class Real> struct pad_functor {
  tensor<Real> out, a;
  along_axis to, from;
  long long start;
  __host__ __device__ void operator()(long long i) const {
    const long long at = to.at(i) - start;
    out.p.put(i, at >= 0 && at < from.size ? a.p[to.moved(i, -start, from)] : Real(0));
  }
};
template <class Real> struct concat_functor {
  tensor<Real> out, a, b;
  along_axis to, first, second;
  __host__ __device__ void operator()(long long i) const {
    out.p.put(i, to.at(i) < first.size ? a.p[to.moved(i, 0, first)] : b.p[to.moved(i, -first.size, second)]);
  }
};
template <class Real> struct repeated_columns {
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    out.p.put(i, a.p[i / out.d[3] * a.d[3] + i % out.d[3] % a.d[3]]);
  }
};
template <class Real> struct fold_columns_functor {
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    const element_ptr<Real> row = a.p + i / out.d[3] * a.d[3];
    Real sum = 0;
    for (long long c = i % out.d[3]; c < a.d[3]; c += out.d[3]) sum += row[c];
    out.p.put(i, sum);
  }
};
template <class Real> struct upper_part {
  tensor<Real> out, a;
  __host__ __device__ void operator()(long long i) const {
    out.p.put(i, i % a.d[3] > i / a.d[3] % a.d[2] ? a.p[i] : Real(0));
  }
};

// The index of entry (r, c), r < c, in a strict upper triangle packed row by row.
__host__ __device__ inline long long packed_offset(long long r, long long c, long long b) {
  return r * (2 * b - r - 1) / 2 + c - r - 1;
}
template <class Real> struct skew_functor {
  tensor<Real> out, packed;
  __host__ __device__ void operator()(long long i) const {
    const long long b = out.d[3], c = i % b, r = i / b % b;
    const element_ptr<Real> v = packed.p + i / (b * b) * packed.d[3];
    out.p.put(i, r < c ? v[packed_offset(r, c, b)] : r > c ? -v[packed_offset(c, r, b)] : Real(0));
  }
};
// Called for every element of the full matrices; each element above the diagonal writes one packed entry.
template <class Real> struct unskew_functor {
  tensor<Real> packed, full;
  __host__ __device__ void operator()(long long i) const {
    const long long b = full.d[3], c = i % b, r = i / b % b, m = i / (b * b);
    if (r < c) packed.p.put(m * packed.d[3] + packed_offset(r, c, b), full.p[i] - full.p[m * b * b + c * b + r]);
  }
};

// circulants builds b x b circulant matrices from blocks of a row (C3A); circulant_sums is its adjoint, which sums the
// entries of each circulant that come from the same element.
template <class Real> struct circulants {
  tensor<Real> out, a;
  bool mirrored;
  __host__ __device__ void operator()(long long i) const {
    const long long b = a.d[3], cols = out.d[3], c = i % cols, r = i / cols % b, j = c % b;
    out.p.put(i, a.p[i / (cols * b) * cols + c - j + (mirrored ? j + r : j + b - r) % b]);
  }
};
template <class Real> struct circulant_sums {
  tensor<Real> out, squares;
  bool mirrored;
  __host__ __device__ void operator()(long long i) const {
    const long long b = out.d[3], cols = squares.d[3], at = i % b, row = i / b % out.d[2];
    const element_ptr<Real> square = squares.p + i / cols * b * cols + row * b;
    Real sum = 0;
    for (long long r = 0; r < b; ++r) sum += square[r * cols + (mirrored ? at + b - r : at + r) % b];
    out.p.put(i, sum);
  }
};

struct window {
  long long kernel_h, kernel_w, stride, pad, out_w;
};
// Patches of an image as rows (im2col).
template <class Real> struct im2col_functor {
  tensor<Real> out, image;
  window s;
  __host__ __device__ void operator()(long long i) const {
    const long long at = i % out.d[3], p = i / out.d[3] % out.d[2], n = i / out.area();
    const long long x = at % s.kernel_w, y = at / s.kernel_w % s.kernel_h, c = at / (s.kernel_w * s.kernel_h);
    const long long h = p / s.out_w * s.stride + y - s.pad, w = p % s.out_w * s.stride + x - s.pad;
    const bool inside = h >= 0 && w >= 0 && h < image.d[2] && w < image.d[3];
    out.p.put(i, inside ? image.p[((n * image.d[1] + c) * image.d[2] + h) * image.d[3] + w] : Real(0));
  }
};
// Adjoint of patched (col2im). A pixel (h, w) is element (y, x) of patch (oh, ow) if h = oh · stride + y - pad, and
// likewise for w.
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
    image.p.add(i, sum);
  }
};

}  // namespace graft::gpu
