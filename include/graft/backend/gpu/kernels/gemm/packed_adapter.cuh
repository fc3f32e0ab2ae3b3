// SPDX-License-Identifier: Apache-2.0
// packed_adapter: the device buffers of one packed adapter, or of several branches packed as one, and its adapter_args
// record. A bound GEMM fills it; switching adapters copies one packed_adapter into another.
#pragma once
#include <graft/backend/gpu/kernels/gemm/pack.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>

namespace graft::gpu {

template <class T> struct packed_adapter {
  buffer a, b, a_tiles, b_tiles, prologue, epilogue;
  adapter_args record{};

  // Allocates for a branch of padded rank `rank`, or for a prologue, of an [n, k] weight, and resets the record. A tile
  // may read up to row_padding rows beyond the last; these are zero.
  status reserve(cudaStream_t stream, int n, int k, int rank, bool with_prologue) {
    record = adapter_args{};
    if (with_prologue) {
      if (status s = clear(stream, prologue, padded_inputs(k) * static_cast<long long>(sizeof(T))); !s) return s;
      record.prologue = prologue.data();
    }
    if (status s = epilogue.reserve(2 * (padded_rows(n) + row_padding) * 4); !s) return s;
    record.rank = rank;
    if (rank == 0) return ok;
    const long long size = sizeof(T), slabs = (rank + 63) / 64, width = rank < 64 ? rank : 64;
    if (status s = clear(stream, a, static_cast<long long>(rank) * k * size); !s) return s;
    if (status s = clear(stream, b, static_cast<long long>(n) * rank * size); !s) return s;
    record.b = b.data();
    if (sizeof(T) != 2) return ok;  // only 16-bit kernels read tiles
    if (status s = clear(stream, a_tiles, (k + 63) / 64 * 64LL * rank * size); !s) return s;
    if (status s = clear(stream, b_tiles, (slabs * padded_rows(n) + row_padding) * width * size); !s) return s;
    record.a_tiles = a_tiles.data(), record.b_tiles = b_tiles.data();
    return ok;
  }
  // Reserves unless exactly these buffers exist already, so that addresses stay valid for captured launches.
  status reserve_once(cudaStream_t stream, int n, int k, int rank, bool with_prologue) {
    const bool there = epilogue.bytes() > 0 && record.rank == rank && (record.prologue != nullptr) == with_prologue;
    return there ? status(ok) : reserve(stream, n, k, rank, with_prologue);
  }
  // The packed A and B and the destinations of their tiled copies.
  branch_tiles tiles(int n, int k) const {
    return {a.data(), b.data(), a_tiles.data(), b_tiles.data(), record.rank, n, k};
  }
  // Copies another adapter of equal sizes here, in stream order: later kernels that read this adapter see the other
  // one.
  status copy_from(cudaStream_t stream, const packed_adapter& other) {
    for (const auto& [to, from] : {std::pair{&a, &other.a}, std::pair{&b, &other.b},
                                   std::pair{&a_tiles, &other.a_tiles}, std::pair{&b_tiles, &other.b_tiles},
                                   std::pair{&prologue, &other.prologue}, std::pair{&epilogue, &other.epilogue}})
      if (from->bytes() > 0)
        if (status s = check(cudaMemcpyAsync(to->data(), from->data(), static_cast<std::size_t>(from->bytes()),
                                             cudaMemcpyDeviceToDevice, stream),
                             "switching the adapter");
            !s)
          return s;
    return ok;
  }

 private:
  static status clear(cudaStream_t stream, buffer& what, long long bytes) {
    if (status s = what.reserve(bytes); !s) return s;
    return check(cudaMemsetAsync(what.data(), 0, static_cast<std::size_t>(what.bytes()), stream), "clearing");
  }
};

}  // namespace graft::gpu
