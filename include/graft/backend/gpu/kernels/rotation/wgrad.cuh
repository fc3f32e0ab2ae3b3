// SPDX-License-Identifier: Apache-2.0
// Gradient of the blocks of a rotation (OFT, BOFT) on the tensor cores, in one pass over x and the gradient
// t of its result.
//
//   dR = diagonal blocks of G = xᵀ t      x, t [tokens, columns]; blocks divide 64 columns (wgrad/sm90.cuh)
//
// With several butterfly factors M the diagonal blocks of G are as wide as rotation::stretch(), and the gradient of
// each factor follows from them without the tokens:
//     dM_s = (M_0 … M_{s-1})ᵀ G (M_{s+1} … M_{m-1})ᵀ
// Other sizes and types use rotate_grad (butterfly.cuh).
#pragma once
#include <graft/backend/gpu/arch/tensor_map.h>
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/kernels/rotation/butterfly.cuh>
#include <graft/backend/gpu/kernels/wgrad/sm90.cuh>
#include <graft/backend/gpu/runtime/device.h>

namespace graft::gpu {

template <class Real> struct rotation_wgrad {
  tensor<Real> out, x, t, q;
  bool transposed;
  Real* scratch;
  bool overwrites = false;  // overwrites out instead of adding to it
};
template <class On, class Real> status run_rotation_wgrad(const On& on, const rotation_wgrad<Real>& r) {
  return rotate_grad(on, r.out, r.x, r.t, r.q, r.transposed, r.scratch);
}

// Gradients of all factors within one stretch, by one team: multiplies G with the other factors from both sides, then
// adds the entries within the factor's blocks to `out`.
struct factor_wgrads {
  tensor<float> out, q;
  rotation r;
  bool overwrites;
  float* sums;  // G of all stretches, followed by two scratch matrices for each

  __device__ float weight(unsigned factor, unsigned element_index, unsigned l, unsigned c) const {
    const auto b = static_cast<unsigned>(r.b);
    const unsigned block = factor * static_cast<unsigned>(r.blocks) + element_index / b;
    return q.p[(static_cast<long long>(block) * b + (r.transposed ? c : l)) * b + (r.transposed ? l : c)];
  }
  // to = from Mᵀ where `right` is true, else Mᵀ from, with M the factor.
  template <class Team>
  __device__ void apply(const float* from, float* to, unsigned factor, unsigned first, bool right, Team t) const {
    const auto b = static_cast<unsigned>(r.b), s = static_cast<unsigned>(r.stretch());
    for (unsigned e = static_cast<unsigned>(t.rank); e < s * s; e += static_cast<unsigned>(t.size)) {
      const unsigned row = e / s, col = e % s, own = right ? col : row;
      const unsigned element_index = butterfly(first + own, b, factor), block = element_index / b * b,
                     mine = element_index % b;
      float sum = 0;
      for (unsigned k0 = 0; k0 < b; k0 += 8) {  // eight loads in flight
        float u[8] = {}, w[8] = {};
#pragma unroll
        for (unsigned i = 0; i < 8; ++i)
          if (const unsigned k = k0 + i; k < b) {
            const unsigned other = butterfly_inverse(block + k, b, factor) - first;
            u[i] = right ? from[row * s + other] : from[other * s + col];
            w[i] = right ? weight(factor, element_index, mine, k) : weight(factor, element_index, k, mine);
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
      int buffer_index = 0;
      auto through = [&](unsigned other, bool right) {
        apply(now, spare[buffer_index], static_cast<unsigned>(r.order(other)), first, right, t);
        now = spare[buffer_index], buffer_index = 1 - buffer_index;
      };
      for (unsigned other = factors; other-- > step + 1;) through(other, true);
      for (unsigned other = 0; other < step; ++other) through(other, false);
      const auto factor = static_cast<unsigned>(r.order(step));
      for (unsigned e = static_cast<unsigned>(t.rank); e < s * b; e += static_cast<unsigned>(t.size)) {
        const unsigned block = first + e / (b * b) * b, l = e / b % b, c = e % b;
        const unsigned i = butterfly_inverse(block + l, b, factor) - first,
                       j = butterfly_inverse(block + c, b, factor) - first;
        const long long to = (static_cast<long long>(factor) * r.blocks + block / b) * b * b + l * b + c;
        const float v = r.transposed ? now[j * s + i] : now[i * s + j];
        out.p.put(to, overwrites ? v : out.p[to] + v);
      }
      t.sync();
    }
  }
};

namespace detail {
// Writes (or adds, if `adds`) the diagonal blocks of `size` of xᵀ t, or of tᵀ x if `flip`, to `to`.
template <class T>
status launch_rotation_wgrad(cudaStream_t stream, const rotation_wgrad<float>& r, int size, bool flip, bool adds,
                             const element_ptr<float>& to, int sm_count) {
  using shape = wgrad_shape<64, wgrad_form::diagonal>;
  const void* const kernel = reinterpret_cast<const void*>(&wgrad_kernel<T, 64, wgrad_form::diagonal>);
  const long long rows = r.x.rows(), columns = r.x.d[3], steps = (rows + wgrad_step - 1) / wgrad_step;
  const long long tiles = (columns + wgrad_tile_columns - 1) / wgrad_tile_columns;
  wgrad_maps maps;
  const matrix x{r.x.p.at, rows, columns}, t{r.t.p.at, rows, columns};
  if (status s = make_map(maps.z[0], dtype_of<T>, flip ? t : x, wgrad_step, 64); !s) return s;
  if (status s = make_map(maps.q[0], dtype_of<T>, flip ? x : t, wgrad_step, 64); !s) return s;
  wgrad_args args{static_cast<int>(steps), static_cast<int>(tiles)};
  args.job[0] = {static_cast<int>(columns), size, true, adds, {}, to};
  const int splits = splits_for(tiles, steps, sm_count);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  if (status s = check(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape::bytes)),
          "rotate_grad");
      !s)
    return s;
  const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(splits), static_cast<unsigned>(tiles)),
                                  dim3(shape::threads),
                                  shape::bytes,
                                  stream,
                                  &cluster,
                                  1};
  void* arguments[] = {&maps, &args};
  return launch(config, kernel, arguments, "rotate_grad");
}
}  // namespace detail

