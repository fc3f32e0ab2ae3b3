// SPDX-License-Identifier: Apache-2.0
// The one place where kernels are launched, and how many this thread has launched: a plan says how many there should be.
#pragma once
#include <graft/backend/cuda/error.h>

namespace graft::cuda {

namespace detail {
inline long long& launch_counter() {
  thread_local long long n = 0;
  return n;
}
}  // namespace detail

inline long long launch_count() { return detail::launch_counter(); }

inline status launch(const cudaLaunchConfig_t& how, const void* kernel, void** arguments, const char* name) {
  const cudaError_t e = cudaLaunchKernelExC(&how, kernel, arguments);
  if (e == cudaSuccess) return ++detail::launch_counter(), ok;
  static_cast<void>(cudaGetLastError());  // what is reported here is not found again by somebody else
  return check(e, name);
}
template <class... Parameters>
status launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block, const char* name,
              Parameters... arguments) {
  void* pointers[] = {&arguments...};
  const cudaLaunchConfig_t how{grid, block, 0, stream, nullptr, 0};
  return launch(how, reinterpret_cast<const void*>(kernel), pointers, name);
}

}  // namespace graft::cuda
