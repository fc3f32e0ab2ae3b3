// SPDX-License-Identifier: Apache-2.0
// Every method by number, for programs that learn which one they need only when they open a file. All sizes are names
// here, so one set of graphs per method and kind of layer serves any shape and rank.
#pragma once
#include <graft/adapter/adalora.h>
#include <graft/adapter/boft.h>
#include <graft/adapter/dora.h>
#include <graft/adapter/hra.h>
#include <graft/adapter/ia3.h>
#include <graft/adapter/ln_tuning.h>
#include <graft/adapter/loha.h>
#include <graft/adapter/lokr.h>
#include <graft/adapter/lora.h>
#include <graft/adapter/miss.h>
#include <graft/adapter/none.h>
#include <graft/adapter/oft.h>
#include <graft/adapter/vblora.h>
#include <graft/adapter/vera.h>
#include <graft/run/layer_state.h>

namespace graft {

enum class layer_kind : unsigned char { linear, embedding, conv2d, layer_norm, rms_norm };

enum class method : unsigned char {
  none,
  lora,
  lora_with_bias,
  dora,
  adalora,
  ia3,
  ia3_feedforward,
  loha,
  lokr,
  lokr_second_full,
  lokr_first_low,
  lokr_both_low,
  vera,
  hra,
  hra_gram_schmidt,
  oft,
  oft_shared,
  oft_projected,
  oft_shared_projected,
  oft_neumann,
  oft_neumann_shared,
  oft_neumann_projected,
  oft_neumann_shared_projected,
  boft,
  miss,
  miss_mini,
  miss_bat,
  vblora,
  lora_embedding,
  dora_embedding,
  loha_conv,
  ln_tuning,
  ln_tuning_weight,
};

template <class Kind> layer_graphs graphs_for_matrix(method m, bool bias) {
  auto of = [&]<class A>(A) { return bias ? graphs_of<Kind, A, true>() : graphs_of<Kind, A, false>(); };
  using enum oft_blocks;
  using enum oft_constraint;
  using enum lokr_form;
  switch (m) {
    case method::none: return of(none{});
    case method::lora: return of(lora<>{});
    case method::lora_with_bias: return of(lora_with_bias<>{});
    case method::dora: return of(dora<>{});
    case method::adalora: return of(adalora<>{});
    case method::ia3: return of(ia3{});
    case method::ia3_feedforward: return of(ia3_feedforward{});
    case method::loha: return of(loha<>{});
    case method::lokr: return of(lokr<dyn, -1, full, low_rank>{});
    case method::lokr_second_full: return of(lokr<dyn, -1, full, full>{});
    case method::lokr_first_low: return of(lokr<dyn, -1, low_rank, full>{});
    case method::lokr_both_low: return of(lokr<dyn, -1, low_rank, low_rank>{});
    case method::vera: return of(vera<>{});
    case method::hra: return of(hra<>{});
    case method::hra_gram_schmidt: return of(hra_gram_schmidt<>{});
    case method::oft: return of(oft<dyn, own, free>{});
    case method::oft_shared: return of(oft<dyn, shared, free>{});
    case method::oft_projected: return of(oft<dyn, own, projected>{});
    case method::oft_shared_projected: return of(oft<dyn, shared, projected>{});
    case method::oft_neumann: return of(oft_neumann<dyn, dyn, own, free>{});
    case method::oft_neumann_shared: return of(oft_neumann<dyn, dyn, shared, free>{});
    case method::oft_neumann_projected: return of(oft_neumann<dyn, dyn, own, projected>{});
    case method::oft_neumann_shared_projected: return of(oft_neumann<dyn, dyn, shared, projected>{});
    case method::boft: return of(boft<dyn, dyn>{});
    case method::miss: return of(miss<>{});
    case method::miss_mini: return of(miss_mini<>{});
    case method::miss_bat: return of(miss_bat<>{});
    case method::vblora: return of(vblora<dyn, dyn>{});
    case method::loha_conv:
    case method::lora_embedding:
    case method::dora_embedding:
    case method::ln_tuning:
    case method::ln_tuning_weight: break;
  }
  return {};
}
template <class Kind> layer_graphs graphs_for_norm(method m, bool bias) {
  if (m == method::ln_tuning && bias) return graphs_of<Kind, ln_tuning, true>();
  if (m == method::ln_tuning_weight && !bias) return graphs_of<Kind, ln_tuning_weight, false>();
  if (m == method::none) return bias ? graphs_of<Kind, none, true>() : graphs_of<Kind, none, false>();
  return {};
}

// The graphs of a method on a kind of layer; it does not exist() where the method does not exist there.
// A template only so that a program with many files can compile the table once (extern template graphs_for<>).
template <class Unit = void> layer_graphs graphs_for(layer_kind kind, method m, bool bias) {
  switch (kind) {
    case layer_kind::linear: return graphs_for_matrix<linear_kind>(m, bias);
    case layer_kind::layer_norm: return graphs_for_norm<norm_kind<false>>(m, bias);
    case layer_kind::rms_norm: return graphs_for_norm<norm_kind<true>>(m, bias);
    case layer_kind::embedding:
      if (m == method::none) return graphs_of<embedding_kind, none, false>();
      if (m == method::lora_embedding) return graphs_of<embedding_kind, lora_embedding<>, false>();
      if (m == method::dora_embedding) return graphs_of<embedding_kind, dora_embedding<>, false>();
      return {};
    case layer_kind::conv2d: {
      auto of = [&]<class A>(A) {
        return bias ? graphs_of<conv2d_kind, A, true>() : graphs_of<conv2d_kind, A, false>();
      };
      if (m == method::none) return of(none{});
      if (m == method::lora) return of(lora<>{});
      if (m == method::lora_with_bias) return of(lora_with_bias<>{});
      if (m == method::dora) return of(dora<>{});
      if (m == method::loha) return of(loha<>{});
      if (m == method::loha_conv) return of(loha_conv<>{});
      return {};
    }
  }
  return {};
}

}  // namespace graft
