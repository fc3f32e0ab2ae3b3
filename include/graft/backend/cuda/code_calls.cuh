// SPDX-License-Identifier: Apache-2.0
// The kernels for products of few tokens with codes, as pointers, and such a product ready to be launched.
#pragma once
#include <graft/backend/cuda/brief_codes.cuh>
#include <graft/backend/cuda/kernel_entry.h>
#include <graft/backend/cuda/launch.h>
#include <graft/backend/cuda/shrink_ahead.cuh>
#include <graft/backend/cuda/stream_codes.cuh>

#include <type_traits>

namespace graft::cuda {

// For 8 tokens and for 16, with a side branch and without, of one layer by itself and of linked ones, for whole units and
// for any; what has no kernel of its own is read by one that can more.
struct code_kernels {
  using entries = kernel_entry[2][2];  // the first with a side branch; of 8 tokens and of 16
  struct of_form {
    entries lone[2], linked[2];  // the second for whole units
    kernel_entry brief[2];       // of up to 8 tokens; the first with a side branch
  };
  of_form by_form[code_forms];
  kernel_entry shrink;  // S of more than eight tokens
  void add(const code_kernels& more) {
    if (more.shrink.kernel != nullptr) shrink = more.shrink;
    for (int f = 0; f < code_forms; ++f) {
      for (int plain = 0; plain < 2; ++plain)
        if (more.by_form[f].brief[plain].kernel != nullptr) by_form[f].brief[plain] = more.by_form[f].brief[plain];
      for (int whole = 0; whole < 2; ++whole)
        for (int plain = 0; plain < 2; ++plain)
          for (int e = 0; e < 2; ++e) {
            const auto take = [&](entries(&to)[2], const entries(&from)[2]) {
              if (from[whole][plain][e].kernel != nullptr) to[whole][plain][e] = from[whole][plain][e];
            };
            take(by_form[f].lone, more.by_form[f].lone), take(by_form[f].linked, more.by_form[f].linked);
          }
    }
  }
  bool has(const code_choice& c) const { return of(c, true, false, true).kernel != nullptr; }
  const kernel_entry& brief(const code_choice& c, bool side) const {
    return by_form[static_cast<int>(c.form)].brief[side ? 0 : 1];
  }
  const kernel_entry& of(const code_choice& c, bool side, bool whole, bool linked) const {
    const of_form& form = by_form[static_cast<int>(c.form)];
    const entries(&all)[2] = linked ? form.linked : form.lone;
    const int plain = side ? 0 : 1, e = c.tokens / 8 - 1;
    const kernel_entry &best = all[whole ? 1 : 0][plain][e], &any = all[0][plain][e];
    return best.kernel != nullptr ? best : any.kernel != nullptr || !linked ? any : all[0][0][e];
  }
};
namespace detail {
template <class T, code_form Form, int Eights, bool Side, bool Whole, bool Linked> kernel_entry code_entry() {
  return {reinterpret_cast<const void*>(&stream_codes_kernel<T, Form, Eights, Side, Whole, Linked>),
          static_cast<unsigned>(code_block<T, Form, Eights, Side, Whole, Linked>::threads), code_memory_bytes};
}
template <class T, code_form Form, bool Side> kernel_entry brief_entry() {
  return {reinterpret_cast<const void*>(&brief_codes_kernel<T, Form, Side>),
          static_cast<unsigned>(brief_block<T, Form, Side>::threads), brief_layout::bytes};
}
template <class T, code_form Form, int Eights> void add_code_kernels(code_kernels& to) {
  constexpr int e = Eights - 1;
  code_kernels::of_form& of = to.by_form[static_cast<int>(Form)];
  if constexpr (is_made_ahead(Eights * 8) && Form != code_form::none)
    to.shrink = {reinterpret_cast<const void*>(&shrink_ahead_kernel<T>), shrink_threads, 0};
  if constexpr (Form != code_form::none) {  // else a layer type whose weight is no codes
    of.lone[0][0][e] = code_entry<T, Form, Eights, true, false, false>();
    if constexpr (Form != code_form::q8_0 || Eights == 2)
      of.lone[0][1][e] = code_entry<T, Form, Eights, false, false, false>();
    of.lone[1][0][e] = code_entry<T, Form, Eights, true, true, false>();
    of.lone[1][1][e] = code_entry<T, Form, Eights, false, true, false>();
    of.linked[0][0][e] = code_entry<T, Form, Eights, true, false, true>();
  }
  if constexpr (has_long_runs(Form) && Eights == 1)
    of.brief[0] = brief_entry<T, Form, true>(), of.brief[1] = brief_entry<T, Form, false>();
  if constexpr (has_long_runs(Form) || Form == code_form::q8_0)
    of.linked[0][1][e] = code_entry<T, Form, Eights, false, false, true>();
  if constexpr (Form == code_form::runs) {
    of.linked[1][0][e] = code_entry<T, Form, Eights, true, true, true>();
    of.linked[1][1][e] = code_entry<T, Form, Eights, false, true, true>();
  }
}
}  // namespace detail
// Those of a form.
template <class T, code_form Form> code_kernels code_kernels_of() {
  code_kernels all;
  if constexpr (sizeof(T) == 2) detail::add_code_kernels<T, Form, 1>(all), detail::add_code_kernels<T, Form, 2>(all);
  return all;
}
// Those of up to 8 tokens, or of up to 16.
template <class T, int Tokens> code_kernels all_code_kernels() {
  code_kernels all;
  const auto add = [&]<code_form... Forms>() { (detail::add_code_kernels<T, Forms, Tokens / 8>(all), ...); };
  if constexpr (sizeof(T) == 2)
    add.template operator()<code_form::runs, code_form::nested_runs, code_form::short_runs, code_form::int8,
                            code_form::fp8, code_form::q8_0, code_form::q4_0>();
  return all;
}

// What stays the same from call to call, of each layer.
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
  void* y[max_segments] = {};  // of each layer; of a gate, one for both
  const void* residual = nullptr;
  float* side = nullptr;
  std::uint32_t* counters = nullptr;
  norm_ahead ahead{};  // of x, and behind y
  norm_behind behind{};
  bool has_side = false;  // S of more than eight tokens is in `side` already
};

