// SPDX-License-Identifier: Apache-2.0
// A layer on the GPU for programs that keep their tensors in host memory: copies go both ways around every call. The
// header knows nothing of CUDA, so that tests and the golden runner are compiled by the host compiler.
#pragma once
#include <graft/run/backend.h>
#include <graft/run/layer_state.h>

#include <memory>

namespace test {

// Empty where there is a GPU; else why there is none.
std::string why_no_gpu();

// The layer's tensors are stored on the device as `type`: f32, bf16 or f16. Adapter parameters stay float.
class gpu_layer {
 public:
  gpu_layer(const graft::layer_graphs& graphs, graft::dtype type, graft::backend how);
  gpu_layer(gpu_layer&&) noexcept;
  ~gpu_layer();

  int add(const graft::layer_graphs& graphs);
  graft::status set(const char* name, const graft::view& v, int adapter = 0);
  graft::status set(const char* name, double v, int adapter = 0);
  graft::status size(const char* name, long long v, int adapter = 0);
  graft::status prepare(const graft::view& x, bool fold = true);
  // Prepares where nothing was prepared for so many tokens. y is poisoned with NaN before.
  graft::status forward(const graft::view& x, const graft::mutable_view& y);
  // The same, captured in a CUDA graph that is replayed twice; between the replays `change` may switch the adapter.
  graft::status replay(const graft::view& x, const graft::mutable_view& y, int then_activate);
  graft::status activate(const std::vector<int>& adapters);
  graft::status merge(const graft::mutable_view& weight, const graft::mutable_view& bias = {});
  graft::status unmerge(const char* what, const graft::view& merged, const graft::mutable_view& original);
  void enable(bool adapter);
  std::string describe(long long tokens) const;

  struct interface;

 private:
  std::unique_ptr<interface> layer_;
};

}  // namespace test
