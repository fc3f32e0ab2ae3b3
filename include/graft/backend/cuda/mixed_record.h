// SPDX-License-Identifier: Apache-2.0
// Batches whose rows have adapters of their own. What a product reads of an adapter is a record, whatever its method:
//     y = act(scale ⊙ (x · Wᵀ + (x · Aᵀ) · Bᵀ) + shift) + residual,   or the same with x ⊙ pre and without A and B
// The records of a product lie in a table in device memory, and an index for each row beside them: to give a row another
// adapter is to write another index, and to replace an adapter is to write a record. A captured launch sees both.
#pragma once
#include <cstdint>
#include <vector>

namespace graft::cuda {

struct mixed_record {
  const void* a = nullptr;        // [rank, in]
  const void* b = nullptr;        // [out, rank]
  const float* scale = nullptr;   // null: ones
  const float* shift = nullptr;   // null: zeros
  const void* pre = nullptr;      // [in]; null: ones. Only without a side branch
  long long rank = 0;             // padded to a multiple of 16; 0: no side branch
  const void* a_tiles = nullptr;  // the same A and B, as tiles (slot.h)
  const void* b_tiles = nullptr;

  friend bool operator==(const mixed_record&, const mixed_record&) = default;
};

// `records[-1]` is the layer alone.
struct mixed_batch {
  const mixed_record* records = nullptr;
  const std::int64_t* of_row = nullptr;  // -1: none

  bool mixes() const { return records != nullptr && of_row != nullptr; }
};

inline constexpr int max_mixed_rows = 64, max_mixed_rank = 64;
// Rows that share a tile of gemm, and how many records they may have there.
inline constexpr int mixed_block_rows = 128, mixed_block_places = 4;
// Sums that the thread blocks of a launch share, for so many products of 16 of the rank and 8 tokens; and behind them how
// many blocks have written theirs in all launches, and in all before this one. Zero at the beginning.
struct mixed_sums {
  static constexpr int products = 4 * max_mixed_rows * max_mixed_rank / 16;  // of up to four segments
  static constexpr long long count = products * 128LL, bytes = 4 * count + 8;
  float* s = nullptr;
  std::uint32_t* counters = nullptr;

  static mixed_sums at(void* memory) {
    auto* const s = static_cast<float*>(memory);
    return {s, reinterpret_cast<std::uint32_t*>(s + count)};
  }
};

// More rows than that, for one launch by tiles (gemm_mixed.cuh): which records each of them meets (mixed_blocks.h).
struct mixed_blocks {
  const int* of_block = nullptr;
  int rank = 0;        // room for the ranks of a block's records together; 0: there is none, and it is two launches
  bool posts = false;  // some record has a factor or a summand
  void* workspace = nullptr;
  std::uint32_t* counters = nullptr;
};

// Of all products of a plan; made by a mixed_bank (mixed_bank.cuh).
struct mixed_launches {
  struct product {
    const mixed_record* records = nullptr;  // null: all rows are the same there
    bool pre = false;                       // some record has a factor of the input
    void* scaled = nullptr;                 // memory for x ⊙ pre
    mixed_blocks blocks{};
  };
  std::vector<product> products;
  const std::int64_t* of_row = nullptr;
  mixed_sums sums{};
};

}  // namespace graft::cuda
