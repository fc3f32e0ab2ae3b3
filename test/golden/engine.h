// SPDX-License-Identifier: Apache-2.0
// The engine of a golden case: the CPU or the GPU behind one interface with tensors in host memory.
#pragma once
#include <graft/run/cpu_layer.h>

#include <memory>

#ifdef GRAFT_GOLDEN_CUDA
#include "../support/gpu_layer.h"
#endif

namespace golden {

using namespace graft;

struct engine {
  virtual ~engine() = default;
  virtual status size(const char* name, long long v) = 0;
  virtual status set(const char* name, const view& v) = 0;
  virtual status set(const char* name, double v) = 0;
  virtual status forward(const view& x, const mutable_view& y) = 0;
  virtual status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& into) = 0;
  virtual status merge(const mutable_view& weight, const mutable_view& bias) = 0;
  virtual status unmerge(const char* what, const view& merged, const mutable_view& original) = 0;
  virtual status enable(bool adapter) = 0;
};

// A layer of any kind as an engine.
template <class Layer> struct engine_of : engine {
  Layer e;
  template <class... How> explicit engine_of(const layer_graphs& g, How... how) : e(g, how...) {}
  status size(const char* name, long long v) override { return e.size(name, v); }
  status set(const char* name, const view& v) override { return e.set(name, v); }
  status set(const char* name, double v) override { return e.set(name, v); }
  status forward(const view& x, const mutable_view& y) override { return e.forward(x, y); }
  status backward(const view& x, const view& dy, const mutable_view& dx, const std::vector<gradient>& into) override {
    return e.backward(x, dy, dx, into);
  }
  status merge(const mutable_view& weight, const mutable_view& bias) override { return e.merge(weight, bias); }
  status unmerge(const char* what, const view& merged, const mutable_view& original) override {
    return e.unmerge(what, merged, original);
  }
  status enable(bool adapter) override { return e.enable(adapter); }
};

// How cases are run: fused or eager, on the CPU or the GPU.
struct runner {
  graft::execution_mode how = graft::execution_mode::fused;
  bool gpu = false, narrow = false;  // narrow: models run in bf16

  std::unique_ptr<engine> make(const layer_graphs& g) const;
};

inline std::unique_ptr<engine> runner::make(const layer_graphs& g) const {
#ifdef GRAFT_GOLDEN_CUDA
  if (gpu) return std::make_unique<engine_of<test::gpu_layer>>(g, dtype::f32, how);
#endif
  return std::make_unique<engine_of<cpu::executor<float>>>(g, how);
}

}  // namespace golden
