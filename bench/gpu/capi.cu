// SPDX-License-Identifier: Apache-2.0
// A C interface to the GPU executor, so that bench/compare_peft.py can run it in its process, on the stream and on the
// weight of PEFT. The adapter is read from the folder that PEFT saved, in the types of its file. Functions return 0, or
// 1 with a message in graft_error().
#include <graft/gpu.h>
#include <graft/io.h>

#include <cstring>

namespace {

using namespace graft;
using runs_on_gpu = gpu::executor<__nv_bfloat16>;

struct freed_on_device {
  void operator()(void* p) const { cudaFree(p); }
};
using device_memory = std::unique_ptr<void, freed_on_device>;

// The tensors of an adapter on the device, in one allocation.
struct uploaded {
  device_memory all{};
  long long bytes = 0;
  std::map<std::string, view, std::less<>> tensors{};
};
long long padded(long long bytes) { return (bytes + 255) / 256 * 256; }
long long bytes_of(const io::loaded_tensor& t) {
  if (!t.indices.empty()) return static_cast<long long>(t.indices.size() * sizeof(std::int64_t));
  return static_cast<long long>(t.data.size()) * (t.type == io::safetensors_type::bf16 ? 2 : 4);
}
// The bytes of a tensor in the type of the file: bf16, or floats.
std::vector<char> as_stored(const io::loaded_tensor& t) {
  std::vector<char> out(static_cast<std::size_t>(bytes_of(t)));
  if (!t.indices.empty()) {
    std::memcpy(out.data(), t.indices.data(), out.size());
  } else if (t.type == io::safetensors_type::bf16) {
    std::vector<bf16> rounded(t.data.size());
    for (std::size_t i = 0; i < rounded.size(); ++i) rounded[i] = narrow(t.data[i]);
    std::memcpy(out.data(), rounded.data(), out.size());
  } else {
    std::memcpy(out.data(), t.data.data(), out.size());
  }
  return out;
}
result<uploaded> upload(const io::peft_layer& adapter) {
  uploaded made;
  for (const auto& [name, t] : adapter.tensors) made.bytes += padded(bytes_of(t));
  void* at = nullptr;
  if (cudaMalloc(&at, static_cast<std::size_t>(made.bytes + 256)) != cudaSuccess)
    return fail("the GPU has no memory left");
  made.all.reset(at);
  auto* next = static_cast<char*>(at);
  for (const auto& [name, t] : adapter.tensors) {
    const std::vector<char> host = as_stored(t);
    if (cudaMemcpy(next, host.data(), host.size(), cudaMemcpyHostToDevice) != cudaSuccess) return fail("a copy failed");
    const dtype type = !t.indices.empty()                     ? dtype::i64
                       : t.type == io::safetensors_type::bf16 ? dtype::bf16
                                                              : dtype::f32;
    view v{next, type, {1, 1, 1, 1}, static_cast<int>(t.shape.size())};
    for (std::size_t k = 0; k < t.shape.size(); ++k) v.size[k] = t.shape[k];
    made.tensors[name] = v;
    next += padded(static_cast<long long>(host.size()));
  }
  return std::move(made);
}

struct adapted_layer {
  io::peft_layer adapter;
  uploaded on_gpu;
  long long out, in;
  runs_on_gpu runs;
  std::vector<std::string> trained{};  // tensors of the formula that have a gradient
  std::vector<gradient> gradients{};
};
adapted_layer& of(void* l) { return *static_cast<adapted_layer*>(l); }

std::string message;

int report(const status& s) {
  if (!s) message = s.message();
  return s ? 0 : 1;
}
view bf16_rows(const void* data, long long rows, long long columns) {
  return {data, dtype::bf16, {rows, columns, 1, 1}, 2};
}
mutable_view bf16_rows(void* data, long long rows, long long columns) {
  return {data, dtype::bf16, {rows, columns, 1, 1}, 2};
}

result<adapted_layer*> load(const char* folder, const char* module, const float* weight, const void* weight_on_gpu,
                            long long out, long long in) {
  const auto config = io::read_adapter_config(folder);
  if (!config) return config.failure();
  const auto file = io::read_adapter_weights(folder);
  if (!file) return file.failure();
  io::base_layer base{"linear", module, out, in, {out, in}, false};
  base.weight = view_of(weight, out, in);
  auto adapter = io::read_peft_layer(*config, *file, base);
  if (!adapter) return adapter.failure();
  const auto graphs = built_in_methods().graphs("linear", adapter->formula, false);
  if (!graphs) return graphs.failure();
  auto on_gpu = upload(*adapter);
  if (!on_gpu) return on_gpu.failure();
  auto made = std::unique_ptr<adapted_layer>(
      new adapted_layer{std::move(*adapter), std::move(*on_gpu), out, in, runs_on_gpu(*graphs)});
  if (status s = made->runs.set("weight", bf16_rows(weight_on_gpu, out, in)); !s) return s.failure();
  for (const auto& [name, value] : made->adapter.sizes)
    if (status s = made->runs.size(name.c_str(), value); !s) return s.failure();
  for (const auto& [name, value] : made->adapter.scalars)
    if (status s = made->runs.set(name.c_str(), value); !s) return s.failure();
  for (const auto& [name, v] : made->on_gpu.tensors) {
    if (status s = made->runs.set(name.c_str(), v); !s) return s.failure();
    if (graphs->backward.find_output(name.c_str()) >= 0) made->trained.push_back(name);
  }
  return made.release();
}

}  // namespace

