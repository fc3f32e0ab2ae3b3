// SPDX-License-Identifier: Apache-2.0
// The adapters that rows of a model may have, in places that stay: the slots of the products of other ways to run the
// model, read where those ways keep them. A way has a place if its plan by products differs from the base's in slots alone.
#pragma once
#include <graft/backend/cpu/bound_plan.h>
#include <graft/backend/mixed_plan.h>
#include <graft/plan/fuse_products.h>

#include <map>
#include <memory>
#include <span>
#include <utility>

namespace graft::cpu {

// A plan for its products, not to be run.
inline constexpr target products_target{.name = "cpu, by products",
                                        .gathers = target::work::by_products,
                                        .gather_products = &gather_products,
                                        .weight_either_way = true,
                                        .pre_beside_side = true,
                                        .joins_rows = true};

template <class Real> class mixed_bank {
 public:
  using binding = typename bound_plan<Real>::binding;
  struct block {
    const bound_plan<Real>* in;
    binding* with;
  };

  // The blocks of the base, whose calls will read the places.
  status begin(std::vector<block> base, int places) {
    base_ = with_plans(base), ways_.assign(static_cast<std::size_t>(places), {}), mixed_.clear();
    for (const planned& b : base_) {
      std::vector<int> of_node(static_cast<std::size_t>(b.in->value().size), -1);
      for (int k = 0; k < b.by_products->products.size(); ++k)
        if (const id i = node_of(b, b.by_products->products[k]); i >= 0) of_node[static_cast<std::size_t>(i)] = k;
      mixed_.push_back(
          std::make_unique<mixed_products<Real>>(std::move(of_node), b.by_products->products.size(), ways_.size()));
    }
    return ok;
  }
  // Another way to run the same blocks, in place k. Where it fits none, nothing is changed.
  status put(int k, std::span<const block> with) {
    way other{with_plans(with), std::vector<matches>(base_.size())};
    for (std::size_t b = 0; b < base_.size(); ++b) {
      const auto match = [&](int product, int at) -> status {
        if (status s = check(base_[b], base_[b].by_products->products[product]); !s) return s;
        return other.match[b].push_back(at), ok;
      };
      if (status s = match_products(base_[b].to_match(), other.blocks[b].to_match(), match); !s) return s;
    }
    ways_[static_cast<std::size_t>(k)] = std::move(other);
    return ok;
  }
  // Where the place of each row lies. The slots of those that occur are read again where parameters have changed.
  status send(node_function<Real> by, const host_function<Real>* host, const std::int64_t* of_row,
              std::span<const std::int64_t> rows) {
    std::vector<char> seen(ways_.size(), 0);
    for (const std::int64_t row : rows)
      if (row >= 0 && std::exchange(seen[static_cast<std::size_t>(row)], 1) == 0)
        read(static_cast<std::size_t>(row), by, host);
    for (std::size_t b = 0; b < base_.size(); ++b) base_[b].with->mixed = mixed_[b].get(), mixed_[b]->point(of_row);
    return ok;
  }

 private:
  struct leaf_of {
    const binding* with;
    const void* operator()(id i) const { return with->known.leaf(i).data; }
  };
  struct planned : block {
    std::shared_ptr<const plan> by_products;
    planned_block<leaf_of> to_match() const { return {this->in->value(), *by_products, {this->with}}; }
  };
  using matches = std::vector<int>;  // by product of a block: the one of the other way
  struct way {
    std::vector<planned> blocks;
    std::vector<matches> match;
    std::vector<long long> read{};  // by block: which values the records were read from
  };
  // Equal blocks share their plan.
  static std::vector<planned> with_plans(std::span<const block> all) {
    std::map<const bound_plan<Real>*, std::shared_ptr<const plan>> plans;
    std::vector<planned> made;
    for (const block& b : all) {
      auto& p = plans[b.in];
      if (p == nullptr) p = std::make_shared<const plan>(fuse(b.in->value(), products_target));
      made.push_back({b, p});
    }
    return made;
  }
  // x Wᵀ itself, where it is computed a few rows at a time.
  static id node_of(const block& b, const product_slots& s) {
    const graph& g = b.in->value();
    for (const id i : s.inside)
      if (g[i].what == op::matmul && g[i].b == s.weight && b.in->launches().rows.how[i] == reach::piece) return i;
    return none_id;
  }
  static status check(const block& b, const product_slots& s) {
    bool sums = s.pre < 0 && s.sides.empty() && node_of(b, s) >= 0;
    for (const post_step& p : s.posts) sums = sums && p.what == op::add && is_leaf(b.in->value()[p.operand].what);
    return sums ? status(ok) : fail("the base has more than a product and a bias; rows with adapters run as groups");
  }
  // Values of the other way as records of its products.
  void read(std::size_t place, node_function<Real> by, const host_function<Real>* host) {
    way& w = ways_[place];
    w.read.resize(base_.size(), -1);
    for (std::size_t b = 0; b < base_.size(); ++b) {
      w.blocks[b].in->make_ready(*w.blocks[b].with, by, host);
      if (w.read[b] == w.blocks[b].with->has.made) continue;
      w.read[b] = w.blocks[b].with->has.made;
      for (std::size_t p = 0; p < w.match[b].size(); ++p)
        mixed_[b]->at(static_cast<int>(p), place) =
            record_of(base_[b], base_[b].by_products->products[static_cast<int>(p)], w.blocks[b],
                      w.blocks[b].by_products->products[w.match[b][p]]);
    }
  }
  static row_record<Real> record_of(const planned& base, const product_slots& s, const planned& other,
                                    const product_slots& o) {
    binding& with = *other.with;
    row_record<Real> r;
    const auto numbers = [](binding& of, id i) { return i < 0 ? tensor<Real>{} : of.known[i]; };
    if (o.pre >= 0) r.pre = numbers(with, o.pre).p, r.one_pre = numbers(with, o.pre).count() == 1;
    for (const side_branch& b : o.sides) {
      const Real factor = b.factor < 0 ? Real(1) : numbers(with, b.factor).p[0];
      r.sides.push_back({numbers(with, b.a).p, numbers(with, b.b).p, b.a_by_rank, b.b_by_row,
                         other.in->value().sizes.value(b.rank, with.sizes), b.minus ? -factor : factor});
    }
    // The base adds its own bias behind us: what both end with is left to it.
    const int own = s.posts.size(), all = o.posts.size();
    int same = 0;
    while (same < std::min(own, all) &&
           same_post(base.to_match(), s.posts[own - 1 - same], other.to_match(), o.posts[all - 1 - same]))
      ++same;
    for (int i = 0; i < all - same; ++i) {
      const tensor<Real> v = numbers(with, o.posts[i].operand);
      r.posts.push_back({o.posts[i].what, v.p, v.count() == 1});
    }
    for (int i = own - same; i > 0; --i) {
      const tensor<Real> v = numbers(*base.with, s.posts[i - 1].operand);
      r.posts.push_back({op::sub, v.p, v.count() == 1});
    }
    return r;
  }

  std::vector<planned> base_;
  std::vector<way> ways_;                                     // by place
  std::vector<std::unique_ptr<mixed_products<Real>>> mixed_;  // by block
};

}  // namespace graft::cpu
