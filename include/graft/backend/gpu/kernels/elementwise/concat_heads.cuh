// SPDX-License-Identifier: Apache-2.0
// Concatenates heads in one pass, [rope(q) | rope(k) | v], with RoPE applied to some parts (plan/launch/rowwise.h):
//     (a, b) -> (a cos - b sin, b cos + a sin),   a and b from the two halves of a head
// The angles of a row are looked up by its position in a table [positions, head].
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>
#include <graft/plan/launch/rowwise.h>

namespace graft::gpu {

template <class Real> struct concat_inputs {
  element_ptr<Real> part[max_concat_parts];
  long long width[max_concat_parts] = {};
  bool has_rope[max_concat_parts] = {};
  int parts = 0;
  tensor<Real> table;  // per position the cosines, then the sines of a head; empty without RoPE
  const std::int64_t* positions = nullptr;
};

template <class Real> struct concat_heads {
  tensor<Real> out;
  concat_inputs<Real> of;

  __host__ __device__ long long head() const { return of.table.d[3]; }
  __host__ __device__ bool applies_rope() const { return of.positions != nullptr; }
  // Work items: pairs of elements with RoPE, else single elements.
  __host__ __device__ long long pair_count() const { return out.count() / (applies_rope() ? 2 : 1); }
  __host__ __device__ void operator()(long long i) const {
    const long long width = out.d[3], each = applies_rope() ? width / 2 : width, row = i / each,
                    half = applies_rope() ? head() / 2 : 1;
    const long long c = applies_rope() ? i % each / half * head() + i % half : i % each;
    int p = 0;
    long long start = 0;
    while (c >= start + of.width[p]) start += of.width[p++];
    const element_ptr<Real> from = of.part[p] + (row * of.width[p] + c - start), to = out.p + (row * width + c);
    if (!applies_rope()) return to.put(0, from[0]);
    Real a = from[0], b = from[half];
    if (of.has_rope[p]) {
      const element_ptr<Real> angles = of.table.p + of.positions[row] * head() + i % half;
      const Real cosine = angles[0], sine = angles[half], x = a;
      a = x * cosine - b * sine, b = b * cosine + x * sine;
    }
    to.put(0, a), to.put(half, b);
  }
};

// Processes eight pairs per thread.
struct concat_heads_vec8 {
  concat_heads<float> f;
  unsigned width, half;

  static bool fits(const concat_heads<float>& f) {
    bool all = f.applies_rope() && f.head() % 16 == 0 && f.out.count() < 1LL << 32 && is_aligned16(f.out.p) &&
               is_aligned16(f.of.table.p);
    for (int p = 0; p < f.of.parts; ++p) all = all && f.of.width[p] % f.head() == 0 && is_aligned16(f.of.part[p]);
    return all;
  }
  __host__ __device__ void operator()(long long vec) const {
    const auto i = static_cast<unsigned>(vec);
    const unsigned each = width / 16, row = i / each, at = i % each, in_half = half / 8, in_head = at % in_half * 8;
    unsigned c = at / in_half * 2 * half + in_head, p = 0;
    const long long to = static_cast<long long>(row) * width + c;
    while (c >= f.of.width[p]) c -= static_cast<unsigned>(f.of.width[p++]);
    float a[8], b[8];
    const long long from = row * f.of.width[p] + c,
                    angles = f.of.has_rope[p] ? f.of.positions[row] * 2 * half + in_head : 0;
    load_vec8_pair(a, b, f.of.part[p], from, from + half);
    if (f.of.has_rope[p]) {
      float cosine[8], sine[8];
      load_vec8_pair(cosine, sine, f.of.table.p, angles, angles + half);
      for (int k = 0; k < 8; ++k) {
        const float x = a[k];
        a[k] = x * cosine[k] - b[k] * sine[k], b[k] = b[k] * cosine[k] + x * sine[k];
      }
    }
    store_vec8(a, f.out.p, to), store_vec8(b, f.out.p, to + half);
  }
};
template <class On, class Real> status run_concat_heads(const On& on, const concat_heads<Real>& f) {
  return on.elements(f.pair_count(), f, "concatenating heads");
}
template <runs_on_stream On> status run_concat_heads(const On& on, const concat_heads<float>& f) {
  if (!concat_heads_vec8::fits(f)) return on.elements(f.pair_count(), f, "concatenating heads");
  const concat_heads_vec8 by{f, static_cast<unsigned>(f.out.d[3]), static_cast<unsigned>(f.head() / 2)};
  return on.elements(f.out.count() / 16, by, "concatenating heads");
}

}  // namespace graft::gpu