extern "C" {

const char* graft_error() { return message.c_str(); }
// Loads the adapter of one module. The weight is passed as floats on the host, which some methods need, and in bf16 on
// the GPU.
void* graft_layer(const char* folder, const char* module, const float* weight, const void* weight_on_gpu, long long out,
                  long long in) {
  auto made = load(folder, module, weight, weight_on_gpu, out, in);
  if (!made) return message = made.message(), nullptr;
  return *made;
}
void graft_free(void* l) { delete &of(l); }
int graft_bind(void* l, cudaStream_t stream, long long tokens) {
  return report(of(l).runs.on(stream).bind({.tokens = tokens}));
}
int graft_forward(void* l, cudaStream_t stream, const void* x, void* y, long long tokens) {
  return report(of(l).runs.on(stream).forward(bf16_rows(x, tokens, of(l).in), bf16_rows(y, tokens, of(l).out)));
}
// In training forward saves what backward reads, and backward writes dx and the requested gradients.
void graft_train(void* l) { of(l).runs.train(true); }
// The k-th tensor with a gradient: its key in the file, its number of elements, and whether they are floats; null after
// the last.
const char* graft_trained(void* l, int k, long long* count, int* is_float) {
  if (k >= static_cast<int>(of(l).trained.size())) return nullptr;
  const std::string& name = of(l).trained[static_cast<std::size_t>(k)];
  const view& v = of(l).on_gpu.tensors.find(name)->second;
  *is_float = v.type == dtype::f32 ? 1 : 0, *count = 1;
  for (int d = 0; d < v.rank; ++d) *count *= v.size[d];
  return of(l).adapter.tensors.find(name)->second.key.c_str();
}
void graft_gradient(void* l, int k, void* data) {
  const std::string& name = of(l).trained[static_cast<std::size_t>(k)];
  const view& v = of(l).on_gpu.tensors.find(name)->second;
  mutable_view into{data, v.type, {1, 1, 1, 1}, v.rank};
  for (int d = 0; d < v.rank; ++d) into.size[d] = v.size[d];
  of(l).gradients.push_back({name, into});
}
int graft_backward(void* l, cudaStream_t stream, const void* x, const void* dy, void* dx, long long tokens) {
  return report(of(l).runs.on(stream).backward(bf16_rows(x, tokens, of(l).in), bf16_rows(dy, tokens, of(l).out),
                                               bf16_rows(dx, tokens, of(l).in), of(l).gradients));
}
const char* graft_describe(void* l, long long tokens) {
  static text t;
  t = of(l).runs.describe(tokens);
  return t.c_str();
}
}
