// SPDX-License-Identifier: Apache-2.0
// DEFT: a subspace of the outputs is removed from the weight, and a trained update is put in its place (Kumar et al.
// 2025, Decompositional Efficient Fine-Tuning).
//     W' = (I − P relu(P)ᵀ) W + s P R       or  W' = (I − Q Qᵀ) W + s Q R,   Q an orthonormal basis of the columns of P
// As one update of rank r it is P (s R − relu(P)ᵀ W). PaRa (Chen et al. 2024, arXiv 2406.05641) only removes: R = 0.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

template <int Rank = dyn> struct deft {
  static constexpr const char *name = "DEFT", *method = "deft", *kinds = "linear";
  using sample = deft<16>;
  static constexpr ex directions(scope p, ex W) { return p.param("deft_P", W.rows(), p.size("r", Rank)); }
  static constexpr ex weight(scope p, ex W) {
    auto P = directions(p, W), R = p.param("deft_R", P.cols(), W.cols());
    return W + P * (p.scalar("scaling") * R - t(relu(P)) * W);
  }
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto P = directions(p, W), R = p.param("deft_R", P.cols(), W.cols());
    return {W - P * (t(relu(P)) * W), P * (p.scalar("scaling") * R)};
  }
};

template <int Rank = dyn> struct deft_removal {
  static constexpr const char *name = "DEFT (PaRa)", *method = "deft_removal", *kinds = "linear";
  using sample = deft_removal<16>;
  static constexpr ex weight(scope p, ex W) {
    auto P = deft<Rank>::directions(p, W);
    return W - P * (t(relu(P)) * W);
  }
};

template <int Rank = dyn> struct deft_qr {
  static constexpr const char *name = "DEFT (QR)", *method = "deft_qr", *kinds = "linear";
  using sample = deft_qr<16>;
  static constexpr ex weight(scope p, ex W) {
    auto Q = orthonormal(deft<Rank>::directions(p, W)), R = p.param("deft_R", Q.cols(), W.cols());
    return W + Q * (p.scalar("scaling") * R - t(Q) * W);
  }
  static constexpr dropout_weight_parts dropout_parts(scope p, ex W) {
    auto Q = orthonormal(deft<Rank>::directions(p, W)), R = p.param("deft_R", Q.cols(), W.cols());
    return {W - Q * (t(Q) * W), Q * (p.scalar("scaling") * R)};
  }
};

template <int Rank = dyn> struct deft_qr_removal {
  static constexpr const char *name = "DEFT (PaRa, QR)", *method = "deft_qr_removal", *kinds = "linear";
  using sample = deft_qr_removal<16>;
  static constexpr ex weight(scope p, ex W) {
    auto Q = orthonormal(deft<Rank>::directions(p, W));
    return W - Q * (t(Q) * W);
  }
};

using deft_forms = adapter_list<deft<>, deft_removal<>, deft_qr<>, deft_qr_removal<>>;

}  // namespace graft
