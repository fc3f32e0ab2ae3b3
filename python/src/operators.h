// SPDX-License-Identifier: Apache-2.0
// The operators of PyTorch over an engine, by torch's stable ABI. Tensors of a call are read where they lie, and outputs
// are allocated by torch. An error of the library becomes a Python exception with the library's sentence.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include "bound_layer.h"

namespace graft::pytorch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

[[noreturn]] inline void raise(const error& e) { throw std::runtime_error(e.what.c_str()); }
inline void check(const status& s) {
  if (!s) raise(s.failure());
}
template <class T> T take_value(result<T> r) {
  if (!r) raise(r.failure());
  return std::move(*r);
}

inline dtype dtype_of(const Tensor& t, const char* name) {
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
struct device {
  std::int32_t type = aoti_torch_device_type_cpu(), index = 0;
  bool operator==(const device&) const = default;
};
inline device device_of(const Tensor& t) {
  device d;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &d.type));
  if (d.type == aoti_torch_device_type_cpu()) return d;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(t.get(), &d.index));
  return d;
}
inline std::string name_of_device(const device& d) {
  return d.type == aoti_torch_device_type_cpu()    ? "the CPU"
         : d.type == aoti_torch_device_type_cuda() ? "cuda:" + std::to_string(d.index)
                                                   : "a device of another type";
}

// What the operators need to know of an engine beside its functions; for each engine a specialization has
//     scope      an object that lives as long as a call: makes the device of the call current, and gives its placement
//     stored     the type of saved values
template <class Engine> struct engine_traits;

// A view of a tensor that lives as long as `owned`. An expanded tensor, whose elements share memory, is copied, and in
// device memory every tensor with gaps.
template <class Engine>
view view_of_tensor(const Tensor& given, const char* name, const device& expected, std::vector<Tensor>& owned) {
  if (const device its = device_of(given); its != expected)
    raise(fail("tensor '", name, "' is in the memory of ", name_of_device(its).c_str(), ", expected that of ",
               name_of_device(expected).c_str(), ", where x is; move the module and its input to one device"));
  Tensor t = given;
  if (t.dim() > 4)
    raise(fail("tensor '", name, "' has ", static_cast<long long>(t.dim()), " dimensions, expected at most 4"));
  bool copied = !Engine::reads_host_memory;
  for (std::int64_t k = 0; k < t.dim(); ++k) copied = copied || (t.size(k) > 1 && t.stride(k) == 0);
  if (copied) t = torch::stable::contiguous(t);
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
inline allocated allocate(const std::vector<std::int64_t>& sizes, ScalarType type, const device& where) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t k = sizes.size(); k-- > 1;) strides[k - 1] = strides[k] * std::max<std::int64_t>(sizes[k], 1);
  AtenTensorHandle made = nullptr;
  const auto dim = static_cast<std::int64_t>(sizes.size());
  const std::int32_t number = torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(type));
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dim, sizes.data(), strides.data(), number, where.type, where.index, &made));
  allocated a{Tensor(made), {}};
  a.memory = {a.tensor.data_ptr(), dtype_of(a.tensor, "output"), {1, 1, 1, 1}, static_cast<int>(dim)};
  for (std::size_t k = 0; k < sizes.size(); ++k) a.memory.size[k] = sizes[k];
  return a;
}
inline std::vector<std::int64_t> sizes_of(const Tensor& t) {
  std::vector<std::int64_t> s;
  for (std::int64_t k = 0; k < t.dim(); ++k) s.push_back(t.size(k));
  return s;
}

