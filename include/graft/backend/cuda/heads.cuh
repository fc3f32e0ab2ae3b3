// SPDX-License-Identifier: Apache-2.0
// Heads side by side in one pass (plan/row_launch.h): values of the same rows, each as it is or turned by the row's position.
//     (a, b) -> (a cos - b sin, b cos + a sin), a and b from the two halves of a head
#pragma once
#include <graft/backend/cuda/tensor.cuh>
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

}  // namespace graft::cuda
