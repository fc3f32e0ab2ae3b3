// SPDX-License-Identifier: Apache-2.0
// Layer types: a base layer with its sizes, element type and adapter, as users name them. Sizes are numbers or `dyn`.
//     struct q_proj : linear<4096, 4096, bf16, lora<16>> {};
#pragma once
#include <graft/adapter/none.h>
#include <graft/core/dtype.h>
#include <graft/derive/derived.h>

namespace graft {

struct named_size {
  const char* name;
  int value;
};

template <int Out, int In, class Element = float, class Adapter = none, bias Bias = bias::no> struct linear {
  using kind = linear_kind;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = Bias == bias::yes;
  static constexpr named_size sizes[2] = {{"out", Out}, {"in", In}};
};
template <int Vocabulary, int Dim, class Element = float, class Adapter = none> struct embedding {
  using kind = embedding_kind;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = false;
  static constexpr named_size sizes[2] = {{"vocab", Vocabulary}, {"dim", Dim}};
};
template <int Out, int Channels, int Kernel, class Element = float, class Adapter = none, bias Bias = bias::no,
          int Stride = 1, int Padding = 0>
struct conv2d {
  using kind = conv2d_kind;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = Bias == bias::yes;
  static constexpr named_size sizes[6] = {{"out", Out},         {"channels", Channels}, {"kernel_h", Kernel},
                                          {"kernel_w", Kernel}, {"stride", Stride},     {"padding", Padding}};
};
template <int N, class Element = float, class Adapter = none, bias Bias = bias::yes> struct layer_norm {
  using kind = norm_kind<false>;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = Bias == bias::yes;
  static constexpr named_size sizes[1] = {{"n", N}};
};
template <int N, class Element = float, class Adapter = none> struct rms_norm {
  using kind = norm_kind<true>;
  using adapter = Adapter;
  using element = Element;
  static constexpr bool has_bias = false;
  static constexpr named_size sizes[1] = {{"n", N}};
};

template <class Layer> using derived_of = derived<typename Layer::kind, typename Layer::adapter, Layer::has_bias>;
template <class Layer> using base_of = derived<typename Layer::kind, none, Layer::has_bias>;

// Gives the sizes of one of the type's graphs that the type fixes, sizes of the adapter that follow from them included.
template <class Layer> constexpr size_values static_sizes(const graph& g) {
  size_values s;
  long long out = unknown, in = unknown;
  for (const named_size& n : Layer::sizes) {
    if (n.value == dyn) continue;
    if (const int index = g.sizes.find(n.name); index >= 0) s.v[index] = n.value;
    if (same_text(n.name, "out")) out = n.value;
    if (same_text(n.name, "in")) in = n.value;
  }
  if (out == unknown || in == unknown) return s;
  constexpr formula f = formula_of<typename Layer::adapter>();
  for (int i = 0; i < g.sizes.count; ++i)
    if (const size_entry& e = g.sizes.e[i]; e.index >= 0 && s.v[e.index] == unknown)
      s.v[e.index] = f.adapter_size(e.name, out, in);
  return s;
}

}  // namespace graft
