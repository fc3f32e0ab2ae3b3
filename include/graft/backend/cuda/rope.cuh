// SPDX-License-Identifier: Apache-2.0
// Rotary positions and their gradient, and dropout by counter: as backend/cpu/rope.h and dropout.h, an element or a pair of
// elements at a time.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/eights.cuh>
#include <graft/backend/element_drops.h>

namespace graft::cuda {

// (a, b) -> (a cos - b sin, b cos + a sin), pairs from the halves of a head; back: with -sin.
template <class Real> struct turned_heads {
  tensor<Real> out, x, turn;
  bool back;
  __host__ __device__ long long pairs() const { return x.count() / 2; }
  __host__ __device__ void operator()(long long i) const {
    const long long head = turn.d[3], half = head / 2, heads = x.d[3] / head;
    const long long c = i % half, unit = i / half, row = unit / heads;
    const Real cosine = turn.p[row * head + c], sine = turn.p[row * head + half + c], s = back ? -sine : sine;
    const Real a = x.p[unit * head + c], b = x.p[unit * head + half + c];
    out.p.put(unit * head + c, a * cosine - b * s);
    out.p.put(unit * head + half + c, b * cosine + a * s);
  }
};

// The same on eight pairs at once.
struct turned_by_eights {
  turned_heads<float> f;
  unsigned half, heads;

  static bool fits(const turned_heads<float>& f) {
    return f.turn.d[3] % 16 == 0 && f.x.count() < 1LL << 32 && by_sixteen_bytes(f.out.p) && by_sixteen_bytes(f.x.p) &&
           by_sixteen_bytes(f.turn.p);
  }
  __device__ void operator()(long long i) const {
    const auto at = static_cast<unsigned>(8 * i);
    const unsigned c = at % half, unit = at / half, row = unit / heads;
    const long long from = 2LL * half * unit + c, angles = 2LL * half * row + c;
    float a[8], b[8], cosine[8], sine[8];
    load_eights(a, b, f.x.p, from, from + half);
    load_eights(cosine, sine, f.turn.p, angles, angles + half);
    for (int k = 0; k < 8; ++k) {
      const float x = a[k], s = f.back ? -sine[k] : sine[k];
      a[k] = x * cosine[k] - b[k] * s, b[k] = b[k] * cosine[k] + x * s;
    }
    store_eight(a, f.out.p, from), store_eight(b, f.out.p, from + half);
  }
};
template <class On, class Real> status turn_heads(const On& on, const turned_heads<Real>& f) {
  return on.elements(f.pairs(), f, "rope");
}
template <streams On> status turn_heads(const On& on, const turned_heads<float>& f) {
  if (!turned_by_eights::fits(f)) return on.elements(f.pairs(), f, "rope");
  const long long head = f.turn.d[3];
  const turned_by_eights by{f, static_cast<unsigned>(head / 2), static_cast<unsigned>(f.x.d[3] / head)};
  return on.elements(f.pairs() / 8, by, "rope");
}

// The elements that backend/cpu/dropout.h keeps.
template <class Real> struct dropped_elements {
  tensor<Real> out, x;
  const std::int64_t* seed;
  long long salt;
  cells<Real> rate;
  __host__ __device__ void operator()(long long i) const {
    const auto drawn = element_drops::of(*seed, salt, static_cast<double>(rate[0]));
    out.p.put(i, drawn.drops(i) ? Real(0) : element_drops::scale(static_cast<Real>(rate[0])) * x.p[i]);
  }
};

}  // namespace graft::cuda
