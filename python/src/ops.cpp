// SPDX-License-Identifier: Apache-2.0
// The operators' registration with PyTorch, and the ones of the CPU:
//     adapted_linear            y, and what backward reads
//     adapted_linear_backward   dx and the requested gradients
//     saved_width               elements per row of x that backward reads
//     describe_layer            what a PEFT configuration says about one layer
//     forget_layer              frees what is kept for a layer
//     has_cuda_kernels          whether this build has the operators for CUDA (ops_cuda.cu)
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/run/cpu_compiled.h>

#include "operators.h"
#include "ops_cuda.h"

namespace graft::pytorch {

template <class Real> struct engine_traits<cpu::engine<Real>> {
  struct scope {
    explicit scope(const device& where) {
      if (where.type != aoti_torch_device_type_cpu())
        raise(
            fail("x is in the memory of ", name_of_device(where).c_str(),
                 ", and this build of graft_torch has kernels for the CPU alone; build it where nvcc is installed, or "
                 "restore() the model"));
    }
    placement<cpu::engine<Real>> at() const { return {}; }
  };
  static constexpr ScalarType stored = std::is_same_v<Real, double> ? ScalarType::Double : ScalarType::Float;
};

namespace {

// A layer computes in double where x or its first tensor, the weight, is stored so, otherwise in float.
bool is_double(const Tensor& x, const std::vector<Tensor>& tensors) {
  return x.scalar_type() == ScalarType::Double || (!tensors.empty() && tensors[0].scalar_type() == ScalarType::Double);
}

std::tuple<Tensor, Tensor> adapted_linear(const Tensor& x, const std::vector<Tensor>& tensors, const std::string& layer,
                                          std::int64_t number, const std::vector<std::int64_t>& versions, bool save) {
  return is_double(x, tensors) ? forward_in<cpu::engine<double>>(x, tensors, layer, number, versions, save)
                               : forward_in<cpu::engine<float>>(x, tensors, layer, number, versions, save);
}

std::vector<Tensor> adapted_linear_backward(const Tensor& dy, const Tensor& x, const std::vector<Tensor>& tensors,
                                            const Tensor& saved, const std::string& layer, std::int64_t number,
                                            const std::vector<std::int64_t>& versions, bool needs_dx,
                                            const std::vector<std::int64_t>& wanted) {
  return is_double(x, tensors)
             ? backward_in<cpu::engine<double>>(dy, x, tensors, saved, layer, number, versions, needs_dx, wanted)
             : backward_in<cpu::engine<float>>(dy, x, tensors, saved, layer, number, versions, needs_dx, wanted);
}

std::int64_t saved_width(const std::vector<Tensor>& tensors, const std::string& text) {
  const std::shared_ptr<const layer_spec> spec = take_value(layer_spec_of(text));
  const device where = tensors.empty() ? device{} : device_of(tensors[0]);
  const engine_traits<cpu::engine<float>>::scope scope(where);
  const call_views c = views_of<cpu::engine<float>>(nullptr, tensors, *spec, where);
  return take_value(bound_layer<cpu::engine<float>>(spec).saved_width(c.all));
}
std::string describe(const std::string& config, const std::string& kind, const std::string& module, std::int64_t out,
                     std::int64_t in, bool bias, const std::string& tensors) {
  return take_value(describe_layer(config, kind, module, out, in, bias, tensors));
}
void forget_layer(std::int64_t number) {
  bound_layers<cpu::engine<float>>::forget(number);
  bound_layers<cpu::engine<double>>::forget(number);
  forget_cuda_layer(number);
}
bool cuda_kernels() { return has_cuda_kernels; }

}  // namespace
}  // namespace graft::pytorch

STABLE_TORCH_LIBRARY(graft, m) {
  m.def(
      "adapted_linear(Tensor x, Tensor[] tensors, str layer, int number, int[] versions, bool save) -> (Tensor, "
      "Tensor)");
  m.def(
      "adapted_linear_backward(Tensor dy, Tensor x, Tensor[] tensors, Tensor saved, str layer, int number, "
      "int[] versions, bool needs_dx, int[] wanted) -> Tensor[]");
  m.def("saved_width(Tensor[] tensors, str layer) -> int");
  m.def("describe_layer(str config, str kind, str module, int out, int features, bool bias, str tensors) -> str");
  m.def("forget_layer(int number) -> ()");
  m.def("has_cuda_kernels() -> bool");
}
STABLE_TORCH_LIBRARY_IMPL(graft, CPU, m) {
  m.impl("adapted_linear", TORCH_BOX(&graft::pytorch::adapted_linear));
  m.impl("adapted_linear_backward", TORCH_BOX(&graft::pytorch::adapted_linear_backward));
  m.impl("saved_width", TORCH_BOX(&graft::pytorch::saved_width));
}
#if !defined(GRAFT_TORCH_CUDA)
// In a build without CUDA these functions fail and say that they need tensors of the CPU.
STABLE_TORCH_LIBRARY_IMPL(graft, CUDA, m) {
  m.impl("adapted_linear", TORCH_BOX(&graft::pytorch::adapted_linear));
  m.impl("adapted_linear_backward", TORCH_BOX(&graft::pytorch::adapted_linear_backward));
  m.impl("saved_width", TORCH_BOX(&graft::pytorch::saved_width));
}
#endif
STABLE_TORCH_LIBRARY_IMPL(graft, CompositeExplicitAutograd, m) {
  m.impl("describe_layer", TORCH_BOX(&graft::pytorch::describe));
  m.impl("forget_layer", TORCH_BOX(&graft::pytorch::forget_layer));
  m.impl("has_cuda_kernels", TORCH_BOX(&graft::pytorch::cuda_kernels));
}
