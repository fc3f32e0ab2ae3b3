// SPDX-License-Identifier: Apache-2.0
// multiply_add on the GPU, one thread per element.
#pragma once

namespace graft::gpu {

template <class T> __global__ void multiply_add_kernel(T* out, const T* x, const T* y, const T* z, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * y[i] + z[i];
}

template <> struct launch_on_gpu<multiply_add> {
  template <class T, class F> static void each_own_node(const program<T>&, const multiply_add& a, F f) { f(a.result); }
  template <class T> static void each_stored(const program<T>&, const multiply_add& a, const stored_nodes<T>& to) {
    to.add(a.result);
  }
  template <class T> static status run(execution<T>& e, const multiply_add& a, const graft::launch&) {
    const long long n = element_count(e.g_, a.result, e.call_.sizes);
    const auto at = [&](id i) { return static_cast<const T*>(e.tensor_at(i)); };
    multiply_add_kernel<T><<<static_cast<unsigned>((n + 255) / 256), 256, 0, e.stream_>>>(
        static_cast<T*>(e.output_ptr(a.result)), at(a.x), at(a.y), at(a.z), n);
    return check(cudaGetLastError(), "multiply-add");
  }
};

}  // namespace graft::gpu
