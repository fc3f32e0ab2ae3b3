// SPDX-License-Identifier: Apache-2.0
// Which kernels run one product with its slots, decided from sizes and device alone: a plain function that needs no
// GPU.
#pragma once
#include <graft/backend/cuda/device.h>
#include <graft/backend/cuda/stream_shape.h>
#include <graft/core/dtype.h>

namespace graft::cuda {

struct linear_problem {
  dtype type = dtype::bf16;
  long long m = 0;
  int n = 0, k = 0;
  int rank = 0;         // padded; 0: no side branch
  bool aligned = true;  // all pointers are multiples of 16 bytes
  bool plain = true;    // neither activation nor residual
  bool pre = false;     // a factor for each column of x
};

enum class way : unsigned char { stream, gemm, gemm_two, mma, simt };

constexpr const char* name_of(way w) {
  constexpr const char* names[] = {"stream", "gemm", "gemm after a shrink", "gemm (mma.sync)",
                                   "gemm (no tensor cores)"};
  return names[static_cast<int>(w)];
}

struct linear_choice {
  way how = way::simt;
  int launches = 1;
  int tile_n = 256, group = 8, owners = 0, pairs = 0;  // gemm
  stream_choice stream{};                              // stream, or the shrink before gemm
  long long partial_bytes = 0, s_bytes = 0;
  long long workspace_bytes() const { return partial_bytes + s_bytes; }
};

// Enough for every choice with up to m tokens.
inline long long workspace_bound(long long m, int rank) { return (m + 255) / 256 * 256 * rank * (8 * 4 + 4); }
inline long long counter_bytes(long long m) { return (m + 255) / 256 * 2 * 16; }

inline bool is_16_bit(dtype t) { return t == dtype::bf16 || t == dtype::f16; }

// As many pairs as the number of waves needs: full waves line up with the groups that exchange S, and idle
// multiprocessors leave power to the others.
inline int launched_pairs(int tiles, int resident) {
  const int waves = (tiles + resident - 1) / resident;
  return (tiles + waves - 1) / waves;
}

inline void choose_gemm(const linear_problem& p, const device_facts& device, linear_choice& c) {
  const int m_pairs = static_cast<int>((p.m + 255) / 256), resident = device.resident_pairs;
  auto time = [&](int tile_n) {  // the narrow tile reads x twice as often
    const int tiles = m_pairs * ((p.n + tile_n - 1) / tile_n);
    return (tiles + resident - 1) / resident * tile_n * (tile_n == 128 ? 1.06 : 1.0);
  };
  c.tile_n = time(128) < time(256) ? 128 : 256;
  const int n_tiles = (p.n + c.tile_n - 1) / c.tile_n;
  c.pairs = launched_pairs(m_pairs * n_tiles, resident);
  c.how = way::gemm;
  if (p.rank == 0) return;
  c.owners = (n_tiles < 8 ? n_tiles : 8) / 4 * 4;
  const bool together = p.rank <= 64 && c.owners > 0 && (p.k + 63) / 64 >= c.owners &&
                        owners_are_resident(c.owners, c.group, m_pairs, c.pairs);
  c.s_bytes = p.m * p.rank * 2;
  if (together) {
    c.partial_bytes = static_cast<long long>(m_pairs) * 2 * c.owners * 128 * p.rank * 4;
    return;
  }
  c.how = way::gemm_two;
  c.owners = 0;
  c.launches = 2;
  const int rows = static_cast<int>(p.m);
  if (p.rank <= max_stream_tokens) c.stream = choose_stream(&rows, 1, p.rank, p.k, 0, device.processors, true);
}

inline linear_choice choose(const linear_problem& p, const device_facts& device) {
  linear_choice c;
  const bool copies = is_16_bit(p.type) && p.k % 8 == 0 && p.aligned;
  if (copies && device.hopper() && p.m <= max_stream_tokens && p.rank <= max_stream_rank) {
    c.how = way::stream;
    c.stream = choose_stream(&p.n, 1, p.m, p.k, p.rank, device.processors, !p.plain || p.pre || p.n % 2 != 0);
    return c;
  }
  if (copies && device.hopper() && p.n % 8 == 0) {
    choose_gemm(p, device, c);
    return c;
  }
  c.how = copies && device.capability >= 80 ? way::mma : way::simt;
  if (p.rank > 0) c.launches = 2, c.s_bytes = p.m * p.rank * (is_16_bit(p.type) ? 2 : 4);
  return c;
}

}  // namespace graft::cuda
