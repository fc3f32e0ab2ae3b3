// SPDX-License-Identifier: Apache-2.0
// A program that runs forward and backward of one layer type. It is compiled, and its kernels are listed by names.sh.
#include <graft/gpu.h>

#include "layer.h"

graft::status run(const graft::view& x, const graft::mutable_view& y) {
  graft::gpu::layer<tested::layer> layer;
  if (graft::status s = layer.bind({.tokens = 4096}); !s) return s;
  if (graft::status s = layer.forward(x, y); !s) return s;
  return layer.backward(x, x, y, {});
}
