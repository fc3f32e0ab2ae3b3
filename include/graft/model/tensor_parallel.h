// SPDX-License-Identifier: Apache-2.0
// Tensor-parallel sharding of a model: attention heads, the intermediate size of the MLP, experts (expert parallel) and
// the vocabulary are divided among the ranks, each if the number of ranks divides it; every rank computes the rest. The
// collectives follow from the formulas (derive/shard.h): a block of Llama has one all-reduce after attention and one
// after the MLP, the embedding has one, and the loss exchanges three numbers per row. A single rank also runs its
// collectives, with itself, so that one GPU can test them.
#pragma once
#include <graft/backend/rank_reduce.h>
#include <graft/graph/rules_experts.h>
#include <graft/model/model_config.h>
#include <graft/parallel/communicator.h>
#include <graft/run/sharding.h>

#include <memory>

namespace graft {

inline result<shard_spec> sharding_for(const model_config& c, const communicator& ranks) {
  shard_spec s{ranks.rank(), ranks.size()};
  if (c.family->may_divide_heads && c.heads % s.ranks == 0 && c.kv_heads % s.ranks == 0)
    s.sizes = {"heads", "kv_heads"};
  if (c.intermediate_size % s.ranks == 0) s.sizes.push_back("intermediate");
  if (c.experts > 0 && c.experts % s.ranks == 0) s.sizes.push_back(experts_name);
  if (c.vocabulary % s.ranks == 0) s.sizes.push_back("vocab");
  if (!s.sizes.empty()) return s;
  return fail("neither ", c.family->may_divide_heads ? c.kv_heads : 0, " key/value heads nor ", c.intermediate_size,
              " columns of the MLP nor ", c.vocabulary, " tokens can be divided among ", s.ranks,
              " ranks; use a number of ranks that divides one of them");
}
// Connects an engine to the ranks of a communicator.
class communicator_transport : public rank_transport {
 public:
  explicit communicator_transport(std::shared_ptr<communicator> ranks) : ranks_(std::move(ranks)) {}
  status reduce(const mutable_view& values, bool largest) override {
    return ranks_->all_reduce(values, largest ? reduction::max : reduction::sum);
  }
  status wait_until(const condition& done) override {
    return ranks_->wait_until([&done] { return done(); });
  }

 private:
  std::shared_ptr<communicator> ranks_;
};
inline rank_reducer make_rank_reducer(const std::shared_ptr<communicator>& ranks) {
  return {std::make_shared<communicator_transport>(ranks), ranks->stream()};
}

}  // namespace graft
