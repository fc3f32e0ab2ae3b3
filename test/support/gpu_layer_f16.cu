// SPDX-License-Identifier: Apache-2.0
#include "gpu_layer.cuh"

std::unique_ptr<test::gpu_layer::interface> test::make_f16_layer(const graft::layer_graphs& graphs,
                                                                 graft::backend how) {
  return std::make_unique<test::typed_layer<__half>>(graphs, how);
}
