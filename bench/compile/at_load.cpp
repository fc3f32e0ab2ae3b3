// SPDX-License-Identifier: Apache-2.0
// The captures and plans of depth.h when a program loads a model: milliseconds for each depth, as lines "CASE MS".
#include <chrono>
#include <cstdio>

#include "depth.h"

using namespace compile_bench;

template <class Block> double milliseconds(int times) {
  const auto begin = std::chrono::steady_clock::now();
  int launches = 0;
  for (int i = 0; i < times; ++i) {
    const block_value v = value_of<Block>();
    launches += fuse(capture_forward(v.formula, v.options)).launches.size();
    launches += fuse(capture_backward(v.formula, v.options)).launches.size();
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  return launches > 0 ? took.count() : -1;
}

int main() {
  std::printf("whole_1 %.1f\nwhole_4 %.1f\nwhole_16 %.1f\n", milliseconds<whole_model<1>>(1),
              milliseconds<whole_model<4>>(1), milliseconds<whole_model<16>>(1));
  std::printf("regional %.1f\n", milliseconds<tuned>(1));
  return 0;
}
