// SPDX-License-Identifier: Apache-2.0
// The GPU executor behind a few C functions, so that bench/compare_peft.py can run it in the process, on the stream and
// on the tensors of the opponent. Every function returns 0, or 1 with a message in graft_error().
#include <graft/cuda.h>
#include <graft/model/table.h>

namespace {

using namespace graft;
using layer = cuda::executor<__nv_bfloat16>;

// A layer, and where the gradients of its parameters go.
struct trained_layer {
  layer of;
  std::vector<gradient> gradients{};
};
trained_layer& own(void* l) { return *static_cast<trained_layer*>(l); }

std::string message;

int report(const status& s) {
  if (!s) message = s.message();
  return s ? 0 : 1;
}
view tensor_of(const void* data, int is_float, int rank, const long long* sizes) {
  view v{data, is_float != 0 ? dtype::f32 : dtype::bf16, {1, 1, 1, 1}, rank};
  for (int k = 0; k < rank; ++k) v.size[k] = sizes[k];
  return v;
}

}  // namespace

extern "C" {

const char* graft_error() { return message.c_str(); }
void* graft_layer(const char* method) {
  const result<layer_graphs> graphs = built_in_methods().graphs("linear", method, false);
  if (!graphs) return message = graphs.message(), nullptr;
  return new trained_layer{layer(*graphs)};
}
void graft_free(void* l) { delete static_cast<trained_layer*>(l); }
int graft_set(void* l, const char* name, const void* data, int is_float, int rank, const long long* sizes) {
  return report(own(l).of.set(name, tensor_of(data, is_float, rank, sizes)));
}
int graft_set_scalar(void* l, const char* name, double value) { return report(own(l).of.set(name, value)); }
int graft_set_size(void* l, const char* name, long long value) { return report(own(l).of.size(name, value)); }
int graft_bind(void* l, cudaStream_t stream, long long tokens) {
  return report(own(l).of.on(stream).bind({.tokens = tokens}));
}
int graft_forward(void* l, cudaStream_t stream, const void* x, void* y, long long tokens, long long in, long long out) {
  const long long sizes[] = {tokens, in};
  return report(own(l).of.on(stream).forward(tensor_of(x, 0, 2, sizes), {y, dtype::bf16, {tokens, out, 1, 1}, 2}));
}
// Forward keeps what backward reads; then backward writes dx and the gradients that were named.
void graft_train(void* l) { own(l).of.train(true); }
void graft_gradient(void* l, const char* name, void* data, int is_float, int rank, const long long* sizes) {
  mutable_view into{data, is_float != 0 ? dtype::f32 : dtype::bf16, {1, 1, 1, 1}, rank};
  for (int k = 0; k < rank; ++k) into.size[k] = sizes[k];
  own(l).gradients.push_back({name, into});
}
int graft_backward(void* l, cudaStream_t stream, const void* x, const void* dy, void* dx, long long tokens,
                   long long in, long long out) {
  const long long of_x[] = {tokens, in}, of_y[] = {tokens, out};
  return report(own(l).of.on(stream).backward(tensor_of(x, 0, 2, of_x), tensor_of(dy, 0, 2, of_y),
                                              {dx, dtype::bf16, {tokens, in, 1, 1}, 2}, own(l).gradients));
}
const char* graft_describe(void* l, long long tokens) {
  static text t;
  t = own(l).of.describe(tokens);
  return t.c_str();
}
}
