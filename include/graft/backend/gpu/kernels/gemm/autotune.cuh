// SPDX-License-Identifier: Apache-2.0
// Autotuning of GEMMs and grouped GEMMs: binds every candidate launch for a problem and times it. Programs reach it
// through autotune_hooks, so that only programs that enable autotuning compile it.
#pragma once
#include <graft/backend/gpu/kernels/gemm/launch.cuh>
#include <graft/backend/gpu/runtime/autotuner.cuh>

namespace graft::gpu {

inline result<gemm_choice> fastest_gemm(const gemm_kernel_set& kernels, const target& device, const gemm_problem& p,
                                        const gemm_operands& o) {
  autotuner& tuner = *kernels.timed.by;
  return tuner.choose("GEMM " + name_of(p), size_class(p.m), candidates_of(p, device, kernels.have),
                      [&](const gemm_choice& c) -> status {
                        prepared_gemm trial;
                        if (status s = bind(trial, kernels, p, c, o); !s) return s;
                        return launch(tuner.stream(), trial, true);
                      });
}
inline result<skinny_choice> fastest_grouped(const gemm_kernel_set& kernels, const target& device, const matrix& x,
                                             const gemm_problem* shapes, const skinny_layer* layers, int count) {
  autotuner& tuner = *kernels.timed.by;
  std::string name = "grouped";
  for (int i = 0; i < count; ++i) name += (i > 0 ? ", " : " ") + name_of(shapes[i]);
  return tuner.choose(name, size_class(x.rows), grouped_candidates(shapes, count, device, kernels.have),
                      [&](const skinny_choice& choice) -> status {
                        prepared_gemm trial;
                        trial.count = 1, trial.device = current_device();
                        if (status s = detail::bind_skinny(trial.at[0], kernels, shapes[0].type, choice, skinny_args{},
                                                           x, shapes[0].rank, layers, count, true);
                            !s)
                          return s;
                        return launch(tuner.stream(), trial, true);
                      });
}
inline autotune_hooks autotuned_by(autotuner* tuner) { return {tuner, &fastest_gemm, &fastest_grouped}; }

}  // namespace graft::gpu
