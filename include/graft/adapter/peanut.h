// SPDX-License-Identifier: Apache-2.0
// PEANuT: a small network that maps the weight to its update (Zhong et al. 2024, arXiv 2410.01870).
//     W' = W + s B h_2d,   h_0 = φ(A W),   h_i = φ(E_i h_{i-1}),   h_{d+i} = φ(D_i h_{d+i-1}) + h_{d-i}
// There are d encoders E and d decoders D [r, r] between A [r, out] and B [out, r]. A skip connection adds the input of
// each encoder to the output of the decoder opposite to it.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

enum class peanut_activation : unsigned char { relu, gelu, gelu_tanh, silu, tanh };

// One formula serves all forms, so that a program with all of them compiles it once.
struct peanut_formula {
  int rank, depth;
  peanut_activation activation;

  [[gnu::cold, gnu::noinline]] constexpr ex active(ex h) const {
    switch (activation) {
      case peanut_activation::relu: return relu(h);
      case peanut_activation::gelu: return gelu(h);
      case peanut_activation::gelu_tanh: return gelu_tanh(h);
      case peanut_activation::silu: return silu(h);
      case peanut_activation::tanh: return tanh(h);
    }
    return h;
  }
  [[gnu::cold, gnu::noinline]] constexpr ex weight(scope p, ex W) const {
    constexpr const char* encoders[] = {"peanut_encoders.0.weight", "peanut_encoders.1.weight"};
    constexpr const char* decoders[] = {"peanut_decoders.0.weight", "peanut_decoders.1.weight"};
    auto r = p.size("r", rank);
    ex read[2] = {W, W}, h = active(p.param("peanut_A.weight", r, W.rows()) * W);
    for (int i = 0; i < depth; ++i) read[i] = h, h = active(p.param(encoders[i], r, r) * h);
    for (int i = 0; i < depth; ++i) h = active(p.param(decoders[i], r, r) * h) + read[depth - 1 - i];
    return W + p.scalar("scaling") * (p.param("peanut_B.weight", W.rows(), r) * h);
  }
};

template <int Rank = dyn, int Depth = 0, peanut_activation Activation = peanut_activation::relu> struct peanut {
  static_assert(0 <= Depth && Depth <= 2);
  static constexpr const char* methods[5][3] = {{"peanut", "peanut_1", "peanut_2"},
                                                {"peanut_gelu", "peanut_gelu_1", "peanut_gelu_2"},
                                                {"peanut_gelu_tanh", "peanut_gelu_tanh_1", "peanut_gelu_tanh_2"},
                                                {"peanut_silu", "peanut_silu_1", "peanut_silu_2"},
                                                {"peanut_tanh", "peanut_tanh_1", "peanut_tanh_2"}};
  static constexpr const char *name = "PEANuT", *kinds = "linear",
                              *method = methods[static_cast<int>(Activation)][Depth];
  using sample = peanut<16, Depth, Activation>;

  static constexpr ex weight(scope p, ex W) { return peanut_formula{Rank, Depth, Activation}.weight(p, W); }
};

template <peanut_activation Activation>
using peanut_group = adapter_list<peanut<dyn, 0, Activation>, peanut<dyn, 1, Activation>, peanut<dyn, 2, Activation>>;
using peanut_forms = join_adapters<peanut_group<peanut_activation::relu>, peanut_group<peanut_activation::gelu>,
                                   peanut_group<peanut_activation::gelu_tanh>, peanut_group<peanut_activation::silu>,
                                   peanut_group<peanut_activation::tanh>>;

}  // namespace graft
