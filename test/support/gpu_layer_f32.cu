// SPDX-License-Identifier: Apache-2.0
#include "gpu_layer.cuh"

std::unique_ptr<test::gpu_layer::interface> test::make_f32_layer(const graft::layer_graphs& graphs,
                                                                 graft::backend how) {
  return std::make_unique<test::typed_layer<float>>(graphs, how);
}
