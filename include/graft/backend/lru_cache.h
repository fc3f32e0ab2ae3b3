// SPDX-License-Identifier: Apache-2.0
// lru_cache: entries in the order of their last use. Its owner decides how many there are and which may leave, so it
// holds captured steps and bound launches as well as programs, stacks of a model and reused prefixes. Entries do not
// move while they are in it.
#pragma once
#include <cstddef>
#include <list>
#include <utility>

namespace graft {

template <class Entry> class lru_cache {
 public:
  // Returns the entry that `wanted` accepts, which becomes the last one used; null: there is none.
  template <class Wanted> Entry* find(Wanted wanted) {
    for (auto e = all_.begin(); e != all_.end(); ++e)
      if (wanted(std::as_const(*e))) return all_.splice(all_.end(), all_, e), &all_.back();
    return nullptr;
  }
  Entry& add(Entry fresh) { return all_.push_back(std::move(fresh)), all_.back(); }
  // Adds a new entry, in place of the least recently used one if there are `most` already.
  Entry& add(Entry fresh, std::size_t most) {
    if (all_.size() >= most) all_.pop_front();
    return add(std::move(fresh));
  }
  const Entry& oldest() const { return all_.front(); }
  void drop_oldest() { all_.pop_front(); }
  void drop_newest() { all_.pop_back(); }
  // Removes the least recently used entry that may leave. Returns whether there was one.
  template <class MayLeave> bool evict(MayLeave may_leave) {
    for (auto e = all_.begin(); e != all_.end(); ++e)
      if (may_leave(*e)) return all_.erase(e), true;
    return false;
  }
  template <class Gone> void remove_if(Gone gone) { all_.remove_if(gone); }
  void clear() { all_.clear(); }
  std::size_t size() const { return all_.size(); }
  bool empty() const { return all_.empty(); }
  auto begin() { return all_.begin(); }
  auto end() { return all_.end(); }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::list<Entry> all_;  // the last one used is at the end
};

}  // namespace graft
