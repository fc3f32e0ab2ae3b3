#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Writes include/graft/backend/cuda/wgmma.cuh: C++ has no way to spell the operand list of an instruction by its length.
# usage: cmake/generate_wgmma.py > include/graft/backend/cuda/wgmma.cuh
widths = [8, 16, 32, 64, 80, 96, 128, 256]
types = [("__nv_bfloat16", "bf16"), ("__half", "f16")]

print('''// SPDX-License-Identifier: Apache-2.0
// wgmma: a warpgroup multiplies a 64 x 16 tile with a 16 x Width tile into float accumulators (m64nWidthk16). The left
// tile lies in shared memory or in registers. A tile is stored with the inner axis contiguous, or `across`: with the
// other one. Written by cmake/generate_wgmma.py. `keep` false overwrites the accumulators, true adds to them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace graft::cuda {

template <class T, int Width> struct wgmma;

// clang-format off''')
for cpp, ptx in types:
    for n in widths:
        c = n // 2
        regs = ",".join(f"%{i}" for i in range(c))
        outs = ",".join(f'"+f"(d[{i}])' for i in range(c))
        head = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx}.{ptx} {{{regs}}}"
        print(f"template <> struct wgmma<{cpp}, {n}> {{")
        print("  template <bool AcrossA = false, bool AcrossB = false>")
        print(f"  static __device__ __forceinline__ void shared(float (&d)[{c}], std::uint64_t a, std::uint64_t b, bool keep) {{")
        print(f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{c + 2}, 0; {head}, %{c}, %{c + 1}, p, 1, 1, %{c + 3}, %{c + 4};}}" : {outs} : "l"(a), "l"(b), "r"(static_cast<int>(keep)), "n"(AcrossA ? 1 : 0), "n"(AcrossB ? 1 : 0));')
        print("  }")
        print("  template <bool AcrossB = false>")
        print(f"  static __device__ __forceinline__ void registers(float (&d)[{c}], const std::uint32_t (&a)[4], std::uint64_t b, bool keep) {{")
        print(f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{c + 5}, 0; {head}, {{%{c},%{c + 1},%{c + 2},%{c + 3}}}, %{c + 4}, p, 1, 1, %{c + 6};}}" : {outs} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep)), "n"(AcrossB ? 1 : 0));')
        print("  }")
        print("};")
print('''// clang-format on

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Descriptor of a tile whose rows are `pitch` bytes long (32, 64 or 128) and swizzled over that span, which is what a
// tensor copy with an inner box of `pitch` bytes writes. Eight rows lie together; the tile begins on a multiple of
// 8 * pitch. Sixteen inner elements further is +2.
__device__ __forceinline__ std::uint64_t tile_descriptor(std::uint32_t address, std::uint32_t pitch = 128) {
  const std::uint64_t layout = pitch == 128 ? 1 : pitch == 64 ? 2 : 3;
  return ((address & 0x3FFFFU) >> 4U) | (1ULL << 16U) | (static_cast<std::uint64_t>(pitch / 2) << 32U) | (layout << 62U);
}
// The same of a tile that is stored across: its rows are inner elements. Behind `pitch` bytes of the other axis the tile
// goes on `next` bytes further. Sixteen inner elements further is +pitch.
__device__ __forceinline__ std::uint64_t across_descriptor(std::uint32_t address, std::uint32_t next,
                                                           std::uint32_t pitch = 128) {
  const std::uint64_t layout = pitch == 128 ? 1 : pitch == 64 ? 2 : 3;
  return ((address & 0x3FFFFU) >> 4U) | (static_cast<std::uint64_t>(next >> 4U) << 16U) |
         (static_cast<std::uint64_t>(pitch / 2) << 32U) | (layout << 62U);
}
// Byte offset of 16-bit element (row, col) in a tile of either kind.
__device__ __forceinline__ std::uint32_t tile_offset(int row, int col, std::uint32_t pitch) {
  const std::uint32_t linear = static_cast<std::uint32_t>(row) * pitch + static_cast<std::uint32_t>(col) * 2;
  return linear ^ (((linear >> 7U) & (pitch / 16 - 1)) << 4U);
}

}  // namespace graft::cuda''')
