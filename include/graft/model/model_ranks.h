// SPDX-License-Identifier: Apache-2.0
// A model that several ranks compute together: heads, the inner size of the feed-forward part and the vocabulary are
// divided among them, each where the number of ranks divides it; every rank computes the rest. What is exchanged follows
// from the formulas (derive/shard.h): for a block of Llama one sum behind the attention and one behind the feed-forward
// part, for the embedding one, and for the loss three numbers of each row. One rank exchanges too, with itself: that is how
// a machine with one GPU shows that its exchanges run.
#pragma once
#include <graft/backend/rank_exchange.h>
#include <graft/model/config.h>
#include <graft/parallel/communicator.h>
#include <graft/run/rank_share.h>

#include <memory>

namespace graft {

inline result<rank_share> share_of(const model_config& c, const communicator& ranks) {
  rank_share s{ranks.rank(), ranks.size()};
  if (c.heads % s.ranks == 0 && c.key_heads % s.ranks == 0) s.sizes = {"heads", "kv_heads"};
  if (c.inner % s.ranks == 0) s.sizes.push_back("intermediate");
  if (c.vocabulary % s.ranks == 0) s.sizes.push_back("vocab");
  if (!s.sizes.empty()) return s;
  return fail("neither ", c.key_heads, " heads of keys nor ", c.inner, " inner columns nor ", c.vocabulary,
              " tokens can be divided among ", s.ranks, " ranks; use a number of ranks that divides one of them");
}
// The ranks of a communicator.
class communicator_link : public rank_link {
 public:
  explicit communicator_link(std::shared_ptr<communicator> ranks) : ranks_(std::move(ranks)) {}
  status reduce(const mutable_view& values, bool largest) override {
    return ranks_->all_reduce(values, largest ? reduction::largest : reduction::sum);
  }
  status wait_until(const question& done) override {
    return ranks_->wait_until([&done] { return done(); });
  }

 private:
  std::shared_ptr<communicator> ranks_;
};
inline rank_exchange exchange_over(const std::shared_ptr<communicator>& ranks) {
  return {std::make_shared<communicator_link>(ranks), ranks->stream()};
}

}  // namespace graft
