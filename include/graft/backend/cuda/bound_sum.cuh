// SPDX-License-Identifier: Apache-2.0
// A sum over the tokens bound to device memory: its tensor maps for the tensors of the last call, and its launch. Products
// run on the tensor cores where the copy engine can address both operands, else by the kernel for any product.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/backend/cuda/launchers.cuh>
#include <graft/backend/cuda/library.h>
#include <graft/backend/cuda/linear_kernels.cuh>
#include <graft/backend/cuda/product.cuh>
#include <graft/backend/cuda/sum_operand.h>
#include <graft/backend/cuda/tensor_map.h>
#include <graft/core/few_numbers.h>
#include <graft/plan/token_sum.h>

namespace graft::cuda {

template <class T> class bound_sum {
 public:
  bound_sum() = default;
  explicit bound_sum(const token_sum& s) : sum_(s) {}
  const token_sum& sum() const { return sum_; }

  // D = leftᵀ right, times the factor where there is one, into or onto `to`.
  status run(cudaStream_t stream, const linear_kernels& kernels, const launchers& launches, const target& device,
             long long m, const sum_operand& left, const sum_operand& right, const cells<float>& factor,
             const cells<float>& to, bool adds, const cells<float>& scaled = {}, const cells<float>& scale = {}) {
    if (left.columns == 0 || right.columns == 0) return ok;
    if (sum_.by_column)
      return launches.columns == nullptr
                 ? not_launched("a sum per column")
                 : launches.columns(stream, device,
                                    {left.elements(), right.elements(), m, left.columns, adds, to, scaled, scale});
    const bool by_column = left.columns >= right.columns;
    const sum_operand &z = by_column ? left : right, &q = by_column ? right : left;
    const sum_choice c =
        choose_sum({dtype_of<T>, m, z.columns, q.columns, addressed(z) && addressed(q)}, device, kernels.have);
    if (c.rank == 0) return on_any_device(stream, m, left, right, factor, to, adds);
    if (m != m_ || z != z_ || q != q_ || c.rank != rank_) {
      m_ = 0;  // until both maps are made
      if (status s = make_map(maps_.z, dtype_of<T>, {z.data, m, z.columns, z.pitch}, sum_step, 64); !s) return s;
      if (status s = make_map(maps_.q, dtype_of<T>, {q.data, m, q.pitch, q.pitch}, sum_step, smaller_of(c.rank, 64));
          !s)
        return s;
      m_ = m, z_ = z, q_ = q, rank_ = c.rank;
    }
    sum_args args{static_cast<int>((m + sum_step - 1) / sum_step), z.columns, q.columns, by_column, adds, factor, to};
    const kernel_entry& what = kernels.sum[sum_index(c.rank)];
    if (c.alone) args.stages = sum_shape<wide_rank>::stages_alone;
    const std::uint32_t shared = c.rank == wide_rank && !c.alone ? sum_shape<wide_rank>::bytes : what.shared;
    if (status s = check(cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(what.shared)),
                         "sum over tokens");
        !s)
      return s;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(c.parts), 1, 1};
    const auto tiles = [](int n, int tile) { return static_cast<unsigned>((n + tile - 1) / tile); };
    const dim3 grid(static_cast<unsigned>(c.parts), tiles(z.columns, sum_columns), tiles(q.columns, c.rank));
    const cudaLaunchConfig_t how{grid, dim3(what.threads), shared, stream, &cluster, 1};
    void* arguments[] = {&maps_, &args};
    return launch(how, what.kernel, arguments, "sum over tokens");
  }

 private:
  static bool addressed(const sum_operand& o) { return o.type == dtype_of<T> && o.aligned(); }
  static status on_any_device(cudaStream_t stream, long long m, const sum_operand& left, const sum_operand& right,
                              const cells<float>& factor, const cells<float>& to, bool adds) {
    auto operand = [](const sum_operand& o) { return cuda::factor<float>{o.elements(), 1, o.pitch, {0, 0}}; };
    constexpr narrow_types narrow = in_library ? narrow_types::both : narrow_types_of(dtype_of<T>);
    const products<float> p{operand(left), operand(right), to,           left.columns, right.columns, m,
                            {1, 1},        false,          adds ? 1 : 0, factor};
    return multiply<float, narrow>(on_stream{stream}, p);
  }

  token_sum sum_;
  sum_maps maps_{};
  long long m_ = 0;
  sum_operand z_{}, q_{};
  int rank_ = 0;
};

}  // namespace graft::cuda
