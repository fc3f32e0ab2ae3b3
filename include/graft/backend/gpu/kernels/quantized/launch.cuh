// SPDX-License-Identifier: Apache-2.0
// Kernels and launch of skinny GEMMs on quantized weights: the instantiations as pointers, and quantized_gemm, which
// binds layers once and launches them per call.
#pragma once
#include <graft/backend/gpu/kernels/quantized/skinny_sm90.cuh>
#include <graft/backend/gpu/kernels/skinny/shrink.cuh>
#include <graft/backend/gpu/runtime/kernel_entry.h>
#include <graft/backend/gpu/runtime/launch.h>

#include <type_traits>
#include <utility>

namespace graft::gpu {

// Kernels per layout, 8 or 16 tokens, with or without low-rank branch, single layer or grouped, whole units or any. A
// combination without an instantiation uses a more general kernel.
struct quantized_kernels {
  using entries = kernel_entry[2][2];  // [with branch, without][8 tokens, 16 tokens]
  struct layout_kernels {
    entries single_layer[2], grouped[2];  // [any units, whole units]
  };
  layout_kernels by_layout[quant_layout_count];
  kernel_entry shrink;  // U of more than 8 tokens
  void add(const quantized_kernels& more) {
    if (more.shrink.kernel != nullptr) shrink = more.shrink;
    for (int f = 0; f < quant_layout_count; ++f)
      for (int whole = 0; whole < 2; ++whole)
        for (int plain = 0; plain < 2; ++plain)
          for (int e = 0; e < 2; ++e) {
            const auto take = [&](entries(&to)[2], const entries(&from)[2]) {
              if (from[whole][plain][e].kernel != nullptr) to[whole][plain][e] = from[whole][plain][e];
            };
            take(by_layout[f].single_layer, more.by_layout[f].single_layer),
                take(by_layout[f].grouped, more.by_layout[f].grouped);
          }
  }
  bool has(const quantized_choice& c, bool has_branch) const {
    return of(c, has_branch, false, true).kernel != nullptr;
  }
  const kernel_entry& of(const quantized_choice& c, bool has_branch, bool whole, bool grouped) const {
    const layout_kernels& form = by_layout[static_cast<int>(c.form)];
    const entries(&all)[2] = grouped ? form.grouped : form.single_layer;
    const int plain = has_branch ? 0 : 1, e = c.tokens / 8 - 1;
    const kernel_entry &best = all[whole ? 1 : 0][plain][e], &any = all[0][plain][e];
    return best.kernel != nullptr ? best : any.kernel != nullptr || !grouped ? any : all[0][0][e];
  }
};
namespace detail {
template <class T, quant_layout Form, int NTiles, bool Branch, bool FullUnits, bool Grouped>
kernel_entry quantized_entry() {
  return {reinterpret_cast<const void*>(&quantized_skinny_kernel<T, Form, NTiles, Branch, FullUnits, Grouped>),
          static_cast<unsigned>(quantized_block<T, Form, NTiles, Branch, FullUnits, Grouped>::threads),
          quant_smem_bytes};
}
template <class T, quantized_mask Which, int NTiles> void add_quantized_kernels(quantized_kernels& to) {
  constexpr quant_layout form = Which.layout;
  if constexpr (sizeof(T) == 2 && form != quant_layout::none) {
    constexpr int e = NTiles - 1;
    constexpr bool branch = Which.with_branch, plain = Which.without_branch, whole = Which.whole_units;
    constexpr bool plain_grouped = has_block_scales(form) || form == quant_layout::q8_0;
    quantized_kernels::layout_kernels& of = to.by_layout[static_cast<int>(form)];
    if constexpr (branch && shrinks_first(NTiles * 8))
      to.shrink = {reinterpret_cast<const void*>(&shrink_kernel<T>), shrink_threads, 0};
    if constexpr (branch) of.single_layer[0][0][e] = quantized_entry<T, form, NTiles, true, false, false>();
    if constexpr (plain && (form != quant_layout::q8_0 || NTiles == 2))
      of.single_layer[0][1][e] = quantized_entry<T, form, NTiles, false, false, false>();
    if constexpr (branch && whole) of.single_layer[1][0][e] = quantized_entry<T, form, NTiles, true, true, false>();
    if constexpr (plain && whole) of.single_layer[1][1][e] = quantized_entry<T, form, NTiles, false, true, false>();
    if constexpr (branch || !plain_grouped) of.grouped[0][0][e] = quantized_entry<T, form, NTiles, true, false, true>();
    if constexpr (plain && plain_grouped) of.grouped[0][1][e] = quantized_entry<T, form, NTiles, false, false, true>();
    if constexpr (form == quant_layout::block_scales && whole) {
      if constexpr (branch) of.grouped[1][0][e] = quantized_entry<T, form, NTiles, true, true, true>();
      if constexpr (plain) of.grouped[1][1][e] = quantized_entry<T, form, NTiles, false, true, true>();
    }
  }
}
}  // namespace detail
// The selected kernels of one layout.
template <class T, quantized_mask Which> quantized_kernels quantized_kernels_of() {
  quantized_kernels all;
  detail::add_quantized_kernels<T, Which, 1>(all), detail::add_quantized_kernels<T, Which, 2>(all);
  return all;
}
// All kernels of up to 8 tokens, or of up to 16.
template <class T, int Tokens> quantized_kernels all_quantized_kernels() {
  quantized_kernels all;
  const auto add = [&]<int... Forms>(std::integer_sequence<int, Forms...>) {
    (detail::add_quantized_kernels<T, every_quantized_kernel(static_cast<quant_layout>(Forms)), Tokens / 8>(all), ...);
  };
  add(std::make_integer_sequence<int, quant_layout_count>());
  return all;
}

// Operands of a layer that stay the same from call to call.
struct quantized_operands {
  view weight{};
  dtype computes = dtype::bf16;
  adapter_args adapter{};
  activation act = activation::none;
  int n = 0, k = 0;
};

// The tensors of one call, and memory for partial sums of U = x Aᵀ where there is a low-rank branch.
struct quantized_tensors {
  const void* x = nullptr;
  void* y[max_segments] = {};  // per layer; a gated pair has one
  const void* residual = nullptr;
  float* shrink_out = nullptr;
  std::uint32_t* counters = nullptr;
  bool has_shrink = false;  // shrink_out already holds U of more than 8 tokens
};

// A skinny GEMM on one quantized layer, or on several that read the same x.
class quantized_gemm {
 public:
  quantized_gemm() = default;
  quantized_gemm(const quantized_kernels& kernels, const target& device, const quantized_operands* stays, int count)
      : kernels_(&kernels), device_(device), count_(count) {
    for (int i = 0; i < count; ++i) fixed_operands_[i] = stays[i], from_[i] = quantized_weight_of(stays[i].weight);
  }

