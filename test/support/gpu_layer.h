// SPDX-License-Identifier: Apache-2.0
// A layer on the GPU for programs that hold their tensors in host memory: every call copies its inputs to the device
// and its outputs back. The header includes nothing of CUDA, so that the host compiler compiles tests and the golden
// runner.
#pragma once
#include <graft/run/bind.h>
#include <graft/run/executor.h>

#include <functional>
#include <memory>

namespace test {

// The reason why there is no GPU; empty where there is one.
std::string why_no_gpu();

// The rows of a call with this x: the axis that the graph calls tokens. On a mixture's experts it is not the first.
inline long long tokens_of(const graft::layer_graphs& graphs, const graft::view& x) {
  graft::size_values s;
  const graft::id at = graphs.literal.find("x");
  if (at < 0 || !graft::solve_sizes(graphs.literal, at, x, s)) return x.size[0];
  return graphs.literal.sizes.tokens(s);
}

// The layer's tensors are stored on the device as `type`: f32, bf16 or f16. Adapter parameters stay float.
class gpu_layer {
 public:
  gpu_layer(const graft::layer_graphs& graphs, graft::dtype type, graft::execution_mode how);
  gpu_layer(gpu_layer&&) noexcept;
  ~gpu_layer();

  graft::result<int> add(const graft::layer_graphs& graphs);
  graft::status set(const char* name, const graft::view& v, int adapter = 0);
  graft::status set(const char* name, double v, int adapter = 0);
  graft::status size(const char* name, long long v, int adapter = 0);
  graft::status bind(const graft::capacity& limits);
  // Binds first if the layer is not bound for so many tokens. y is filled with NaN before the call.
  graft::status forward(const graft::view& x, const graft::mutable_view& y);
  graft::status backward(const graft::view& x, const graft::view& dy, const graft::mutable_view& dx,
                         const std::vector<graft::gradient>& gradients);
  // Captures forward() in a CUDA graph and replays it, calls `change`, and replays the graph a second time.
  graft::status replay(const graft::view& x, const graft::mutable_view& y,
                       const std::function<graft::status()>& change);
  graft::status activate(const std::vector<int>& adapters);
  graft::status replace(int adapter, const graft::named_values& values);
  graft::status remove(int adapter);
  graft::status parameters_changed();
  // Writes other numbers into the memory of a tensor of the layer.
  graft::status overwrite(const char* name, const graft::view& v, int adapter = 0);
  graft::status merge(const graft::mutable_view& weight, const graft::mutable_view& bias = {});
  graft::status unmerge(const char* what, const graft::view& merged, const graft::mutable_view& original);
  graft::status enable(bool adapter);
  // In training forward saves what backward reads, and backward follows a forward with the same x.
  void train(bool on);
  long long saved_bytes(long long tokens);
  std::string describe(long long tokens) const;
  // Enables autotuning with its results in a file; timed() counts the launches that were timed since then.
  graft::status enable_autotuning(const std::string& file);
  int timed() const;
  // Kernels that the last call launched, and those of the plan; in training those of the training passes.
  long long launched() const;
  int planned(bool backward, long long tokens) const;

  struct interface;

 private:
  std::unique_ptr<interface> layer_;
};

}  // namespace test
