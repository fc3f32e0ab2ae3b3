// SPDX-License-Identifier: Apache-2.0
// The kernels for products of few tokens with codes, as pointers, and such a product ready to be launched.
#pragma once
#include <graft/backend/cuda/kernel_entry.h>
#include <graft/backend/cuda/launch.h>
#include <graft/backend/cuda/stream_codes.cuh>
#include <graft/backend/cuda/tensor_map.h>

#include <type_traits>
#include <utility>

namespace graft::cuda {

// By tokens, blocks that share rows and their warpgroups, as choose_codes names them.
inline constexpr code_shape code_shapes[] = {{8, 2, 4},  {8, 2, 2},  {8, 4, 2}, {16, 2, 2},
                                             {16, 4, 4}, {16, 4, 2}, {32, 4, 2}};
inline constexpr int code_shape_count = sizeof code_shapes / sizeof code_shapes[0];

struct code_kernels {
  kernel_entry four_bits[code_shape_count], eight_bits[code_shape_count];
  const kernel_entry& of(const encoding& e, const code_choice& c) const {
    int k = 0;
    while (k + 1 < code_shape_count && code_shapes[k] != code_shape{c.tokens, c.splits, c.groups}) ++k;
    return has_four_bits(e) ? four_bits[k] : eight_bits[k];
  }
};
template <class T> code_kernels all_code_kernels() {
  code_kernels all;
  if constexpr (sizeof(T) == 2) {
    auto add = [&]<int K>(std::integral_constant<int, K>) {
      constexpr code_shape s = code_shapes[K];
      all.four_bits[K] = {reinterpret_cast<const void*>(&stream_codes_kernel<T, true, s.tokens, s.splits, s.groups>),
                          static_cast<unsigned>(code_ring<T, true, s.tokens, s.splits, s.groups>::threads),
                          code_memory_bytes};
      all.eight_bits[K] = {reinterpret_cast<const void*>(&stream_codes_kernel<T, false, s.tokens, s.splits, s.groups>),
                           static_cast<unsigned>(code_ring<T, false, s.tokens, s.splits, s.groups>::threads),
                           code_memory_bytes};
    };
    [&]<int... K>(std::integer_sequence<int, K...>) { (add(std::integral_constant<int, K>{}), ...); }
    (std::make_integer_sequence<int, code_shape_count>{});
  }
  return all;
}

// What stays the same from call to call.
struct code_operands {
  view weight{};
  dtype computes = dtype::bf16;
  adapter_slot slot{};
  activation act = activation::none;
  int n = 0, k = 0;
};

class code_calls {
 public:
  code_calls() = default;
  code_calls(const code_kernels& kernels, const target& device, const code_operands& stays)
      : kernels_(&kernels), device_(device), stays_(stays), from_(coded_of(stays.weight)) {}

  bool empty() const { return kernels_ == nullptr; }
  // `chained`: codes and adapter may be read before the kernel ahead in the stream has finished.
  status run(cudaStream_t stream, const code_choice& c, long long m, const void* x, void* y, const void* residual,
             bool chained) {
    const encoding& how = from_.how;
    const kernel_entry& what = kernels_->of(how, c);
    if (what.kernel == nullptr) return fail("the kernel 'stream of codes' is not compiled into this program");
    if (!made_) {
      const long long bytes = bytes_of_codes(how, 1, stays_.k);
      if (status s = make_map(map_, dtype::bf16, {stays_.weight.data, stays_.n, bytes / 2}, 64, 64); !s) return s;
      made_ = true;
    }
    if (ready_ != what.kernel)
      if (status s = prepare(what, c.splits); !s) return s;
    code_args g{};
    g.from = from_, g.slot = stays_.slot, g.act = stays_.act, g.n = stays_.n, g.k = stays_.k;
    g.steps = c.steps, g.own_steps = c.own_steps, g.part_steps = c.part_steps;
    const bool aligned = reinterpret_cast<std::uintptr_t>(from_.scales) % 16 == 0;
    g.four_together = aligned && how.block == 64 && stays_.k % 256 == 0 && c.own_steps % 4 == 0 &&
                      (how.scales == dtype::f32 || how.second_block == encodings::nested_block);
    g.tiles = (stays_.n + 63) / 64, g.stages = c.at.stages;
    auto offset = [](long long at) { return static_cast<std::uint32_t>(at); };
    g.x_at = offset(c.at.x), g.ring_at = offset(c.at.ring), g.scales_at = offset(c.at.scales);
    g.inbox_at = offset(c.at.inbox), g.s_at = offset(c.at.s), g.barriers_at = offset(c.at.barriers);
    const int rounds = (g.tiles + clusters_ - 1) / clusters_, clusters = (g.tiles + rounds - 1) / rounds;
    cudaLaunchAttribute attributes[2] = {in_clusters(c.splits), {}};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{dim3(static_cast<unsigned>(c.splits), static_cast<unsigned>(clusters)),
                              dim3(what.threads),
                              what.shared,
                              stream,
                              attributes,
                              chained ? 2U : 1U};
    const long long pitch = bits_of(stays_.computes) / 8;
    for (long long first = 0; first < m; first += c.tokens) {
      const auto row = [&](const void* p, long long width) {
        return p == nullptr ? nullptr : static_cast<const char*>(p) + first * width * pitch;
      };
      g.m = static_cast<int>(m - first < c.tokens ? m - first : c.tokens);
      g.x = row(x, stays_.k), g.residual = row(residual, stays_.n);
      g.y = const_cast<char*>(row(y, stays_.n));
      void* arguments[] = {&map_, &g};
      if (status s = launch(config, what.kernel, arguments, "stream of codes"); !s) return s;
      config.numAttrs = 2;
    }
    return ok;
  }

 private:
  static cudaLaunchAttribute in_clusters(int blocks) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    return cluster;
  }
  // How many clusters run at the same time; the others would run after them.
  status prepare(const kernel_entry& what, int splits) {
    const auto bytes = static_cast<int>(what.shared);
    if (status s = check(cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                         "the stream of codes");
        !s)
      return s;
    cudaLaunchAttribute cluster = in_clusters(splits);
    const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(splits), static_cast<unsigned>(device_.processors)),
                                    dim3(what.threads),
                                    what.shared,
                                    nullptr,
                                    &cluster,
                                    1};
    if (status s =
            check(cudaOccupancyMaxActiveClusters(&clusters_, what.kernel, &config), "asking how many blocks fit");
        !s)
      return s;
    if (clusters_ == 0) return fail("no cluster of thread blocks of the stream of codes fits on this GPU");
    return ready_ = what.kernel, status(ok);
  }

  const code_kernels* kernels_ = nullptr;
  target device_;
  code_operands stays_;
  coded from_;
  CUtensorMap map_{};
  bool made_ = false;
  const void* ready_ = nullptr;
  int clusters_ = 1;
};

}  // namespace graft::cuda
