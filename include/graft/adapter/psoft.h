// SPDX-License-Identifier: Apache-2.0
// PSOFT: the weight's principal subspace is rotated (Wu et al. 2026, openreview FSHrinMArK).
//     W' = W + s B (R − I) A        A, B: the r largest singular pairs of W, frozen; s A B is that part of W
//     R = β ⊙ (I + Q)(I − Q)⁻¹ ⊙ α,  Q skew; or a series in Q, its norm bounded or not; or any matrix (free)
// The magnitudes α (inputs of R) and β (outputs) may be left out.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

enum class psoft_rotation : unsigned char { cayley, neumann, bounded, free };
enum class psoft_magnitudes : unsigned char { none, inputs, outputs, both };

// One formula serves all forms, so that a program with all of them compiles it once.
struct psoft_formula {
  psoft_rotation parametrization;
  bool scales_inputs, scales_outputs;
  int rank, terms;

  [[gnu::cold, gnu::noinline]] constexpr ex rotation(scope p, extent r) const {
    if (parametrization == psoft_rotation::free) return p.param("psoft_R.weight", r, r);
    auto packed = t(p.param("psoft_R.weight", p.triangle(r)));
    if (parametrization == psoft_rotation::bounded) {  // ‖Q‖ = sqrt(2) ‖packed‖
      auto norm = sqrt(2.0 * row_dot(packed, packed));
      packed = min(p.constant(1), p.scalar("cayley_neumann_eps") / (norm + 1e-12)) * packed;
    }
    auto Q = skew(packed, r), I = p.eye(r);
    if (parametrization != psoft_rotation::cayley) return neumann(Q, p.size("num_cayley_neumann_terms", terms, 5));
    return (I + Q) * inverse(I - Q);
  }
  [[gnu::cold, gnu::noinline]] constexpr ex weight(scope p, ex W) const {
    auto r = p.size("r", rank);
    auto A = p.frozen("psoft_A", r, W.cols()), B = p.frozen("psoft_B", W.rows(), r);
    auto R = rotation(p, r);
    if (scales_outputs) R = p.param("psoft_R.vector_b", r) * R;
    if (scales_inputs) R = mul(R, t(p.param("psoft_R.vector_a", r)));
    return W + p.scalar("scaling") * (B * ((R - p.eye(r)) * A));
  }
};

template <int Rank = dyn, psoft_rotation Rotation = psoft_rotation::cayley,
          psoft_magnitudes Magnitudes = psoft_magnitudes::both, int Terms = dyn>
struct psoft {
  static constexpr bool scales_inputs = Magnitudes == psoft_magnitudes::inputs || Magnitudes == psoft_magnitudes::both,
                        scales_outputs =
                            Magnitudes == psoft_magnitudes::outputs || Magnitudes == psoft_magnitudes::both;
  static constexpr const char* methods[4][4] = {
      {"psoft_plain", "psoft_inputs", "psoft_outputs", "psoft"},
      {"psoft_neumann_plain", "psoft_neumann_inputs", "psoft_neumann_outputs", "psoft_neumann"},
      {"psoft_bounded_plain", "psoft_bounded_inputs", "psoft_bounded_outputs", "psoft_bounded"},
      {"psoft_free_plain", "psoft_free_inputs", "psoft_free_outputs", "psoft_free"}};
  static constexpr const char *name = "PSOFT", *kinds = "linear",
                              *method = methods[static_cast<int>(Rotation)][static_cast<int>(Magnitudes)];
  using sample = psoft<16, Rotation, Magnitudes, 5>;

  static constexpr ex weight(scope p, ex W) {
    return psoft_formula{Rotation, scales_inputs, scales_outputs, Rank, Terms}.weight(p, W);
  }
};

template <psoft_rotation Rotation>
using psoft_group =
    adapter_list<psoft<dyn, Rotation>, psoft<dyn, Rotation, psoft_magnitudes::inputs>,
                 psoft<dyn, Rotation, psoft_magnitudes::outputs>, psoft<dyn, Rotation, psoft_magnitudes::none>>;
using psoft_forms = join_adapters<psoft_group<psoft_rotation::cayley>, psoft_group<psoft_rotation::neumann>,
                                  psoft_group<psoft_rotation::bounded>, psoft_group<psoft_rotation::free>>;

}  // namespace graft
