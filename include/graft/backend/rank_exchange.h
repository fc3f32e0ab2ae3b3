// SPDX-License-Identifier: Apache-2.0
// How an engine reaches the ranks that compute with it: numbers of its memory become the sums of all ranks' numbers, or the
// largest of them. Where exchanges are ordered on a stream the engine works on it too, and what it waits for may never come:
// whoever has the ranks waits with it. A program that has a communicator brings all of this.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>

#include <functional>

namespace graft {

struct rank_exchange {
  std::function<status(const mutable_view& values, bool largest)> reduce{};
  std::function<status(const std::function<bool()>& done)> wait_until{};
  void* stream = nullptr;

  status until(const std::function<bool()>& done) const { return wait_until ? wait_until(done) : status(ok); }
};

}  // namespace graft
