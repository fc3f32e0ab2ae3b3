// SPDX-License-Identifier: Apache-2.0
// The gradient of the blocks of a rotation in one pass over x and the gradient of its result, on the tensor cores, where
// there is one factor with blocks of a size that divides 64; else as rotate.cuh has it.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/backend/cuda/device.h>
#include <graft/backend/cuda/rotate.cuh>
#include <graft/backend/cuda/sum_tokens.cuh>
#include <graft/backend/cuda/tensor_map.h>

namespace graft::cuda {

template <class Real> struct rotate_sums {
  tensor<Real> out, x, t, q;
  bool transposed;
  Real* scratch;
};
template <class On, class Real> status sum_blocks(const On& on, const rotate_sums<Real>& r) {
  return rotate_grad(on, r.out, r.x, r.t, r.q, r.transposed, r.scratch);
}

namespace detail {
template <class T> status launch_block_sums(cudaStream_t stream, const rotate_sums<float>& r, int processors) {
  using shape = sum_shape<64, true>;
  const void* const kernel = reinterpret_cast<const void*>(&sum_tokens_kernel<T, 64, true>);
  const long long rows = r.x.rows(), columns = r.x.d[3], steps = (rows + sum_step - 1) / sum_step;
  const long long tiles = (columns + sum_columns - 1) / sum_columns;
  sum_maps maps;
  const matrix x{r.x.p.at, rows, columns}, t{r.t.p.at, rows, columns};
  if (status s = make_map(maps.z, dtype_of<T>, r.transposed ? t : x, sum_step, 64); !s) return s;
  if (status s = make_map(maps.q, dtype_of<T>, r.transposed ? x : t, sum_step, 64); !s) return s;
  sum_args args{
      static_cast<int>(steps), static_cast<int>(columns), static_cast<int>(r.q.d[3]), true, true, {}, r.out.p};
  const int parts = parts_of_tokens(tiles, steps, processors);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
  if (status s = check(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape::bytes)),
          "rotate_grad");
      !s)
    return s;
  const cudaLaunchConfig_t how{dim3(static_cast<unsigned>(parts), static_cast<unsigned>(tiles)),
                               dim3(shape::threads),
                               shape::bytes,
                               stream,
                               &cluster,
                               1};
  void* arguments[] = {&maps, &args};
  return launch(how, kernel, arguments, "rotate_grad");
}
}  // namespace detail

inline status sum_blocks(const on_stream& on, const rotate_sums<float>& r) {
  const dtype type = r.x.p.type;
  auto addressed = [&](const tensor<float>& t) {
    return t.p.type == type && t.d[3] % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.p.at) % 16 == 0;
  };
  const auto major = attribute_of_device(cudaDevAttrComputeCapabilityMajor),
             processors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  const bool fits = is_16_bit(type) && addressed(r.x) && addressed(r.t) && r.q.d[0] == 1 && r.q.d[1] > 1 &&
                    64 % r.q.d[3] == 0 && r.x.rows() > 0 && major && processors && *major == 9;
  if (!fits) return rotate_grad(on, r.out, r.x, r.t, r.q, r.transposed, r.scratch);
  return type == dtype::bf16 ? detail::launch_block_sums<__nv_bfloat16>(on.stream, r, *processors)
                             : detail::launch_block_sums<__half>(on.stream, r, *processors);
}

}  // namespace graft::cuda
