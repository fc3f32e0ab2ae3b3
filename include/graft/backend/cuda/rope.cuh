// SPDX-License-Identifier: Apache-2.0
// Rotary positions and their gradient, and dropout by counter: as backend/cpu/rope.h and dropout.h, an element or a pair of
// elements at a time.
#pragma once
#include <graft/backend/cuda/tensor.cuh>
#include <graft/core/mixed_bits.h>

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

// The elements that backend/cpu/dropout.h keeps.
template <class Real> struct dropped_elements {
  tensor<Real> out, x;
  const std::int64_t* seed;
  long long salt;
  cells<Real> rate;
  __host__ __device__ void operator()(long long i) const {
    const Real share = rate[0];
    const std::uint64_t key =
        mixed_bits(static_cast<std::uint64_t>(*seed) ^ mixed_bits(static_cast<std::uint64_t>(salt)));
    const auto below = static_cast<std::uint64_t>(static_cast<double>(share) * 9007199254740992.0);  // of 2^53
    const Real scale = share < Real(1) ? Real(1) / (Real(1) - share) : Real(0);
    const std::uint64_t drawn = mixed_bits(key ^ static_cast<std::uint64_t>(i)) >> 11U;
    out.p.put(i, drawn < below ? Real(0) : scale * x.p[i]);
  }
};

}  // namespace graft::cuda
