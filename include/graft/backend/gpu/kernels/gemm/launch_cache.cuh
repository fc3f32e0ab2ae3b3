// SPDX-License-Identifier: Apache-2.0
// gemm_launch_cache: bound launches of one GEMM for the last four token counts (LRU). A call with a cached count only
// updates tensor map addresses where tensors changed; another count is bound in place of the least recently used one.
#pragma once
#include <graft/backend/gpu/kernels/gemm/launch.cuh>
#include <graft/backend/lru_cache.h>

namespace graft::gpu {

class gemm_launch_cache {
 public:
  gemm_launch_cache() = default;
  // `like` gives the problem except m, aligned, plain and fused_wgrads; `stays` the operands except x, y, residual and
  // sums. The kernel set must outlive this object.
  gemm_launch_cache(const gemm_kernel_set& kernels, const target& device, const gemm_problem& like,
                    const gemm_operands& stays)
      : kernels_(&kernels), device_(device), shape_(like), fixed_operands_(stays), home_device_(current_device()) {}

  bool empty() const { return kernels_ == nullptr; }
  // The launches for m tokens, bound to these tensors. The pointer is valid until the entry is evicted by other token
  // counts.
  result<prepared_gemm*> at(long long m, const void* x, void* y, const void* residual,
                            const fused_wgrad (&sums)[2] = {}) {
    gemm_problem p = shape_;
    for (int k = 0; k < 2; ++k)
      if (fixed_operands_.act == activation::none && sums[k].addressed(p.type))
        p.fused_wgrads[k] = sums[k].shape(padded_rank(sums[k].q.columns));
    p.m = m, p.plain = residual == nullptr && fixed_operands_.act == activation::none;
    for (const void* pointer : {x, static_cast<const void*>(y), residual})
      p.aligned = p.aligned && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
    const bool has_residual = residual != nullptr;
    const auto same = [&](const cached_launch& k) {
      return k.m == m && k.aligned == p.aligned && k.residual == has_residual &&
             k.fused_wgrads[0] == p.fused_wgrads[0] && k.fused_wgrads[1] == p.fused_wgrads[1];
    };
    if (cached_launch* const k = cached_launches_.find(same)) {
      if (status s = set_tensors(k->bound, x, y, residual); !s) return s.failure();
      if (status s = set_tensors(k->bound, p.type, sums); !s) return s.failure();
      return &k->bound;
    }
    const device_guard here(home_device_);  // the device of the layer's tensors
    gemm_operands o = fixed_operands_;
    o.x = x, o.y = y, o.residual = residual, o.sums[0] = sums[0], o.sums[1] = sums[1];
    const result<gemm_choice> chosen = choice(p, o);
    if (!chosen) return chosen.failure();
    cached_launch fresh{m, p.aligned, has_residual, {p.fused_wgrads[0], p.fused_wgrads[1]}, {}};
    cached_launch& made = cached_launches_.add(std::move(fresh), 4);
    if (status s = bind(made.bound, *kernels_, p, *chosen, o); !s) return cached_launches_.drop_newest(), s.failure();
    return &made.bound;
  }

 private:
  // A launch that reads its own output (residual in place, accumulated wgrads) cannot be repeated, and so not be timed.
  result<gemm_choice> choice(const gemm_problem& p, const gemm_operands& o) const {
    const bool repeats = o.y != o.residual && !o.sums[0].adds && !o.sums[1].adds;
    if (kernels_->timed.by == nullptr || !repeats || p.m == 0) return choose(p, device_, kernels_->have);
    return kernels_->timed.product(*kernels_, device_, p, o);
  }
  struct cached_launch {
    long long m;
    bool aligned, residual;
    fused_wgrad_shape fused_wgrads[2];
    prepared_gemm bound;
  };
  const gemm_kernel_set* kernels_ = nullptr;
  target device_;
  gemm_problem shape_;
  gemm_operands fixed_operands_;
  int home_device_ = 0;
  lru_cache<cached_launch> cached_launches_;
};

}  // namespace graft::gpu
