// SPDX-License-Identifier: Apache-2.0
#include "random_layer.h"

namespace test {

namespace {
template <class Real> void append(std::vector<Real>& to, std::size_t n, double middle, std::mt19937& engine) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  to.reserve(to.size() + n);
  for (std::size_t i = 0; i < n; ++i) to.push_back(static_cast<Real>(uniform(engine) + middle));
}
}  // namespace
void append_random(std::vector<float>& to, std::size_t n, double middle, std::mt19937& engine) {
  append(to, n, middle, engine);
}
void append_random(std::vector<double>& to, std::size_t n, double middle, std::mt19937& engine) {
  append(to, n, middle, engine);
}

layer_graphs graphs_for(const char* kind, const char* method, bool bias) {
  const result<layer_graphs> g = built_in_methods().graphs(kind, method, bias);
  return g ? *g : layer_graphs{};
}

const std::vector<layer_variant>& every_layer_variant() {
  static const std::vector<layer_variant> all = [] {
    std::vector<layer_variant> found;
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
