// SPDX-License-Identifier: Apache-2.0
// A graph captured at load and the one that the compiler made of the same formula are the same, node by node.
#pragma once
#include <doctest/doctest.h>
#include <graft/plan/fingerprint.h>

#include "../support/random_layer.h"

namespace test {

inline bool same(const node& a, const node& b) {
  for (int i = 0; i < 4; ++i)
    if (a.d[i] != b.d[i] || a.k[i] != b.k[i]) return false;
  return a.what == b.what && a.ta == b.ta && a.tb == b.tb && a.sum == b.sum && a.orthogonal == b.orthogonal &&
         a.rank == b.rank && a.a == b.a && a.b == b.b && a.c == b.c && a.value == b.value &&
         same_text(a.name, b.name) && a.path == b.path && a.line == b.line;
}
inline bool same(const size_entry& a, const size_entry& b) {
  return a.what == b.what && a.a == b.a && a.b == b.b && a.c == b.c && a.d == b.d && same_text(a.name, b.name) &&
         a.path == b.path && a.index == b.index && a.nominal == b.nominal && a.tokens == b.tokens;
}
inline bool same(const requirement& a, const requirement& b) {
  return a.what == b.what && a.lhs == b.lhs && a.rhs == b.rhs && a.at == b.at && a.line == b.line;
}
inline bool same(const output& a, const output& b) {
  return a.at == b.at && same_text(a.name, b.name) && a.path == b.path && a.of_input == b.of_input;
}
inline void check_same(const char* which, const graph& loaded, const graph& compiled) {
  INFO(which);
  REQUIRE(loaded.size == compiled.size);
  REQUIRE(loaded.sizes.count == compiled.sizes.count);
  REQUIRE(loaded.needs == compiled.needs);
  REQUIRE(loaded.outs == compiled.outs);
  for (int i = 0; i < loaded.size; ++i) CHECK(same(loaded[i], compiled[i]));
  for (int i = 0; i < loaded.sizes.count; ++i) CHECK(same(loaded.sizes.e[i], compiled.sizes.e[i]));
  for (int i = 0; i < loaded.needs; ++i) CHECK(same(loaded.need[i], compiled.need[i]));
  for (int i = 0; i < loaded.outs; ++i) CHECK(same(loaded.out[i], compiled.out[i]));
  CHECK(loaded.bad.what == compiled.bad.what);
  CHECK(fingerprint_of(loaded, fuse(loaded)).key == fingerprint_of(compiled, fuse(compiled)).key);
}
// How many graphs were compared.
inline int check_same(const layer_graphs& loaded, const layer_graphs& compiled) {
  const std::pair<const char*, graph layer_graphs::*> all[] = {{"literal", &layer_graphs::literal},
                                                               {"literal backward", &layer_graphs::literal_backward},
                                                               {"forward", &layer_graphs::forward},
                                                               {"folded", &layer_graphs::folded},
                                                               {"backward", &layer_graphs::backward},
                                                               {"base", &layer_graphs::base_forward},
                                                               {"base backward", &layer_graphs::base_backward},
                                                               {"merge", &layer_graphs::merge},
                                                               {"unmerge weight", &layer_graphs::unmerge_weight},
                                                               {"unmerge bias", &layer_graphs::unmerge_bias}};
  for (const auto& [name, member] : all) check_same(name, loaded.*member, compiled.*member);
  CHECK(loaded.unmerging.weight == compiled.unmerging.weight);
  CHECK(loaded.unmerging.bias == compiled.unmerging.bias);
  CHECK(loaded.unmerging.saved == compiled.unmerging.saved);
  CHECK(loaded.owner != nullptr);
  CHECK(compiled.owner == nullptr);
  return 10;
}
template <class Kind, class Adapter, bool Bias = false> int loaded_is_compiled(const char* method) {
  INFO(Kind::name, ", ", method);
  return check_same(graphs_for(Kind::name, method, Bias), graphs_of<Kind, Adapter, Bias>());
}

}  // namespace test
