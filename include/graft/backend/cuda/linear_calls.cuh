// SPDX-License-Identifier: Apache-2.0
// One layer called with changing numbers of tokens and changing tensors. The launches of the last few numbers of tokens
// are kept: a call with one of them moves two tensor maps where the tensors are new, and launches; another number is
// bound in the place of the one that was not called for longest.
#pragma once
#include <graft/backend/cuda/linear.cuh>

namespace graft::cuda {

class linear_calls {
 public:
  linear_calls() = default;
  // `like`: everything but m, aligned, plain and beside; `stays`: everything but x, y, residual and sums. The kernels
  // must outlive this.
  linear_calls(const linear_kernels& kernels, const target& device, const product_shape& like,
               const linear_operands& stays)
      : kernels_(&kernels), device_(device), like_(like), stays_(stays), at_home_(device_now()) {}

  bool empty() const { return kernels_ == nullptr; }
  // The launches for m tokens, pointed at these tensors. They stay until as many other numbers of tokens are asked for.
  result<bound_linear*> at(long long m, const void* x, void* y, const void* residual,
                           const beside_sum (&sums)[2] = {}) {
    product_shape p = like_;
    for (int k = 0; k < 2; ++k)
      if (stays_.act == activation::none && sums[k].addressed(p.type))
        p.beside[k] = sums[k].shape(padded_rank(sums[k].q.columns));
    p.m = m, p.plain = residual == nullptr && stays_.act == activation::none;
    for (const void* pointer : {x, static_cast<const void*>(y), residual})
      p.aligned = p.aligned && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
    kept* oldest = &kept_[0];
    for (kept& k : kept_) {
      if (k.used > 0 && k.m == m && k.aligned == p.aligned && k.residual == (residual != nullptr) &&
          k.beside[0] == p.beside[0] && k.beside[1] == p.beside[1]) {
        if (status s = point(k.bound, x, y, residual); !s) return s.failure();
        if (status s = point(k.bound, p.type, sums); !s) return s.failure();
        return k.used = ++calls_, &k.bound;
      }
      if (k.used < oldest->used) oldest = &k;
    }
    const on_device here(at_home_);  // where the tensors of the layer are
    linear_operands o = stays_;
    o.x = x, o.y = y, o.residual = residual, o.sums[0] = sums[0], o.sums[1] = sums[1];
    oldest->used = 0;  // until it is complete
    const result<linear_choice> chosen = choice(p, o);
    if (!chosen) return chosen.failure();
    if (status s = bind(oldest->bound, *kernels_, p, *chosen, o); !s) return s.failure();
    oldest->m = m, oldest->aligned = p.aligned, oldest->residual = residual != nullptr;
    oldest->beside[0] = p.beside[0], oldest->beside[1] = p.beside[1];
    return oldest->used = ++calls_, &oldest->bound;
  }

 private:
  // A launch that reads what it writes cannot be repeated, and so not be timed.
  result<linear_choice> choice(const product_shape& p, const linear_operands& o) const {
    const bool repeats = o.y != o.residual && !o.sums[0].adds && !o.sums[1].adds;
    if (kernels_->timed.by == nullptr || !repeats || p.m == 0) return choose(p, device_, kernels_->have);
    return kernels_->timed.product(*kernels_, device_, p, o);
  }
  struct kept {
    long long m = 0, used = 0;  // used: the call that used it last; 0: never
    bool aligned = false, residual = false;
    beside_shape beside[2]{};
    bound_linear bound;
  };
  const linear_kernels* kernels_ = nullptr;
  target device_;
  product_shape like_;
  linear_operands stays_;
  int at_home_ = 0;
  long long calls_ = 0;
  kept kept_[4];
};

}  // namespace graft::cuda
