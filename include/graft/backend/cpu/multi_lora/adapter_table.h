// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA adapter table of a model: for each adapter slot the GEMM slots (A, B, factors, biases) of every block,
// read from the tensors that are bound for that adapter alone. An adapter fits a slot if its plan, cut by GEMMs,
// differs from the base's in the slots of GEMMs only (multi_lora_plan.h).
#pragma once
#include <graft/backend/cpu/runtime/program.h>
#include <graft/backend/multi_lora_plan.h>
#include <graft/plan/fuse_products.h>

#include <map>
#include <memory>
#include <span>
#include <utility>

namespace graft::cpu {

// A target whose plans are cut by GEMMs, for comparison; they are not run.
inline constexpr target gemm_target = [] {
  target to{.name = "cpu, multi-LoRA", .granularity = target::work::by_products, .fuse_products = &fuse_products};
  to.can<gemm_launch>().reads_nn_weight = to.can<gemm_launch>().prologue_with_branch = true;
  to.can<rowwise_launch>().fused = true;
  return to;
}();

template <class Real> class multi_lora_table {
 public:
  using binding = cpu::binding<Real>;
  struct block {
    const program<Real>* in;
    binding* with;
  };

  // Takes the blocks of the base, whose calls will read the adapter slots.
  status begin(std::vector<block> base, int slots) {
    base_ = plan_by_gemms(base), slots_.assign(static_cast<std::size_t>(slots), {}), row_products_.clear();
    for (const planned& b : base_) {
      std::vector<int> of_node(static_cast<std::size_t>(b.in->value().size), -1);
      for (int k = 0; k < b.by_products->products.size(); ++k)
        if (const id i = node_of(b, b.by_products->products[k]); i >= 0) of_node[static_cast<std::size_t>(i)] = k;
      row_products_.push_back(
          std::make_unique<row_products<Real>>(std::move(of_node), b.by_products->products.size(), slots_.size()));
    }
    return ok;
  }
  // Puts the same blocks with an adapter into slot k. If the adapter does not fit, nothing changes.
  status put(int k, std::span<const block> with) {
    adapter_plan other{plan_by_gemms(with), std::vector<matches>(base_.size())};
    for (std::size_t b = 0; b < base_.size(); ++b) {
      const auto match = [&](int product, int at) -> status {
        if (status s = check(base_[b], base_[b].by_products->products[product]); !s) return s;
        return other.match[b].push_back(at), ok;
      };
      if (status s = match_gemms(base_[b].to_match(), other.blocks[b].to_match(), match); !s) return s;
    }
    slots_[static_cast<std::size_t>(k)] = std::move(other);
    return ok;
  }
  // Sets the adapter slots of the rows of the next calls, and refreshes the records of those slots whose parameters
  // have changed. `row_slots` is read by the calls; `rows` are its values.
  status send(node_function<Real> by, const host_function<Real>* host, const std::int64_t* row_slots,
              std::span<const std::int64_t> rows) {
    std::vector<char> seen(slots_.size(), 0);
    for (const std::int64_t row : rows)
      if (row >= 0 && std::exchange(seen[static_cast<std::size_t>(row)], 1) == 0)
        read(static_cast<std::size_t>(row), by, host);
    for (std::size_t b = 0; b < base_.size(); ++b)
      base_[b].with->multi_lora = row_products_[b].get(), row_products_[b]->set_row_slots(row_slots);
    return ok;
  }

 private:
  struct leaf_of {
    const binding* with;
    const void* operator()(id i) const { return with->precomputed.leaf(i).data; }
  };
  struct planned : block {
    std::shared_ptr<const launch_plan> by_products;
    block_plan<leaf_of> to_match() const { return {this->in->value(), *by_products, {this->with}}; }
  };
  using matches = std::vector<int>;  // by GEMM of a base block: the GEMM of the adapter's block
  struct adapter_plan {
    std::vector<planned> blocks;
    std::vector<matches> match;
    std::vector<long long> read{};  // by block: version of the precomputed values that were read
  };
  // Plans all blocks by GEMMs; blocks that share a program share this plan, too.
  static std::vector<planned> plan_by_gemms(std::span<const block> all) {
    std::map<const program<Real>*, std::shared_ptr<const launch_plan>> plans;
    std::vector<planned> made;
    for (const block& b : all) {
      auto& p = plans[b.in];
      if (p == nullptr) p = std::make_shared<const launch_plan>(fuse(b.in->value(), gemm_target));
      made.push_back({b, p});
    }
    return made;
  }
  // The node x Wᵀ, if it is computed in chunks of rows.
  static id node_of(const block& b, const gemm_slots& s) {
    const graph& g = b.in->value();
    for (const id i : s.inside)
      if (g[i].what == op::matmul && g[i].b == s.weight &&
          b.in->launches().rows.dependence_of[i] == row_dependence::chunk)
        return i;
    return none_id;
  }
  static status check(const block& b, const gemm_slots& s) {
    bool sums = s.prologue < 0 && s.branches.empty() && node_of(b, s) >= 0;
    for (const epilogue_step& p : s.epilogue_steps)
      sums = sums && p.what == op::add && is_leaf(b.in->value()[p.operand].what);
    return sums ? status(ok)
                : fail("the base is more than a GEMM and a bias; rows run in groups with the same adapters");
  }
  // Makes the records of an adapter slot from its precomputed values.
  void read(std::size_t slot, node_function<Real> by, const host_function<Real>* host) {
    adapter_plan& w = slots_[slot];
    w.read.resize(base_.size(), -1);
    for (std::size_t b = 0; b < base_.size(); ++b) {
      w.blocks[b].in->precompute(*w.blocks[b].with, by, host);
      if (w.read[b] == w.blocks[b].with->made) continue;
      w.read[b] = w.blocks[b].with->made;
      for (std::size_t p = 0; p < w.match[b].size(); ++p)
        row_products_[b]->at(static_cast<int>(p), slot) =
            record_of(base_[b], base_[b].by_products->products[static_cast<int>(p)], w.blocks[b],
                      w.blocks[b].by_products->products[w.match[b][p]]);
    }
  }
  static adapter_record<Real> record_of(const planned& base, const gemm_slots& s, const planned& other,
                                        const gemm_slots& o) {
    binding& with = *other.with;
    adapter_record<Real> r;
    const auto numbers = [](binding& of, id i) { return i < 0 ? tensor<Real>{} : of.precomputed[i]; };
    if (o.prologue >= 0)
      r.input_scale = numbers(with, o.prologue).p, r.input_scale_is_scalar = numbers(with, o.prologue).count() == 1;
    for (const low_rank_branch& b : o.branches) {
      const Real factor = b.factor < 0 ? Real(1) : numbers(with, b.factor).p[0];
      r.branches.push_back({numbers(with, b.a).p, numbers(with, b.b).p, b.a_rank_major, b.b_out_major,
                            other.in->value().sizes.value(b.rank, with.sizes), b.minus ? -factor : factor});
    }
    // The base's launch applies its own epilogue after the record's: trailing steps that both have are left to it, and
    // summands that only the base has are subtracted.
    const int own = s.epilogue_steps.size(), all = o.epilogue_steps.size();
    int same = 0;
    while (same < std::min(own, all) && same_epilogue(base.to_match(), s.epilogue_steps[own - 1 - same],
                                                      other.to_match(), o.epilogue_steps[all - 1 - same]))
      ++same;
    for (int i = 0; i < all - same; ++i) {
      const tensor<Real> v = numbers(with, o.epilogue_steps[i].operand);
      r.epilogue.push_back({o.epilogue_steps[i].what, v.p, v.count() == 1});
    }
    for (int i = own - same; i > 0; --i) {
      const tensor<Real> v = numbers(*base.with, s.epilogue_steps[i - 1].operand);
      r.epilogue.push_back({op::sub, v.p, v.count() == 1});
    }
    return r;
  }

  std::vector<planned> base_;
  std::vector<adapter_plan> slots_;                                // by adapter slot
  std::vector<std::unique_ptr<row_products<Real>>> row_products_;  // by block
};

}  // namespace graft::cpu
