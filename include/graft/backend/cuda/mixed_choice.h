// SPDX-License-Identifier: Apache-2.0
// Which kernel runs a product whose rows have adapters of their own: the stream kernel that does it in one launch, or none,
// and then the bare product is followed by a launch that does the rest. Knows nothing of CUDA.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/backend/cuda/mixed_record.h>

namespace graft::cuda {

inline constexpr int mixed_shapes = 3;  // the first of stream_kernels
constexpr int mixed_tokens(long long m) { return m <= 16 ? 16 : max_mixed_rows; }
constexpr int mixed_index(int tokens, int rows) { return (tokens <= 16 ? 0 : mixed_shapes) + shape_index(rows, false); }

// `rows` is 0 where there is none: its thread blocks exchange sums, so that all of them must run at the same time.
constexpr stream_choice choose_mixed(const product_shape& p, const target& device) {
  const bool copies = is_16_bit(p.type) && p.k % 8 == 0 && p.aligned && !p.across;
  if (!copies || !is_hopper(device) || p.m > max_mixed_rows || p.n % 2 != 0 || p.k < 128) return {};
  stream_choice c = choose_stream(&p.n, 1, p.m, p.k, 0, device.processors, false, (1U << mixed_shapes) - 1);
  c.tokens = mixed_tokens(p.m);
  const bool resident = c.splits == 1 ? c.tiles <= device.processors : c.tiles <= device.resident_pairs;
  return resident ? c : stream_choice{};
}

}  // namespace graft::cuda
