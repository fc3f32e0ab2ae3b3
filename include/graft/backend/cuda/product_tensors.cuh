// SPDX-License-Identifier: Apache-2.0
// What the launches of a bound product read and write: the tensors of one call, and the one place that all adapters of a layer
// share, so that a captured launch sees whichever is active.
#pragma once
#include <graft/backend/cuda/call_memory.cuh>
#include <graft/backend/cuda/linear_calls.cuh>
#include <graft/backend/cuda/packed.cuh>
#include <graft/graph/op.h>

#include <memory>

namespace graft::cuda {

// What the launches of all adapters of a layer read, `used` where there are several; and where their values lie.
template <class T> struct shared_slots {
  bool used = false;
  int rank = 0;         // padded: what an adapter may have
  bool pre = false;     // a factor of the input; only where there is no rank
  bool weight = false;  // some adapter is inside a copy of the weight, so all of them have one
  packed_adapter<T> now;
  buffer weight_now, counters;
  common_memory workspace;  // of whichever adapter runs: a captured launch outlives the adapter it was captured with
  // Of all plans of the layer, which point to it.
  std::unique_ptr<call_room> room = std::make_unique<call_room>(common_memory::growth::by_pieces);
};

constexpr activation activation_of(op o) {
  switch (o) {
    case op::relu: return activation::relu;
    case op::silu: return activation::silu;
    case op::gelu: return activation::gelu;
    case op::gelu_tanh: return activation::gelu_tanh;
    default: return activation::none;
  }
}

// The tensors of one call.
struct product_tensors {
  const void* x = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  bool turns = false;                       // the rotation behind it is part of the kernel
  void *side = nullptr, *before = nullptr;  // where S, with padding, and the sum before the post slot are wanted
  norm_ahead ahead{};                       // of x, and behind y
  norm_behind behind{};
  beside_sum sums[2]{};
  void* workspace = nullptr;
  std::uint32_t* counters = nullptr;
};

}  // namespace graft::cuda
