// SPDX-License-Identifier: Apache-2.0
// The one place where kernels are launched, and how many this thread has launched: a plan says how many there should be.
#pragma once
#include <graft/backend/cuda/device.h>

namespace graft::cuda {

namespace detail {
inline long long& launch_counter() {
  thread_local long long n = 0;
  return n;
}
}  // namespace detail

inline status not_launched(const char* what) {
  return fail("the kernels of ", what, " are not compiled into this program; use cuda::executor for this layer");
}

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
// Can a kernel of this device begin while the one ahead of it in the stream ends? From compute capability 9.0 on.
inline bool device_chains() {
  thread_local int asked = -1;
  thread_local bool chains = false;
  if (const int now = device_now(); now != asked) {
    const auto major = attribute_of_device(cudaDevAttrComputeCapabilityMajor);
    asked = now, chains = major && *major >= 9;
  }
  return chains;
}
// What lets a launch do so.
inline cudaLaunchAttribute begins_early() {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  return early;
}
// The same for a kernel that waits for the one ahead before it reads or writes anything.
template <class... Parameters>
status launch_chained(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block, const char* name,
                      Parameters... arguments) {
  void* pointers[] = {&arguments...};
  cudaLaunchAttribute early = begins_early();
  const cudaLaunchConfig_t how{grid, block, 0, stream, &early, device_chains() ? 1U : 0U};
  return launch(how, reinterpret_cast<const void*>(kernel), pointers, name);
}

}  // namespace graft::cuda
