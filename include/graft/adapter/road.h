// SPDX-License-Identifier: Apache-2.0
// RoAd: outputs are rotated in pairs and scaled (Liao & Monz 2024, arXiv 2409.00119).
//     y_i = c_i z_i − s_i z_j,   y_j = c_j z_j + s_j z_i,   z = x Wᵀ + b        c = α cos θ,  s = α sin θ
// In groups of g outputs the i-th of the first half is paired with the i-th of the second half. road_1 has one angle
// and one scale per pair, road_2 one of each per output, road_4 two of each per output: one for c and one for s.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Variant, int Group = dyn> struct road {
  static_assert(Variant == 1 || Variant == 2 || Variant == 4);
  static constexpr const char* name = Variant == 1 ? "RoAd 1" : Variant == 2 ? "RoAd 2" : "RoAd 4";
  static constexpr const char *method = Variant == 1 ? "road_1" : Variant == 2 ? "road_2" : "road_4", *kinds = "linear";
  using sample = road<Variant, 64>;
  static constexpr extent half(scope p) { return p.size("half_group", Group == dyn ? dyn : Group / 2, 32); }

  // One block [2h, 2h] per group: z indexes its rows, y its columns.
  static constexpr ex blocks(scope p, extent out) {
    auto h = half(p), g = h + h, n = out / g;
    auto values = [&](const char* of) {  // one number per pair, one per output, or two per output
      if (Variant == 1) return reshape(p.param(of, out / 2), 1, n, h, 1);
      if (Variant == 2) return reshape(p.param(of, out), 1, n, g, 1);
      return reshape(p.param(of, 2 * out), n, 2, g, 1);
    };
    auto use = [&](ex v, int which) { return Variant == 4 ? reshape(slice(v, 1, which, 1), 1, n, g, 1) : v; };
    auto part = [&](ex v, int which) { return Variant == 1 ? v : slice(v, 2, which == 0 ? extent(0) : h, h); };
    auto theta = values("road_theta"), alpha = values("road_alpha");
    auto c = mul(use(alpha, 0), cos(use(theta, 0))), s = mul(use(alpha, 1), sin(use(theta, 1)));
    auto diagonal = [&](ex v) { return mul(v, p.eye(h)); };
    auto first = concat(diagonal(part(c, 0)), diagonal(part(s, 1)), 3);
    return concat(first, concat(diagonal(-part(s, 0)), diagonal(part(c, 1)), 3), 2);
  }
  static constexpr ex weight(scope p, ex W) { return t(rotate(t(W), blocks(p, W.rows()))); }
  static constexpr ex bias(scope p, ex b) { return t(rotate(t(b), blocks(p, b.rows()))); }
};

using road_forms = adapter_list<road<1>, road<2>, road<4>>;

}  // namespace graft