  bool empty() const { return kernels_ == nullptr; }
  // `pdl`: weights and adapter may be read before the previous kernel in the stream has finished (programmatic
  // dependent launch). `exclusive`: no other layer runs on the device at the same time (engine::queue).
  status run(cudaStream_t stream, const quantized_choice& c, long long m, const quantized_tensors& with, bool pdl,
             bool exclusive) {
    quantized_args<max_segments> g{};
    single_layer_args one{};
    bool whole = c.splits == 1, has_branch = false;
    fill(g, c, m, with, whole, has_branch);
    const bool shrink_precomputed = has_branch && shrinks_first(c.tokens);
    if (shrink_precomputed && !with.has_shrink)
      if (status s = shrink(stream, g, pdl); !s) return s;
    const int layers = count_ * c.groups;
    const bool grouped = layers > 1 || kernels_->of(c, has_branch, whole, false).kernel == nullptr;
    const kernel_entry& what = kernels_->of(c, has_branch, whole, grouped);
    if (what.kernel == nullptr) return fail("the kernel 'quantized skinny GEMM' is not compiled into this program");
    if (ready_ != what.kernel)
      if (status s = prepare(what, c.splits); !s) return s;
    const int clusters = assign_clusters(g, c.gated ? 1 : layers);
    cudaLaunchAttribute attributes[3];
    unsigned count = 0;
    if (c.splits > 1) attributes[count++] = in_clusters(c.splits);
    if (has_branch && !shrink_precomputed && !exclusive) {  // cooperative: CTAs wait for each other
      attributes[count].id = cudaLaunchAttributeCooperative;
      attributes[count++].val.cooperative = 1;
    }
    attributes[count] = pdl_attribute();
    cudaLaunchConfig_t config{
        dim3(static_cast<unsigned>(c.splits), static_cast<unsigned>(clusters)),
        dim3(what.threads),
        what.shared,
        stream,
        attributes,
        count + (pdl || (shrink_precomputed && !with.has_shrink) ? 1U : 0U)};  // the shrink writes nothing read early
    void* arguments[] = {&g};
    if (!grouped) one = single_layer(g), arguments[0] = &one;
    return launch(config, what.kernel, arguments, "quantized skinny GEMM");
  }

