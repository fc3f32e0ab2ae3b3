// SPDX-License-Identifier: Apache-2.0
// tensor and operands: what the elementwise, rowwise and node kernels read, as an element_ptr with four sizes. Tensors
// are row-major and contiguous; d[0] and d[1] are batch axes, and d[2] x d[3] is a matrix.
#pragma once
#include <graft/backend/gpu/tile/elements.cuh>
#include <graft/backend/table_shard.h>
#include <graft/graph/graph.h>

#include <cstdint>

namespace graft::gpu {

template <class Real> struct tensor {
  element_ptr<Real> p;
  long long d[4] = {1, 1, 1, 1};

  __host__ __device__ long long count() const { return d[0] * d[1] * d[2] * d[3]; }
  __host__ __device__ long long matrices() const { return d[0] * d[1]; }
  __host__ __device__ long long area() const { return d[2] * d[3]; }
  __host__ __device__ long long rows() const { return d[0] * d[1] * d[2]; }
};

template <class Real> tensor<Real> shaped(const graph& g, id i, const size_values& s, element_ptr<Real> p) {
  tensor<Real> t;
  t.p = p;
  for (int k = 0; k < 4; ++k) t.d[k] = g.sizes.value(g[i].d[k], s);
  return t;
}

template <class Real> struct concat_inputs;
// A product of experts that is added to another one of the same rows: a b, or a bᵀ (tb).
template <class Real> struct expert_branch {
  tensor<Real> a, b;
  bool tb = false;
};
template <class Real> struct grouped_rotations;
// Operands of one graph node that is evaluated on the device. A scalar is a tensor of one element, read on the device.
template <class Real> struct operands {
  tensor<Real> a, b, c;
  const std::int64_t* ids = nullptr;  // row ids of a gather, or rows and columns of an index
  // factors: gain per column of a norm backward; residual: added to its result
  element_ptr<Real> factors{}, residual{};
  const concat_inputs<Real>* concat_inputs_ptr = nullptr;
  bool overwrites = false;   // rotation gradient: the result is uninitialized and is overwritten instead of added to
  Real* composed = nullptr;  // rotation with several butterfly factors: their precomputed product
  bool composes = false;     // compute that product only, without rotating anything
  const expert_branch<Real>* branch = nullptr;         // low-rank branch of an expert GEMM
  const grouped_rotations<Real>* rotations = nullptr;  // several rotations of one x in one launch
};

}  // namespace graft::gpu
