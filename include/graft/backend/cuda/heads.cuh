// SPDX-License-Identifier: Apache-2.0
// Heads side by side in one pass (plan/row_launch.h): values of the same rows, each as it is or turned by the row's position.
//     (a, b) -> (a cos - b sin, b cos + a sin), a and b from the two halves of a head
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/eights.cuh>
#include <graft/plan/row_launch.h>

namespace graft::cuda {

template <class Real> struct joined_values {
  cells<Real> part[most_joined_parts];
  long long width[most_joined_parts] = {};
  bool turned[most_joined_parts] = {};
  int parts = 0;
  tensor<Real> table;  // cosines of every position, then sines; or nothing
  const std::int64_t* positions = nullptr;
};

template <class Real> struct joined_heads {
  tensor<Real> out;
  joined_values<Real> of;

  __host__ __device__ long long head() const { return of.table.d[3]; }
  __host__ __device__ bool turns() const { return of.positions != nullptr; }
  // Pairs of elements where heads turn.
  __host__ __device__ long long pieces() const { return out.count() / (turns() ? 2 : 1); }
  __host__ __device__ void operator()(long long i) const {
    const long long width = out.d[3], each = turns() ? width / 2 : width, row = i / each,
                    half = turns() ? head() / 2 : 1;
    const long long c = turns() ? i % each / half * head() + i % half : i % each;
    int p = 0;
    long long start = 0;
    while (c >= start + of.width[p]) start += of.width[p++];
    const cells<Real> from = of.part[p] + (row * of.width[p] + c - start), to = out.p + (row * width + c);
    if (!turns()) return to.put(0, from[0]);
    Real a = from[0], b = from[half];
    if (of.turned[p]) {
      const cells<Real> angles = of.table.p + of.positions[row] * head() + i % half;
      const Real cosine = angles[0], sine = angles[half], x = a;
      a = x * cosine - b * sine, b = b * cosine + x * sine;
    }
    to.put(0, a), to.put(half, b);
  }
};

// The same on eight pairs at once.
struct joined_by_eights {
  joined_heads<float> f;
  unsigned width, half;

  static bool fits(const joined_heads<float>& f) {
    bool all = f.turns() && f.head() % 16 == 0 && f.out.count() < 1LL << 32 && by_sixteen_bytes(f.out.p) &&
               by_sixteen_bytes(f.of.table.p);
    for (int p = 0; p < f.of.parts; ++p) all = all && f.of.width[p] % f.head() == 0 && by_sixteen_bytes(f.of.part[p]);
    return all;
  }
  __host__ __device__ void operator()(long long piece) const {
    const auto i = static_cast<unsigned>(piece);
    const unsigned each = width / 16, row = i / each, at = i % each, in_half = half / 8, in_head = at % in_half * 8;
    unsigned c = at / in_half * 2 * half + in_head, p = 0;
    const long long to = static_cast<long long>(row) * width + c;
    while (c >= f.of.width[p]) c -= static_cast<unsigned>(f.of.width[p++]);
    float a[8], b[8];
    const long long from = row * f.of.width[p] + c,
                    angles = f.of.turned[p] ? f.of.positions[row] * 2 * half + in_head : 0;
    load_eights(a, b, f.of.part[p], from, from + half);
    if (f.of.turned[p]) {
      float cosine[8], sine[8];
      load_eights(cosine, sine, f.of.table.p, angles, angles + half);
      for (int k = 0; k < 8; ++k) {
        const float x = a[k];
        a[k] = x * cosine[k] - b[k] * sine[k], b[k] = b[k] * cosine[k] + x * sine[k];
      }
    }
    store_eight(a, f.out.p, to), store_eight(b, f.out.p, to + half);
  }
};
template <class On, class Real> status join_heads(const On& on, const joined_heads<Real>& f) {
  return on.elements(f.pieces(), f, "heads side by side");
}
template <streams On> status join_heads(const On& on, const joined_heads<float>& f) {
  if (!joined_by_eights::fits(f)) return on.elements(f.pieces(), f, "heads side by side");
  const joined_by_eights by{f, static_cast<unsigned>(f.out.d[3]), static_cast<unsigned>(f.head() / 2)};
  return on.elements(f.out.count() / 16, by, "heads side by side");
}

}  // namespace graft::cuda
