// SPDX-License-Identifier: Apache-2.0
// A DoRA layer on the GPU: one launch per call, the norm of DoRA computed once.
#include <graft/cuda.h>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace graft;

struct q_proj : linear<1024, 1024, bf16, dora<16>> {};

static_assert(compile<q_proj, fullgraph, on<sm_90>>::kernels == 1);

namespace {

// Numbers in device memory, as float (adapter parameters) or as bf16 (base weight, activations).
template <class T> T* on_device(std::size_t n, float scale) {
  std::vector<T> host(n);
  for (std::size_t i = 0; i < n; ++i) host[i] = T(scale * std::sin(1.7F * static_cast<float>(i)));
  T* p = nullptr;
  if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) return nullptr;
  cudaMemcpy(p, host.data(), n * sizeof(T), cudaMemcpyHostToDevice);
  return p;
}
view tensor(const float* p, long long rows, long long cols) { return view_of(p, rows, cols); }
view tensor(const __nv_bfloat16* p, long long rows, long long cols) { return {p, dtype::bf16, {rows, cols, 1, 1}, 2}; }

// The first error in words; what comes after it is not tried.
status run(cudaStream_t stream) {
  constexpr long long tokens = 16, n = 1024, r = 16;
  const auto* weight = on_device<__nv_bfloat16>(n * n, 0.03F);
  const auto* x = on_device<__nv_bfloat16>(tokens * n, 1);
  auto* y = on_device<__nv_bfloat16>(tokens * n, 0);
  const float *a = on_device<float>(r * n, 0.03F), *b = on_device<float>(n * r, 0.1F), *m = on_device<float>(n, 1);

  cuda::layer<q_proj> q;
  if (status s = q.set("weight", tensor(weight, n, n)); !s) return s;
  if (status s = q.set("lora_A.weight", tensor(a, r, n)); !s) return s;
  if (status s = q.set("lora_B.weight", tensor(b, n, r)); !s) return s;
  if (status s = q.set("lora_magnitude_vector", view_of(m, n)); !s) return s;
  if (status s = q.set("scaling", 2.0); !s) return s;

  if (status s = q.on(stream).bind({.tokens = tokens}); !s) return s;  // allocates, computes what does not depend on x
  q.explain([](const text& line) { std::puts(line.c_str()); }, tokens);
  const mutable_view to{y, dtype::bf16, {tokens, n, 1, 1}, 2};
  if (status s = q.forward(tensor(x, tokens, n), to); !s) return s;  // one launch; may be captured

  std::vector<__nv_bfloat16> first(4);
  cudaMemcpyAsync(first.data(), y, first.size() * sizeof(first[0]), cudaMemcpyDeviceToHost, stream);
  if (status s = cuda::check(cudaStreamSynchronize(stream), "running the layer"); !s) return s;
  std::printf("y begins %g %g %g %g\n", static_cast<double>(first[0]), static_cast<double>(first[1]),
              static_cast<double>(first[2]), static_cast<double>(first[3]));
  return ok;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU: nothing to run"), 0;
  const status s = run(nullptr);
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  return s ? 0 : 1;
}
