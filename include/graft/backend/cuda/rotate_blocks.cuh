// SPDX-License-Identifier: Apache-2.0
// The gradient of the blocks of a rotation in one pass over x and the gradient t of its result, on the tensor cores: the
// blocks on the diagonal of G = xᵀ t, of a size that divides 64. With several butterfly factors M these are as wide as the
// stretches that the factors keep together, and the gradient of each factor follows from them without the tokens:
//     dM_s = (M_0 … M_{s-1})ᵀ G (M_{s+1} … M_{m-1})ᵀ
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/backend/cuda/device.h>
#include <graft/backend/cuda/rotate.cuh>
#include <graft/backend/cuda/sum_tokens.cuh>
#include <graft/backend/cuda/tensor_map.h>

namespace graft::cuda {

template <class Real> struct rotate_sums {
  tensor<Real> out, x, t, q;
  bool transposed;
  Real* scratch;
  bool fresh = false;  // out is written, else added to
};
template <class On, class Real> status sum_blocks(const On& on, const rotate_sums<Real>& r) {
  return rotate_grad(on, r.out, r.x, r.t, r.q, r.transposed, r.scratch);
}

// One stretch: G is taken through the factors on either side, then what lies on the blocks of this one is added.
struct factor_sums {
  tensor<float> out, q;
  rotation r;
  bool fresh;
  float* sums;  // G of all stretches, and behind it two matrices more for each

  __device__ float weight(unsigned factor, unsigned place, unsigned l, unsigned c) const {
    const auto b = static_cast<unsigned>(r.b);
    const unsigned block = factor * static_cast<unsigned>(r.blocks) + place / b;
    return q.p[(static_cast<long long>(block) * b + (r.transposed ? c : l)) * b + (r.transposed ? l : c)];
  }
  // from Mᵀ, or Mᵀ from.
  template <class Team>
  __device__ void apply(const float* from, float* to, unsigned factor, unsigned first, bool right, Team t) const {
    const auto b = static_cast<unsigned>(r.b), s = static_cast<unsigned>(r.stretch());
    for (unsigned e = static_cast<unsigned>(t.rank); e < s * s; e += static_cast<unsigned>(t.size)) {
      const unsigned row = e / s, col = e % s, own = right ? col : row;
      const unsigned place = butterfly(first + own, b, factor), block = place / b * b, mine = place % b;
      float sum = 0;
      for (unsigned k0 = 0; k0 < b; k0 += 8) {  // eight terms are on their way at a time
        float u[8] = {}, w[8] = {};
#pragma unroll
        for (unsigned i = 0; i < 8; ++i)
          if (const unsigned k = k0 + i; k < b) {
            const unsigned other = natural(block + k, b, factor) - first;
            u[i] = right ? from[row * s + other] : from[other * s + col];
            w[i] = right ? weight(factor, place, mine, k) : weight(factor, place, k, mine);
          }
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) sum += u[i] * w[i];
      }
      to[e] = sum;
    }
    t.sync();
  }
  template <class Team> __device__ void operator()(long long stretch, Team t) const {
    const auto b = static_cast<unsigned>(r.b), s = static_cast<unsigned>(r.stretch()),
               first = static_cast<unsigned>(stretch) * s, factors = static_cast<unsigned>(r.factors);
    const long long area = static_cast<long long>(s) * s, stretches = r.in / s;
    float* const spare[2] = {sums + (stretches + 2 * stretch) * area, sums + (stretches + 2 * stretch + 1) * area};
    for (unsigned step = 0; step < factors; ++step) {
      const float* now = sums + stretch * area;
      int turn = 0;
      auto through = [&](unsigned other, bool right) {
        apply(now, spare[turn], static_cast<unsigned>(r.order(other)), first, right, t);
        now = spare[turn], turn = 1 - turn;
      };
      for (unsigned other = factors; other-- > step + 1;) through(other, true);
      for (unsigned other = 0; other < step; ++other) through(other, false);
      const auto factor = static_cast<unsigned>(r.order(step));
      for (unsigned e = static_cast<unsigned>(t.rank); e < s * b; e += static_cast<unsigned>(t.size)) {
        const unsigned block = first + e / (b * b) * b, l = e / b % b, c = e % b;
        const unsigned i = natural(block + l, b, factor) - first, j = natural(block + c, b, factor) - first;
        const long long to = (static_cast<long long>(factor) * r.blocks + block / b) * b * b + l * b + c;
        const float v = r.transposed ? now[j * s + i] : now[i * s + j];
        out.p.put(to, fresh ? v : out.p[to] + v);
      }
      t.sync();
    }
  }
};

