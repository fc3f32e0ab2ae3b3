// SPDX-License-Identifier: Apache-2.0
// The operators of PyTorch, by torch's stable ABI. Tensors of a call are read where they lie, and outputs are allocated
// by torch. An error of the library becomes a Python exception with the library's sentence.
//     adapted_linear            y, and what backward reads
//     adapted_linear_backward   dx and the requested gradients
//     saved_width               elements per row of x that backward reads
//     describe_layer            what a PEFT configuration says about one layer
//     forget_layer              frees what is kept for a layer
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/run/cpu_compiled.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <stdexcept>
#include <unordered_map>

#include "bound_layer.h"

namespace graft::pytorch {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

[[noreturn]] void raise(const error& e) { throw std::runtime_error(e.what.c_str()); }
void check(const status& s) {
  if (!s) raise(s.failure());
}
template <class T> T take_value(result<T> r) {
  if (!r) raise(r.failure());
  return std::move(*r);
}

dtype dtype_of(const Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return dtype::f32;
    case ScalarType::Double: return dtype::f64;
    case ScalarType::BFloat16: return dtype::bf16;
    case ScalarType::Half: return dtype::f16;
    case ScalarType::Long: return dtype::i64;
    default: break;
  }
  raise(fail("tensor '", name,
             "' is no float32, float64, bfloat16, float16 or int64 tensor; convert it to one of these"));
}
bool on_cpu(const Tensor& t) {
  std::int32_t type = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &type));
  return type == aoti_torch_device_type_cpu();
}

// A view of a tensor that lives as long as `owned`. An expanded tensor, whose elements share memory, is copied.
view view_of_tensor(const Tensor& given, const char* name, std::vector<Tensor>& owned) {
  if (!on_cpu(given))
    raise(fail("tensor '", name,
               "' is not in the memory of the CPU, and this build of graft_torch has kernels for the "
               "CPU alone; move the module and its input there, or restore() it"));
  Tensor t = given;
  if (t.dim() > 4)
    raise(fail("tensor '", name, "' has ", static_cast<long long>(t.dim()), " dimensions, expected at most 4"));
  bool expanded = false;
  for (std::int64_t k = 0; k < t.dim(); ++k) expanded = expanded || (t.size(k) > 1 && t.stride(k) == 0);
  if (expanded) t = torch::stable::contiguous(t);
  owned.push_back(t);
  view v{t.data_ptr(), dtype_of(t, name), {1, 1, 1, 1}, static_cast<int>(t.dim())};
  for (int k = 0; k < v.rank; ++k) v.size[k] = t.size(k), v.strides[k] = v.size[k] > 1 ? t.stride(k) : 0;
  // Axes of one element have any stride in torch; row-major ones are meant to be dense.
  if (v.count() == 0 || v.contiguous()) std::fill(std::begin(v.strides), std::end(v.strides), 0);
  return v;
}
struct allocated {
  Tensor tensor;
  mutable_view memory;
};
allocated allocate(const std::vector<std::int64_t>& sizes, ScalarType type) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t k = sizes.size(); k-- > 1;) strides[k - 1] = strides[k] * std::max<std::int64_t>(sizes[k], 1);
  AtenTensorHandle made = nullptr;
  const auto dim = static_cast<std::int64_t>(sizes.size());
  const std::int32_t number = torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(type));
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dim, sizes.data(), strides.data(), number, aoti_torch_device_type_cpu(), 0, &made));
  allocated a{Tensor(made), {}};
  a.memory = {a.tensor.data_ptr(), dtype_of(a.tensor, "output"), {1, 1, 1, 1}, static_cast<int>(dim)};
  for (std::size_t k = 0; k < sizes.size(); ++k) a.memory.size[k] = sizes[k];
  return a;
}
std::vector<std::int64_t> sizes_of(const Tensor& t) {
  std::vector<std::int64_t> s;
  for (std::int64_t k = 0; k < t.dim(); ++k) s.push_back(t.size(k));
  return s;
}

