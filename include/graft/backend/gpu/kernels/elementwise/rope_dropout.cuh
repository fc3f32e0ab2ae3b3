// SPDX-License-Identifier: Apache-2.0
// RoPE and its gradient, and counter-based dropout, as backend/cpu/ops/rope.h and dropout.h compute them: a pair of
// elements, or one element, per functor call.
#pragma once
#include <graft/backend/dropout_mask.h>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>

namespace graft::gpu {

// (a, b) -> (a cos - b sin, b cos + a sin), a and b from the two halves of a head; `back` (the gradient) negates the
// sines.
template <class Real> struct rope_heads {
  tensor<Real> out, x, cos_sin;
  bool back;
  __host__ __device__ long long pairs() const { return x.count() / 2; }
  __host__ __device__ void operator()(long long i) const {
    const long long head = cos_sin.d[3], half = head / 2, heads = x.d[3] / head;
    const long long c = i % half, unit = i / half, row = unit / heads;
    const Real cosine = cos_sin.p[row * head + c], sine = cos_sin.p[row * head + half + c], s = back ? -sine : sine;
    const Real a = x.p[unit * head + c], b = x.p[unit * head + half + c];
    out.p.put(unit * head + c, a * cosine - b * s);
    out.p.put(unit * head + half + c, b * cosine + a * s);
  }
};

// Processes eight pairs per thread.
struct rope_vec8 {
  rope_heads<float> f;
  unsigned half, heads;

  static bool fits(const rope_heads<float>& f) {
    return f.cos_sin.d[3] % 16 == 0 && f.x.count() < 1LL << 32 && is_aligned16(f.out.p) && is_aligned16(f.x.p) &&
           is_aligned16(f.cos_sin.p);
  }
  __device__ void operator()(long long i) const {
    const auto at = static_cast<unsigned>(8 * i);
    const unsigned c = at % half, unit = at / half, row = unit / heads;
    const long long from = 2LL * half * unit + c, angles = 2LL * half * row + c;
    float a[8], b[8], cosine[8], sine[8];
    load_vec8_pair(a, b, f.x.p, from, from + half);
    load_vec8_pair(cosine, sine, f.cos_sin.p, angles, angles + half);
    for (int k = 0; k < 8; ++k) {
      const float x = a[k], s = f.back ? -sine[k] : sine[k];
      a[k] = x * cosine[k] - b[k] * s, b[k] = b[k] * cosine[k] + x * s;
    }
    store_vec8(a, f.out.p, from), store_vec8(b, f.out.p, from + half);
  }
};
template <class On, class Real> status apply_rope(const On& on, const rope_heads<Real>& f) {
  return on.elements(f.pairs(), f, "rope");
}
template <runs_on_stream On> status apply_rope(const On& on, const rope_heads<float>& f) {
  if (!rope_vec8::fits(f)) return on.elements(f.pairs(), f, "rope");
  const long long head = f.cos_sin.d[3];
  const rope_vec8 by{f, static_cast<unsigned>(head / 2), static_cast<unsigned>(f.x.d[3] / head)};
  return on.elements(f.pairs() / 8, by, "rope");
}

// Drops the same elements as backend/cpu/ops/dropout.h and scales the others by 1 / (1 - rate).
template <class Real> struct dropout_elements {
  tensor<Real> out, x;
  const std::int64_t* seed;
  long long salt;
  element_ptr<Real> rate;
  __host__ __device__ void operator()(long long i) const {
    const auto drawn = dropout_mask::of(*seed, salt, static_cast<double>(rate[0]));
    out.p.put(i, drawn.drops(i) ? Real(0) : dropout_mask::scale(static_cast<Real>(rate[0])) * x.p[i]);
  }
};

}  // namespace graft::gpu
