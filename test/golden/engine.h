// SPDX-License-Identifier: Apache-2.0
// Who computes a golden case: the CPU or the GPU, both behind one face that takes tensors in host memory.
#pragma once
#include <graft/run/executor.h>

#include <memory>

#include "../support/gpu_layer.h"

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
  virtual void enable(bool adapter) = 0;
};

struct cpu_engine : engine {
  executor<float> e;
  cpu_engine(const layer_graphs& g, backend how) : e(g, how) {}
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
  void enable(bool adapter) override { e.enable(adapter); }
};

// How cases are run: by which backend, on which machine, and with gradients where it has them.
struct mode {
  backend how = backend::fused;
  bool gpu = false;

  std::unique_ptr<engine> make(const layer_graphs& g) const;
};

#ifdef GRAFT_GOLDEN_CUDA
struct gpu_engine : engine {
  test::gpu_layer e;
  gpu_engine(const layer_graphs& g, backend how) : e(g, dtype::f32, how) {}
  status size(const char* name, long long v) override { return e.size(name, v); }
  status set(const char* name, const view& v) override { return e.set(name, v); }
  status set(const char* name, double v) override { return e.set(name, v); }
  status forward(const view& x, const mutable_view& y) override { return e.forward(x, y); }
  status backward(const view&, const view&, const mutable_view&, const std::vector<gradient>&) override {
    return fail("the GPU backend has no backward pass");
  }
  status merge(const mutable_view& weight, const mutable_view& bias) override { return e.merge(weight, bias); }
  status unmerge(const char* what, const view& merged, const mutable_view& original) override {
    return e.unmerge(what, merged, original);
  }
  void enable(bool adapter) override { e.enable(adapter); }
};
#endif

inline std::unique_ptr<engine> mode::make(const layer_graphs& g) const {
#ifdef GRAFT_GOLDEN_CUDA
  if (gpu) return std::make_unique<gpu_engine>(g, how);
#endif
  return std::make_unique<cpu_engine>(g, how);
}

}  // namespace golden
