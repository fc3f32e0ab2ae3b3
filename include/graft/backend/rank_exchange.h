// SPDX-License-Identifier: Apache-2.0
// How an engine reaches the ranks that compute with it: numbers of its memory become the sums of all ranks' numbers, or the
// largest of them. Where exchanges are ordered on a stream the engine works on it too, and what it waits for may never come:
// whoever has the ranks waits with it. A program that has a communicator brings all of this.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>

#include <memory>

namespace graft {

// Whoever has the ranks. An interface, since <functional> is a twentieth of what a file with a layer reads.
class rank_link {
 public:
  struct question {
    virtual bool operator()() const = 0;

   protected:
    ~question() = default;
  };
  virtual ~rank_link() = default;
  virtual status reduce(const mutable_view& values, bool largest) = 0;
  virtual status wait_until(const question& done) = 0;
};

struct rank_exchange {
  std::shared_ptr<rank_link> link{};  // null: this process computes alone
  void* stream = nullptr;

  template <class Done> status until(Done done) const {
    struct asked final : rank_link::question {
      explicit asked(Done& d) : done(d) {}
      bool operator()() const override { return done(); }
      Done& done;
    };
    return link != nullptr ? link->wait_until(asked(done)) : status(ok);
  }
};

}  // namespace graft
