// SPDX-License-Identifier: Apache-2.0
// The operators for CUDA, over gpu::engine in float32, bfloat16 and float16. They queue kernels on torch's current
// stream and return: no call waits for the device, and outputs and values for backward are torch's memory. A layer
// allocates when it is bound: in the first call with its tensors, and in one with more rows than any before.
#include <graft/backend/gpu/runtime/engine.cuh>
#include <graft/run/gpu_compiled.cuh>
#include <torch/csrc/stable/accelerator.h>

#include <set>

#include "operators.h"
#include "ops_cuda.h"

// torch declares it where a program is compiled with USE_CUDA, which changes other headers too.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(std::int32_t device_index, void** ret_stream);

namespace graft::pytorch {

// All calls of a layer share one workspace, so a call on another stream than the last one waits for it. A capture
// begins after the work that was queued before it, which torch.cuda.graph and torch.compile take care of.
template <class T> struct placement<gpu::engine<T>> {
  using queue = typename gpu::engine<T>::queue;
  cudaStream_t stream = nullptr;
  bool capturing = false;

  bool captured() const { return capturing; }
  status enter(queue& q) const {
    if (q.kernels.evaluate == nullptr) {
      queue fresh;
      fresh.kernels = gpu::every_kernel_of_one_adapter<T>(), fresh.stream = stream;
      if (status s = gpu::engine<T>::open(fresh); !s) return s;
      return q = std::move(fresh), status(ok);
    }
    const cudaStream_t before = std::exchange(q.stream, stream);
    if (before == stream || capturing) return ok;
    gpu::stream_event last_call;
    if (status s = last_call.note(before); !s) return s;
    return last_call.hold(stream);
  }
};

template <class T> struct engine_traits<gpu::engine<T>> {
  class scope {
   public:
    explicit scope(const device& where) : here_(where.index) {
      if (where.type != aoti_torch_device_type_cuda())
        raise(fail("x is in the memory of ", name_of_device(where).c_str(),
                   ", and other tensors of the layer are on a GPU; move the module and its input to one device"));
      void* stream = nullptr;
      TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(where.index, &stream));
      at_.stream = static_cast<cudaStream_t>(stream);
      cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
      pytorch::check(gpu::check(cudaStreamIsCapturing(at_.stream, &captured), "asking for a capture"));
      at_.capturing = captured != cudaStreamCaptureStatusNone;
    }
    const placement<gpu::engine<T>>& at() const { return at_; }

   private:
    torch::stable::accelerator::DeviceGuard here_;
    placement<gpu::engine<T>> at_;
  };
  static constexpr ScalarType stored = std::is_same_v<T, float>    ? ScalarType::Float
                                       : std::is_same_v<T, __half> ? ScalarType::Half
                                                                   : ScalarType::BFloat16;
};

namespace {

// Calls f(engine) for the engine of a type; a GPU computes a layer in the type of x, and a table in its own.
template <class F> auto with_engine_of(ScalarType type, F f) {
  switch (type) {
    case ScalarType::Float: return f(gpu::engine<float>{});
    case ScalarType::BFloat16: return f(gpu::engine<__nv_bfloat16>{});
    case ScalarType::Half: return f(gpu::engine<__half>{});
    default: break;
  }
  raise(fail("x is no float32, bfloat16 or float16 tensor; the kernels for CUDA compute in these"));
}
ScalarType type_of_engine(const Tensor& x, const std::vector<Tensor>& tensors, const std::string& layer) {
  const std::shared_ptr<const layer_spec> spec = take_value(layer_spec_of(layer));
  if (spec->is_table && tensors.empty()) raise(fail("the layer has no tensors"));
  if (!spec->is_branch() && !spec->is_table && !tensors.empty() && tensors[0].scalar_type() != x.scalar_type())
    raise(fail("x is ", name_of(dtype_of(x, "x")), " and the weight is ", name_of(dtype_of(tensors[0], "weight")),
               "; on a GPU convert one of them to the type of the other"));
  return type_of_outputs(x, tensors, *spec);
}

std::tuple<Tensor, Tensor> adapted_linear(const Tensor& x, const std::vector<Tensor>& tensors, const std::string& layer,
                                          std::int64_t number, const std::vector<std::int64_t>& versions, bool save) {
  return with_engine_of(type_of_engine(x, tensors, layer), [&]<class Engine>(Engine) {
    return forward_in<Engine>(x, tensors, layer, number, versions, save);
  });
}
std::vector<Tensor> adapted_linear_backward(const Tensor& dy, const Tensor& x, const std::vector<Tensor>& tensors,
                                            const Tensor& saved, const std::string& layer, std::int64_t number,
                                            const std::vector<std::int64_t>& versions, bool needs_dx,
                                            const std::vector<std::int64_t>& wanted) {
  return with_engine_of(type_of_engine(x, tensors, layer), [&]<class Engine>(Engine) {
    return backward_in<Engine>(dy, x, tensors, saved, layer, number, versions, needs_dx, wanted);
  });
}

// Which formulas, shapes and types have been bound without an error, so that many equal layers are bound once.
class checked_layers {
 public:
  static bool contains(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex());
    return all().count(key) > 0;
  }
  static void add(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex());
    all().insert(key);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::set<std::string>& all() {
    static auto* const one = new std::set<std::string>;
    return *one;
  }
};
// Binds the layer once beside the width, so that a formula or a shape that has no kernels is an exception here.
std::int64_t saved_width(const std::vector<Tensor>& tensors, const std::string& text) {
  const std::shared_ptr<const layer_spec> spec = take_value(layer_spec_of(text));
  if (tensors.empty()) raise(fail("the layer has no tensors"));
  const device where = device_of(tensors[0]);
  return with_engine_of(tensors[0].scalar_type(), [&]<class Engine>(Engine) -> std::int64_t {
    const typename engine_traits<Engine>::scope scope(where);
    const call_views c = views_of<Engine>(nullptr, tensors, *spec, where);
    bound_layer<Engine> layer(spec);
    const long long width = take_value(layer.saved_width(c.all));
    std::string key = text + name_of_device(where);
    for (const view& v : c.all) key.append(" ").append(name_of(v.type)).append(shape_of(v).c_str());
    if (checked_layers::contains(key)) return width;
    check(layer.check(scope.at(), c.all));
    checked_layers::add(key);
    return width;
  });
}

}  // namespace

void forget_cuda_layer(std::int64_t number) {
  bound_layers<gpu::engine<float>>::forget(number);
  bound_layers<gpu::engine<__nv_bfloat16>>::forget(number);
  bound_layers<gpu::engine<__half>>::forget(number);
}

}  // namespace graft::pytorch

STABLE_TORCH_LIBRARY_IMPL(graft, CUDA, m) {
  m.impl("adapted_linear", TORCH_BOX(&graft::pytorch::adapted_linear));
  m.impl("adapted_linear_backward", TORCH_BOX(&graft::pytorch::adapted_linear_backward));
  m.impl("saved_width", TORCH_BOX(&graft::pytorch::saved_width));
}