namespace detail {
// The blocks of `size` on the diagonal of xᵀ t, or of tᵀ x, into or onto `to`.
template <class T>
status launch_block_sums(cudaStream_t stream, const rotate_sums<float>& r, int size, bool flip, bool adds,
                         const cells<float>& to, int processors) {
  using shape = sum_shape<64, sum_of::diagonal>;
  const void* const kernel = reinterpret_cast<const void*>(&sum_tokens_kernel<T, 64, sum_of::diagonal>);
  const long long rows = r.x.rows(), columns = r.x.d[3], steps = (rows + sum_step - 1) / sum_step;
  const long long tiles = (columns + sum_columns - 1) / sum_columns;
  sum_maps maps;
  const matrix x{r.x.p.at, rows, columns}, t{r.t.p.at, rows, columns};
  if (status s = make_map(maps.z, dtype_of<T>, flip ? t : x, sum_step, 64); !s) return s;
  if (status s = make_map(maps.q, dtype_of<T>, flip ? x : t, sum_step, 64); !s) return s;
  sum_args args{static_cast<int>(steps), static_cast<int>(columns), size, true, adds, {}, to};
  const int parts = parts_for(tiles, steps, processors);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
  if (status s = check(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape::bytes)),
          "rotate_grad");
      !s)
    return s;
  const cudaLaunchConfig_t how{dim3(static_cast<unsigned>(parts), static_cast<unsigned>(tiles)),
                               dim3(shape::threads),
                               shape::bytes,
                               stream,
                               &cluster,
                               1};
  void* arguments[] = {&maps, &args};
  return launch(how, kernel, arguments, "rotate_grad");
}
}  // namespace detail

template <streams On> status sum_blocks(const On& on, const rotate_sums<float>& r) {
  const dtype type = r.x.p.type;
  auto addressed = [&](const tensor<float>& t) {
    return t.p.type == type && t.d[3] % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.p.at) % 16 == 0;
  };
  const auto major = attribute_of_device(cudaDevAttrComputeCapabilityMajor),
             processors = attribute_of_device(cudaDevAttrMultiProcessorCount);
  const rotation turned(r.q, r.x.d[3], r.transposed);
  const long long size = turned.stretch(), rows = r.x.rows();
  const bool fits = is_16_bit(type) && addressed(r.x) && addressed(r.t) && !turned.shared() && size <= 64 &&
                    64 % size == 0 && rows > 0 && major && processors && *major == 9;
  const bool room = turned.factors == 1 || 2 * turned.factors * rows >= 3 * size;  // for G and what follows from it
  if (!fits || !room) {
    if (r.fresh) {
      const auto bytes = static_cast<std::size_t>(r.out.count() * bits_of(r.out.p.type) / 8);
      if (status s = check(cudaMemsetAsync(r.out.p.at, 0, bytes, on.stream), "clearing"); !s) return s;
    }
    return rotate_grad(on, r.out, r.x, r.t, r.q, r.transposed, r.scratch);
  }
  auto sums = [&](bool flip, bool adds, const cells<float>& to) {
    auto* const launch_sums =
        type == dtype::bf16 ? &detail::launch_block_sums<__nv_bfloat16> : &detail::launch_block_sums<__half>;
    return launch_sums(on.stream, r, static_cast<int>(size), flip, adds, to, *processors);
  };
  if (turned.factors == 1) return sums(r.transposed, !r.fresh, r.out.p);
  if (status s = sums(false, false, r.scratch); !s) return s;
  return on.matrices(turned.in / size, size * size, factor_sums{r.out, r.q, turned, r.fresh, r.scratch}, "rotate_grad");
}

}  // namespace graft::cuda
