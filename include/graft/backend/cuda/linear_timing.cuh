// SPDX-License-Identifier: Apache-2.0
// Which launch of a product is quickest, of one by itself and of several that are segments of one launch: all ways that
// take their sizes are bound and timed. The program compiles this where it asks for timed choices, as pointers.
#pragma once
#include <graft/backend/cuda/choice_timer.cuh>
#include <graft/backend/cuda/linear.cuh>

namespace graft::cuda {

inline result<linear_choice> quickest_product(const linear_kernels& kernels, const target& device,
                                              const product_shape& p, const linear_operands& o) {
  choice_timer& timer = *kernels.timed.by;
  return timer.choose("product " + name_of(p), size_class(p.m), ways_of(p, device, kernels.have),
                      [&](const linear_choice& c) -> status {
                        bound_linear trial;
                        if (status s = bind(trial, kernels, p, c, o); !s) return s;
                        return launch(timer.stream(), trial, true);
                      });
}
inline result<stream_choice> quickest_together(const linear_kernels& kernels, const target& device, const matrix& x,
                                               const product_shape* shapes, const stream_layer* layers, int count) {
  choice_timer& timer = *kernels.timed.by;
  std::string name = "together";
  for (int i = 0; i < count; ++i) name += (i > 0 ? ", " : " ") + name_of(shapes[i]);
  return timer.choose(name, size_class(x.rows), ways_together(shapes, count, device, kernels.have),
                      [&](const stream_choice& how) -> status {
                        bound_linear trial;
                        trial.count = 1, trial.device = device_now();
                        if (status s = detail::bind_stream(trial.at[0], kernels, shapes[0].type, how, stream_args{}, x,
                                                           shapes[0].rank, layers, count, true);
                            !s)
                          return s;
                        return launch(timer.stream(), trial, true);
                      });
}
inline timed_choices timed_by(choice_timer* timer) { return {timer, &quickest_product, &quickest_together}; }

}  // namespace graft::cuda
