// SPDX-License-Identifier: Apache-2.0
// Layers with the same input in one launch (Q, K and V; gate and up), for up to 64 tokens: their weights stream through
// as one matrix, each row of it finds its own adapter and its own output.
#pragma once
#include <graft/run/cuda_executor.cuh>

namespace graft::cuda {

template <class T> struct projection {
  const executor<T>* layer;
  mutable_view y;
};

template <class T>
status forward_together(cudaStream_t stream, const std::vector<projection<T>>& layers, const view& x,
                        bool chained = true) {
  static_assert(sizeof(T) == 2, "the stream kernels multiply 16-bit types");
  auto facts = current_device();
  if (!facts) return facts.failure();
  if (layers.empty() || layers.size() > max_segments)
    return fail("one launch serves 1 to ", max_segments, " layers, not ", static_cast<long long>(layers.size()));
  if (x.rank != 2 || x.type != dtype_of<T>) return fail("x must be a matrix of ", name_of(dtype_of<T>));
  if (!facts->hopper() || x.size[0] < 1 || x.size[0] > max_stream_tokens || x.size[1] % 8 != 0)
    return fail("layers run together on compute capability 9.0, with 1 to ", max_stream_tokens,
                " tokens and an inner size that is a multiple of 8");
  const auto count = static_cast<int>(layers.size());
  stream_layer rows[max_segments];
  int n[max_segments], rank = 0;
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const projection<T>& layer = layers[static_cast<std::size_t>(i)];
    auto s = layer.layer->as_segment(x.size[0]);
    if (!s) return fail("layer ", i, ": ", s.message());
    if (s->problem.k != x.size[1])
      return fail("layer ", i, " has an inner size of ", s->problem.k, ", x has ", x.size[1]);
    if (layer.y.count() != x.size[0] * s->problem.n || layer.y.type != dtype_of<T>)
      return fail("output ", i, " has ", layer.y.count(), " elements of ", name_of(layer.y.type), ", expected ",
                  x.size[0] * s->problem.n, " of ", name_of(dtype_of<T>));
    if (i > 0 && s->problem.rank != rank)
      return fail("layer ", i, " has a padded rank of ", s->problem.rank, ", layer 0 has ", rank,
                  "; layers run together need the same");
    if (s->problem.rank > max_stream_rank) return fail("layer ", i, " has a rank above ", max_stream_rank);
    rank = s->problem.rank, n[i] = s->problem.n, any = any || n[i] % 2 != 0 || s->slot.pre != nullptr;
    rows[i] = {s->weight, {layer.y.data, s->slot, nullptr, n[i]}};
  }
  const stream_choice c = choose_stream(n, count, x.size[0], static_cast<int>(x.size[1]), rank, facts->processors, any);
  return run_stream<T>(stream, c, stream_args{}, {x.data, x.size[0], x.size[1]}, rank, rows, count, chained);
}

}  // namespace graft::cuda
