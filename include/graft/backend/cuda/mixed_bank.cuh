// SPDX-License-Identifier: Apache-2.0
// The adapters that rows of a model may have, as one table of records in device memory: for each product of each block the
// record of the base, and behind it those of the other ways to run the model, in places that stay. A way has a place if
// it launches what the base launches, with other records and nothing else; rotations and folded adapters have none.
#pragma once
#include <graft/backend/cuda/bound_plan.cuh>
#include <graft/backend/cuda/engine_memory.cuh>
#include <graft/backend/cuda/mixed_blocks.h>
#include <graft/backend/mixed_plan.h>

#include <algorithm>
#include <map>
#include <span>

namespace graft::cuda {

template <class T> class mixed_bank {
 public:
  // A block of a model that is bound in one way.
  struct block {
    const bound_plan<T>* in;
    typename bound_plan<T>::binding* with;
  };

  // The blocks of the base, whose launches will read the table, with up to so many rows.
  status begin(cudaStream_t stream, std::vector<block> base, int places, long long rows) {
    base_ = std::move(base), each_ = static_cast<std::size_t>(places) + 1, rows_ = rows;
    std::size_t products = 0;
    for (const block& b : base_) products += b.with->products.size();
    table_.assign(products * each_, {}), used_.assign(products, 0), ranks_.assign(products, 0);
    seen_.clear(), rows_now_.clear();
    std::size_t at = 0;
    for (const block& b : base_)
      for (const bound_product<T>& p : b.with->products)
        for (std::size_t k = at++ * each_, end = k + each_; k < end; ++k) table_[k] = p.record_of_rows();
    if (status s = sums_.reserve(mixed_sums::bytes); !s) return s;
    changed_ = true;
    if (rows > max_mixed_rows) {
      if (status s = workspace_.reserve(workspace_bound(rows, max_mixed_rank)); !s) return s;
      if (status s = counters_.reserve(counter_bytes(rows)); !s) return s;
      if (status s = blocks_.reserve((rows + 255) / 256 * 2 * mixed_block_places * 4); !s) return s;
      if (status s = check(cudaMemsetAsync(counters_.data(), 0, static_cast<std::size_t>(counters_.bytes()), stream),
                           "clearing");
          !s)
        return s;
    }
    return check(cudaMemsetAsync(sums_.data(), 0, static_cast<std::size_t>(sums_.bytes()), stream), "clearing");
  }
  // Another way to run the same blocks, in place k. Where it fits none, nothing is changed.
  status put(int k, std::span<const block> with) {
    std::vector<mixed_record> records;
    for (std::size_t b = 0; b < base_.size(); ++b)
      if (status s = read(base_[b], with[b], records); !s) return s;
    for (std::size_t p = 0; p < records.size(); ++p) {
      mixed_record& to = table_[p * each_ + static_cast<std::size_t>(k) + 1];
      const mixed_record& alone = table_[p * each_];
      if (records[p] != alone) used_[p] = 1;
      to = records[p];
    }
    changed_ = true;
    return ok;
  }
  // Where the index of each row lies, and what it is; and the table as it is now, ordered on the stream. Which launches
  // run: a number that was given before stands for the same ones.
  result<std::uint64_t> send(cudaStream_t stream, const std::int64_t* of_row, std::span<const std::int64_t> rows) {
    const bool many = rows.size() > max_mixed_rows;
    const bool placed = many && (changed_ || !std::equal(rows.begin(), rows.end(), rows_now_.begin(), rows_now_.end()));
    if (changed_) note_slots();
    if (placed)
      if (status s = place_blocks(stream, rows); !s) return s.failure();
    if (changed_ || placed || many != many_now_)
      if (status s = aim(many); !s) return s.failure();
    if (changed_) {
      const auto bytes = static_cast<long long>(table_.size() * sizeof(mixed_record));
      if (status s = memory_.write(table_.data(), bytes); !s) return s.failure();
      if (status s = memory_.send(stream); !s) return s.failure();
      changed_ = false;
    }
    std::size_t at = 0;
    for (const block& b : base_) {
      mixed_launches& m = b.with->mixed;
      m.of_row = of_row, m.sums = mixed_sums::at(sums_.data());
      m.products.resize(b.with->products.size());
      for (mixed_launches::product& p : m.products) {
        const std::size_t k = at++;
        p.records = used_[k] != 0 ? static_cast<const mixed_record*>(memory_.data()) + k * each_ + 1 : nullptr;
        p.pre = pre_[k] != 0, p.scaled = scaled_.data();
        p.blocks = {static_cast<const int*>(blocks_.data()), ranks_[k], post_[k] != 0, workspace_.data(),
                    counters_.as<std::uint32_t>()};
      }
    }
    return launches_now_;
  }

 private:
  struct leaf_of {
    const typename bound_plan<T>::binding* with;
    const void* operator()(id i) const { return with->leaves[i].data; }
  };
  static planned_block<leaf_of> planned(const block& b) { return {b.in->value(), b.in->launches(), {b.with}}; }
  status read(const block& base, const block& with, std::vector<mixed_record>& records) const {
    const planned_block<leaf_of> one = planned(base), other = planned(with);
    return match_products(one, other, [&](int k, int at) -> status {
      const bound_product<T>& found = with.with->products[at];
      if (found.rank() > max_mixed_rank)
        return fail("a side branch of rank ", found.rank(), " is larger than ", max_mixed_rank,
                    ", which rows may have one by one; they run as a group");
      records.push_back(adds_nothing(one, one.p.products[k], other, found.slots()) ? table_[records.size() * each_]
                                                                                   : found.record_of_rows());
      return ok;
    });
  }
  // Which products have a factor of the input in some record, and which one of the output or a summand.
  void note_slots() {
    pre_.assign(used_.size(), 0), post_.assign(used_.size(), 0);
    for (std::size_t k = 0; k < table_.size(); ++k) {
      if (table_[k].pre != nullptr) pre_[k / each_] = 1;
      if (table_[k].scale != nullptr || table_[k].shift != nullptr) post_[k / each_] = 1;
    }
  }
  // More rows than a stream kernel takes: the records of each tile, and what they need of each product.
  status place_blocks(cudaStream_t stream, std::span<const std::int64_t> rows) {
    rows_now_.assign(rows.begin(), rows.end());
    const places_of_blocks of = places_of_blocks::find(rows);
    for (std::size_t p = 0; p < ranks_.size(); ++p)
      ranks_[p] = of.rank(
          [&](int place) { return static_cast<int>(table_[p * each_ + static_cast<std::size_t>(place) + 1].rank); });
    if (status s = blocks_.write(of.of_block.data(), static_cast<long long>(of.of_block.size() * sizeof(int))); !s)
      return s;
    return blocks_.send(stream);
  }
  // Which products have records of their own, which a factor of the input, and which take many rows in one launch.
  status aim(bool many) {
    many_now_ = many;
    std::vector<int> now(used_.begin(), used_.end());
    long long widest = 0;
    std::size_t at = 0;
    for (const block& b : base_)
      for (const bound_product<T>& p : b.with->products) {
        const std::size_t k = at++;
        if (used_[k] == 0 || pre_[k] == 0) continue;
        now[k] = 2, widest = std::max(widest, static_cast<long long>(p.in_size()));
      }
    for (std::size_t k = 0; many && k < now.size(); ++k)
      if (now[k] != 0) now[k] += 4 * ranks_[k] + (post_[k] != 0 ? 512 : 0);
    const void* const before = scaled_.data();
    if (status s = scaled_.reserve(rows_ * widest * static_cast<long long>(sizeof(T))); !s) return s;
    if (scaled_.data() != before) seen_.clear();
    std::uint64_t& number = seen_[std::move(now)];
    if (number == 0) number = ++launches_;
    launches_now_ = number;
    return ok;
  }

  std::vector<block> base_;
  std::size_t each_ = 1;
  long long rows_ = 0;
  std::vector<mixed_record> table_;  // by product, and in it the base and the places behind it
  std::vector<char> used_, pre_, post_;
  std::vector<int> ranks_;  // of products, see mixed_blocks
  std::vector<std::int64_t> rows_now_;
  std::map<std::vector<int>, std::uint64_t> seen_;  // launches by what was aimed at
  std::uint64_t launches_ = 0, launches_now_ = 0;
  bool changed_ = false, many_now_ = false;
  staged_memory memory_, blocks_;
  buffer sums_, scaled_, workspace_, counters_;
};

}  // namespace graft::cuda
