// SPDX-License-Identifier: Apache-2.0
// Layers with the same input in one launch (Q, K and V; gate and up), for up to 64 tokens: their weights stream through
// as one matrix, each row of it finds its own adapter and its own output.
#pragma once
#include <graft/run/cuda_layer.cuh>

namespace graft::cuda {

template <class T> struct projection {
  executor<T>* layer;
  mutable_view y;
};

// What forward() asks of its tensors, of all of them.
template <class T> status check_together(const std::vector<projection<T>>& layers, const view& x) {
  if (!is_sound(x)) return wrong_view("tensor ", "x", x);
  if (x.rank != 2 || x.type != dtype_of<T>) return fail("x must be a matrix of ", name_of(dtype_of<T>));
  if (x.data == nullptr || !x.contiguous()) return fail("tensor 'x' has no data, or gaps between its rows");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto at = static_cast<int>(i);
    const mutable_view& y = layers[i].y;
    if (layers[i].layer == nullptr) return fail("layer ", at, " is null");
    if (!is_sound(y)) return wrong_view("output of layer ", at, y);
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
status forward_together(cudaStream_t stream, const std::vector<projection<T>>& layers, const view& x,
                        bool chained = true) {
  static_assert(sizeof(T) == 2, "the stream kernels multiply 16-bit types");
  if (layers.empty() || layers.size() > max_segments)
    return fail("one launch serves 1 to ", max_segments, " layers, not ", static_cast<long long>(layers.size()));
  if (status s = check_together(layers, x); !s) return s;
  const auto count = static_cast<int>(layers.size());
  stream_layer rows[max_segments];
  int n[max_segments], rank = 0;
  bool any = false;
  const kernel_set& kernels = layers[0].layer->queued().kernels;
  const target& device = layers[0].layer->queued().where;
  for (int i = 0; i < count; ++i) {
    const projection<T>& layer = layers[static_cast<std::size_t>(i)];
    auto* bound = layer.layer->bound_forward();
    if (bound == nullptr) return fail("layer ", i, ": bind() the layer before a call");
    if (!bound->made().one_product())
      return fail("layer ", i, ": this layer is more than one product; call its forward()");
    bound_product<T>& p = bound->made().product();
    if (p.is_coded()) return fail("a weight of these layers is codes; run them one after the other");
    const product_shape s = p.shape(x.size[0]);
    if (s.k != x.size[1]) return fail("layer ", i, " has an inner size of ", s.k, ", x has ", x.size[1]);
    if (layer.y.count() != x.size[0] * s.n || layer.y.type != dtype_of<T>)
      return fail("output ", i, " has ", layer.y.count(), " elements of ", name_of(layer.y.type), ", expected ",
                  x.size[0] * s.n, " of ", name_of(dtype_of<T>));
    if (i > 0 && s.rank != rank)
      return fail("layer ", i, " has a padded rank of ", s.rank, ", layer 0 has ", rank,
                  "; layers run together need the same");
    if (s.rank > max_stream_rank) return fail("layer ", i, " has a rank above ", max_stream_rank);
    if (!s.plain) return fail("layer ", i, " has an activation or a residual; call its forward()");
    rank = s.rank, n[i] = s.n, any = any || n[i] % 2 != 0 || s.pre;
    chained = p.may_chain() && chained;  // not where an adapter was activated since the last call
    rows[i] = {p.weight(), {layer.y.data, p.record(), nullptr, n[i], activation::none}};
  }
  if (!is_hopper(device) || x.size[0] < 1 || x.size[0] > max_stream_tokens || x.size[1] % 8 != 0)
    return fail("layers run together on compute capability 9.0, with 1 to ", max_stream_tokens,
                " tokens and an inner size that is a multiple of 8");
  const stream_choice c = choose_stream(n, count, x.size[0], static_cast<int>(x.size[1]), rank, device.processors, any,
                                        stream_shapes_of(kernels.linear.have, x.size[0], rank));
  if (c.rows == 0) return fail("the kernels that run layers together are not compiled for these; use cuda::executor");
  bound_linear bound;
  if (status s =
          bind_together(bound, kernels.linear, dtype_of<T>, c, {x.data, x.size[0], x.size[1]}, rank, rows, count);
      !s)
    return s;
  return launch(stream, bound, chained);
}

}  // namespace graft::cuda
