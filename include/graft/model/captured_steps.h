// SPDX-License-Identifier: Apache-2.0
// The captured steps of a generator, by their number of rows and by the stack they run: to go back to adapters that acted
// before is to replay what was captured then. The ones used longest ago are forgotten.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>

namespace graft {

template <class Engine> class captured_steps {
 public:
  typename Engine::captured& of(std::size_t rows, std::uint64_t stack) {
    auto at = all_.begin();
    while (at != all_.end() && (at->rows != rows || at->stack != stack)) ++at;
    if (at == all_.end()) {
      if (all_.size() == most) all_.pop_back();
      all_.push_front({rows, stack, {}});
    } else {
      all_.splice(all_.begin(), all_, at);
    }
    return all_.front().work;
  }
  // How many of them there are to replay.
  int captured() const {
    int n = 0;
    for (const kept& k : all_) n += k.work.ready() ? 1 : 0;
    return n;
  }

 private:
  static constexpr std::size_t most = 128;
  struct kept {
    std::size_t rows;
    std::uint64_t stack;
    typename Engine::captured work;
  };
  std::list<kept> all_;  // the one used last comes first
};

}  // namespace graft
