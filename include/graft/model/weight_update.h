// SPDX-License-Identifier: Apache-2.0
// The weight update of an adapter on one module, W' − W, for methods that do not state it themselves: the formula is
// evaluated on the base weight.
#pragma once
#include <graft/derive/derived.h>
#include <graft/derive/layer_kinds.h>
#include <graft/model/adapter_set.h>
#include <graft/run/bind_by_name.h>

namespace graft {

// Returns the update. `weight` is [out, in], or the table of an embedding, or that of experts as it is stored; the
// update of experts is [experts, out, in]. A method that also changes the bias or replaces base tensors is
// an error, since W' − W is not all of its effect.
template <class Engine>
result<std::vector<float>> weight_update_of(typename Engine::queue& queue, const module_adapter& m,
                                            const view& weight) {
  if (m.of.weight == nullptr || m.of.bias != nullptr || !m.base.empty())
    return fail(m.module.c_str(), ": ", m.of.name, " changes more than the weight, which a sum of updates leaves out");
  if (weight.rank != 2 && weight.rank != 3)
    return fail(m.module.c_str(), " has no matrix that an update could be added to");
  const kind_rules kind = weight.rank == 2       ? rules_of<linear_kind>()
                          : m.transposed_storage ? rules_of<experts_kind<true>>()
                                                 : rules_of<experts_kind<false>>();
  builder g;
  const scope p{&g};
  const ex W = kind.matrix(p, kind.weight(p));
  g.add_output((m.of.weight(p, W) - W).i, "update");
  g = canonical(rewrite(g, value_rule));
  named_values values{{}, m.scalars, m.sizes};
  values.tensors["weight"] = weight;
  for (const auto& [name, t] : m.tensors) values.tensors[name] = t.value();
  const adapter_rule rule{"", m.of};
  const result<bound_leaves> bound = bind_named(g, values, {&rule, 1});
  if (!bound) return fail(m.module.c_str(), ": ", bound.message());
  std::vector<float> out(static_cast<std::size_t>(weight.count()));
  if (status s =
          Engine::evaluate_in_host_memory(queue, g, bound->sizes, bound->leaf, {view_into(out.data(), weight.count())});
      !s)
    return s.failure();
  return out;
}

}  // namespace graft
