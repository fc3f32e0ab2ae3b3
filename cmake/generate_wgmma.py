#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Writes include/graft/backend/gpu/arch/wgmma.cuh, because C++ cannot spell the operand list of an instruction by its length.
# usage: cmake/generate_wgmma.py > include/graft/backend/gpu/arch/wgmma.cuh
widths = [8, 16, 32, 64, 80, 96, 128, 256]
types = [("__nv_bfloat16", "bf16"), ("__half", "f16")]

print('''// SPDX-License-Identifier: Apache-2.0
// wgmma (m64nNk16): one warpgroup computes D (+)= A B with A [64, 16] in shared memory or registers, B [16, Width] in
// shared memory, 16-bit inputs and float accumulators.
//
// Operands in shared memory are K-major, or MN-major with TransA / TransB. `accumulate` false overwrites the
// accumulators. A warpgroup calls wgmma_fence() before the first product and after it has written registers that
// products read or accumulate into, wgmma_commit() after a group of products, and wgmma_wait<Pending>() before it reads
// accumulators or releases the stage that the products read. The struct specializations are written by
// cmake/generate_wgmma.py, because C++ cannot spell an operand list by its length.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace graft::gpu {

template <class T, int Width> struct wgmma;

// clang-format off''')
for cpp, ptx in types:
    for n in widths:
        c = n // 2
        regs = ",".join(f"%{i}" for i in range(c))
        outs = ",".join(f'"+f"(d[{i}])' for i in range(c))
        head = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx}.{ptx} {{{regs}}}"
        print(f"template <> struct wgmma<{cpp}, {n}> {{")
        print("  template <bool TransA = false, bool TransB = false>")
        print(f"  static __device__ __forceinline__ void shared(float (&d)[{c}], std::uint64_t a, std::uint64_t b, bool accumulate) {{")
        print(f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{c + 2}, 0; {head}, %{c}, %{c + 1}, p, 1, 1, %{c + 3}, %{c + 4};}}" : {outs} : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransA ? 1 : 0), "n"(TransB ? 1 : 0));')
        print("  }")
        print("  template <bool TransB = false>")
        print(f"  static __device__ __forceinline__ void registers(float (&d)[{c}], const std::uint32_t (&a)[4], std::uint64_t b, bool accumulate) {{")
        print(f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{c + 5}, 0; {head}, {{%{c},%{c + 1},%{c + 2},%{c + 3}}}, %{c + 4}, p, 1, 1, %{c + 6};}}" : {outs} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransB ? 1 : 0));')
        print("  }")
        print("};")
print('''// clang-format on

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Matrix descriptor of a K-major tile (PTX ISA, wgmma matrix descriptors): rows of `pitch` bytes (32, 64 or 128) along
// K, swizzled over that span, as TMA writes a box whose inner extent is `pitch` bytes. The tile begins at a multiple of
// 8 * pitch bytes, and eight rows are one swizzle atom. The next sixteen elements of K are at descriptor + 2.
__device__ __forceinline__ std::uint64_t tile_descriptor(std::uint32_t address, std::uint32_t pitch = 128) {
  const std::uint64_t layout = pitch == 128 ? 1 : pitch == 64 ? 2 : 3;
  return ((address & 0x3FFFFU) >> 4U) | (1ULL << 16U) | (static_cast<std::uint64_t>(pitch / 2) << 32U) |
         (layout << 62U);
}
// Matrix descriptor of an MN-major tile: each row of `pitch` bytes runs along M (or N), and one row is one element of
// K. A tile that is wider than `pitch` bytes continues `next` bytes further. The next sixteen elements of K are at
// descriptor + pitch.
__device__ __forceinline__ std::uint64_t mn_major_descriptor(std::uint32_t address, std::uint32_t next,
                                                             std::uint32_t pitch = 128) {
  const std::uint64_t layout = pitch == 128 ? 1 : pitch == 64 ? 2 : 3;
  return ((address & 0x3FFFFU) >> 4U) | (static_cast<std::uint64_t>(next >> 4U) << 16U) |
         (static_cast<std::uint64_t>(pitch / 2) << 32U) | (layout << 62U);
}
// Byte offset of the 16-bit element (row, col) in a swizzled tile with rows of `pitch` bytes, K-major or MN-major.
__device__ __forceinline__ std::uint32_t tile_offset(int row, int col, std::uint32_t pitch) {
  const std::uint32_t linear = static_cast<std::uint32_t>(row) * pitch + static_cast<std::uint32_t>(col) * 2;
  return linear ^ (((linear >> 7U) & (pitch / 16 - 1)) << 4U);
}

}  // namespace graft::gpu''')
