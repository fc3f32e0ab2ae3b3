// SPDX-License-Identifier: Apache-2.0
// grouped_gemm_binding: a grouped GEMM of a plan (Q/K/V, or gate and up; plan/launch/gemm.h) bound to device memory,
// as segments of one skinny launch on plain or quantized weights, cached for the last token counts. Where no kernel
// takes the group, the caller runs its members one by one. A SwiGLU/GeGLU gate y = act(gate) ⊙ up may be part of the
// launch.
#pragma once
#include <graft/backend/gpu/kernels/gemm/binding.cuh>
#include <graft/backend/lru_cache.h>

namespace graft::gpu {

// Tensors of one call: x and y of each member; y[count] is the result of a gate that multiplies two members.
struct grouped_gemm_tensors {
  const void* const* x = nullptr;
  void* const* y = nullptr;
  bool gated = false;
  void* workspace = nullptr;
  std::uint32_t* counters = nullptr;
};

template <class T> class grouped_gemm_binding {
 public:
  grouped_gemm_binding() = default;
  // Groups products `first` to `first` + `count` - 1 of the plan.
  grouped_gemm_binding(int first, int count) : first_(first), count_(count) {}
  int first() const { return first_; }
  void invalidate() {
    cached_launches_.clear();
    quantized_ = quantized_gate_ = {};
  }
  enum class ran : unsigned char { nothing, products, gated };
  result<ran> run(cudaStream_t stream, const gemm_kernel_set& kernels, const target& device, long long m,
                  sequence<gemm_binding<T>>& products, const grouped_gemm_tensors& with, bool exclusive) {
    if (products[first_].is_quantized()) return run_quantized(stream, kernels, device, m, products, with, exclusive);
    const auto& [x, y, gated, workspace, counters] = with;
    const bool is_aligned = aligned(x, y, gated);
    cached_launch* to =
        cached_launches_.find([&](const cached_launch& k) { return k.m == m && k.aligned == is_aligned; });
    if (to == nullptr) {
      cached_launch fresh;
      fresh.m = m, fresh.aligned = is_aligned;
      to = &cached_launches_.add(std::move(fresh), 4);
      if (status s = bind(*to, kernels, device, m, products, x, y, gated); !s)
        return cached_launches_.drop_newest(), s.failure();
    } else if (to->does != ran::nothing) {
      const bool one = to->does == ran::gated;
      if (status s = set_tensors(to->bound, x, count_, one ? y + count_ : y, one ? 1 : count_); !s) return s.failure();
    }
    if (to->does == ran::nothing) return to->does;
    if (status s = launch(stream, to->bound, may_use_pdl(products)); !s) return s.failure();
    return to->does;
  }

 private:
  result<ran> run_quantized(cudaStream_t stream, const gemm_kernel_set& kernels, const target& device, long long m,
                            sequence<gemm_binding<T>>& products, const grouped_gemm_tensors& with, bool exclusive) {
    gemm_problem shapes[max_segments];
    quantized_operands operands[max_segments];
    for (int i = 0; i < count_; ++i) {
      const gemm_binding<T>& p = products[first_ + i];
      if (!p.is_quantized()) return ran::nothing;
      shapes[i] = p.quantized_problem(m), operands[i] = p.as_quantized();
      if (!shapes[i].aligned || reinterpret_cast<std::uintptr_t>(with.x[0]) % 16 != 0) return ran::nothing;
      if (with.x[i] != with.x[0]) return ran::nothing;  // quantized kernels read one x
    }
    quantized_choice c = with.gated ? choose_quantized_grouped(shapes, count_, true, device) : quantized_choice{};
    if (c.groups == 0) c = choose_quantized_grouped(shapes, count_, false, device);
    bool has_branch = false;
    for (int i = 0; i < count_; ++i) has_branch = has_branch || operands[i].adapter.rank > 0;
    if (c.groups == 0 || !kernels.quantized.has(c, has_branch)) return ran::nothing;
    quantized_gemm& calls = c.gated ? quantized_gate_ : quantized_;
    if (calls.empty()) calls = quantized_gemm(kernels.quantized, device, operands, count_);
    quantized_tensors now{with.x[0], {}, nullptr, static_cast<float*>(with.workspace), with.counters};
    for (int i = 0; i < count_; ++i) now.y[i] = with.y[c.gated ? count_ : i];
    if (status s = calls.run(stream, c, m, now, may_use_pdl(products), exclusive); !s) return s.failure();
    return c.gated ? ran::gated : ran::products;
  }
  struct cached_launch {
    long long m = 0;
    bool aligned = false;
    ran does = ran::nothing;
    prepared_gemm bound;  // without a kernel where the group cannot be one launch
  };
  // The autotuned choice where the program autotunes, otherwise the heuristic's.
  result<skinny_choice> fastest(const skinny_choice& rule, const gemm_kernel_set& kernels, const target& device,
                                const matrix& x, const gemm_problem* shapes, const skinny_layer* layers) const {
    if (kernels.timed.by == nullptr || rule.rows == 0 || rule.gated) return rule;
    return kernels.timed.grouped(kernels, device, x, shapes, layers, count_);
  }
  bool aligned(const void* const* x, void* const* y, bool gated) const {
    bool all = true;
    for (int i = 0; i < count_; ++i) all = all && reinterpret_cast<std::uintptr_t>(x[i]) % 16 == 0;
    for (int i = 0; i < count_ + (gated ? 1 : 0); ++i) all = all && reinterpret_cast<std::uintptr_t>(y[i]) % 16 == 0;
    return all;
  }
  status bind(cached_launch& to, const gemm_kernel_set& kernels, const target& device, long long m,
              sequence<gemm_binding<T>>& products, const void* const* x, void* const* y, bool gated) const {
    gemm_problem shapes[max_segments];
    skinny_layer layers[max_segments];
    to.bound.count = 0, to.does = ran::nothing;
    bool one_x = true;  // a gated tile has rows of both layers, which must read the same x
    for (int i = 0; i < count_; ++i) {
      const gemm_binding<T>& p = products[first_ + i];
      if (p.is_quantized()) return ok;  // a group that mixes quantized and plain weights is not one launch
      shapes[i] = p.shape(m);
      shapes[i].aligned = shapes[i].aligned && aligned(x, y, gated);
      layers[i] = {p.weight(), {y[i], p.record(), nullptr, p.out_size(), p.act()}, x[i]};
      one_x = one_x && x[i] == x[0];
    }
    const bool separate = count_ == 2 && products[first_ + 1].has_separate_rank();
    skinny_choice c = gated && one_x ? choose_gated(shapes, separate, device, kernels.have) : skinny_choice{};
    to.does = c.gated ? ran::gated : ran::products;
    for (int i = 0; c.gated && i < count_; ++i) layers[i].to.y = y[count_];
    if (c.rows == 0) c = choose_grouped(shapes, count_, device, kernels.have);
    const result<skinny_choice> timed = fastest(c, kernels, device, {x[0], m, shapes[0].k}, shapes, layers);
    if (!timed) return timed.failure();
    c = *timed;
    if (c.rows == 0) return to.does = ran::nothing, status(ok);
    return bind_grouped(to.bound, kernels, dtype_of<T>, c, {x[0], m, shapes[0].k}, shapes[0].rank, layers, count_);
  }
  // Returns true if all members may start early. Every member is asked, because asking enables it for the next call.
  bool may_use_pdl(sequence<gemm_binding<T>>& products) const {
    bool all = true;
    for (int i = 0; i < count_; ++i) all = products[first_ + i].may_use_pdl() && all;
    return all;
  }

  int first_ = 0, count_ = 0;
  lru_cache<cached_launch> cached_launches_;
  quantized_gemm quantized_, quantized_gate_;
};

}  // namespace graft::gpu