 private:
  // Launches the shrink U = x Aᵀ of all layers before the GEMM.
  status shrink(cudaStream_t stream, const quantized_args<max_segments>& g, bool pdl) const {
    shrink_args with{g.x, g.m, g.k, {}, {}};
    int clusters = 0, all_ranks = 0;
    for (const quantized_product& of : g.segment) all_ranks += of.adapter.rank;
    for (int s = 0, before = 0; s < max_segments; ++s) {
      const quantized_product& of = g.segment[s];
      const int rank = of.adapter.rank;
      with.first[s] = clusters;
      with.segment[s] = {of.adapter, g.gated ? g.segment[0].shrink_out + before : of.shrink_out,
                         g.gated ? all_ranks : rank, of.first_token};
      clusters += rank / 16, before += rank;
    }
    cudaLaunchAttribute attributes[2] = {in_clusters(shrink_blocks), pdl_attribute()};
    const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(clusters * shrink_blocks)),
                                    dim3(kernels_->shrink.threads),
                                    0,
                                    stream,
                                    attributes,
                                    pdl ? 2U : 1U};
    void* arguments[] = {&with};
    return launch(config, kernels_->shrink.kernel, arguments, "shrink");
  }
  void fill(quantized_args<max_segments>& g, const quantized_choice& c, long long m, const quantized_tensors& with,
            bool& whole, bool& has_branch) const {
    g.x = with.x, g.m = static_cast<int>(m);
    g.k = fixed_operands_[0].k, g.steps = g.k / 64, g.own = c.own, g.splits = c.splits, g.phase = c.at.phase,
    g.gated = c.gated;
    const auto offset = [](long long at) { return static_cast<std::uint32_t>(at); };
    g.ring_at = offset(c.at.ring), g.scales_at = offset(c.at.scales), g.shrink_at = offset(c.at.shrink_out);
    g.b_at = offset(c.at.b);
    g.sums_at = offset(c.at.sums), g.partials_at = offset(c.at.partials);
    g.ready_at = offset(c.at.ready), g.nested_at = offset(c.at.nested);
    long long partials = 0;
    const long long pitch = bits_of(fixed_operands_[0].computes) / 8;
    for (int s = 0; s < count_ * c.groups; ++s) {
      const int i = s % count_;
      const long long first = s / count_ * c.tokens;
      const auto row = [&](const void* p, long long width) {
        return p == nullptr ? nullptr : static_cast<const char*>(p) + first * width * pitch;
      };
      quantized_product& of = g.segment[s];
      const quantized_weight& from = from_[i];
      of.from = from, of.adapter = fixed_operands_[i].adapter, of.act = fixed_operands_[i].act,
      of.n = fixed_operands_[i].n;
      of.first_token = static_cast<int>(first);
      of.residual = row(with.residual, of.n), of.y = const_cast<char*>(row(with.y[i], of.n));
      of.units = (of.n + unit_rows - 1) / unit_rows;
      of.shrink_out = with.shrink_out + partials, of.counters = with.counters + 2 * s;
      partials += shrink_partial_bytes(of.adapter.rank, c.tokens) / 4;
      const bool nested = from.format.scales == dtype::u8;
      of.scales_contiguous = from.format.block == 64 && g.k % (64 * quant_steps) == 0 && c.own == quant_steps &&
                             reinterpret_cast<std::uintptr_t>(from.scales) % (nested ? 4 : 16) == 0 &&
                             (!nested || from.second_shift >= 2);
      whole = whole && of.n % unit_rows == 0 && of.adapter.prologue == nullptr &&
              g.steps == quant_warps * quant_steps && has_unit_scales(of);
      has_branch = has_branch || of.adapter.rank > 0;
    }
  }
  // Returns true if a warp's scales of a row are one vector, and their distance from unit to unit is constant.
  static bool has_unit_scales(const quantized_product& of) {
    const quantized_weight& from = of.from;
    if (!is_four_bit(from.format)) return true;
    if (from.format.scales == dtype::u8) return of.scales_contiguous && from.second_shift <= 10;
    return of.scales_contiguous || (from.format.block == 32 && reinterpret_cast<std::uintptr_t>(from.scales) % 16 == 0);
  }
  static single_layer_args single_layer(const quantized_args<max_segments>& g) {
    const quantized_product& of = g.segment[0];
    single_layer_args one{};
    one.first_x = g.x, one.first_weight = of.from.qweight, one.first_scales = of.from.scales;
    one.first_y = of.y, one.tokens = g.m, one.unit_count = of.units;
    one.bare = of.adapter.scale == nullptr && of.adapter.shift == nullptr && of.act == activation::none &&
               of.residual == nullptr;
    one.x = g.x, one.m = g.m, one.k = g.k, one.steps = g.steps, one.own = g.own, one.splits = g.splits;
    one.phase = g.phase, one.ring_at = g.ring_at, one.scales_at = g.scales_at, one.nested_at = g.nested_at;
    one.ready_at = g.ready_at, one.shrink_at = g.shrink_at, one.b_at = g.b_at;
    one.sums_at = g.sums_at, one.partials_at = g.partials_at;
    one.segment[0] = of;
    return one;
  }
  // Assigns clusters to the layers and returns how many are used. With more than three units per cluster, leftover
  // clusters take units too, so that all of them read memory until the end.
  int assign_clusters(quantized_args<max_segments>& g, int layers) const {
    int units[max_segments] = {}, used = 0;
    for (int i = 0; i < layers; ++i) units[i] = g.segment[i].units;
    const int rounds = units_per_cluster(units, layers, clusters_);
    for (int i = 0; i < max_segments; ++i)
      used += g.segment[i].clusters = i < layers ? (units[i] + rounds - 1) / rounds : 0;
    for (int i = 0, full = 0; rounds > 3 && used < clusters_ && full < layers; i = (i + 1) % layers) {
      const bool more = g.segment[i].clusters < units[i];
      g.segment[i].clusters += more ? 1 : 0, used += more ? 1 : 0, full = more ? 0 : full + 1;
    }
    for (int i = 0, first = 0; i < max_segments; ++i) {
      g.segment[i].first = i < layers ? first : clusters_;
      first += g.segment[i].clusters;
    }
    return used;
  }
  static cudaLaunchAttribute in_clusters(int blocks) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    return cluster;
  }
  // Finds how many clusters can be resident at once.
  status prepare(const kernel_entry& what, int splits) {
    const auto bytes = static_cast<int>(what.shared);
    if (status s = check(cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                         "the quantized skinny GEMM");
        !s)
      return s;
    cudaLaunchAttribute cluster = in_clusters(splits);
    const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(splits), static_cast<unsigned>(device_.sm_count)),
                                    dim3(what.threads),
                                    what.shared,
                                    nullptr,
                                    &cluster,
                                    1};
    if (status s =
            check(cudaOccupancyMaxActiveClusters(&clusters_, what.kernel, &config), "asking how many blocks fit");
        !s)
      return s;
    if (clusters_ == 0) return fail("no cluster of thread blocks of the quantized skinny GEMM fits on this GPU");
    return ready_ = what.kernel, status(ok);
  }

  const quantized_kernels* kernels_ = nullptr;
  target device_;
  int count_ = 0;
  quantized_operands fixed_operands_[max_segments];
  quantized_weight from_[max_segments];
  const void* ready_ = nullptr;
  int clusters_ = 1;
};

}  // namespace graft::gpu
