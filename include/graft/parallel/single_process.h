// SPDX-License-Identifier: Apache-2.0
// The communicator of a single process (world size 1): reductions leave their values unchanged.
#pragma once
#include <graft/parallel/communicator.h>

#include <cstring>

namespace graft {

class single_process final : public communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  status all_reduce(const mutable_view& values, reduction) override { return detail::check_reduction(values); }
  status begin_all_reduce(const mutable_view& values) override { return detail::check_reduction(values); }
  status wait() override { return ok; }
  status all_gather(const view& mine, const mutable_view& all) override { return copy(mine, all); }
  status reduce_scatter(const view& all, const mutable_view& mine) override {
    if (status s = detail::check_reduction(mine); !s) return s;
    return copy(all, mine);
  }
  status broadcast(const mutable_view& values, int from) override {
    if (from != 0) return fail("rank ", from, " cannot broadcast, there is only rank 0");
    return detail::check_collective(values);
  }
  status barrier() override { return ok; }

 private:
  static status copy(const view& from, const mutable_view& to) {
    if (status s = detail::check_collective(from); !s) return s;
    if (status s = detail::check_collective(to); !s) return s;
    if (status s = detail::check_shards(from, to, 1); !s) return s;
    if (from.data != to.data) std::memcpy(to.data, from.data, static_cast<std::size_t>(detail::bytes_of(from)));
    return ok;
  }
};

}  // namespace graft
