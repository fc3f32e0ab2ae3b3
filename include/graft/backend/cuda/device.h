// SPDX-License-Identifier: Apache-2.0
// What the kernels need to know of the device they run on.
#pragma once
#include <graft/backend/cuda/error.h>

namespace graft::cuda {

struct device_facts {
  int processors = 0;      // multiprocessors
  int capability = 0;      // 90 for compute capability 9.0
  int resident_pairs = 0;  // pairs of thread blocks of the gemm family that run at the same time
  bool hopper() const { return capability == 90; }
};

inline result<device_facts> current_device() {
  int device = 0, major = 0, minor = 0;
  device_facts f;
  if (status s = check(cudaGetDevice(&device), "no device to run on"); !s) return s.failure();
  for (auto [attribute, to] :
       {std::pair{cudaDevAttrMultiProcessorCount, &f.processors}, std::pair{cudaDevAttrComputeCapabilityMajor, &major},
        std::pair{cudaDevAttrComputeCapabilityMinor, &minor}})
    if (status s = check(cudaDeviceGetAttribute(to, attribute, device), "reading a device attribute"); !s)
      return s.failure();
  f.capability = 10 * major + minor;
  f.resident_pairs = f.processors / 2;
  return f;
}

}  // namespace graft::cuda
