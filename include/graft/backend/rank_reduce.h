// SPDX-License-Identifier: Apache-2.0
// The all-reduce of an engine: values in its memory become the sum or the maximum over all ranks. If collectives run on
// a stream, the engine works on that stream too. Waiting for it may never end, because another rank has stopped, so the
// transport does the waiting and reports an error. A program with a communicator provides the transport.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>

#include <memory>

namespace graft {

// The connection to the other ranks. It is an interface without std::function, because <functional> is a twentieth of
// what a file with a layer parses.
class rank_transport {
 public:
  struct condition {
    virtual bool operator()() const = 0;

   protected:
    ~condition() = default;
  };
  virtual ~rank_transport() = default;
  virtual status reduce(const mutable_view& values, bool largest) = 0;
  virtual status wait_until(const condition& done) = 0;
};

struct rank_reducer {
  std::shared_ptr<rank_transport> link{};  // null: this process computes alone
  void* stream = nullptr;

  template <class Done> status until(Done done) const {
    struct held_condition final : rank_transport::condition {
      explicit held_condition(Done& d) : done(d) {}
      bool operator()() const override { return done(); }
      Done& done;
    };
    return link != nullptr ? link->wait_until(held_condition(done)) : status(ok);
  }
};

}  // namespace graft
