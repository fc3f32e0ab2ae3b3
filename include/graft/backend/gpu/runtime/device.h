// SPDX-License-Identifier: Apache-2.0
// The CUDA device of this thread, switching to another device within a scope, and device attributes.
#pragma once
#include <graft/backend/gpu/arch/error.h>

namespace graft::gpu {

inline int current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : 0;
}
// Makes `device` current until the end of the scope. cudaSetDevice is called only if the device changes, because
// cudaGetDevice costs nanoseconds and cudaSetDevice more.
class device_guard {
 public:
  explicit device_guard(int device) : was_(current_device()), changed_(was_ != device) {
    if (changed_) static_cast<void>(cudaSetDevice(device));
  }
  ~device_guard() {
    if (changed_) static_cast<void>(cudaSetDevice(was_));
  }
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;

 private:
  int was_;
  bool changed_;
};

inline result<int> device_attribute(cudaDeviceAttr what) {
  int device = 0, value = 0;
  if (status s = check(cudaGetDevice(&device), "no device to run on"); !s) return s.failure();
  if (status s = check(cudaDeviceGetAttribute(&value, what, device), "reading a device attribute"); !s)
    return s.failure();
  return value;
}

}  // namespace graft::gpu