// One layer, or several that read the same x.
class code_calls {
 public:
  code_calls() = default;
  code_calls(const code_kernels& kernels, const target& device, const code_operands* stays, int count)
      : kernels_(&kernels), device_(device), count_(count) {
    for (int i = 0; i < count; ++i) stays_[i] = stays[i], from_[i] = coded_of(stays[i].weight);
  }

  bool empty() const { return kernels_ == nullptr; }
  // `chained`: codes and adapter may be read before the kernel ahead in the stream has finished; `alone`: see
  // engine.cuh.
  status run(cudaStream_t stream, const code_choice& c, long long m, const code_tensors& with, bool chained,
             bool alone) {
    code_args<max_segments> g{};
    lone_code_args one{};
    bool whole = c.splits == 1, side = false;
    fill(g, c, m, with, whole, side);
    const bool ahead = side && is_made_ahead(c.tokens);
    if (ahead && !with.has_side)
      if (status s = shrink(stream, g, chained); !s) return s;
    const int layers = count_ * c.groups;
    const bool linked = layers > 1 || with.ahead.squares != nullptr || with.behind.gain != nullptr ||
                        kernels_->of(c, side, whole, false).kernel == nullptr;
    const int rank = stays_[0].slot.rank, rows = stays_[0].n;
    const bool brief =
        !linked && whole && is_brief(c, rows, rank, device_) && kernels_->brief(c, side).kernel != nullptr;
    const kernel_entry& what = brief ? kernels_->brief(c, side) : kernels_->of(c, side, whole, linked);
    if (what.kernel == nullptr) return fail("the kernel 'stream of codes' is not compiled into this program");
    if (ready_ != what.kernel)
      if (status s = prepare(what, c.splits); !s) return s;
    const int units = g.segment[0].units, brief_blocks = units < device_.processors ? units : device_.processors,
              clusters = brief ? brief_blocks : deal(g, c.gated ? 1 : layers);
    cudaLaunchAttribute attributes[3];
    unsigned count = 0;
    if (c.splits > 1) attributes[count++] = in_clusters(c.splits);
    if (side && !ahead && !alone) {  // its blocks wait for each other
      attributes[count].id = cudaLaunchAttributeCooperative;
      attributes[count++].val.cooperative = 1;
    }
    attributes[count] = begins_early();
    cudaLaunchConfig_t config{
        dim3(static_cast<unsigned>(c.splits), static_cast<unsigned>(clusters)),
        dim3(what.threads),
        what.shared,
        stream,
        attributes,
        count + (chained || (ahead && !with.has_side) ? 1U : 0U)};  // S does not write what is read early
    void* arguments[] = {&g};
    if (!linked) one = lone(g, brief ? with.counters : nullptr), arguments[0] = &one;
    return launch(config, what.kernel, arguments, "stream of codes");
  }

