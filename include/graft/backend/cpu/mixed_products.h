// SPDX-License-Identifier: Apache-2.0
// Products of a block whose rows have adapters of their own: the base product passes over W once for all rows, and each
// row gets what its own record has of the slots of a product (plan/product.h),
//     y = posts(x · Wᵀ + Σ ± factor · (x · Aᵀ) · Bᵀ),   with x ⊙ pre where there is a factor of the input.
// Rows side by side with the same record are multiplied together.
#pragma once
#include <graft/backend/cpu/gemm.h>
#include <graft/backend/cpu/memory.h>
#include <graft/graph/graph.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace graft::cpu {

template <class Real> struct row_record {
  struct side {
    const Real *a, *b;  // null: x is folded, S repeated
    bool a_by_rank, b_by_row;
    long long rank;
    Real factor;
  };
  struct post {
    op what;
    const Real* by;
    bool one;  // number for all columns
  };
  const Real* pre = nullptr;
  bool one_pre = false;
  std::vector<side> sides;
  std::vector<post> posts;
};

// As the launches of a plan see them: a program without such rows compiles none of what stands behind it.
template <class Real> struct mixed_rows {
  virtual bool has(id node) const = 0;
  // The input of rows [first, first + n): as it is, or with the factors of the rows that have one.
  virtual const Real* scaled(id node, const Real* x, long long width, long long first, long long n) = 0;
  // y: the products of these rows with W, `columns` wide; x as it was multiplied.
  virtual void finish(id node, const Real* x, long long width, Real* y, long long columns, long long first,
                      long long n) = 0;

 protected:
  ~mixed_rows() = default;
};

template <class Real> class mixed_products final : public mixed_rows<Real> {
 public:
  using record = row_record<Real>;
  // `of_node`: which product a node is, -1: none.
  mixed_products(std::vector<int> of_node, int products, std::size_t places)
      : of_node_(std::move(of_node)), records_(static_cast<std::size_t>(products)) {
    for (auto& r : records_) r.resize(places);
  }
  record& at(int product, std::size_t place) { return records_[static_cast<std::size_t>(product)][place]; }
  // The place of each row of the calls that follow; -1: the base.
  void point(const std::int64_t* of_row) { of_row_ = of_row; }
  bool has(id node) const override { return of_node_[static_cast<std::size_t>(node)] >= 0; }

  const Real* scaled(id node, const Real* x, long long width, long long first, long long n) override {
    bool any = false;
    each_run(node, first, n, [&](const record& r, long long, long long) { any = any || r.pre != nullptr; });
    if (!any) return x;
    input_.reserve(n * width);
    std::copy_n(x, n * width, input_.data());
    each_run(node, first, n, [&](const record& r, long long from, long long count) {
      for (long long i = from; i < from + count && r.pre != nullptr; ++i)
        for (long long c = 0; c < width; ++c) input_.data()[i * width + c] *= r.pre[r.one_pre ? 0 : c];
    });
    return input_.data();
  }
  void finish(id node, const Real* x, long long width, Real* y, long long columns, long long first,
              long long n) override {
    each_run(node, first, n, [&](const record& r, long long from, long long count) {
      Real* const to = y + from * columns;
      for (const typename record::side& s : r.sides) add(s, x + from * width, width, to, columns, count);
      for (const typename record::post& p : r.posts)
        for (long long i = 0; i < count; ++i) apply(p, to + i * columns, columns);
    });
  }

 private:
  // f(record, from, count) for rows side by side that have the same one; none for those of the base.
  template <class F> void each_run(id node, long long first, long long n, const F& f) {
    const auto& of = records_[static_cast<std::size_t>(of_node_[static_cast<std::size_t>(node)])];
    for (long long from = 0, end = 0; from < n; from = end) {
      const std::int64_t place = of_row_[first + from];
      while (end < n && of_row_[first + end] == place) ++end;
      if (place >= 0) f(of[static_cast<std::size_t>(place)], from, end - from);
    }
  }
  void add(const typename record::side& s, const Real* x, long long width, Real* y, long long columns, long long rows) {
    side_.reserve(rows * s.rank);
    Real* const branch = side_.data();
    if (s.a == nullptr) {
      std::fill_n(branch, rows * s.rank, Real(0));
      for (long long i = 0; i < rows; ++i)
        for (long long c = 0; c < width; ++c) branch[i * s.rank + c % s.rank] += x[i * width + c];
    } else {
      const strided<Real> a{s.a, s.a_by_rank ? 1 : s.rank, s.a_by_rank ? width : 1};
      gemm(rows, s.rank, width, {x, width, 1}, a, branch, s.rank, 0);
    }
    for (long long i = 0; i < rows * s.rank; ++i) branch[i] *= s.factor;
    if (s.b == nullptr) {
      for (long long i = 0; i < rows; ++i)
        for (long long c = 0; c < columns; ++c) y[i * columns + c] += branch[i * s.rank + c % s.rank];
    } else {
      const strided<Real> b{s.b, s.b_by_row ? 1 : columns, s.b_by_row ? s.rank : 1};
      gemm(rows, columns, s.rank, {branch, s.rank, 1}, b, y, columns, 1);
    }
  }
  static void apply(const typename record::post& p, Real* y, long long columns) {
    for (long long c = 0; c < columns; ++c) {
      const Real by = p.by[p.one ? 0 : c];
      switch (p.what) {
        case op::add: y[c] += by; break;
        case op::sub: y[c] -= by; break;
        case op::mul: y[c] *= by; break;
        default: y[c] /= by;
      }
    }
  }

  std::vector<int> of_node_;
  std::vector<std::vector<record>> records_;  // by product and place
  const std::int64_t* of_row_ = nullptr;
  memory<Real> input_, side_;
};

}  // namespace graft::cpu
