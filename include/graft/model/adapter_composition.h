// SPDX-License-Identifier: Apache-2.0
// Composition of several adapters that act on one model at once: low-rank branches add up, and other adapters act on
// the weight that the adapters before them produced, in the order of activation. PEFT deviates from this in two cases,
// and composition::peft with it:
//     DoRA      the norm of the second adapter is that of the base weight, not of the weight after the first adapter
//     OFT       its forward pass is x R_1 R_2 Wᵀ; merging one after the other gives x R_2 R_1 Wᵀ, another model
// With composition::exact forward equals merging one after the other, for all methods.
#pragma once
#include <graft/core/result.h>
#include <graft/derive/traversal.h>
#include <graft/model/adapter_set.h>

#include <algorithm>
#include <span>

namespace graft {

enum class composition : unsigned char { peft, exact };

using shared_adapter = std::shared_ptr<const adapter_set>;

namespace detail {
// Returns whether a formula reads the base weight; one that does not (modules_to_save, LN tuning) cannot be composed
// with another.
inline bool reads_base_weight(const formula& of) {
  if (of.weight == nullptr) return true;
  builder g;
  const scope p{&g};
  const ex W = p.leaf(op::base, "weight", 2, 1, 1, p.size("out"), p.size("in"));
  const id made = of.weight(p, W).i;
  return contains(graph(g), made, op::base);
}
// Two adapters with trainable tokens must not replace the same row of an embedding.
inline status check_tokens(const module_adapter& a, const module_adapter& b) {
  const auto of = [](const module_adapter& m) {
    const auto at = m.tensors.find("selected");
    return at == m.tensors.end() || !m.tensors.contains("trainable_tokens_delta") ? nullptr : &at->second;
  };
  const auto replaces_row = [](const adapter_tensor& t, std::size_t row) {
    const auto n = static_cast<std::size_t>(t.shape[1]);
    const auto first = t.data->begin() + static_cast<std::ptrdiff_t>(row * n);
    return std::any_of(first, first + static_cast<std::ptrdiff_t>(n), [](float v) { return v != 0; });
  };
  const adapter_tensor *const one = of(a), *const other = of(b);
  if (one == nullptr || other == nullptr || one->shape[0] != other->shape[0]) return ok;
  for (std::size_t row = 0; row < static_cast<std::size_t>(one->shape[0]); ++row)
    if (replaces_row(*one, row) && replaces_row(*other, row))
      return fail("two of the adapters train token ", static_cast<long long>(row), " of ", a.module.c_str(),
                  "; activate one of them");
  return ok;
}
inline status check_composition(const std::vector<module_adapter>& sorted) {
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (std::size_t k = i; k-- > 0 && sorted[k].module == sorted[i].module;) {
      const module_adapter &a = sorted[k], &b = sorted[i];
      if (!reads_base_weight(a.of) || !reads_base_weight(b.of))
        return fail("two of the adapters change ", a.module.c_str(),
                    ", and one of them replaces it (modules_to_save); activate one of them");
      if (status s = check_tokens(a, b); !s) return s;
      for (const auto& [name, t] : a.base)
        if (b.base.contains(name))
          return fail("two of the adapters have a ", name.c_str(), " of ", a.module.c_str(), "; activate one of them");
    }
  return ok;
}
}  // namespace detail

// Composes the active adapters into one set. `merging`: they are merged into the weight one after the other, where
// OFT's order in PEFT's forward pass does not apply.
inline result<shared_adapter> compose_adapters(std::span<const shared_adapter> active, composition rule,
                                               bool merging = false) {
  if (active.size() == 1) return active[0];
  auto made = std::make_shared<adapter_set>();
  adapter_set& all = *made;
  for (std::size_t i = 0; i < active.size(); ++i)
    for (module_adapter m : active[i]->modules) {
      m.adapter_name = std::to_string(i);
      if (rule == composition::exact) m.of.weight_with_base = nullptr;
      all.modules.push_back(std::move(m));
    }
  std::stable_sort(all.modules.begin(), all.modules.end(),
                   [](const module_adapter& a, const module_adapter& b) { return a.module < b.module; });
  if (status s = detail::check_composition(all.modules); !s) return s.failure();
  if (rule == composition::exact || merging) return shared_adapter(made);
  const auto not_rotated_with = [](const module_adapter& a) {
    return [&a](const module_adapter& b) { return b.module != a.module || !b.of.rotates_input; };
  };
  for (auto at = all.modules.begin(); at != all.modules.end();) {
    const auto end = at->of.rotates_input ? std::find_if(at, all.modules.end(), not_rotated_with(*at)) : at + 1;
    std::reverse(at, end);
    at = end;
  }
  return shared_adapter(made);
}

}  // namespace graft
