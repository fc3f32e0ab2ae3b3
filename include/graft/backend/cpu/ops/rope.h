// SPDX-License-Identifier: Apache-2.0
// RoPE: rotary positions (Su et al. 2021, arXiv 2104.09864) that pair the halves of a head, as Hugging Face's models
// do,
//     (a, b) -> (a cos - b sin, b cos + a sin)          the adjoint (back) has -sin
#pragma once
#include <graft/backend/cpu/runtime/packets.h>
#include <graft/backend/cpu/runtime/tensor.h>

namespace graft::cpu {

template <class Real> void rope(tensor<Real> out, tensor<Real> x, tensor<Real> angles, bool back) {
  using namespace Eigen::internal;
  constexpr long long width = packet_width<Real>;
  const long long head = angles.d[3], half = head / 2, rows = angles.count() / head, heads = x.d[3] / head;
  const Real sign = back ? Real(-1) : Real(1);
  for (long long r = 0; r < rows; ++r) {
    const Real *const cosine = angles.p + r * head, *const sine = cosine + half;
    for (long long h = 0; h < heads; ++h) {
      const Real* const from = x.p + (r * heads + h) * head;
      Real* const to = out.p + (r * heads + h) * head;
      long long i = 0;
      for (; i + width <= half; i += width) {
        const packet<Real> a = load(from + i), b = load(from + half + i), c = load(cosine + i),
                           s = pmul(all(sign), load(sine + i));
        pstoreu(to + i, psub(pmul(a, c), pmul(b, s)));
        pstoreu(to + half + i, padd(pmul(b, c), pmul(a, s)));
      }
      for (; i < half; ++i) {
        const Real a = from[i], b = from[half + i], s = sign * sine[i];
        to[i] = a * cosine[i] - b * s, to[half + i] = b * cosine[i] + a * s;
      }
    }
  }
}

}  // namespace graft::cpu
