// SPDX-License-Identifier: Apache-2.0
// call_guard: makes a concurrent call of one layer an error in every build, for the price of one atomic exchange per
// call. A layer has one call and one workspace, so two threads need two layers, or a lock.
#pragma once
#include <graft/core/result.h>

#include <atomic>

namespace graft {

class call_guard {
 public:
  class scoped_call {
   public:
    // A null guard is that of a layer that was moved from.
    explicit scoped_call(call_guard* guard)
        : guard_(guard), entered_(guard != nullptr && !guard->in_call_.exchange(true, std::memory_order_acquire)) {}
    scoped_call(const scoped_call&) = delete;
    scoped_call& operator=(const scoped_call&) = delete;
    ~scoped_call() {
      if (entered_) guard_->in_call_.store(false, std::memory_order_release);
    }
    explicit operator bool() const { return entered_; }
    // Says why the call was not entered.
    [[gnu::cold, gnu::noinline]] error refusal() const {
      if (guard_ == nullptr) return moved_from_error();
      return fail("this layer is in a call of another thread; one call at a time, or a layer for each thread");
    }

   private:
    call_guard* guard_;
    bool entered_;
  };
  [[gnu::cold, gnu::noinline]] static error moved_from_error() {
    return fail("this layer was moved from; use the one that it was moved to, or assign another one to it");
  }

 private:
  std::atomic<bool> in_call_{false};
};

}  // namespace graft
