// SPDX-License-Identifier: Apache-2.0
// Runs a DoRA layer on a GPU: one launch per call, and the norm of DoRA is computed once per parameter change.
#include <graft/gpu.h>

#include <cmath>
#include <cstdio>
#include <vector>

struct q_proj : graft::linear<1024, 1024, graft::bf16, graft::dora<16>> {};

static_assert(graft::compile<q_proj, graft::fullgraph, graft::for_target<graft::sm_90>>::kernels == 1);

namespace {

// Fills device memory with float (adapter parameters) or bf16 (base weight, activations).
template <class T> T* on_device(std::size_t n, float scale) {
  std::vector<T> host(n);
  for (std::size_t i = 0; i < n; ++i) host[i] = T(scale * std::sin(1.7F * static_cast<float>(i)));
  T* p = nullptr;
  if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) return nullptr;
  cudaMemcpy(p, host.data(), n * sizeof(T), cudaMemcpyHostToDevice);
  return p;
}
graft::view tensor(const float* p, long long rows, long long cols) { return graft::view_of(p, rows, cols); }
graft::view tensor(const __nv_bfloat16* p, long long rows, long long cols) {
  return {p, graft::dtype::bf16, {rows, cols, 1, 1}, 2};
}

// Returns the first error, after which nothing else runs.
graft::status run(cudaStream_t stream) {
  constexpr long long tokens = 16, n = 1024, r = 16;
  const auto* weight = on_device<__nv_bfloat16>(n * n, 0.03F);
  const auto* x = on_device<__nv_bfloat16>(tokens * n, 1);
  auto* y = on_device<__nv_bfloat16>(tokens * n, 0);
  const float *a = on_device<float>(r * n, 0.03F), *b = on_device<float>(n * r, 0.1F), *m = on_device<float>(n, 1);

  graft::gpu::layer<q_proj> q;
  if (graft::status s = q.set("weight", tensor(weight, n, n)); !s) return s;
  if (graft::status s = q.set("lora_A.weight", tensor(a, r, n)); !s) return s;
  if (graft::status s = q.set("lora_B.weight", tensor(b, n, r)); !s) return s;
  if (graft::status s = q.set("lora_magnitude_vector", graft::view_of(m, n)); !s) return s;
  if (graft::status s = q.set("scaling", 2.0); !s) return s;

  // bind() allocates memory and computes what does not depend on x.
  if (graft::status s = q.on(stream).bind({.tokens = tokens}); !s) return s;
  q.explain([](const graft::text& line) { std::puts(line.c_str()); }, tokens);
  const graft::mutable_view to{y, graft::dtype::bf16, {tokens, n, 1, 1}, 2};
  if (graft::status s = q.forward(tensor(x, tokens, n), to); !s) return s;  // one launch, which can be captured

  std::vector<__nv_bfloat16> first(4);
  cudaMemcpyAsync(first.data(), y, first.size() * sizeof(first[0]), cudaMemcpyDeviceToHost, stream);
  if (graft::status s = graft::gpu::check(cudaStreamSynchronize(stream), "running the layer"); !s) return s;
  std::printf("y begins %g %g %g %g\n", static_cast<double>(first[0]), static_cast<double>(first[1]),
              static_cast<double>(first[2]), static_cast<double>(first[3]));
  return graft::ok;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU: nothing to run"), 0;
  const graft::status s = run(nullptr);
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  return s ? 0 : 1;
}
