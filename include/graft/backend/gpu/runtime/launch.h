// SPDX-License-Identifier: Apache-2.0
// Launches kernels, with or without programmatic dependent launch (PDL), and counts the launches of this thread, which
// tests compare with the number that the plan states.
#pragma once
#include <graft/backend/gpu/runtime/device.h>

namespace graft::gpu {

namespace detail {
inline long long& launch_counter() {
  thread_local long long n = 0;
  return n;
}
}  // namespace detail

inline status launch_not_compiled(const char* what) {
  return fail("the kernels of ", what, " are not compiled into this program; use gpu::executor for this layer");
}

inline long long launch_count() { return detail::launch_counter(); }

inline status launch(const cudaLaunchConfig_t& config, const void* kernel, void** arguments, const char* name) {
  const cudaError_t e = cudaLaunchKernelExC(&config, kernel, arguments);
  if (e == cudaSuccess) return ++detail::launch_counter(), ok;
  static_cast<void>(cudaGetLastError());  // clears the error, so that a later check does not report it a second time
  return check(e, name);
}
template <class... Parameters>
status launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block, const char* name,
              Parameters... arguments) {
  void* pointers[] = {&arguments...};
  const cudaLaunchConfig_t config{grid, block, 0, stream, nullptr, 0};
  return launch(config, reinterpret_cast<const void*>(kernel), pointers, name);
}
// Returns true if the current device has programmatic dependent launch (compute capability 9.0 and later).
inline bool device_has_pdl() {
  thread_local int queried_device = -1;
  thread_local bool allow_pdl = false;
  if (const int now = current_device(); now != queried_device) {
    const auto major = device_attribute(cudaDevAttrComputeCapabilityMajor);
    queried_device = now, allow_pdl = major && *major >= 9;
  }
  return allow_pdl;
}
// The launch attribute that lets a kernel start before the previous kernel of the stream has ended.
inline cudaLaunchAttribute pdl_attribute() {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  return early;
}
// Launches with programmatic dependent launch. The kernel must execute griddepcontrol.wait before it accesses memory
// that the previous kernel reads or writes.
template <class... Parameters>
status launch_pdl(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block, const char* name,
                  Parameters... arguments) {
  void* pointers[] = {&arguments...};
  cudaLaunchAttribute early = pdl_attribute();
  const cudaLaunchConfig_t config{grid, block, 0, stream, &early, device_has_pdl() ? 1U : 0U};
  return launch(config, reinterpret_cast<const void*>(kernel), pointers, name);
}

}  // namespace graft::gpu
