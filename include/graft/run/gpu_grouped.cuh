// SPDX-License-Identifier: Apache-2.0
// Grouped skinny GEMM of layers that read one input (Q, K and V; gate and up), up to 64 tokens in one launch:
//     y_i = x W_iᵀ + (x A_iᵀ) B_iᵀ        x [tokens, in], y_i [tokens, out_i]
// The kernel reads the weights as one matrix, each row of which has the adapter and the output of its layer.
#pragma once
#include <graft/run/gpu_layer.cuh>

namespace graft::gpu {

template <class T> struct projection {
  executor<T>* layer;
  mutable_view y;
};

// Checks the tensors of all layers as forward() checks those of one.
template <class T> status check_grouped(const std::vector<projection<T>>& layers, const view& x) {
  if (!is_valid(x)) return invalid_view("tensor ", "x", x);
  if (x.rank != 2 || x.type != dtype_of<T>) return fail("x must be a matrix of ", name_of(dtype_of<T>));
  if (x.data == nullptr || !x.contiguous()) return fail("tensor 'x' has no data, or gaps between its rows");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto at = static_cast<int>(i);
    const mutable_view& y = layers[i].y;
    if (layers[i].layer == nullptr) return fail("layer ", at, " is null");
    if (!is_valid(y)) return invalid_view("output of layer ", at, y);
    if (y.data == nullptr || !y.contiguous()) return fail("output ", at, " has no data, or gaps between its rows");
    if (overlap(footprint_of(y), footprint_of(x)))
      return fail("output ", at, " overlaps tensor 'x'; give it memory of its own");
    for (std::size_t k = 0; k < i; ++k)
      if (overlap(footprint_of(y), footprint_of(layers[k].y)))
        return fail("output ", at, " overlaps output ", static_cast<int>(k), "; give it memory of its own");
  }
  return ok;
}

template <class T>
status forward_grouped(cudaStream_t stream, const std::vector<projection<T>>& layers, const view& x, bool pdl = true) {
  static_assert(sizeof(T) == 2, "the skinny GEMM kernels multiply 16-bit types");
  if (layers.empty() || layers.size() > max_segments)
    return fail("one launch serves 1 to ", max_segments, " layers, not ", static_cast<long long>(layers.size()));
  if (status s = check_grouped(layers, x); !s) return s;
  const auto count = static_cast<int>(layers.size());
  skinny_layer rows[max_segments];
  int n[max_segments], rank = 0;
  bool any = false;
  const kernel_set& kernels = layers[0].layer->queued().kernels;
  const target& device = layers[0].layer->queued().where;
  for (int i = 0; i < count; ++i) {
    const projection<T>& layer = layers[static_cast<std::size_t>(i)];
    auto* bound = layer.layer->bound_forward();
    if (bound == nullptr) return fail("layer ", i, ": bind() the layer before a call");
    if (!bound->in->engine_program().one_product())
      return fail("layer ", i, ": this layer is more than one GEMM; call its forward()");
    gemm_binding<T>& p = bound->with.values.products[0];
    if (p.is_quantized()) return fail("a weight of these layers is quantized; run them one after the other");
    const gemm_problem s = p.shape(x.size[0]);
    if (s.k != x.size[1]) return fail("layer ", i, " has an inner size of ", s.k, ", x has ", x.size[1]);
    if (layer.y.count() != x.size[0] * s.n || layer.y.type != dtype_of<T>)
      return fail("output ", i, " has ", layer.y.count(), " elements of ", name_of(layer.y.type), ", expected ",
                  x.size[0] * s.n, " of ", name_of(dtype_of<T>));
    if (i > 0 && s.rank != rank)
      return fail("layer ", i, " has a padded rank of ", s.rank, ", layer 0 has ", rank,
                  "; grouped layers need the same");
    if (s.rank > max_skinny_rank) return fail("layer ", i, " has a rank above ", max_skinny_rank);
    if (!s.plain) return fail("layer ", i, " has an activation or a residual; call its forward()");
    rank = s.rank, n[i] = s.n, any = any || n[i] % 2 != 0 || s.prologue;
    pdl = p.may_use_pdl() && pdl;  // false at the first call after an adapter was activated
    rows[i] = {p.weight(), {layer.y.data, p.record(), nullptr, n[i], activation::none}};
  }
  if (!is_hopper(device) || x.size[0] < 1 || x.size[0] > max_skinny_tokens || x.size[1] % 8 != 0)
    return fail("layers are grouped on compute capability 9.0, with 1 to ", max_skinny_tokens,
                " tokens and an inner size that is a multiple of 8");
  const skinny_choice c = choose_skinny(n, count, x.size[0], static_cast<int>(x.size[1]), rank, device.sm_count, any,
                                        compiled_skinny_shapes(kernels.gemm.have, x.size[0], rank));
  if (c.rows == 0) return fail("the grouped GEMM kernels are not compiled for these; use gpu::executor");
  prepared_gemm bound;
  if (status s = bind_grouped(bound, kernels.gemm, dtype_of<T>, c, {x.data, x.size[0], x.size[1]}, rank, rows, count);
      !s)
    return s;
  return launch(stream, bound, pdl);
}

}  // namespace graft::gpu
