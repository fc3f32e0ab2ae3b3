// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <doctest/doctest.h>

#include "random_layer.h"

namespace test {

// Returns y of one call, which must succeed.
inline std::vector<float> forward(cpu::executor<float>& e, const random_layer<float>& l) {
  std::vector<float> y = l.buffer_for("y", l.graphs.literal);
  const status s = e.forward(l.x(), into(y));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  return y;
}

}  // namespace test
