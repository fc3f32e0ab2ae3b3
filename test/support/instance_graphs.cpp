// SPDX-License-Identifier: Apache-2.0
#include "random_layer.h"

namespace test {

layer_graphs graphs_for(const char* kind, const char* method, bool bias) {
  const result<layer_graphs> g = built_in_methods().graphs(kind, method, bias);
  return g ? *g : layer_graphs{};
}

const std::vector<combination>& every_combination() {
  static const std::vector<combination> all = [] {
    std::vector<combination> found;
    for (const named_kind& k : layer_kinds)
      for (const method& m : built_in_methods())
        for (const bool bias : {false, true})
          if (const layer_graphs g = graphs_for(k.rules.name, m.name, bias); g.exists())
            found.push_back(
                {k.rules.name, m.name, bias, g, std::string(k.rules.name) + (bias ? " with bias, " : ", ") + m.name});
    return found;
  }();
  return all;
}

}  // namespace test