// The layers that have been called, by the number that Python gave them and by their descriptions. Number 0 is that of
// a call for which nothing is kept.
template <class Real> class bound_layers {
 public:
  using layer = bound_layer<cpu::engine<Real>>;
  static std::shared_ptr<layer> find(std::int64_t number, const std::string& text) {
    if (number == 0) return std::make_shared<layer>(take_value(layer_spec_of(text)));
    const std::lock_guard<std::mutex> lock(mutex());
    std::vector<entry>& of_number = all()[number];
    for (const entry& e : of_number)
      if (e.text == text) return e.runs;
    of_number.push_back({text, std::make_shared<layer>(take_value(layer_spec_of(text)))});
    return of_number.back().runs;
  }
  static void forget(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex());
    all().erase(number);
  }

 private:
  struct entry {
    std::string text;
    std::shared_ptr<layer> runs;
  };
  using table = std::unordered_map<std::int64_t, std::vector<entry>>;
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static table& all() {
    static auto* const one = new table;  // never destroyed: threads of the interpreter may outlive static objects
    return *one;
  }
};

struct call_views {
  std::vector<Tensor> owned;
  std::vector<view> all;
  view x;
};
call_views views_of(const Tensor* x, const std::vector<Tensor>& tensors, const layer_spec& spec) {
  call_views c;
  c.owned.reserve(tensors.size() + 3), c.all.reserve(tensors.size());
  if (tensors.size() != spec.names.size())
    raise(fail("the layer has ", static_cast<long long>(spec.names.size()), " tensors, the call brings ",
               static_cast<long long>(tensors.size())));
  for (std::size_t k = 0; k < tensors.size(); ++k)
    c.all.push_back(view_of_tensor(tensors[k], spec.names[k].c_str(), c.owned));
  if (x == nullptr) return c;
  c.x = view_of_tensor(*x, "x", c.owned);
  const long long in = spec.is_branch() ? spec.in : c.all[0].rank == 2 ? c.all[0].size[1] : -1;
  if (c.x.rank != 2 || c.x.size[1] != in) raise(fail("x has shape ", shape_of(c.x), ", expected [tokens, ", in, "]"));
  return c;
}
// A layer computes in double where x or its first tensor, the weight, is stored so, otherwise in float.
bool is_double(const Tensor& x, const std::vector<Tensor>& tensors) {
  return x.scalar_type() == ScalarType::Double || (!tensors.empty() && tensors[0].scalar_type() == ScalarType::Double);
}

template <class Real>
std::tuple<Tensor, Tensor> forward_in(const Tensor& x, const std::vector<Tensor>& tensors, const std::string& text,
                                      std::int64_t number, const std::vector<std::int64_t>& versions, bool save) {
  const auto layer = bound_layers<Real>::find(number, text);
  const layer_spec& spec = layer->spec();
  const call_views c = views_of(&x, tensors, spec);
  const std::int64_t rows = x.size(0), width = save ? take_value(layer->saved_width(c.all)) : 0;
  const allocated y = allocate({rows, spec.is_branch() ? spec.out : tensors[0].size(0)}, x.scalar_type());
  const allocated saved =
      allocate({save ? rows : 0, width}, std::is_same_v<Real, double> ? ScalarType::Double : ScalarType::Float);
  // A value of no elements may have a null address, which would say that nothing is to be saved.
  static unsigned char nothing[1];
  if (rows > 0)
    check(layer->forward({}, c.x, c.all, versions, y.memory,
                         !save       ? nullptr
                         : width > 0 ? saved.memory.data
                                     : nothing));
  return {y.tensor, saved.tensor};
}
std::tuple<Tensor, Tensor> adapted_linear(const Tensor& x, const std::vector<Tensor>& tensors, const std::string& layer,
                                          std::int64_t number, const std::vector<std::int64_t>& versions, bool save) {
  return is_double(x, tensors) ? forward_in<double>(x, tensors, layer, number, versions, save)
                               : forward_in<float>(x, tensors, layer, number, versions, save);
}

