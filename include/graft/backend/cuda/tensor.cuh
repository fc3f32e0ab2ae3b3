// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels work on: elements and four numbers, row-major and contiguous.
#pragma once
#include <graft/backend/cuda/cells.cuh>
#include <graft/backend/table_part.h>
#include <graft/graph/graph.h>

#include <cstdint>

namespace graft::cuda {

template <class Real> struct tensor {
  cells<Real> p;
  long long d[4] = {1, 1, 1, 1};

  __host__ __device__ long long count() const { return d[0] * d[1] * d[2] * d[3]; }
  __host__ __device__ long long matrices() const { return d[0] * d[1]; }
  __host__ __device__ long long area() const { return d[2] * d[3]; }
  __host__ __device__ long long rows() const { return d[0] * d[1] * d[2]; }
};

template <class Real> tensor<Real> shaped(const graph& g, id i, const size_values& s, cells<Real> p) {
  tensor<Real> t;
  t.p = p;
  for (int k = 0; k < 4; ++k) t.d[k] = g.sizes.value(g[i].d[k], s);
  return t;
}

// Scalars are tensors of one element: their values are read on the device.
template <class Real> struct joined_values;
template <class Real> struct turned_values;
template <class Real> struct operands {
  tensor<Real> a, b, c;
  const std::int64_t* ids = nullptr;  // of a look-up, or the rows and columns of an index
  cells<Real> factors{}, added{};     // of the gradient of a norm: of each column, and what is added to it
  const joined_values<Real>* joined = nullptr;
  bool fresh = false;        // of the gradient of a rotation: nothing is there to be added to, nor zeros
  Real* composed = nullptr;  // of a rotation by several factors: they as one, made before
  bool composes = false;     // that is what is made, and nothing turned
  const turned_values<Real>* turned = nullptr;  // several rotations of a few rows: all there is to know
};

}  // namespace graft::cuda
