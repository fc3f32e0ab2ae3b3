// SPDX-License-Identifier: Apache-2.0
// gemm_launch_cache: bound launches of one GEMM for the last four token counts (LRU). A call with a cached count only
// updates tensor map addresses where tensors changed; another count is bound in place of the least recently used one.
#pragma once
#include <graft/backend/gpu/kernels/gemm/launch.cuh>

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
    cached_launch* oldest = &cached_launches_[0];
    for (cached_launch& k : cached_launches_) {
      if (k.used > 0 && k.m == m && k.aligned == p.aligned && k.residual == (residual != nullptr) &&
          k.fused_wgrads[0] == p.fused_wgrads[0] && k.fused_wgrads[1] == p.fused_wgrads[1]) {
        if (status s = set_tensors(k.bound, x, y, residual); !s) return s.failure();
        if (status s = set_tensors(k.bound, p.type, sums); !s) return s.failure();
        return k.used = ++calls_, &k.bound;
      }
      if (k.used < oldest->used) oldest = &k;
    }
    const device_guard here(home_device_);  // the device of the layer's tensors
    gemm_operands o = fixed_operands_;
    o.x = x, o.y = y, o.residual = residual, o.sums[0] = sums[0], o.sums[1] = sums[1];
    oldest->used = 0;  // invalid until it is bound completely
    const result<gemm_choice> chosen = choice(p, o);
    if (!chosen) return chosen.failure();
    if (status s = bind(oldest->bound, *kernels_, p, *chosen, o); !s) return s.failure();
    oldest->m = m, oldest->aligned = p.aligned, oldest->residual = residual != nullptr;
    oldest->fused_wgrads[0] = p.fused_wgrads[0], oldest->fused_wgrads[1] = p.fused_wgrads[1];
    return oldest->used = ++calls_, &oldest->bound;
  }

 private:
  // A launch that reads its own output (residual in place, accumulated wgrads) cannot be repeated, and so not be timed.
  result<gemm_choice> choice(const gemm_problem& p, const gemm_operands& o) const {
    const bool repeats = o.y != o.residual && !o.sums[0].adds && !o.sums[1].adds;
    if (kernels_->timed.by == nullptr || !repeats || p.m == 0) return choose(p, device_, kernels_->have);
    return kernels_->timed.product(*kernels_, device_, p, o);
  }
  struct cached_launch {
    long long m = 0, used = 0;  // used: the call that used it last; 0: never
    bool aligned = false, residual = false;
    fused_wgrad_shape fused_wgrads[2]{};
    prepared_gemm bound;
  };
  const gemm_kernel_set* kernels_ = nullptr;
  target device_;
  gemm_problem shape_;
  gemm_operands fixed_operands_;
  int home_device_ = 0;
  long long calls_ = 0;
  cached_launch cached_launches_[4];
};

}  // namespace graft::gpu