template <class Real>
std::vector<Tensor> backward_in(const Tensor& dy, const Tensor& x, const std::vector<Tensor>& tensors,
                                const Tensor& saved, const std::string& text, std::int64_t number,
                                const std::vector<std::int64_t>& versions, bool needs_dx,
                                const std::vector<std::int64_t>& wanted) {
  const auto layer = bound_layers<Real>::find(number, text);
  const layer_spec& spec = layer->spec();
  call_views c = views_of(&x, tensors, spec);
  const view dy_view = view_of_tensor(dy, "dy", c.owned);
  const view saved_view = view_of_tensor(saved, "saved", c.owned);
  const long long width = take_value(layer->saved_width(c.all));
  if (saved_view.count() != c.x.size[0] * width || saved_view.type != cpu::engine<Real>::storage_type ||
      !saved_view.contiguous())
    raise(fail("'saved' has shape ", shape_of(saved_view), ", expected [", c.x.size[0], ", ", width,
               "] as adapted_linear returned it for the same x with save = True"));
  std::vector<Tensor> out;
  mutable_view dx;
  if (needs_dx) {
    const allocated made = allocate(sizes_of(x), x.scalar_type());
    dx = made.memory, out.push_back(made.tensor);
  }
  std::vector<gradient> gradients;
  for (const std::int64_t k : wanted) {
    if (k < 0 || k >= static_cast<std::int64_t>(tensors.size()))
      raise(fail("the gradient of tensor ", static_cast<long long>(k), " is requested, the layer has ",
                 static_cast<long long>(tensors.size())));
    const Tensor& of = tensors[static_cast<std::size_t>(k)];
    const allocated made = allocate(sizes_of(of), of.scalar_type());
    gradients.push_back({spec.names[static_cast<std::size_t>(k)], made.memory});
    out.push_back(made.tensor);
  }
  if (c.x.size[0] == 0) {
    for (Tensor& t : out) torch::stable::zero_(t);
    return out;
  }
  check(layer->backward({}, c.x, dy_view, c.all, versions, const_cast<void*>(saved_view.data), dx, gradients));
  return out;
}
std::vector<Tensor> adapted_linear_backward(const Tensor& dy, const Tensor& x, const std::vector<Tensor>& tensors,
                                            const Tensor& saved, const std::string& layer, std::int64_t number,
                                            const std::vector<std::int64_t>& versions, bool needs_dx,
                                            const std::vector<std::int64_t>& wanted) {
  return is_double(x, tensors) ? backward_in<double>(dy, x, tensors, saved, layer, number, versions, needs_dx, wanted)
                               : backward_in<float>(dy, x, tensors, saved, layer, number, versions, needs_dx, wanted);
}

std::int64_t saved_width(const std::vector<Tensor>& tensors, const std::string& text) {
  const std::shared_ptr<const layer_spec> spec = take_value(layer_spec_of(text));
  const call_views c = views_of(nullptr, tensors, *spec);
  return take_value(bound_layer<cpu::engine<float>>(spec).saved_width(c.all));
}
std::string describe(const std::string& config, const std::string& module, std::int64_t out, std::int64_t in, bool bias,
                     const std::string& tensors) {
  return take_value(describe_layer(config, module, out, in, bias, tensors));
}
void forget_layer(std::int64_t number) {
  bound_layers<float>::forget(number);
  bound_layers<double>::forget(number);
}

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
  m.def("describe_layer(str config, str module, int out, int features, bool bias, str tensors) -> str");
  m.def("forget_layer(int number) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(graft, CPU, m) {
  m.impl("adapted_linear", TORCH_BOX(&graft::pytorch::adapted_linear));
  m.impl("adapted_linear_backward", TORCH_BOX(&graft::pytorch::adapted_linear_backward));
  m.impl("saved_width", TORCH_BOX(&graft::pytorch::saved_width));
}
// On other devices these functions fail and say that they need tensors of the CPU.
STABLE_TORCH_LIBRARY_IMPL(graft, CUDA, m) {
  m.impl("adapted_linear", TORCH_BOX(&graft::pytorch::adapted_linear));
  m.impl("adapted_linear_backward", TORCH_BOX(&graft::pytorch::adapted_linear_backward));
  m.impl("saved_width", TORCH_BOX(&graft::pytorch::saved_width));
}
STABLE_TORCH_LIBRARY_IMPL(graft, CompositeExplicitAutograd, m) {
  m.impl("describe_layer", TORCH_BOX(&graft::pytorch::describe));
  m.impl("forget_layer", TORCH_BOX(&graft::pytorch::forget_layer));
}