// The layers that have been called, by the number that Python gave them, their descriptions and devices. Number 0 is
// that of a call for which nothing is kept.
template <class Engine> class bound_layers {
 public:
  using layer = bound_layer<Engine>;
  static std::shared_ptr<layer> find(std::int64_t number, const std::string& text, const device& where) {
    if (number == 0) return std::make_shared<layer>(take_value(layer_spec_of(text)));
    const std::lock_guard<std::mutex> lock(mutex());
    std::vector<entry>& of_number = all()[number];
    for (const entry& e : of_number)
      if (e.where == where && e.text == text) return e.runs;
    of_number.push_back({text, where, std::make_shared<layer>(take_value(layer_spec_of(text)))});
    return of_number.back().runs;
  }
  static void forget(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex());
    all().erase(number);
  }

 private:
  struct entry {
    std::string text;
    device where;
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
// `x` is null where a call has none.
template <class Engine>
call_views views_of(const Tensor* x, const std::vector<Tensor>& tensors, const layer_spec& spec, const device& where) {
  call_views c;
  c.owned.reserve(tensors.size() + 3), c.all.reserve(tensors.size());
  if (tensors.size() != spec.names.size())
    raise(fail("the layer has ", static_cast<long long>(spec.names.size()), " tensors, the call brings ",
               static_cast<long long>(tensors.size())));
  for (std::size_t k = 0; k < tensors.size(); ++k)
    c.all.push_back(view_of_tensor<Engine>(tensors[k], spec.names[k].c_str(), where, c.owned));
  if (x == nullptr) return c;
  c.x = view_of_tensor<Engine>(*x, "x", where, c.owned);
  if (spec.is_table) {
    if (c.x.rank != 1 || c.x.type != dtype::i64)
      raise(fail("x is ", name_of(c.x.type), " of shape ", shape_of(c.x),
                 ", expected int64 indices of the shape [tokens]"));
    return c;
  }
  const long long in = spec.is_branch() ? spec.in : c.all[0].rank == 2 ? c.all[0].size[1] : -1;
  if (c.x.rank != 2 || c.x.size[1] != in) raise(fail("x has shape ", shape_of(c.x), ", expected [tokens, ", in, "]"));
  return c;
}
// Indices have the type of the table, other rows keep theirs.
inline ScalarType type_of_outputs(const Tensor& x, const std::vector<Tensor>& tensors, const layer_spec& spec) {
  return spec.is_table ? tensors[0].scalar_type() : x.scalar_type();
}
template <class Engine>
std::tuple<Tensor, Tensor> forward_in(const Tensor& x, const std::vector<Tensor>& tensors, const std::string& text,
                                      std::int64_t number, const std::vector<std::int64_t>& versions, bool save) {
  const device where = device_of(x);
  const typename engine_traits<Engine>::scope scope(where);
  const auto layer = bound_layers<Engine>::find(number, text, where);
  const layer_spec& spec = layer->spec();
  const call_views c = views_of<Engine>(&x, tensors, spec, where);
  const std::int64_t rows = x.size(0), width = save ? take_value(layer->saved_width(c.all)) : 0;
  const long long out = spec.is_branch() ? spec.out : tensors[0].size(spec.is_table ? 1 : 0);
  const allocated y = allocate({rows, out}, type_of_outputs(x, tensors, spec), where);
  const allocated saved = allocate({save ? rows : 0, width}, engine_traits<Engine>::stored, where);
  // A value of no elements may have a null address, which would say that nothing is to be saved.
  static unsigned char nothing[1];
  if (rows > 0)
    check(layer->forward(scope.at(), c.x, c.all, versions, y.memory,
                         !save       ? nullptr
                         : width > 0 ? saved.memory.data
                                     : nothing));
  return {y.tensor, saved.tensor};
}
template <class Engine>
std::vector<Tensor> backward_in(const Tensor& dy, const Tensor& x, const std::vector<Tensor>& tensors,
                                const Tensor& saved, const std::string& text, std::int64_t number,
                                const std::vector<std::int64_t>& versions, bool needs_dx,
                                const std::vector<std::int64_t>& wanted) {
  const device where = device_of(x);
  const typename engine_traits<Engine>::scope scope(where);
  const auto layer = bound_layers<Engine>::find(number, text, where);
  const layer_spec& spec = layer->spec();
  call_views c = views_of<Engine>(&x, tensors, spec, where);
  const view dy_view = view_of_tensor<Engine>(dy, "dy", where, c.owned);
  const view saved_view = view_of_tensor<Engine>(saved, "saved", where, c.owned);
  const long long width = take_value(layer->saved_width(c.all));
  if (saved_view.count() != c.x.size[0] * width || saved_view.type != Engine::storage_type || !saved_view.contiguous())
    raise(fail("'saved' has shape ", shape_of(saved_view), ", expected [", c.x.size[0], ", ", width,
               "] as adapted_linear returned it for the same x with save = True"));
  std::vector<Tensor> out;
  mutable_view dx;
  if (needs_dx) {
    const allocated made = allocate(sizes_of(x), x.scalar_type(), where);
    dx = made.memory, out.push_back(made.tensor);
  }
  std::vector<gradient> gradients;
  for (const std::int64_t k : wanted) {
    if (k < 0 || k >= static_cast<std::int64_t>(tensors.size()))
      raise(fail("the gradient of tensor ", static_cast<long long>(k), " is requested, the layer has ",
                 static_cast<long long>(tensors.size())));
    const Tensor& of = tensors[static_cast<std::size_t>(k)];
    const allocated made = allocate(sizes_of(of), of.scalar_type(), where);
    gradients.push_back({spec.names[static_cast<std::size_t>(k)], made.memory});
    out.push_back(made.tensor);
  }
  if (c.x.size[0] == 0) {
    for (Tensor& t : out) torch::stable::zero_(t);
    return out;
  }
  check(layer->backward(scope.at(), c.x, dy_view, c.all, versions, const_cast<void*>(saved_view.data), dx, gradients));
  return out;
}

}  // namespace graft::pytorch
