// SPDX-License-Identifier: Apache-2.0
#include "gpu_layer.cuh"

namespace test {

std::string why_no_gpu() {
  int devices = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&devices); e != cudaSuccess) return cudaGetErrorString(e);
  return devices == 0 ? "no device was found" : "";
}

gpu_layer::gpu_layer(const layer_graphs& graphs, dtype type, backend how)
    : layer_(type == dtype::bf16  ? make_bf16_layer(graphs, how)
             : type == dtype::f16 ? make_f16_layer(graphs, how)
                                  : make_f32_layer(graphs, how)) {}
gpu_layer::gpu_layer(gpu_layer&&) noexcept = default;
gpu_layer::~gpu_layer() = default;

int gpu_layer::add(const layer_graphs& graphs) { return layer_->add(graphs); }
status gpu_layer::set(const char* name, const view& v, int adapter) { return layer_->set(name, v, adapter); }
status gpu_layer::set(const char* name, double v, int adapter) { return layer_->set(name, v, adapter); }
status gpu_layer::size(const char* name, long long v, int adapter) { return layer_->size(name, v, adapter); }
status gpu_layer::prepare(const view& x, bool fold) { return layer_->prepare(x, fold); }
status gpu_layer::forward(const view& x, const mutable_view& y) { return layer_->forward(x, y); }
status gpu_layer::replay(const view& x, const mutable_view& y, int then) { return layer_->replay(x, y, then); }
status gpu_layer::activate(const std::vector<int>& adapters) { return layer_->activate(adapters); }
status gpu_layer::merge(const mutable_view& weight, const mutable_view& bias) { return layer_->merge(weight, bias); }
status gpu_layer::unmerge(const char* what, const view& merged, const mutable_view& original) {
  return layer_->unmerge(what, merged, original);
}
void gpu_layer::enable(bool adapter) { layer_->enable(adapter); }
std::string gpu_layer::describe(long long tokens) const { return layer_->describe(tokens); }

}  // namespace test
