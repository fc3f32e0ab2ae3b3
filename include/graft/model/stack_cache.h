// SPDX-License-Identifier: Apache-2.0
// The stacks of a model by what acts on which weights. One is made when it is first asked for and kept, so that switching
// adapters is to look one up; those whose adapters are gone, and of too many the one used longest
// ago, are forgotten.
#pragma once
#include <graft/model/mixed_rows.h>
#include <graft/model/together.h>

#include <list>

namespace graft {

template <class Engine> class stack_cache {
 public:
  using stack = block_stack<Engine>;
  struct entry {
    std::vector<shared_adapter> of;
    unsigned long long on = 0;  // the number of the weights
    std::unique_ptr<stack> made;
    long long room = 0;  // rows that it is bound for

    status ready(way w, long long rows, const capacity& all) {
      if (rows <= room) return ok;
      if (status s = made->bind(w, all); !s) return s;
      room = rows;
      return ok;
    }
  };

  // `make` makes a stack that is not there yet.
  template <class Make> result<entry*> of(std::span<const shared_adapter> adapters, unsigned long long on, Make make) {
    for (auto e = all_.begin(); e != all_.end(); ++e)
      if (e->on == on && std::equal(e->of.begin(), e->of.end(), adapters.begin(), adapters.end())) {
        all_.splice(all_.end(), all_, e);  // the last to be forgotten: a call with several has all of them
        return &all_.back();
      }
    result<std::unique_ptr<stack>> fresh = make();
    if (!fresh) return fresh.failure();
    if (all_.size() == most) all_.pop_front();
    all_.push_back({{adapters.begin(), adapters.end()}, on, std::move(*fresh)});
    return &all_.back();
  }
  // The base on which rows have adapters of their own.
  template <class Make> result<entry*> base_of_mixed(unsigned long long on, Make make) {
    if (base_of_mixed_.made != nullptr && base_of_mixed_.on == on) return &base_of_mixed_;
    result<std::unique_ptr<stack>> fresh = make();
    if (!fresh) return fresh.failure();
    base_of_mixed_ = {{}, on, std::move(*fresh)};
    return &base_of_mixed_;
  }
  mixed_rows<Engine>& mixed() { return mixed_; }
  template <class Stays> void keep_only(Stays stays) {
    all_.remove_if([&](const entry& e) { return !stays(e); });
  }
  status parameters_changed() {
    for (entry& e : all_)
      for (bound_block<Engine>& b : e.made->blocks())
        if (status s = b.parameters_changed(); !s) return s;
    return ok;
  }

 private:
  static constexpr std::size_t most = mixed_rows<Engine>::places;
  std::list<entry> all_;  // the one used last is at the end
  entry base_of_mixed_;
  mixed_rows<Engine> mixed_;
};

}  // namespace graft
