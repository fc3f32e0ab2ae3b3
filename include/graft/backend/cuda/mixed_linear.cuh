// SPDX-License-Identifier: Apache-2.0
// One product whose rows have adapters of their own, from tensors to launches: one launch where a stream kernel takes it,
// else the bare product and a launch behind it; and one ahead of it where a record has a factor of the input.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/linear_calls.cuh>
#include <graft/backend/cuda/mixed_choice.h>
#include <graft/backend/cuda/mixed_rows.cuh>
#include <graft/backend/cuda/mixed_stream.cuh>

namespace graft::cuda {

struct mixed_kernels {
  kernel_entry stream[2 * mixed_shapes];
  kernel_entry finish;
};

namespace detail {
template <class T, int Tokens, int Shape> kernel_entry mixed_entry() {
  using block = mixed_block<T, Tokens, stream_kernels[Shape].rows, stream_kernels[Shape].splits>;
  return {address_of(&mixed_stream_kernel<T, Tokens, stream_kernels[Shape].rows, stream_kernels[Shape].splits>),
          static_cast<unsigned>(block::threads), block::bytes};
}
}  // namespace detail

template <class T> mixed_kernels all_mixed_kernels() {
  mixed_kernels k;
  if constexpr (sizeof(T) == 2) {
    k.stream[0] = detail::mixed_entry<T, 16, 0>(), k.stream[1] = detail::mixed_entry<T, 16, 1>();
    k.stream[2] = detail::mixed_entry<T, 16, 2>(), k.stream[3] = detail::mixed_entry<T, max_mixed_rows, 0>();
    k.stream[4] = detail::mixed_entry<T, max_mixed_rows, 1>();
    k.stream[5] = detail::mixed_entry<T, max_mixed_rows, 2>();
  }
  k.finish = {detail::address_of(&mixed_finish_kernel<T>), mixed_finish_threads, 0};
  return k;
}

// The tensors of one call.
struct mixed_operands {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  activation act = activation::none;
  mixed_batch batch{};
  mixed_sums sums{};
  void* scaled = nullptr;  // memory for x ⊙ pre; null: no record has a factor of the input
  bool alone = false;      // see engine.cuh
  bool chained = false;    // weights and records may be read before the kernel ahead in the stream has finished
};

template <class T> class mixed_linear {
 public:
  // `p`: everything but aligned; rank, pre and posts are those of the records.
  status run(cudaStream_t stream, const linear_kernels& kernels, const mixed_kernels& mixed, const target& device,
             product_shape p, mixed_operands o) {
    if (mixed.finish.kernel == nullptr) return fail("this layer was compiled without the kernels that mix adapters");
    if (p.m == 0 || p.n == 0) return ok;
    if (o.scaled != nullptr) {
      auto* const to = static_cast<T*>(o.scaled);
      const scale_mixed_rows<T> scale{o.batch, static_cast<const T*>(o.x), to, p.k};
      if (status s = each(stream, p.m * p.k, scale, "factors of the rows"); !s) return s;
      o.x = to, o.chained = false;
    }
    p.rank = 0, p.pre = p.posts = false;
    for (const void* pointer : {o.x, static_cast<const void*>(o.y)})
      p.aligned = p.aligned && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
    if (const stream_choice c = choose_mixed(p, device); c.rows > 0)
      return run_stream(stream, mixed.stream[mixed_index(c.tokens, c.rows)], c, p, o);
    if (bare_.empty() || o.w != bare_w_) {
      linear_operands plain;
      plain.w = bare_w_ = o.w, plain.alone = o.alone, p.plain = true;
      bare_ = linear_calls(kernels, device, p, plain);
    }
    auto bound = bare_.at(p.m, o.x, o.y, nullptr);
    if (!bound) return bound.failure();
    if (status s = launch(stream, **bound, o.chained); !s) return s;
    mixed_finish_args rest{o.batch, o.x, o.y, o.residual, o.act, p.m, p.n, p.k};
    void* arguments[] = {&rest};
    const cudaLaunchConfig_t how{dim3(static_cast<unsigned>(p.m)), dim3(mixed.finish.threads), 0, stream, nullptr, 0};
    return launch(how, mixed.finish.kernel, arguments, "the adapters of the rows");
  }

 private:
  status run_stream(cudaStream_t stream, const kernel_entry& kernel, const stream_choice& c, const product_shape& p,
                    const mixed_operands& o) {
    stream_maps maps{};
    if (status s = make_map(maps.x, p.type, {o.x, p.m, p.k}, c.tokens, 64); !s) return s;
    if (status s = make_map(maps.w[0], p.type, {o.w, p.n, p.k}, c.rows, 64); !s) return s;
    stream_args g{};
    g.m = static_cast<int>(p.m), g.k_steps = (p.k + 63) / 64;
    g.segment[0] = {o.y, {}, o.residual, p.n, o.act};
    mixed_args mixed{o.batch, o.sums, o.x, p.k};
    const dim3 grid(static_cast<unsigned>(c.splits), static_cast<unsigned>(c.tiles));
    bound_launch to;
    if (status s = detail::finish(to, kernel, grid, "stream of mixed rows", c.splits, true, !o.alone); !s) return s;
    void* arguments[] = {&maps, &g, &mixed};
    const cudaLaunchConfig_t how{grid,   dim3(kernel.threads), kernel.shared,
                                 stream, to.attributes,        to.fixed + (o.chained ? 1U : 0U)};
    return launch(how, kernel.kernel, arguments, to.name);
  }

  linear_calls bare_;
  const void* bare_w_ = nullptr;
};

}  // namespace graft::cuda
