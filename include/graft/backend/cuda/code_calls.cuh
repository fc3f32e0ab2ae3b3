// SPDX-License-Identifier: Apache-2.0
// The kernels for products of few tokens with codes, as pointers, and such a product ready to be launched.
#pragma once
#include <graft/backend/cuda/kernel_entry.h>
#include <graft/backend/cuda/launch.h>
#include <graft/backend/cuda/stream_codes.cuh>

#include <type_traits>

namespace graft::cuda {

// For 8 tokens and for 16; without a side branch, and for whole units, where those are kernels of their own.
struct code_kernels {
  kernel_entry by_form[code_forms][2], plain[code_forms][2];
  kernel_entry whole[2][2];  // runs, the second without a side branch
  void add(const code_kernels& more) {
    for (int e = 0; e < 2; ++e) {
      for (int f = 0; f < code_forms; ++f)
        if (more.by_form[f][e].kernel != nullptr) by_form[f][e] = more.by_form[f][e], plain[f][e] = more.plain[f][e];
      for (int p = 0; p < 2; ++p)
        if (more.whole[p][e].kernel != nullptr) whole[p][e] = more.whole[p][e];
    }
  }
  const kernel_entry& of(const code_choice& c, bool side, bool are_whole) const {
    const auto form = static_cast<int>(c.form), eights = c.tokens / 8 - 1;
    if (are_whole) return whole[side ? 0 : 1][eights];
    return side || plain[form][eights].kernel == nullptr ? by_form[form][eights] : plain[form][eights];
  }
};
namespace detail {
template <class T, code_form Form, int Eights, bool Side, bool Whole = false> kernel_entry code_entry() {
  return {reinterpret_cast<const void*>(&stream_codes_kernel<T, Form, Eights, Side, Whole>),
          static_cast<unsigned>(code_block<T, Form, Eights, Side, Whole>::threads), code_memory_bytes};
}
}  // namespace detail
template <class T, code_form... Forms> code_kernels code_kernels_of() {
  code_kernels all;
  const auto add = [&]<code_form Form>(std::integral_constant<code_form, Form>) {
    constexpr int f = static_cast<int>(Form);
    if constexpr (sizeof(T) == 2 && Form != code_form::none) {
      all.by_form[f][0] = detail::code_entry<T, Form, 1, true>();
      all.by_form[f][1] = detail::code_entry<T, Form, 2, true>();
    }
    if constexpr (sizeof(T) == 2 && Form == code_form::runs) {
      all.plain[f][0] = detail::code_entry<T, Form, 1, false>();
      all.plain[f][1] = detail::code_entry<T, Form, 2, false>();
      all.whole[0][0] = detail::code_entry<T, Form, 1, true, true>();
      all.whole[0][1] = detail::code_entry<T, Form, 2, true, true>();
      all.whole[1][0] = detail::code_entry<T, Form, 1, false, true>();
      all.whole[1][1] = detail::code_entry<T, Form, 2, false, true>();
    }
  };
  (add(std::integral_constant<code_form, Forms>{}), ...);
  return all;
}
template <class T> code_kernels all_code_kernels() {
  return code_kernels_of<T, code_form::runs, code_form::short_runs, code_form::bytes, code_form::q8_0,
                         code_form::q4_0>();
}

// What stays the same from call to call.
struct code_operands {
  view weight{};
  dtype computes = dtype::bf16;
  adapter_slot slot{};
  activation act = activation::none;
  int n = 0, k = 0;
};

// The tensors of one call, and memory for the parts of S where there is a side branch.
struct code_tensors {
  const void* x = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  float* side = nullptr;
  std::uint32_t* counters = nullptr;
};

class code_calls {
 public:
  code_calls() = default;
  code_calls(const code_kernels& kernels, const target& device, const code_operands& stays)
      : kernels_(&kernels), device_(device), stays_(stays), from_(coded_of(stays.weight)) {}

  bool empty() const { return kernels_ == nullptr; }
  // `chained`: codes and adapter may be read before the kernel ahead in the stream has finished; `alone`: see
  // engine.cuh.
  status run(cudaStream_t stream, const code_choice& c, long long m, const code_tensors& with, bool chained,
             bool alone) {
    code_args g{};
    g.from = from_, g.slot = stays_.slot, g.act = stays_.act, g.n = stays_.n, g.k = stays_.k;
    g.steps = g.k / 64, g.own = c.own, g.splits = c.splits;
    const bool nested = from_.how.scales == dtype::u8;
    g.four_together = from_.how.block == 64 && g.k % (64 * code_steps) == 0 && c.own == code_steps &&
                      reinterpret_cast<std::uintptr_t>(from_.scales) % (nested ? 4 : 16) == 0 &&
                      (!nested || from_.second_shift >= 2);
    const bool whole = g.four_together && !nested && g.n % code_rows == 0 && g.slot.pre == nullptr && c.splits == 1 &&
                       g.steps == code_warps * code_steps;
    const kernel_entry& what = kernels_->of(c, stays_.slot.rank > 0, whole);
    if (what.kernel == nullptr) return fail("the kernel 'stream of codes' is not compiled into this program");
    if (ready_ != what.kernel)
      if (status s = prepare(what, c.splits); !s) return s;
    g.units = (g.n + code_rows - 1) / code_rows, g.phase = c.at.phase;
    g.side = with.side, g.counters = with.counters;
    const auto offset = [](long long at) { return static_cast<std::uint32_t>(at); };
    g.ring_at = offset(c.at.ring), g.scales_at = offset(c.at.scales), g.side_at = offset(c.at.side);
    g.sums_at = offset(c.at.sums), g.parts_at = offset(c.at.parts);
    const int rounds = (g.units + clusters_ - 1) / clusters_, clusters = (g.units + rounds - 1) / rounds;
    const bool meets = g.slot.rank > 0;  // its blocks wait for each other
    cudaLaunchAttribute attributes[3];
    unsigned count = 0;
    if (c.splits > 1) attributes[count++] = in_clusters(c.splits);
    if (meets && !alone) {
      attributes[count].id = cudaLaunchAttributeCooperative;
      attributes[count++].val.cooperative = 1;
    }
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{dim3(static_cast<unsigned>(c.splits), static_cast<unsigned>(clusters)),
                              dim3(what.threads),
                              what.shared,
                              stream,
                              attributes,
                              count + (chained ? 1U : 0U)};
    const long long pitch = bits_of(stays_.computes) / 8;
    for (long long first = 0; first < m; first += c.tokens) {
      const auto row = [&](const void* p, long long width) {
        return p == nullptr ? nullptr : static_cast<const char*>(p) + first * width * pitch;
      };
      g.m = static_cast<int>(m - first < c.tokens ? m - first : c.tokens);
      g.x = row(with.x, stays_.k), g.residual = row(with.residual, stays_.n);
      g.y = const_cast<char*>(row(with.y, stays_.n));
      void* arguments[] = {&g};
      if (status s = launch(config, what.kernel, arguments, "stream of codes"); !s) return s;
      config.numAttrs = count + 1;
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
  const void* ready_ = nullptr;
  int clusters_ = 1;
};

}  // namespace graft::cuda
