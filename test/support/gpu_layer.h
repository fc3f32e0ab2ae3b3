// SPDX-License-Identifier: Apache-2.0
// A layer on the GPU for programs that keep their tensors in host memory: copies go both ways around every call. The
// header knows nothing of CUDA, so that tests and the golden runner are compiled by the host compiler.
#pragma once
#include <graft/run/executor.h>

#include <functional>
#include <memory>

namespace test {

// Empty where there is a GPU; else why there is none.
std::string why_no_gpu();

// The layer's tensors are stored on the device as `type`: f32, bf16 or f16. Adapter parameters stay float.
class gpu_layer {
 public:
  gpu_layer(const graft::layer_graphs& graphs, graft::dtype type, graft::mode how);
  gpu_layer(gpu_layer&&) noexcept;
  ~gpu_layer();

  graft::result<int> add(const graft::layer_graphs& graphs);
  graft::status set(const char* name, const graft::view& v, int adapter = 0);
  graft::status set(const char* name, double v, int adapter = 0);
  graft::status size(const char* name, long long v, int adapter = 0);
  graft::status bind(const graft::capacity& room);
  // Binds where the layer is not bound for so many tokens. y is poisoned with NaN before.
  graft::status forward(const graft::view& x, const graft::mutable_view& y);
  graft::status backward(const graft::view& x, const graft::view& dy, const graft::mutable_view& dx,
                         const std::vector<graft::gradient>& gradients);
  // forward() captured in a CUDA graph and replayed; then `change` happens, and the graph is replayed again.
  graft::status replay(const graft::view& x, const graft::mutable_view& y,
                       const std::function<graft::status()>& change);
  graft::status activate(const std::vector<int>& adapters);
  graft::status replace(int adapter, const graft::adapter_values& values);
  graft::status remove(int adapter);
  graft::status parameters_changed();
  // Writes other numbers where a tensor of the layer lies.
  graft::status overwrite(const char* name, const graft::view& v, int adapter = 0);
  graft::status merge(const graft::mutable_view& weight, const graft::mutable_view& bias = {});
  graft::status unmerge(const char* what, const graft::view& merged, const graft::mutable_view& original);
  graft::status enable(bool adapter);
  // Forward keeps what backward reads; backward follows a forward with the same x.
  void train(bool on);
  long long kept_bytes(long long tokens);
  std::string describe(long long tokens) const;
  // Launches are timed, and what was found is kept in a file; how many of them were timed since.
  graft::status time_choices(const std::string& file);
  int timed() const;
  // Kernels that the last call launched, and what the plan says it does; in training those of the training passes.
  long long launched() const;
  int planned(bool backward, long long tokens) const;

  struct interface;

 private:
  std::unique_ptr<interface> layer_;
};

}  // namespace test
