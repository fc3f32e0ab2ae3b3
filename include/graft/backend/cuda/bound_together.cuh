// SPDX-License-Identifier: Apache-2.0
// The products of one launch (plan/together.h) bound to device memory: as segments of one stream kernel, of numbers or of
// codes, for the last few numbers of tokens. Where no such kernel takes them they run one after the other, each as it would
// alone; and so does the multiplication of two, which a kernel may have inside.
#pragma once
#include <graft/backend/cuda/bound_product.cuh>

namespace graft::cuda {

// The tensors of one call, x and y of each; behind y, where there is one, that of their multiplication.
struct together_tensors {
  const void* const* x = nullptr;
  void* const* y = nullptr;
  bool gated = false;
  norm_ahead ahead{};
  void* workspace = nullptr;
  std::uint32_t* counters = nullptr;
};

template <class T> class bound_together {
 public:
  bound_together() = default;
  // `first` and the `count` - 1 products behind it.
  bound_together(int first, int count) : first_(first), count_(count) {}
  int first() const { return first_; }
  void forget() {
    for (kept& k : kept_) k.used = 0;
    of_codes_ = of_gate_ = {};
  }
  enum class ran : unsigned char { nothing, products, gated };
  result<ran> run(cudaStream_t stream, const linear_kernels& kernels, const target& device, long long m,
                  sequence<bound_product<T>>& products, const together_tensors& with, bool alone) {
    if (products[first_].is_coded()) return run_codes(stream, kernels, device, m, products, with, alone);
    const auto& [x, y, gated, ahead, workspace, counters] = with;
    kept* to = &kept_[0];
    for (kept& k : kept_) {
      if (k.used > 0 && k.m == m && k.aligned == aligned(x, y, gated)) {
        k.used = ++calls_;
        if (k.does == ran::nothing) return k.does;
        const bool one = k.does == ran::gated;
        if (status s = point(k.bound, x, count_, one ? y + count_ : y, one ? 1 : count_); !s) return s.failure();
        take_norms(k.bound, ahead, {});
        if (status s = launch(stream, k.bound, may_chain(products)); !s) return s.failure();
        return k.does;
      }
      if (k.used < to->used) to = &k;
    }
    to->used = 0;  // until it is complete
    if (status s = bind(*to, kernels, device, m, products, x, y, gated); !s) return s.failure();
    to->m = m, to->aligned = aligned(x, y, gated), to->used = ++calls_;
    if (to->does == ran::nothing) return to->does;
    take_norms(to->bound, ahead, {});
    if (status s = launch(stream, to->bound, may_chain(products)); !s) return s.failure();
    return to->does;
  }

 private:
  result<ran> run_codes(cudaStream_t stream, const linear_kernels& kernels, const target& device, long long m,
                        sequence<bound_product<T>>& products, const together_tensors& with, bool alone) {
    product_shape shapes[max_segments];
    code_operands operands[max_segments];
    for (int i = 0; i < count_; ++i) {
      const bound_product<T>& p = products[first_ + i];
      if (!p.is_coded()) return ran::nothing;
      shapes[i] = p.shape_of_codes(m), operands[i] = p.as_codes();
      if (!shapes[i].aligned || reinterpret_cast<std::uintptr_t>(with.x[0]) % 16 != 0) return ran::nothing;
      if (with.x[i] != with.x[0]) return ran::nothing;  // codes are multiplied with one x
    }
    code_choice c = with.gated ? choose_codes_together(shapes, count_, true, device) : code_choice{};
    if (c.groups == 0) c = choose_codes_together(shapes, count_, false, device);
    if (c.groups == 0 || !kernels.codes.has(c)) return ran::nothing;
    code_calls& calls = c.gated ? of_gate_ : of_codes_;
    if (calls.empty()) calls = code_calls(kernels.codes, device, operands, count_);
    code_tensors now{with.x[0], {}, nullptr, static_cast<float*>(with.workspace), with.counters, with.ahead, {}};
    for (int i = 0; i < count_; ++i) now.y[i] = with.y[c.gated ? count_ : i];
    if (status s = calls.run(stream, c, m, now, may_chain(products), alone); !s) return s.failure();
    return c.gated ? ran::gated : ran::products;
  }
  struct kept {
    long long m = 0, used = 0;  // used: the call that used it last; 0: never
    bool aligned = false;
    ran does = ran::nothing;
    bound_linear bound;  // of no kernel where they do not run together
  };
  // Of the shapes that take the same products, where they are timed.
  result<stream_choice> quickest(const stream_choice& rule, const linear_kernels& kernels, const target& device,
                                 const matrix& x, const product_shape* shapes, const stream_layer* layers) const {
    if (kernels.timed.by == nullptr || rule.rows == 0 || rule.gated) return rule;
    return kernels.timed.together(kernels, device, x, shapes, layers, count_);
  }
  bool aligned(const void* const* x, void* const* y, bool gated) const {
    bool all = true;
    for (int i = 0; i < count_; ++i) all = all && reinterpret_cast<std::uintptr_t>(x[i]) % 16 == 0;
    for (int i = 0; i < count_ + (gated ? 1 : 0); ++i) all = all && reinterpret_cast<std::uintptr_t>(y[i]) % 16 == 0;
    return all;
  }
  status bind(kept& to, const linear_kernels& kernels, const target& device, long long m,
              sequence<bound_product<T>>& products, const void* const* x, void* const* y, bool gated) const {
    product_shape shapes[max_segments];
    stream_layer layers[max_segments];
    to.bound.count = 0, to.does = ran::nothing;
    bool one_x = true;  // rows of two layers in one tile read the same
    for (int i = 0; i < count_; ++i) {
      const bound_product<T>& p = products[first_ + i];
      if (p.is_coded()) return ok;  // beside one that is not
      shapes[i] = p.shape(m);
      shapes[i].aligned = shapes[i].aligned && aligned(x, y, gated);
      layers[i] = {p.weight(), {y[i], p.record(), nullptr, p.out_size(), p.act()}, x[i]};
      one_x = one_x && x[i] == x[0];
    }
    const bool apart = count_ == 2 && products[first_ + 1].stands_apart();
    stream_choice c = gated && one_x ? choose_gated(shapes, apart, device, kernels.have) : stream_choice{};
    to.does = c.gated ? ran::gated : ran::products;
    for (int i = 0; c.gated && i < count_; ++i) layers[i].to.y = y[count_];
    if (c.rows == 0) c = choose_together(shapes, count_, device, kernels.have);
    const result<stream_choice> timed = quickest(c, kernels, device, {x[0], m, shapes[0].k}, shapes, layers);
    if (!timed) return timed.failure();
    c = *timed;
    if (c.rows == 0) return to.does = ran::nothing, status(ok);
    return bind_together(to.bound, kernels, dtype_of<T>, c, {x[0], m, shapes[0].k}, shapes[0].rank, layers, count_);
  }
  // Asks all of them: each is chained from now on.
  bool may_chain(sequence<bound_product<T>>& products) const {
    bool all = true;
    for (int i = 0; i < count_; ++i) all = products[first_ + i].may_chain() && all;
    return all;
  }

  int first_ = 0, count_ = 0;
  long long calls_ = 0;
  kept kept_[4];
  code_calls of_codes_, of_gate_;
};

}  // namespace graft::cuda
