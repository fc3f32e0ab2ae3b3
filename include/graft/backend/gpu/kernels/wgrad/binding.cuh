// SPDX-License-Identifier: Apache-2.0
// wgrad_binding: a wgrad of a plan (a sum over tokens) bound to device memory, with the tensor maps of the last call's
// tensors. It runs on tensor cores where TMA can address both operands, otherwise by the batched GEMM.
#pragma once
#include <graft/backend/gpu/arch/tensor_map.h>
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/dispatch/launchers.cuh>
#include <graft/backend/gpu/kernels/gemm/batched.cuh>
#include <graft/backend/gpu/kernels/gemm/instances.cuh>
#include <graft/backend/gpu/kernels/wgrad/operand.h>
#include <graft/backend/gpu/runtime/library.h>
#include <graft/core/algorithm.h>
#include <graft/plan/launch/wgrad.h>

namespace graft::gpu {

template <class T> class wgrad_binding {
 public:
  wgrad_binding() = default;
  explicit wgrad_binding(const wgrad_launch& s) : sum_(s) {}
  const wgrad_launch& sum() const { return sum_; }

  // D = factor · leftᵀ right overwrites `to`, or is added to it where `adds`. A sum by column is d = Σ left ⊙ right.
  status run(cudaStream_t stream, const gemm_kernel_set& kernels, const launchers& launches, const target& device,
             long long m, const wgrad_operand& left, const wgrad_operand& right, const element_ptr<float>& factor,
             const element_ptr<float>& to, bool adds, const element_ptr<float>& scaled = {},
             const element_ptr<float>& scale = {}) {
    if (left.columns == 0 || right.columns == 0) return ok;
    if (sum_.by_column)
      return launches.columns == nullptr
                 ? launch_not_compiled("a column-wise wgrad")
                 : launches.columns(stream, device,
                                    {left.elements(), right.elements(), m, left.columns, adds, to, scaled, scale});
    const bool by_column = left.columns >= right.columns;
    const wgrad_operand &z = by_column ? left : right, &q = by_column ? right : left;
    const operands of[1] = {{z, q, by_column, adds, factor, to}};
    const wgrad_choice c = choice(m, of, 1, device, kernels);
    if (c.rank == 0) return on_any_device(stream, m, left, right, factor, to, adds);
    return run_on_tensor_cores(stream, kernels, c, m, of, 1);
  }

  // The operands of one wgrad as the kernel takes them: Z is the wider one.
  struct operands {
    wgrad_operand z, q;
    bool by_column, adds;
    element_ptr<float> factor, to;
  };
  // Runs this wgrad and another one over the same tokens as one launch. Returns false, and launches nothing, where no
  // kernel takes both.
  result<bool> run_pair(cudaStream_t stream, const gemm_kernel_set& kernels, const target& device, long long m,
                        const operands (&both)[2]) {
    const wgrad_choice c = choice(m, both, 2, device, kernels);
    if (c.rank == 0) return false;
    if (status s = run_on_tensor_cores(stream, kernels, c, m, both, 2); !s) return s.failure();
    return true;
  }

 private:
  static bool addressed(const wgrad_operand& o) { return o.type == dtype_of<T> && o.aligned(); }
  static wgrad_choice choice(long long m, const operands* of, int count, const target& device,
                             const gemm_kernel_set& kernels) {
    wgrad_problem all[max_wgrads_of_launch];
    for (int i = 0; i < count; ++i)
      all[i] = {dtype_of<T>, m, of[i].z.columns, of[i].q.columns, addressed(of[i].z) && addressed(of[i].q)};
    return choose_wgrads(all, count, device, kernels.have);
  }
  status run_on_tensor_cores(cudaStream_t stream, const gemm_kernel_set& kernels, const wgrad_choice& c, long long m,
                             const operands* of, int count) {
    wgrad_args args{static_cast<int>((m + wgrad_step - 1) / wgrad_step), wgrad_tiles(of[0].z.columns)};
    unsigned tiles = 0, rank_tiles = 1;
    for (int i = 0; i < count; ++i) {
      const wgrad_operand &z = of[i].z, &q = of[i].q;
      if (m != m_ || z != z_[i] || q != q_[i] || c.rank != rank_) {
        m_ = 0;  // invalid until both maps are made
        if (status s = make_map(maps_.z[i], dtype_of<T>, {z.data, m, z.columns, z.pitch}, wgrad_step, 64); !s) return s;
        if (status s = make_map(maps_.q[i], dtype_of<T>, {q.data, m, q.pitch, q.pitch}, wgrad_step, min_of(c.rank, 64));
            !s)
          return s;
        z_[i] = z, q_[i] = q;
      }
      args.job[i] = {z.columns, q.columns, of[i].by_column, of[i].adds, of[i].factor, of[i].to};
      tiles += static_cast<unsigned>(wgrad_tiles(z.columns));
      rank_tiles = static_cast<unsigned>((q.columns + c.rank - 1) / c.rank);
    }
    m_ = m, rank_ = c.rank;
    const kernel_entry& what = kernels.sum[wgrad_index(c.rank)];
    if (c.one_block_per_sm) args.stages = wgrad_shape<wide_tile_rank>::stages_one_block;
    const std::uint32_t shared =
        c.rank == wide_tile_rank && !c.one_block_per_sm ? wgrad_shape<wide_tile_rank>::bytes : what.shared;
    if (status s = check(cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(what.shared)),
                         "wgrad");
        !s)
      return s;
    cudaLaunchAttribute attributes[2] = {pdl_attribute(), {}};
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned>(c.splits), 1, 1};
    const cudaLaunchConfig_t config{
        dim3(static_cast<unsigned>(c.splits), tiles, rank_tiles), dim3(what.threads), shared, stream, attributes, 2};
    void* arguments[] = {&maps_, &args};
    return launch(config, what.kernel, arguments, "wgrad");
  }
  static status on_any_device(cudaStream_t stream, long long m, const wgrad_operand& left, const wgrad_operand& right,
                              const element_ptr<float>& factor, const element_ptr<float>& to, bool adds) {
    auto operand = [](const wgrad_operand& o) { return gpu::factor<float>{o.elements(), 1, o.pitch, {0, 0}}; };
    constexpr sixteen_bit_types narrow = in_library ? sixteen_bit_types::both : sixteen_bit_types_of(dtype_of<T>);
    const products<float> p{operand(left), operand(right), to,           left.columns, right.columns, m,
                            {1, 1},        false,          adds ? 1 : 0, factor};
    return multiply<float, narrow>(on_stream{stream}, p);
  }

  wgrad_launch sum_;
  wgrad_maps maps_{};
  long long m_ = 0;
  wgrad_operand z_[max_wgrads_of_launch]{}, q_[max_wgrads_of_launch]{};
  int rank_ = 0;
};

}  // namespace graft::gpu
