// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA batch on the CPU (Punica BGMV/SGMV-style): rows of a call have adapters of their own. The base GEMM reads
// W once for all rows, and each row gets the GEMM slots of its own record (plan/launch/gemm_slots.h),
//     y = epilogue(x Wᵀ + Σ ± factor · U Bᵀ),   U = x Aᵀ (the shrink result),   with x ⊙ input_scale in place of x
// Consecutive rows with the same record are multiplied in one GEMM.
#pragma once
#include <graft/backend/cpu/gemm/gemm.h>
#include <graft/backend/cpu/runtime/memory.h>
#include <graft/graph/graph.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace graft::cpu {

template <class Real> struct adapter_record {
  struct low_rank_branch {
    const Real *a, *b;  // null: x is folded to U (MiSS), U is repeated
    bool a_rank_major, b_out_major;
    long long rank;
    Real factor;
  };
  struct epilogue_step {
    op what;
    const Real* by;
    bool one;  // one number for all columns
  };
  const Real* input_scale = nullptr;
  bool input_scale_is_scalar = false;
  std::vector<low_rank_branch> branches;
  std::vector<epilogue_step> epilogue;
};

// The interface of a plan's launches to rows with adapters: a program without such rows does not compile row_products.
template <class Real> struct multi_lora_rows {
  virtual bool has(id node) const = 0;
  // The input of rows [first, first + n), multiplied with the input scale of the rows that have one.
  virtual const Real* scaled(id node, const Real* x, long long width, long long first, long long n) = 0;
  // Adds branches and epilogues to y = x Wᵀ [n, columns]; x is the result of scaled().
  virtual void add_adapters(id node, const Real* x, long long width, Real* y, long long columns, long long first,
                            long long n) = 0;

 protected:
  ~multi_lora_rows() = default;
};

template <class Real> class row_products final : public multi_lora_rows<Real> {
 public:
  using record = adapter_record<Real>;
  // of_node[i] is the number of the GEMM that node i is, or -1.
  row_products(std::vector<int> of_node, int products, std::size_t slots)
      : of_node_(std::move(of_node)), records_(static_cast<std::size_t>(products)) {
    for (auto& r : records_) r.resize(slots);
  }
  record& at(int product, std::size_t slot) { return records_[static_cast<std::size_t>(product)][slot]; }
  // Sets the adapter slot of each row of the following calls; -1 is the base.
  void set_row_slots(const std::int64_t* row_slots) { row_slots_ = row_slots; }
  bool has(id node) const override { return of_node_[static_cast<std::size_t>(node)] >= 0; }

  const Real* scaled(id node, const Real* x, long long width, long long first, long long n) override {
    bool any = false;
    for_each_group(node, first, n,
                   [&](const record& r, long long, long long) { any = any || r.input_scale != nullptr; });
    if (!any) return x;
    input_.reserve(n * width);
    std::copy_n(x, n * width, input_.data());
    for_each_group(node, first, n, [&](const record& r, long long from, long long count) {
      for (long long i = from; i < from + count && r.input_scale != nullptr; ++i)
        for (long long c = 0; c < width; ++c)
          input_.data()[i * width + c] *= r.input_scale[r.input_scale_is_scalar ? 0 : c];
    });
    return input_.data();
  }
  void add_adapters(id node, const Real* x, long long width, Real* y, long long columns, long long first,
                    long long n) override {
    for_each_group(node, first, n, [&](const record& r, long long from, long long count) {
      Real* const to = y + from * columns;
      for (const typename record::low_rank_branch& s : r.branches) add(s, x + from * width, width, to, columns, count);
      for (const typename record::epilogue_step& p : r.epilogue)
        for (long long i = 0; i < count; ++i) apply(p, to + i * columns, columns);
    });
  }

 private:
  // Calls f(record, from, count) for consecutive rows with the same record, and not for rows of the base.
  template <class F> void for_each_group(id node, long long first, long long n, const F& f) {
    const auto& of = records_[static_cast<std::size_t>(of_node_[static_cast<std::size_t>(node)])];
    for (long long from = 0, end = 0; from < n; from = end) {
      const std::int64_t slot = row_slots_[first + from];
      while (end < n && row_slots_[first + end] == slot) ++end;
      if (slot >= 0) f(of[static_cast<std::size_t>(slot)], from, end - from);
    }
  }
  void add(const typename record::low_rank_branch& s, const Real* x, long long width, Real* y, long long columns,
           long long rows) {
    shrink_.reserve(rows * s.rank);
    Real* const branch = shrink_.data();
    if (s.a == nullptr) {
      std::fill_n(branch, rows * s.rank, Real(0));
      for (long long i = 0; i < rows; ++i)
        for (long long c = 0; c < width; ++c) branch[i * s.rank + c % s.rank] += x[i * width + c];
    } else {
      const strided<Real> a{s.a, s.a_rank_major ? 1 : s.rank, s.a_rank_major ? width : 1};
      gemm(rows, s.rank, width, {x, width, 1}, a, branch, s.rank, 0);
    }
    for (long long i = 0; i < rows * s.rank; ++i) branch[i] *= s.factor;
    if (s.b == nullptr) {
      for (long long i = 0; i < rows; ++i)
        for (long long c = 0; c < columns; ++c) y[i * columns + c] += branch[i * s.rank + c % s.rank];
    } else {
      const strided<Real> b{s.b, s.b_out_major ? 1 : columns, s.b_out_major ? s.rank : 1};
      gemm(rows, columns, s.rank, {branch, s.rank, 1}, b, y, columns, 1);
    }
  }
  static void apply(const typename record::epilogue_step& p, Real* y, long long columns) {
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
  std::vector<std::vector<record>> records_;  // by GEMM and adapter slot
  const std::int64_t* row_slots_ = nullptr;
  memory<Real> input_, shrink_;
};

}  // namespace graft::cpu