 private:
  // S of all layers, ahead of the product.
  status shrink(cudaStream_t stream, const code_args<max_segments>& g, bool chained) const {
    shrink_args with{g.x, g.m, g.k, {}, {}};
    int clusters = 0, all_ranks = 0;
    for (const code_segment& of : g.segment) all_ranks += of.slot.rank;
    for (int s = 0, before = 0; s < max_segments; ++s) {
      const code_segment& of = g.segment[s];
      const int rank = of.slot.rank;
      with.first[s] = clusters;
      with.segment[s] = {of.slot, g.gated ? g.segment[0].side + before : of.side, g.gated ? all_ranks : rank,
                         of.first_token};
      clusters += rank / 16, before += rank;
    }
    cudaLaunchAttribute attributes[2] = {in_clusters(shrink_blocks), begins_early()};
    const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(clusters * shrink_blocks)),
                                    dim3(kernels_->shrink.threads),
                                    0,
                                    stream,
                                    attributes,
                                    chained ? 2U : 1U};
    void* arguments[] = {&with};
    return launch(config, kernels_->shrink.kernel, arguments, "S of codes");
  }
  void fill(code_args<max_segments>& g, const code_choice& c, long long m, const code_tensors& with, bool& whole,
            bool& side) const {
    g.x = with.x, g.m = static_cast<int>(m);
    g.k = stays_[0].k, g.steps = g.k / 64, g.own = c.own, g.splits = c.splits, g.phase = c.at.phase, g.gated = c.gated;
    const auto offset = [](long long at) { return static_cast<std::uint32_t>(at); };
    g.ring_at = offset(c.at.ring), g.scales_at = offset(c.at.scales), g.side_at = offset(c.at.side);
    g.b_at = offset(c.at.b);
    g.sums_at = offset(c.at.sums), g.parts_at = offset(c.at.parts), g.factors_at = offset(c.at.factors);
    g.ready_at = offset(c.at.ready), g.nested_at = offset(c.at.nested);
    g.ahead = with.ahead, g.behind = with.behind;
    long long parts = 0;
    const long long pitch = bits_of(stays_[0].computes) / 8;
    for (int s = 0; s < count_ * c.groups; ++s) {
      const int i = s % count_;
      const long long first = s / count_ * c.tokens;
      const auto row = [&](const void* p, long long width) {
        return p == nullptr ? nullptr : static_cast<const char*>(p) + first * width * pitch;
      };
      code_segment& of = g.segment[s];
      const coded& from = from_[i];
      of.from = from, of.slot = stays_[i].slot, of.act = stays_[i].act, of.n = stays_[i].n;
      of.first_token = static_cast<int>(first);
      of.residual = row(with.residual, of.n), of.y = const_cast<char*>(row(with.y[i], of.n));
      of.units = (of.n + code_rows - 1) / code_rows;
      of.side = with.side + parts, of.counters = with.counters + 2 * s;
      parts += bytes_of_side_parts(of.slot.rank, c.tokens) / 4;
      const bool nested = from.how.scales == dtype::u8;
      of.four_together = from.how.block == 64 && g.k % (64 * code_steps) == 0 && c.own == code_steps &&
                         reinterpret_cast<std::uintptr_t>(from.scales) % (nested ? 4 : 16) == 0 &&
                         (!nested || from.second_shift >= 2);
      whole = whole && of.n % code_rows == 0 && of.slot.pre == nullptr && g.steps == code_warps * code_steps &&
              has_scales_of_units(of);
      side = side || of.slot.rank > 0;
    }
  }
  // Do the scales of a unit lie so that those of a row are copied together, and from unit to unit equally far?
  static bool has_scales_of_units(const code_segment& of) {
    const coded& from = of.from;
    if (!has_four_bits(from.how)) return true;
    if (from.how.scales == dtype::u8) return of.four_together && from.second_shift <= 10;
    return of.four_together || (from.how.block == 32 && reinterpret_cast<std::uintptr_t>(from.scales) % 16 == 0);
  }
  // `behind_kept`: where what brief_codes keeps ends, if that is what reads them.
  static lone_code_args lone(const code_args<max_segments>& g, std::uint32_t* behind_kept) {
    const code_segment& of = g.segment[0];
    lone_code_args one{};
    one.first_x = g.x, one.first_codes = of.from.codes, one.first_scales = of.from.scales;
    one.first_y = of.y, one.tokens = g.m, one.all_units = of.units;
    one.bare =
        of.slot.scale == nullptr && of.slot.shift == nullptr && of.act == activation::none && of.residual == nullptr;
    one.x = g.x, one.m = g.m, one.k = g.k, one.steps = g.steps, one.own = g.own, one.splits = g.splits;
    one.phase = g.phase, one.ring_at = g.ring_at, one.scales_at = g.scales_at, one.nested_at = g.nested_at;
    one.ready_at = g.ready_at, one.side_at = g.side_at, one.b_at = g.b_at;
    one.sums_at = g.sums_at, one.parts_at = g.parts_at;
    one.segment[0] = of;
    if (behind_kept != nullptr) {
      one.segment[0].side = reinterpret_cast<float*>(behind_kept) - bytes_kept_by_brief / 4;
      one.segment[0].counters = reinterpret_cast<std::uint32_t*>(one.segment[0].side + 2 * brief_set_floats);
    }
    return one;
  }
  // To each layer its clusters; how many there are. Where they have many units, those that are left over take some, so that
  // as many as there are read memory until the end.
  int deal(code_args<max_segments>& g, int layers) const {
    int units[max_segments] = {}, used = 0;
    for (int i = 0; i < layers; ++i) units[i] = g.segment[i].units;
    const int rounds = rounds_of_units(units, layers, clusters_);
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
  int count_ = 0;
  code_operands stays_[max_segments];
  coded from_[max_segments];
  const void* ready_ = nullptr;
  int clusters_ = 1;
};

}  // namespace graft::cuda
