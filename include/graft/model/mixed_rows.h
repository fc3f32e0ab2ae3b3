// SPDX-License-Identifier: Apache-2.0
// Rows with adapters of their own in the launches of the base model: the stacks of the adapters that occur give their
// records to a bank of the engine, each in a place of its own, and a row names a place. What was captured goes on working
// when rows name others, and when another adapter takes a place.
#pragma once
#include <graft/model/block_stack.h>

#include <map>

namespace graft {

template <class Engine> class mixed_rows {
 public:
  using stack = block_stack<Engine>;
  static constexpr int places = 64;

  // The base, with the launches that all rows share; it stays until the bank is begun again.
  status begin(typename Engine::queue& q, way w, stack& base, long long rows) {
    if (base_ == base.number()) return ok;
    base_ = 0, kept_ = {}, refused_.clear();
    if (status s = bank_.begin(q, blocks(base, w), places, rows); !s) return s;
    base_ = base.number(), numbers_.clear();
    return ok;
  }
  // The place of what another stack does to the model; or why its rows run as a group of their own.
  result<int> place_of(way w, stack& with) {
    if (const auto why = refused_.find(with.number()); why != refused_.end()) return fail(why->second.c_str());
    kept* oldest = &kept_[0];
    for (kept& k : kept_) {
      if (k.number == with.number()) return k.used = ++calls_, static_cast<int>(&k - kept_.data());
      if (k.used < oldest->used) oldest = &k;
    }
    const int place = static_cast<int>(oldest - kept_.data());
    oldest->number = 0;
    ++changes_;
    if (status s = bank_.put(place, blocks(with, w)); !s) {
      refused_[with.number()] = s.message();
      return s.failure();
    }
    oldest->number = with.number(), oldest->used = ++calls_;
    return place;
  }
  // Where the place of each row lies for the engine, and what it is.
  status send(typename Engine::queue& q, const std::int64_t* place_of_row,
              std::span<const std::int64_t> places_of_rows) {
    const result<std::uint64_t> launches = bank_.send(q, place_of_row, places_of_rows);
    if (!launches) return launches.failure();
    std::uint64_t& known = numbers_[*launches];
    if (known == 0) known = stack::next_number();
    number_ = known;
    return ok;
  }
  // How often a place was given to another one.
  std::uint64_t changes() const { return changes_; }
  // Another one where other launches run than before.
  std::uint64_t number() const { return number_; }

 private:
  struct kept {
    std::uint64_t number = 0;
    long long used = 0;
  };
  using blocks_of_bank = std::vector<typename Engine::bank::block>;
  static blocks_of_bank blocks(stack& s, way w) {
    blocks_of_bank all;
    for (bound_block<Engine>& b : s.blocks()) {
      const way here = b.path().empty() ? way::forward : w;
      all.push_back({&b.program(here)->runs().made(), &b.binding(here)});
    }
    return all;
  }

  typename Engine::bank bank_;
  std::uint64_t base_ = 0, number_ = 0, changes_ = 0;
  std::map<std::uint64_t, std::uint64_t> numbers_;  // by the launches of the bank
  std::map<std::uint64_t, std::string> refused_;    // stacks that have no place, and why
  std::array<kept, places> kept_{};
  long long calls_ = 0;
};

}  // namespace graft
