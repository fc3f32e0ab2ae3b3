// SPDX-License-Identifier: Apache-2.0
// explain<Layer>() and draw<Layer>() for people: the same lines, on standard output.
#pragma once
#include <graft/plan/draw.h>

#include <cstdio>

namespace graft {

inline void print_line(const text& t) { std::puts(t.c_str()); }

template <class Layer> void explain(long long tokens = dyn) { explain<Layer>(print_line, tokens); }
template <class Layer> void draw(drawing how = drawing::mermaid) { draw(derived_of<Layer>::forward, how, print_line); }

}  // namespace graft
