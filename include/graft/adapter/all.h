// SPDX-License-Identifier: Apache-2.0
// The one list of adapters. The umbrella header, the table of methods, the documentation, law tests, examples and
// benchmarks iterate over it. A new adapter needs a file in this folder, an include and an entry in all_adapters below,
// and io/peft/NAME.h if PEFT has files of it.
#pragma once
#include <graft/adapter/adalora.h>
#include <graft/adapter/adamss.h>
#include <graft/adapter/beft.h>
#include <graft/adapter/boft.h>
#include <graft/adapter/c3a.h>
#include <graft/adapter/deft.h>
#include <graft/adapter/delora.h>
#include <graft/adapter/dora.h>
#include <graft/adapter/fourierft.h>
#include <graft/adapter/frod.h>
#include <graft/adapter/glora.h>
#include <graft/adapter/gralora.h>
#include <graft/adapter/hira.h>
#include <graft/adapter/hra.h>
#include <graft/adapter/ia3.h>
#include <graft/adapter/ln_tuning.h>
#include <graft/adapter/loha.h>
#include <graft/adapter/lokr.h>
#include <graft/adapter/lora.h>
#include <graft/adapter/miss.h>
#include <graft/adapter/none.h>
#include <graft/adapter/oft.h>
#include <graft/adapter/osf.h>
#include <graft/adapter/peanut.h>
#include <graft/adapter/psoft.h>
#include <graft/adapter/pvera.h>
#include <graft/adapter/randlora.h>
#include <graft/adapter/residual.h>
#include <graft/adapter/road.h>
#include <graft/adapter/shira.h>
#include <graft/adapter/supertuning.h>
#include <graft/adapter/tinylora.h>
#include <graft/adapter/trainable_tokens.h>
#include <graft/adapter/unilora.h>
#include <graft/adapter/vblora.h>
#include <graft/adapter/vera.h>
#include <graft/adapter/waveft.h>

namespace graft {

using all_adapters =
    join_adapters<adapter_list<none>, lora_forms, dora_forms, adalora_forms, oft_forms, boft_forms, hra_forms,
                  ia3_forms, loha_forms, lokr_forms, vera_forms, miss_forms, vblora_forms, delora_forms, gralora_forms,
                  road_forms, c3a_forms, randlora_forms, hira_forms, psoft_forms, beft_forms, deft_forms, peanut_forms,
                  shira_forms, supertuning_forms, fourierft_forms, waveft_forms, unilora_forms, frod_forms,
                  adamss_forms, pvera_forms, tinylora_forms, glora_forms, osf_forms, ln_tuning_forms,
                  trainable_tokens_forms, residual_forms>;

// Calls f(type) for each adapter; the type is passed as an empty value.
template <class Adapter> struct adapter_type { using type = Adapter; };
template <class F, class... Adapters> constexpr void for_each_adapter(F f, adapter_list<Adapters...>) {
  (f(adapter_type<Adapters>{}), ...);
}
template <class F> constexpr void for_each_adapter(F f) { for_each_adapter(f, all_adapters{}); }

// Returns true if `word` is one of `words`, which are separated by spaces.
constexpr bool lists(const char* words, const char* word) {
  for (const char* at = words; *at != '\0';) {
    const char* w = word;
    while (*w != '\0' && *at == *w) ++at, ++w;
    if (*w == '\0' && (*at == ' ' || *at == '\0')) return true;
    while (*at != ' ' && *at != '\0') ++at;
    while (*at == ' ') ++at;
  }
  return false;
}

// Returns true if this form is the first in the list with its name on its kinds of layer.
template <class Adapter> constexpr bool is_main_form() {
  bool first = true, before = true;
  for_each_adapter([&]<class Other>(adapter_type<Other>) {
    before = before && !same_text(Other::method, Adapter::method);
    first = first && !(before && same_text(Other::name, Adapter::name) && same_text(Other::kinds, Adapter::kinds));
  });
  return first;
}

}  // namespace graft
