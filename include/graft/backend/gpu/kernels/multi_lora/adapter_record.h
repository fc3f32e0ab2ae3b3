// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA batches (Punica BGMV/SGMV-style): the rows of one batch have adapters of their own.
//
//   y = act(scale ⊙ (x Wᵀ + (x Aᵀ) Bᵀ) + shift) + residual,   or the same with x ⊙ prologue and without A and B
//
// What a product reads of an adapter is one record, whatever the method. The records of a product are a table in device
// memory, and a row has an index into it: giving a row another adapter writes an index, replacing an adapter writes a
// record. A captured launch sees both.
#pragma once
#include <cstdint>
#include <vector>

namespace graft::gpu {

struct adapter_record {
  const void* a = nullptr;         // [rank, in]
  const void* b = nullptr;         // [out, rank]
  const float* scale = nullptr;    // null: ones
  const float* shift = nullptr;    // null: zeros
  const void* prologue = nullptr;  // [in]; null: ones. Only without a low-rank branch
  long long rank = 0;              // padded to a multiple of 16; 0: no low-rank branch
  const void* a_tiles = nullptr;   // A and B packed as tiles, see adapter_args
  const void* b_tiles = nullptr;

  friend bool operator==(const adapter_record&, const adapter_record&) = default;
};

// The adapters of the rows of a call; `records[-1]` is the record of the base layer.
struct multi_lora_batch {
  const adapter_record* records = nullptr;
  const std::int64_t* of_row = nullptr;  // record index of each row; -1: no adapter

  bool is_multi_lora() const { return records != nullptr && of_row != nullptr; }
};

inline constexpr int max_multi_lora_rows = 64, max_multi_lora_rank = 64;
// Rows per tile of the multi-LoRA GEMM, and the most records that they may have.
inline constexpr int adapter_tile_rows = 128, max_tile_adapters = 4;
// Workspace of the skinny kernel: partial sums of U = x Aᵀ, 128 floats per product of 8 tokens and 16 of the rank, then
// two counters: CTAs that have written theirs in all launches, and in all launches before this one. Initially zero.
struct multi_lora_partials {
  static constexpr int products = 4 * max_multi_lora_rows * max_multi_lora_rank / 16;  // for up to four segments
  static constexpr long long count = products * 128LL, bytes = 4 * count + 8;
  float* s = nullptr;
  std::uint32_t* counters = nullptr;

  static multi_lora_partials at(void* memory) {
    auto* const s = static_cast<float*>(memory);
    return {s, reinterpret_cast<std::uint32_t*>(s + count)};
  }
};

// More than max_multi_lora_rows rows in one launch (gemm_sm90.cuh): the records of each tile (tile_adapters.h).
struct multi_lora_tiles {
  const int* adapters_of_tile = nullptr;
  int rank = 0;  // upper bound of the sum of a tile's ranks; 0: no kernel takes it, and the product is two launches
  bool epilogue_steps = false;  // some record has a scale or a shift
  void* workspace = nullptr;
  std::uint32_t* counters = nullptr;
};

// The multi-LoRA state of all products of a plan, filled by multi_lora_table (adapter_table.cuh).
struct multi_lora_launches {
  struct product {
    const adapter_record* records = nullptr;  // null: no adapter changes this product
    bool prologue = false;                    // some record scales x
    void* scaled = nullptr;                   // memory for x ⊙ prologue
    multi_lora_tiles blocks{};
  };
  std::vector<product> products;
  const std::int64_t* of_row = nullptr;
  multi_lora_partials sums{};
};

}  // namespace graft::gpu