template <runs_on_stream On> status run_rotation_wgrad(const On& on, const rotation_wgrad<float>& r) {
  const dtype type = r.x.p.type;
  auto addressed = [&](const tensor<float>& t) {
    return t.p.type == type && t.d[3] % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.p.at) % 16 == 0;
  };
  const auto major = device_attribute(cudaDevAttrComputeCapabilityMajor),
             sm_count = device_attribute(cudaDevAttrMultiProcessorCount);
  const rotation layout_of_q(r.q, r.x.d[3], r.transposed);
  const long long size = layout_of_q.stretch(), rows = r.x.rows();
  const bool fits = is_16_bit(type) && addressed(r.x) && addressed(r.t) && !layout_of_q.shared() && size <= 64 &&
                    64 % size == 0 && rows > 0 && major && sm_count && *major == 9;
  const bool scratch_fits =
      layout_of_q.factors == 1 || 2 * layout_of_q.factors * rows >= 3 * size;  // G and two scratch matrices
  if (!fits || !scratch_fits) {
    if (r.overwrites) {
      const auto bytes = static_cast<std::size_t>(r.out.count() * bits_of(r.out.p.type) / 8);
      if (status s = check(cudaMemsetAsync(r.out.p.at, 0, bytes, on.stream), "clearing"); !s) return s;
    }
    return rotate_grad(on, r.out, r.x, r.t, r.q, r.transposed, r.scratch);
  }
  auto sums = [&](bool flip, bool adds, const element_ptr<float>& to) {
    auto* const launch_sums =
        type == dtype::bf16 ? &detail::launch_rotation_wgrad<__nv_bfloat16> : &detail::launch_rotation_wgrad<__half>;
    return launch_sums(on.stream, r, static_cast<int>(size), flip, adds, to, *sm_count);
  };
  if (layout_of_q.factors == 1) return sums(r.transposed, !r.overwrites, r.out.p);
  if (status s = sums(false, false, r.scratch); !s) return s;
  return on.matrices(layout_of_q.in / size, size * size,
                     factor_wgrads{r.out, r.q, layout_of_q, r.overwrites, r.scratch}, "rotate_grad");
}

}  // namespace graft::gpu
