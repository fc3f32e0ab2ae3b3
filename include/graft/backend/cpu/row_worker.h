// SPDX-License-Identifier: Apache-2.0
// One thread's share of a launch by rows: all nodes of the launch on a few rows, then on the next ones. The values of a
// piece stay in the cache; the base product writes straight into y, the side branch is accumulated into it, elementwise
// work happens in place, sums over rows add up. Its memory is there before the call.
#pragma once
#include <graft/backend/cpu/frame.h>

namespace graft::cpu {

template <class Real> class row_worker {
 public:
  // Room for pieces of `rows` rows of calls with up to `tokens` of them.
  void reserve(const graph& g, const plan& p, const buffers& where, const size_values& sizes, long long tokens,
               long long rows) {
    cell_.assign(static_cast<std::size_t>(where.cells), nullptr);
    sum_.assign(static_cast<std::size_t>(g.size), nullptr);
    converted_.assign(sum_.size(), nullptr);
    std::vector<long long> cells(cell_.size(), 0);
    auto of_piece = [&](id i) { return tokens == 0 ? 0 : count(g, i, sizes) / tokens * rows; };
    long long total = 0;
    auto place = [&](long long n) { return std::exchange(total, total + aligned_count(n)); };
    std::vector<std::pair<Real**, long long>> places;
    for (id i = 0; i < g.size; ++i) {
      if (!p.live[i] || p.when.of[i] != stage::data) continue;
      const auto k = static_cast<std::size_t>(i);
      if (where.cell[i] >= 0) {
        long long& n = cells[static_cast<std::size_t>(where.cell[i])];
        n = std::max(n, of_piece(i));
      }
      if (p.rows.how[i] == reach::sum) places.push_back({&sum_[k], place(count(g, i, sizes))});
      const bool output = where.writes_to[i] >= 0 && where.inplace[i] < 0;
      if (output || (g[i].what == op::input && p.rows.axis[i] >= 0))
        places.push_back({&converted_[k], place(of_piece(i))});
    }
    for (std::size_t c = 0; c < cell_.size(); ++c) places.push_back({&cell_[c], place(cells[c])});
    arena_.reserve(std::max(1LL, total));
    for (const auto& [to, offset] : places) *to = arena_.data() + offset;
  }
  long long elements() const { return arena_.size(); }
  Real* sum(id i) const { return sum_[static_cast<std::size_t>(i)]; }
  static void clear_sums(const frame<Real>& f, const launch& l, row_worker& w) {
    for (int k = 0; k < l.count; ++k)
      if (const id i = f.p.nodes[l.first + k]; f.p.rows.how[i] == reach::sum)
        std::fill_n(w.sum(i), count(f.g, i, f.now.sizes), Real(0));
  }

  void run(const frame<Real>& f, const launch& l, long long from, long long n) {
    f_ = &f, from_ = from, n_ = n;
    const evaluator<Real> evaluate{f.g, f.now.sizes, f.by};
    for (id i = 0; i < f.g.size; ++i)  // inputs that are not stored as Real
      if (f.g[i].what == op::input && f.p.live[i] && f.p.rows.axis[i] >= 0 && f.at(f.stored, i) == nullptr)
        if (const view& v = f.at(f.now.data, i); !in_place<Real>(v))
          read(v, offset(i), n * f.row_elements(i), f.at(converted_, i));
    for (int k = 0; k < l.count; ++k) compute(f.p.nodes[l.first + k], evaluate);
    for (int k = 0; k < f.g.outs; ++k)
      if (const id i = f.g.out[k].at; f.p.rows.how[i] == reach::piece && f.p.launch_of[i] == index(l)) give(k, i);
  }

 private:
  int index(const launch& l) const { return f_->p.launch_of[f_->p.nodes[l.first]]; }
  long long offset(id i) const { return from_ * f_->row_elements(i); }

  void compute(id i, const evaluator<Real>& evaluate) {
    const frame<Real>& f = *f_;
    const node& v = f.g[i];
    if (f.where.into[i] >= 0 || f.where.same_as[i] >= 0) return;
    if (f.p.rows.how[i] == reach::sum) return evaluate(i, f.full(i, sum(i)), operands_of(i), 1);
    const tensor<Real> out = value(i);
    if (const id product = accumulated(i); product >= 0) {
      const id begin = product == v.a ? v.b : v.a;
      const tensor<Real> start = f.is_known(begin) ? f.known[begin] : value(begin);
      if (start.p != out.p) std::copy_n(start.p, out.count(), out.p);
      evaluate(product, out, operands_of(product), v.what == op::sub ? -1 : 1);
    } else if (v.what != op::reshape || value(v.a).p != out.p) {
      if (adds_up(v.what)) std::fill_n(out.p, out.count(), Real(0));
      evaluate(i, out, operands_of(i));
    }
  }
  // The product that is accumulated into the sum i, if any.
  id accumulated(id i) const {
    for (int k = 0; k < 2; ++k)
      if (const id o = f_->g[i].operand(k); o >= 0 && f_->where.into[o] == i) return o;
    return none_id;
  }
  operands<Real> operands_of(id i) {
    const frame<Real>& f = *f_;
    const node& v = f.g[i];
    operands<Real> x;
    x.first = offset(i);
    tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0) continue;
      const bool by_piece = reads_by_piece(f.g, f.p, i, k);
      if (row(f.g[o].what).from == source::integers)
        x.ids = f.is_known(o) ? f.known.ids(o)
                              : static_cast<const std::int64_t*>(f.at(f.now.data, o).data) + (by_piece ? from_ : 0);
      else if (f.is_known(o))
        *to[k] = f.reads_stored(v, k) ? f.weight(o) : f.known[o];
      else
        *to[k] = by_piece ? value(o) : f.whole(o);
    }
    return x;
  }
  // This piece of a value.
  tensor<Real> value(id i) {
    const frame<Real>& f = *f_;
    const id from = f.where.same_as[i] >= 0 ? f.where.same_as[i] : i;
    if (Real* const all = f.at(f.stored, from)) return f.piece(i, all + offset(i), n_);
    if (f.p.rows.how[i] == reach::whole) return f.piece(i, f.whole(i).p + offset(i), n_);
    if (is_leaf(f.g[from].what)) {
      const view& v = f.at(f.now.data, from);
      if (!in_place<Real>(v)) return f.piece(i, f.at(converted_, from), n_);
      return f.piece(i, static_cast<Real*>(const_cast<void*>(v.data)) + offset(from), n_);
    }
    if (const int k = f.where.writes_to[i]; k >= 0) {
      if (f.direct(f.output(k))) return f.piece(i, static_cast<Real*>(f.output(k).data) + offset(i), n_);
      id first = i;
      while (f.where.inplace[first] >= 0) first = f.where.inplace[first];
      return f.piece(i, f.at(converted_, first), n_);
    }
    return f.piece(i, cell_[static_cast<std::size_t>(f.where.cell[i])], n_);
  }
  void give(int k, id i) {
    const mutable_view& to = f_->output(k);
    if (to.data == nullptr) return;
    const tensor<Real> v = value(i);
    if (f_->direct(to) && v.p == static_cast<Real*>(to.data) + offset(i)) return;
    write(v.p, offset(i), v.count(), to);
  }

  const frame<Real>* f_ = nullptr;
  long long from_ = 0, n_ = 0;
  memory<Real> arena_;
  std::vector<Real*> cell_;
  std::vector<Real*> sum_;        // per node that sums over rows
  std::vector<Real*> converted_;  // a piece of inputs and outputs that are not stored as Real
};

}  // namespace graft::cpu
