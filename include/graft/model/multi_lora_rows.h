// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA batch (one set of adapters per row, as Punica and vLLM run it) in the launches of the base model: the
// stack of each set writes its records to a slot of the engine's adapter table, and each row names a slot. A captured
// step stays valid when rows name other slots and when another set takes a slot.
#pragma once
#include <graft/backend/lru_cache.h>
#include <graft/model/block_stack.h>

#include <map>

namespace graft {

template <class Engine> class multi_lora_rows {
 public:
  using stack = block_stack<Engine>;
  static constexpr int slots = 64;

  // Sets the base stack, whose launches all rows share, and empties all slots if it is another one than before.
  status begin(typename Engine::queue& q, pass_kind w, stack& base, long long rows) {
    if (base_ == base.number()) return ok;
    base_ = 0, slots_.clear(), rejected_.clear();
    if (status s = adapter_table_.begin(q, blocks(base, w), slots, rows); !s) return s;
    base_ = base.number(), numbers_.clear();
    return ok;
  }
  // Returns the slot of the stack of a set of adapters, which may take the least recently used one, or an error that
  // says why its rows must run as a group of their own.
  result<int> slot_of(pass_kind w, stack& with) {
    if (const auto why = rejected_.find(with.number()); why != rejected_.end()) return fail(why->second.c_str());
    if (const slot_entry* const k = slots_.find([&](const slot_entry& e) { return e.number == with.number(); }))
      return k->slot;
    const bool full = slots_.size() == slots;
    const int slot = full ? slots_.oldest().slot : static_cast<int>(slots_.size());
    ++changes_;
    if (status s = adapter_table_.put(slot, blocks(with, w)); !s) {
      rejected_[with.number()] = s.message();
      return s.failure();
    }
    slots_.add({with.number(), slot}, slots);
    return slot;
  }
  // Sends the table. `slot_of_row`: the slot of each row in the engine's memory; `row_slots`: the same numbers on the
  // host.
  status send(typename Engine::queue& q, const std::int64_t* slot_of_row, std::span<const std::int64_t> row_slots) {
    const result<std::uint64_t> launches = adapter_table_.send(q, slot_of_row, row_slots);
    if (!launches) return launches.failure();
    std::uint64_t& launch_number = numbers_[*launches];
    if (launch_number == 0) launch_number = stack::next_number();
    number_ = launch_number;
    return ok;
  }
  // Counts how often a slot was given to another set.
  std::uint64_t changes() const { return changes_; }
  // Identifies the launches that run: calls with equal numbers run equal launches.
  std::uint64_t number() const { return number_; }

 private:
  struct slot_entry {
    std::uint64_t number;
    int slot;
  };
  using table_blocks = std::vector<typename Engine::adapter_table::block>;
  static table_blocks blocks(stack& s, pass_kind w) {
    table_blocks all;
    for (bound_block<Engine>& b : s.blocks()) {
      const pass_kind here = b.path().empty() ? pass_kind::forward : w;
      all.push_back({&b.program(here)->engine_program(), &b.binding(here)});
    }
    return all;
  }

  typename Engine::adapter_table adapter_table_;
  std::uint64_t base_ = 0, number_ = 0, changes_ = 0;
  std::map<std::uint64_t, std::uint64_t> numbers_;  // by the adapter table's own number of its launches
  std::map<std::uint64_t, std::string> rejected_;   // stacks that cannot have a slot, and why
  lru_cache<slot_entry> slots_;
};

}  // namespace graft
