// SPDX-License-Identifier: Apache-2.0
// The device that this thread works on, and another one for the length of a scope.
#pragma once
#include <graft/backend/cuda/error.h>

namespace graft::cuda {

// The device this thread works on.
inline int device_now() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : 0;
}
// Another device for the length of a scope. To ask which one it is costs nanoseconds, to change it more.
class on_device {
 public:
  explicit on_device(int device) : was_(device_now()), changed_(was_ != device) {
    if (changed_) static_cast<void>(cudaSetDevice(device));
  }
  ~on_device() {
    if (changed_) static_cast<void>(cudaSetDevice(was_));
  }
  on_device(const on_device&) = delete;
  on_device& operator=(const on_device&) = delete;

 private:
  int was_;
  bool changed_;
};

inline result<int> attribute_of_device(cudaDeviceAttr what) {
  int device = 0, value = 0;
  if (status s = check(cudaGetDevice(&device), "no device to run on"); !s) return s.failure();
  if (status s = check(cudaDeviceGetAttribute(&value, what, device), "reading a device attribute"); !s)
    return s.failure();
  return value;
}

}  // namespace graft::cuda
