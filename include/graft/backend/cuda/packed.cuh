// SPDX-License-Identifier: Apache-2.0
// The slots of one or several adapters in device memory, as the kernels read them. A bound product fills it; to
// switch adapters is to copy one of these into another.
#pragma once
#include <graft/backend/cuda/memory.h>
#include <graft/backend/cuda/pack_functions.cuh>

namespace graft::cuda {

template <class T> struct packed_adapter {
  buffer a, b, a_tiles, b_tiles, pre, post;
  adapter_slot record{};

  // Room for a side branch of `rank` (padded) or a pre slot on an [n, k] weight, and an empty record. A tile of rows
  // may reach beyond the last one by less than row_padding: there are zeros behind it.
  status reserve(cudaStream_t stream, int n, int k, int rank, bool with_pre) {
    record = adapter_slot{};
    if (with_pre) {
      if (status s = clear(stream, pre, padded_inputs(k) * static_cast<long long>(sizeof(T))); !s) return s;
      record.pre = pre.data();
    }
    if (status s = post.reserve(2 * (padded_rows(n) + row_padding) * 4); !s) return s;
    record.rank = rank;
    if (rank == 0) return ok;
    const long long size = sizeof(T), slabs = (rank + 63) / 64, width = rank < 64 ? rank : 64;
    if (status s = clear(stream, a, static_cast<long long>(rank) * k * size); !s) return s;
    if (status s = clear(stream, b, static_cast<long long>(n) * rank * size); !s) return s;
    record.b = b.data();
    if (sizeof(T) != 2) return ok;  // no kernel would read tiles
    if (status s = clear(stream, a_tiles, (k + 63) / 64 * 64LL * rank * size); !s) return s;
    if (status s = clear(stream, b_tiles, (slabs * padded_rows(n) + row_padding) * width * size); !s) return s;
    record.a_tiles = a_tiles.data(), record.b_tiles = b_tiles.data();
    return ok;
  }
  // The same, where there is not yet room for just that: addresses stay.
  status reserve_once(cudaStream_t stream, int n, int k, int rank, bool with_pre) {
    const bool there = post.bytes() > 0 && record.rank == rank && (record.pre != nullptr) == with_pre;
    return there ? status(ok) : reserve(stream, n, k, rank, with_pre);
  }
  // A and B, where they are complete, and the tiles that they are laid out as for the kernels that copy those.
  side_tiles tiles(int n, int k) const {
    return {a.data(), b.data(), a_tiles.data(), b_tiles.data(), record.rank, n, k};
  }
  // Another adapter of the same sizes, ordered after what the stream has queued: kernels that read this one see it.
  status copy_from(cudaStream_t stream, const packed_adapter& other) {
    for (const auto& [to, from] :
         {std::pair{&a, &other.a}, std::pair{&b, &other.b}, std::pair{&a_tiles, &other.a_tiles},
          std::pair{&b_tiles, &other.b_tiles}, std::pair{&pre, &other.pre}, std::pair{&post, &other.post}})
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

}  // namespace graft::cuda
