// SPDX-License-Identifier: Apache-2.0
// The gradients of blocks on their way to those of the parameters. The backward pass ends with the first block, so those of
// the last blocks are ready first: they lie first in one tensor, in pieces of some size, and as soon as all blocks of a
// piece have run it is summed over the ranks, while earlier blocks still compute. Pieces and their order follow from the
// model alone: the same bits in every run. A parameter of several blocks is ready when the first of them has run.
#pragma once
#include <graft/model/padding.h>
#include <graft/model/parameter_pool.h>
#include <graft/parallel/communicator.h>

#include <algorithm>

namespace graft {

template <class Engine> class block_gradients {
 public:
  using queue = typename Engine::queue;

  // `bytes`: pieces are at least so large. `pad`: the token whose lookups train nothing.
  status collect(queue& q, block_stack<Engine>& stack, parameter_pool<Engine>& pool, long long bytes,
                 std::optional<int> pad) {
    uses_.resize(stack.blocks().size());
    std::vector<std::size_t> first_block;  // of each parameter; as many as there are blocks: none here
    for (std::size_t b = 0; b < uses_.size(); ++b) {
      bound_block<Engine>& block = stack.blocks()[b];
      for (const std::string& name : block.parameters()) {
        const auto value = block.values.tensors.find(name);
        if (value == block.values.tensors.end()) return fail("parameter ", name.c_str(), " has no value");
        const std::size_t at =
            pool.add(block_stack<Engine>::whole_name(block, name), value->second, stack.original(value->second.data));
        first_block.resize(pool.parameters.size(), uses_.size());
        first_block[at] = std::min(first_block[at], b);
        uses_[b].push_back({name, at, {}, {}});
        if (status s = uses_[b].back().gradient.reserve(q, value->second.count()); !s) return s;
        if (b == 0 && pad) uses_[b].back().left_out = reached_by_padding(stack, block, name, *pad);
      }
    }
    std::vector<std::size_t> order;
    for (std::size_t b = uses_.size(); b-- > 0;)
      for (std::size_t p = 0; p < first_block.size(); ++p)
        if (first_block[p] == b) order.push_back(p);
    if (status s = pool.make_gradients(q, order); !s) return s;
    return cut(q, pool, first_block, bytes);
  }
  // The first block that has something to train; as many as there are blocks: none has.
  std::size_t first_trained() const {
    std::size_t first = 0;
    while (first < uses_.size() && uses_[first].empty()) ++first;
    return first;
  }
  // Where block b writes its gradients.
  status want(bound_block<Engine>& block, std::size_t b, const parameter_pool<Engine>& pool) {
    for (use& u : uses_[b]) {
      mutable_view v = pool.parameters[u.parameter].gradient;
      v.data = u.gradient.data(), v.type = Engine::computes;
      if (status s = block.want(u.name.c_str(), v); !s) return s;
    }
    return ok;
  }
  // After each of the calls of the head, which takes rows by rows.
  status head_ran(queue& q) { return of_head_.add(q); }
  // After block b and all behind it.
  status block_ran(queue& q, std::size_t b, communicator* ranks) {
    for (use& u : uses_[b])
      for (const gradient_run& r : u.left_out)
        if (status s = Engine::clear(q, u.gradient.row(r.first, 1), r.count * bits_of(Engine::computes) / 8); !s)
          return s;
    for (piece& p : pieces_) {
      if (p.last_to_run != b) continue;
      if (status s = p.sums.add(q); !s) return s;
      if (ranks == nullptr) continue;
      for (const mutable_view& g : p.gradients)
        if (status s = ranks->begin_all_reduce(g); !s) return s;
    }
    return ok;
  }

 private:
  struct use {
    std::string name;  // inside the block
    std::size_t parameter;
    engine_rows<Engine, Engine::computes> gradient;
    std::vector<gradient_run> left_out;
  };
  struct piece {
    std::size_t last_to_run;
    std::vector<mutable_view> gradients;  // that are ready then
    typename Engine::gradient_sums sums;  // of the blocks that ran since the piece before
  };

  status cut(queue& q, parameter_pool<Engine>& pool, const std::vector<std::size_t>& first_block, long long bytes) {
    const std::size_t first = first_trained(), head = uses_.size() - 1;
    std::vector<gradient_sum> sums, of_head;
    std::vector<std::size_t> ready;
    long long size = 0;
    for (std::size_t b = uses_.size(); b-- > first;) {
      for (use& u : uses_[b])
        (b == head ? of_head : sums)
            .push_back({static_cast<float*>(pool.parameters[u.parameter].gradient.data), u.gradient.data(),
                        pool.parameters[u.parameter].gradient.count()});
      for (std::size_t p = 0; p < first_block.size(); ++p)
        if (first_block[p] == b) ready.push_back(p), size += 4 * pool.parameters[p].gradient.count();
      if (size < bytes && b > first) continue;
      piece& made = pieces_.emplace_back();
      made.last_to_run = b, made.gradients = pool.together(ready);
      if (status s = made.sums.bind(q, std::move(sums)); !s) return s;
      sums.clear(), ready.clear(), size = 0;
    }
    return of_head_.bind(q, std::move(of_head));
  }

  std::vector<std::vector<use>> uses_;  // by block
  std::vector<piece> pieces_;           // in the order in which they are ready
  typename Engine::gradient_sums of_head_;
};

}  // namespace graft
