// SPDX-License-Identifier: Apache-2.0
// Gradient buckets for data parallelism, as in PyTorch's DDP. Backward runs from the last block to the first, so
// gradients of the last blocks are complete first and come first in one tensor, which is divided into buckets of a
// smallest size. As soon as all blocks of a bucket have run it is all-reduced over the ranks, while earlier blocks
// still compute. Buckets and their order follow from the model alone, so every run gives the same bits. A parameter
// that several blocks share is complete when the first of them has run backward.
#pragma once
#include <graft/model/padding.h>
#include <graft/model/parameter_pool.h>
#include <graft/parallel/communicator.h>

#include <algorithm>

namespace graft {

template <class Engine> class gradient_buckets {
 public:
  using queue = typename Engine::queue;

  // Collects the trained parameters of a stack. `bytes`: smallest size of a bucket. `pad`: the padding token, whose row
  // of the embedding is not trained (padding.h).
  status collect(queue& q, block_stack<Engine>& stack, parameter_pool<Engine>& pool, long long bytes,
                 std::optional<int> pad) {
    block_parameters_.resize(stack.blocks().size());
    std::vector<std::size_t> first_block;  // the first block with each parameter; if none has it, the number of blocks
    for (std::size_t b = 0; b < block_parameters_.size(); ++b) {
      bound_block<Engine>& block = stack.blocks()[b];
      for (const std::string& name : block.parameters()) {
        const auto value = block.values.tensors.find(name);
        if (value == block.values.tensors.end()) return fail("parameter ", name.c_str(), " has no value");
        const std::size_t at =
            pool.add(block_stack<Engine>::full_name(block, name), value->second, stack.original(value->second.data));
        first_block.resize(pool.parameters.size(), block_parameters_.size());
        first_block[at] = std::min(first_block[at], b);
        block_parameters_[b].push_back({name, at, {}, {}});
        if (status s = block_parameters_[b].back().gradient.reserve(q, value->second.count()); !s) return s;
        if (b == 0 && pad) block_parameters_[b].back().padding_runs = padding_gradient_ranges(stack, block, name, *pad);
      }
    }
    std::vector<std::size_t> order;
    for (std::size_t b = block_parameters_.size(); b-- > 0;)
      for (std::size_t p = 0; p < first_block.size(); ++p)
        if (first_block[p] == b) order.push_back(p);
    if (status s = pool.make_gradients(q, order); !s) return s;
    return make_buckets(q, pool, first_block, bytes);
  }
  // Returns the first block with trained parameters; the number of blocks if there is none.
  std::size_t first_trained() const {
    std::size_t first = 0;
    while (first < block_parameters_.size() && block_parameters_[first].empty()) ++first;
    return first;
  }
  // Binds the memory that block b writes its gradients to.
  status bind_gradient(bound_block<Engine>& block, std::size_t b, const parameter_pool<Engine>& pool) {
    for (parameter_use& u : block_parameters_[b]) {
      mutable_view v = pool.parameters[u.parameter].gradient;
      v.data = u.gradient.data(), v.type = Engine::compute_type;
      if (status s = block.bind_gradient(u.name.c_str(), v); !s) return s;
    }
    return ok;
  }
  // Called after each call of the head, which runs on chunks of rows.
  status head_done(queue& q) { return head_sums_.add(q); }
  // Called when block b and all later ones have run backward.
  status block_done(queue& q, std::size_t b, communicator* ranks) {
    for (parameter_use& u : block_parameters_[b])
      for (const gradient_range& r : u.padding_runs)
        if (status s = Engine::clear(q, u.gradient.row(r.first, 1), r.count * bits_of(Engine::compute_type) / 8); !s)
          return s;
    for (bucket& p : buckets_) {
      if (p.last_block != b) continue;
      if (status s = p.sums.add(q); !s) return s;
      if (ranks == nullptr) continue;
      for (const mutable_view& g : p.gradients)
        if (status s = ranks->begin_all_reduce(g); !s) return s;
    }
    return ok;
  }

 private:
  struct parameter_use {
    std::string name;  // inside the block
    std::size_t parameter;
    device_rows<Engine, Engine::compute_type> gradient;
    std::vector<gradient_range> padding_runs;
  };
  struct bucket {
    std::size_t last_block;
    std::vector<mutable_view> gradients;          // complete when last_block has run
    typename Engine::gradient_accumulators sums;  // gradients of the blocks that ran since the previous bucket
  };

  status make_buckets(queue& q, parameter_pool<Engine>& pool, const std::vector<std::size_t>& first_block,
                      long long bytes) {
    const std::size_t first = first_trained(), head = block_parameters_.size() - 1;
    std::vector<gradient_addend> sums, of_head;
    std::vector<std::size_t> ready;
    long long size = 0;
    for (std::size_t b = block_parameters_.size(); b-- > first;) {
      for (parameter_use& u : block_parameters_[b])
        (b == head ? of_head : sums)
            .push_back({static_cast<float*>(pool.parameters[u.parameter].gradient.data), u.gradient.data(),
                        pool.parameters[u.parameter].gradient.count()});
      for (std::size_t p = 0; p < first_block.size(); ++p)
        if (first_block[p] == b) ready.push_back(p), size += 4 * pool.parameters[p].gradient.count();
      if (size < bytes && b > first) continue;
      bucket& made = buckets_.emplace_back();
      made.last_block = b, made.gradients = pool.merge_neighbors(ready);
      if (status s = made.sums.bind(q, std::move(sums)); !s) return s;
      sums.clear(), ready.clear(), size = 0;
    }
    return head_sums_.bind(q, std::move(of_head));
  }

  std::vector<std::vector<parameter_use>> block_parameters_;  // by block
  std::vector<bucket> buckets_;                               // in the order in which they are complete
  typename Engine::gradient_accumulators head_sums_;
};

}  // namespace graft
