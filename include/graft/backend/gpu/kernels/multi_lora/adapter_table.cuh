// SPDX-License-Identifier: Apache-2.0
// The adapter table of multi-LoRA batches in device memory: for each product of each block the record of the base
// layer, followed by one slot per resident adapter.
//
// An adapter has a slot if it launches what the base launches with other records and nothing else
// (backend/multi_lora_plan.h). Rotations and folded adapters need other launches and have none; their rows run apart.
#pragma once
#include <graft/backend/gpu/kernels/multi_lora/tile_adapters.h>
#include <graft/backend/gpu/runtime/engine_memory.cuh>
#include <graft/backend/gpu/runtime/program.cuh>
#include <graft/backend/multi_lora_plan.h>

#include <algorithm>
#include <map>
#include <span>

namespace graft::gpu {

template <class T> class multi_lora_table {
 public:
  // A block of a model with one binding, of the base or of an adapter.
  struct block {
    const program<T>* in;
    binding<T>* with;
  };

  // Sets the blocks of the base, whose launches read the table, and allocates for `max_adapters` slots and `rows` rows.
  status begin(cudaStream_t stream, std::vector<block> base, int max_adapters, long long rows) {
    base_ = std::move(base), records_per_product_ = static_cast<std::size_t>(max_adapters) + 1, rows_ = rows;
    std::size_t products = 0;
    for (const block& b : base_) products += b.with->products.size();
    table_.assign(products * records_per_product_, {}), used_.assign(products, 0), ranks_.assign(products, 0);
    launch_numbers_.clear(), rows_now_.clear();
    std::size_t at = 0;
    for (const block& b : base_)
      for (const gemm_binding<T>& p : b.with->products)
        for (std::size_t k = at++ * records_per_product_, end = k + records_per_product_; k < end; ++k)
          table_[k] = p.record_for_rows();
    if (status s = sums_.reserve(multi_lora_partials::bytes); !s) return s;
    changed_ = true;
    if (rows > max_multi_lora_rows) {
      if (status s = workspace_.reserve(workspace_bound(rows, max_multi_lora_rank)); !s) return s;
      if (status s = counters_.reserve(counter_bytes(rows)); !s) return s;
      if (status s = blocks_.reserve((rows + 255) / 256 * 2 * max_tile_adapters * 4); !s) return s;
      if (status s = check(cudaMemsetAsync(counters_.data(), 0, static_cast<std::size_t>(counters_.bytes()), stream),
                           "clearing");
          !s)
        return s;
    }
    return check(cudaMemsetAsync(sums_.data(), 0, static_cast<std::size_t>(sums_.bytes()), stream), "clearing");
  }
  // Puts the records of an adapter, given by its bindings of the same blocks, into slot k. On an error nothing changes.
  status put(int k, std::span<const block> with) {
    std::vector<adapter_record> records;
    for (std::size_t b = 0; b < base_.size(); ++b)
      if (status s = read(base_[b], with[b], records); !s) return s;
    for (std::size_t p = 0; p < records.size(); ++p) {
      adapter_record& to = table_[p * records_per_product_ + static_cast<std::size_t>(k) + 1];
      const adapter_record& base_record = table_[p * records_per_product_];
      if (records[p] != base_record) used_[p] = 1;
      to = records[p];
    }
    changed_ = true;
    return ok;
  }
  // Prepares a call: `of_row` is the device memory of the row indices, `rows` their values. Uploads a changed table in
  // stream order. Returns a number that identifies the launches of the call: equal numbers mean equal launches, so that
  // a captured graph may be replayed.
  result<std::uint64_t> send(cudaStream_t stream, const std::int64_t* of_row, std::span<const std::int64_t> rows) {
    const bool many = rows.size() > max_multi_lora_rows;
    const bool placed = many && (changed_ || !std::equal(rows.begin(), rows.end(), rows_now_.begin(), rows_now_.end()));
    if (changed_) find_record_slots();
    if (placed)
      if (status s = upload_tile_adapters(stream, rows); !s) return s.failure();
    if (changed_ || placed || many != many_now_)
      if (status s = update_pointers(many); !s) return s.failure();
    if (changed_) {
      const auto bytes = static_cast<long long>(table_.size() * sizeof(adapter_record));
      if (status s = memory_.write(table_.data(), bytes); !s) return s.failure();
      if (status s = memory_.send(stream); !s) return s.failure();
      changed_ = false;
    }
    std::size_t at = 0;
    for (const block& b : base_) {
      multi_lora_launches& m = b.with->multi_lora;
      m.of_row = of_row, m.sums = multi_lora_partials::at(sums_.data());
      m.products.resize(b.with->products.size());
      for (multi_lora_launches::product& p : m.products) {
        const std::size_t k = at++;
        p.records =
            used_[k] != 0 ? static_cast<const adapter_record*>(memory_.data()) + k * records_per_product_ + 1 : nullptr;
        p.prologue = prologue_[k] != 0, p.scaled = scaled_.data();
        p.blocks = {static_cast<const int*>(blocks_.data()), ranks_[k], epilogue_[k] != 0, workspace_.data(),
                    counters_.as<std::uint32_t>()};
      }
    }
    return launches_now_;
  }

 private:
  struct leaf_of {
    const binding<T>* with;
    const void* operator()(id i) const { return with->leaves[i].data; }
  };
  static block_plan<leaf_of> planned(const block& b) { return {b.in->value(), b.in->launches(), {b.with}}; }
  status read(const block& base, const block& with, std::vector<adapter_record>& records) const {
    const block_plan<leaf_of> one = planned(base), other = planned(with);
    return match_gemms(one, other, [&](int k, int at) -> status {
      const gemm_binding<T>& found = with.with->products[at];
      if (found.rank() > max_multi_lora_rank)
        return fail("a low-rank branch of rank ", found.rank(), " is larger than ", max_multi_lora_rank,
                    ", which rows may have one by one; rows with it run as a batch of their own");
      records.push_back(is_base_gemm(one, one.p.products[k], other, found.slots())
                            ? table_[records.size() * records_per_product_]
                            : found.record_for_rows());
      return ok;
    });
  }
  // Finds the products that have a prologue, or a scale or shift, in some record.
  void find_record_slots() {
    prologue_.assign(used_.size(), 0), epilogue_.assign(used_.size(), 0);
    for (std::size_t k = 0; k < table_.size(); ++k) {
      if (table_[k].prologue != nullptr) prologue_[k / records_per_product_] = 1;
      if (table_[k].scale != nullptr || table_[k].shift != nullptr) epilogue_[k / records_per_product_] = 1;
    }
  }
  // For more rows than the skinny kernel takes: finds the records of each tile and the rank that each product needs.
  status upload_tile_adapters(cudaStream_t stream, std::span<const std::int64_t> rows) {
    rows_now_.assign(rows.begin(), rows.end());
    const tile_adapters of = tile_adapters::find(rows);
    for (std::size_t p = 0; p < ranks_.size(); ++p)
      ranks_[p] = of.rank([&](int adapter) {
        return static_cast<int>(table_[p * records_per_product_ + static_cast<std::size_t>(adapter) + 1].rank);
      });
    if (status s =
            blocks_.write(of.adapters_of_tile.data(), static_cast<long long>(of.adapters_of_tile.size() * sizeof(int)));
        !s)
      return s;
    return blocks_.send(stream);
  }
  // Identifies the launches of a call from the products' records, prologues and tile ranks; reserves scaled_.
  status update_pointers(bool many) {
    many_now_ = many;
    std::vector<int> now(used_.begin(), used_.end());
    long long widest = 0;
    std::size_t at = 0;
    for (const block& b : base_)
      for (const gemm_binding<T>& p : b.with->products) {
        const std::size_t k = at++;
        if (used_[k] == 0 || prologue_[k] == 0) continue;
        now[k] = 2, widest = std::max(widest, static_cast<long long>(p.in_size()));
      }
    for (std::size_t k = 0; many && k < now.size(); ++k)
      if (now[k] != 0) now[k] += 4 * ranks_[k] + (epilogue_[k] != 0 ? 512 : 0);
    const void* const before = scaled_.data();
    if (status s = scaled_.reserve(rows_ * widest * static_cast<long long>(sizeof(T))); !s) return s;
    if (scaled_.data() != before) launch_numbers_.clear();
    std::uint64_t& number = launch_numbers_[std::move(now)];
    if (number == 0) number = ++launches_;
    launches_now_ = number;
    return ok;
  }

  std::vector<block> base_;
  std::size_t records_per_product_ = 1;
  long long rows_ = 0;
  std::vector<adapter_record> table_;  // [product][base, then one per slot]
  std::vector<char> used_, prologue_, epilogue_;
  std::vector<int> ranks_;  // per product, see tile_adapters::rank
  std::vector<std::int64_t> rows_now_;
  std::map<std::vector<int>, std::uint64_t> launch_numbers_;  // number of each combination of launches
  std::uint64_t launches_ = 0, launches_now_ = 0;
  bool changed_ = false, many_now_ = false;
  staged_memory memory_, blocks_;
  buffer sums_, scaled_, workspace_, counters_;
};

}  // namespace graft::gpu
