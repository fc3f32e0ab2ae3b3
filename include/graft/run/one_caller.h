// SPDX-License-Identifier: Apache-2.0
// One call at a time: a layer fills in its one call and works in memory of its own, so two threads need two layers, or a
// lock of theirs. A second thread that calls nevertheless is told so, in every build: one exchange per call.
#pragma once
#include <graft/core/result.h>

#include <atomic>

namespace graft {

class one_caller {
 public:
  class visit {
   public:
    explicit visit(std::atomic<bool>& inside)
        : inside_(inside), mine_(!inside.exchange(true, std::memory_order_acquire)) {}
    visit(const visit&) = delete;
    visit& operator=(const visit&) = delete;
    ~visit() {
      if (mine_) inside_.store(false, std::memory_order_release);
    }
    explicit operator bool() const { return mine_; }

   private:
    std::atomic<bool>& inside_;
    bool mine_;
  };
  visit enter() { return visit(inside_); }
  [[gnu::cold, gnu::noinline]] static error refusal() {
    return fail("this layer is in a call of another thread; one call at a time, or a layer for each thread");
  }

 private:
  std::atomic<bool> inside_{false};
};

}  // namespace graft
