// SPDX-License-Identifier: Apache-2.0
// A launch by rows: all nodes of the launch on a piece of the rows, then on the next piece. The values of a piece stay in
// the cache; the base product writes straight into y, the side branch is accumulated into it, elementwise work happens
// in place, sums over rows add up. A product has all threads inside; of any other node each thread computes a share of
// the rows. The memory is there before the call.
#pragma once
#include <graft/backend/cpu/frame.h>
#include <graft/backend/cpu/threads.h>

namespace graft::cpu {

// Below so many rows one thread computes what is no product, unless they are long, or take long: so many elements in all.
inline constexpr long long split_rows = 64, split_elements = 1 << 16;

template <class Real> class row_worker {
 public:
  // Room for pieces of `rows` rows of calls with up to `tokens` of them.
  [[gnu::cold]] void reserve(const graph& g, const plan& p, const buffers& where, const size_values& sizes,
                             long long tokens, long long rows) {
    threads_ = thread_count(), nodes_ = g.size;
    cell_ = sequence<Real*>(where.cells), chain_width_ = sequence<long long>(where.cells);
    sum_ = sequence<Real*>(threads_ * nodes_), converted_ = sequence<Real*>(nodes_);
    sequence<long long> cells(where.cells);
    auto of_piece = [&](id i) { return tokens == 0 ? 0 : count(g, i, sizes) / tokens * rows; };
    long long total = 0;
    auto place = [&](long long n) { return std::exchange(total, total + aligned_count(n)); };
    struct found {
      Real** to;
      long long offset;
    };
    sequence<found> places;
    for (id i = 0; i < g.size; ++i) {
      if (!p.live[i] || p.when.of[i] != stage::data) continue;
      if (where.cell[i] >= 0) {
        long long& n = cells[where.cell[i]];
        n = std::max(n, of_piece(i));
      }
      for (int t = 0; t < threads_; ++t)
        if (p.rows.how[i] == reach::sum && (t == 0 || !has_threads_inside(g, i)))
          places.push({&sum_[t * nodes_ + i], place(count(g, i, sizes))});
      const bool output = where.writes_to[i] >= 0 && where.inplace[i] < 0;
      if (output || (g[i].what == op::input && p.rows.axis[i] >= 0)) places.push({&converted_[i], place(of_piece(i))});
    }
    for (int c = 0; c < where.cells; ++c) places.push({&cell_[c], place(cells[c])});
    arena_.reserve(std::max(1LL, total));
    for (const found& at : places) *at.to = arena_.data() + at.offset;
  }
  long long elements() const { return arena_.size(); }
  Real* sum(id i) const { return sum_[i]; }

  void run(const frame<Real>& f, const launch& l, long long rows_at_once) {
    each_sum(f, l, [&](id i, Real* of_thread) { std::fill_n(of_thread, count(f.g, i, f.now.sizes), Real(0)); });
    f_ = &f;
    const evaluator<Real> evaluate{f.g, f.now.sizes, f.by};
    for (piece_ = 0; piece_ < f.tokens; piece_ += rows_at_once) {
      const row_range all{piece_, std::min(rows_at_once, f.tokens - piece_), 0};
      for (id i = 0; i < f.g.size; ++i)  // inputs that are not stored as Real
        if (f.g[i].what == op::input && f.p.live[i] && f.p.rows.axis[i] >= 0 && f.stored[i] == nullptr)
          if (const view& v = f.data(i); !in_place<Real>(v))
            shared_out(all, f.row_elements(i), [&](const row_range& r) {
              read_numbers(v, r.from * f.row_elements(i), r.n * f.row_elements(i), within(converted_[i], i, r));
            });
      for (int k = 0; k < l.count;) {
        const id i = f.p.nodes[l.first + k];
        const int together = chain_at(l, k, all);
        if (together == 1 && has_threads_inside(f.g, accumulated(i) >= 0 ? accumulated(i) : i) && !is_done(i, all)) {
          k += compute_product(l, k, all, evaluate);
          continue;
        }
        if (together > 1 || !is_done(i, all))
          shared_out(all, chain_work(l, k, together),
                     [&](const row_range& r) { compute_chain(l, k, together, r, evaluate); });
        k += together;
      }
      for (int k = 0; k < f.g.outs; ++k)
        if (const id i = f.g.out[k].at;
            f.p.rows.how[i] == reach::piece && f.p.launch_of[i] == index(l) && !is_there(k, i, all))
          shared_out(all, f.row_elements(i), [&](const row_range& r) {
            const tensor<Real> v = value(i, r);
            write(v.p, offset(i, r), v.count(), f.output(k));
          });
    }
    each_sum(f, l, [&](id i, Real* of_thread) {
      if (of_thread != sum(i)) add(sum(i), of_thread, count(f.g, i, f.now.sizes));
    });
  }

 private:
  struct row_range {
    long long from, n;
    int thread;
  };
  // A product of one matrix: one call of gemm for all rows of the piece.
  static bool has_threads_inside(const graph& g, id i) {
    const node& v = g[i];
    if (v.what != op::matmul) return false;
    const bool one_right = g[v.b].d[0] == dim{1} && g[v.b].d[1] == dim{1},
               one_left = g[v.a].d[0] == dim{1} && g[v.a].d[1] == dim{1};
    return one_right && (one_left || (!v.ta && !v.sum));
  }
  // A few rows at a time go through nodes that need little more than their reading and writing, so that what one writes is
  // in a near cache when the next reads it: so many elements of a value at once.
  static constexpr long long chain_elements = 1 << 15;
  [[gnu::noinline]] bool is_done(id i, const row_range& all) const {
    return f_->where.into[i] >= 0 || f_->where.along[i] >= 0 || f_->where.same_as[i] >= 0 || only_renames(i, all);
  }
  bool may_chain(id i) const {
    const op_class kind = row(f_->g[i].what).kind;
    return f_->p.rows.how[i] == reach::piece && accumulated(i) < 0 &&
           (kind == op_class::pointwise || kind == op_class::rowwise || kind == op_class::layout || is_small(i));
  }
  // A product with a small matrix of numbers, whose sums are the same of however many rows.
  bool is_small(id i) const {
    const node& v = f_->g[i];
    for (const id o : {v.a, v.b})
      if (o >= 0 && f_->is_known(o) && f_->known.stored(o) != nullptr) return false;
    return v.what == op::matmul && !v.sum && !v.ta && !mixes(i) && (f_->is_known(v.a) || f_->is_known(v.b)) &&
           depth(i) <= shallow_depth && f_->g.sizes.value(v.d[3], f_->now.sizes) <= shallow_depth;
  }
  // How many nodes from k on are computed a few rows at a time. Values that take turns in a cell of the workspace lie at
  // other places there where their rows are longer: one would be written over rows of the other that are still to be read.
  int chain_at(const launch& l, int k, const row_range& all) {
    const frame<Real>& f = *f_;
    if (!may_chain(f.p.nodes[l.first + k])) return 1;
    for (long long& width : chain_width_) width = 0;
    int n = 0;
    for (; k + n < l.count; ++n) {
      const id i = f.p.nodes[l.first + k + n];
      if (is_done(i, all)) continue;
      if (!may_chain(i) || !fits_chain(i)) break;
      for (int o = 0; o < 3; ++o) static_cast<void>(fits_chain(f.g[i].operand(o)));
    }
    return std::max(1, n);
  }
  bool fits_chain(id i) {
    if (i < 0 || f_->where.cell[i] < 0) return true;
    long long& width = chain_width_[f_->where.cell[i]];
    const bool fits = width == 0 || width == f_->row_elements(i);
    width = f_->row_elements(i);
    return fits;
  }
  long long widest_row(const launch& l, int k, int count) const {
    long long widest = 1;
    for (int n = 0; n < count; ++n) widest = std::max(widest, f_->row_elements(f_->p.nodes[l.first + k + n]));
    return widest;
  }
  // What a row of a value takes, in elements: a number that is multiplied with a small matrix takes longer than one that is
  // moved. Sums over few rows stay with one thread, so that their bits do.
  long long row_work(id i) const {
    const node& v = f_->g[i];
    if (f_->p.rows.how[i] == reach::sum) return 0;
    const dim depth = v.what == op::rotate   ? f_->g[v.b].d[3]
                      : v.what == op::matmul ? f_->g[v.a].d[v.ta ? 2 : 3]
                                             : dim{1};
    return f_->row_elements(i) * std::max(1LL, f_->g.sizes.value(depth, f_->now.sizes) / 8);
  }
  long long chain_work(const launch& l, int k, int count) const {
    long long work = 0;
    for (int n = 0; n < count; ++n) work += row_work(f_->p.nodes[l.first + k + n]);
    return work;
  }
  void compute_chain(const launch& l, int k, int count, const row_range& r, const evaluator<Real>& evaluate) const {
    const long long rows = count == 1 ? r.n : std::max(1LL, chain_elements / widest_row(l, k, count));
    for (long long at = 0; at < r.n; at += rows)
      for (int n = 0; n < count; ++n)
        if (const id i = f_->p.nodes[l.first + k + n]; !is_done(i, r))
          compute(i, {r.from + at, std::min(rows, r.n - at), r.thread}, evaluate);
  }
  // f of a share of the rows, each of so many elements, on each thread.
  template <class F> void shared_out(const row_range& all, long long row_elements, F f) const {
    const bool long_enough = all.n >= split_rows || (all.n > 1 && all.n * row_elements >= split_elements);
    const int threads =
        long_enough ? static_cast<int>(std::min<long long>(all.n, std::min(thread_count(), threads_))) : 1;
    on_threads(threads, [&](int t) {
      const long long from = all.n * t / threads, end = all.n * (t + 1) / threads;
      f(row_range{all.from + from, end - from, t});
    });
  }
  // f(node, memory) for each thread's memory of each sum over rows.
  template <class F> void each_sum(const frame<Real>& f, const launch& l, F each) const {
    for (int k = 0; k < l.count; ++k)
      if (const id i = f.p.nodes[l.first + k]; f.p.rows.how[i] == reach::sum)
        for (int t = 0; t < threads_; ++t)
          if (Real* const p = sum_[t * nodes_ + i]) each(i, p);
  }
  int index(const launch& l) const { return f_->p.launch_of[f_->p.nodes[l.first]]; }
  long long offset(id i, const row_range& r) const { return r.from * f_->row_elements(i); }
  // Of memory that holds the piece.
  Real* within(Real* piece, id i, const row_range& r) const { return piece + (r.from - piece_) * f_->row_elements(i); }

  void compute(id i, const row_range& r, const evaluator<Real>& evaluate) const {
    const frame<Real>& f = *f_;
    const node& v = f.g[i];
    if (f.p.rows.how[i] == reach::sum) return evaluate(i, f.full(i, sum_[r.thread * nodes_ + i]), operands_of(i, r), 1);
    const tensor<Real> out = value(i, r);
    if (const id product = accumulated(i); product >= 0) {
      const id begin = product == v.a ? v.b : v.a;
      if (f.where.into[begin] == i) {
        mixes(begin) ? multiply_mixed(begin, out, r, evaluate) : evaluate(begin, out, operands_of(begin, r));
      } else {
        const tensor<Real> start = f.is_known(begin) ? f.known[begin] : value(begin, r);
        if (start.p != out.p) std::copy_n(start.p, out.count(), out.p);
      }
      if (!mixes(product)) return evaluate(product, out, operands_of(product, r), v.what == op::sub ? -1 : 1);
      mixed_.reserve(out.count());
      multiply_mixed(product, f.piece(product, mixed_.data(), r.n), r, evaluate);
      for (long long e = 0; e < out.count(); ++e) out.p[e] += v.what == op::sub ? -mixed_.data()[e] : mixed_.data()[e];
    } else if (mixes(i)) {
      multiply_mixed(i, out, r, evaluate);
    } else {
      if (adds_up(v.what)) std::fill_n(out.p, out.count(), Real(0));
      evaluate(i, out, operands_of(i, r));
    }
  }
  // Have rows of this product adapters of their own?
  bool mixes(id i) const { return f_->mixed != nullptr && f_->mixed->has(i); }
  [[gnu::noinline]] void multiply_mixed(id i, const tensor<Real>& out, const row_range& r,
                                        const evaluator<Real>& evaluate) const {
    operands<Real> x = operands_of(i, r);
    x.a.p = const_cast<Real*>(f_->mixed->scaled(i, x.a.p, x.a.d[3], r.from, r.n));
    evaluate(i, out, x);
    f_->mixed->finish(i, x.a.p, x.a.d[3], out.p, out.d[3], r.from, r.n);
  }
  // A product, or the sum of two, with the steps on its elements that follow in its place: how many nodes that were.
  int compute_product(const launch& l, int k, const row_range& all, const evaluator<Real>& evaluate) const {
    const frame<Real>& f = *f_;
    const id i = f.p.nodes[l.first + k], side = accumulated(i), begin = side < 0 ? i : f.g[i].a + f.g[i].b - side;
    const bool both = side >= 0 && f.where.into[begin] == i;
    if (both) compute_waiting(begin, i, all, evaluate);
    if (f.p.rows.how[i] != reach::piece || (side >= 0 && !both) || !goes_on(begin) || (both && !follows(side))) {
      if (both) compute_waiting(side, i, all, evaluate);
      return compute(i, all, evaluate), 1;
    }
    const tensor<Real> out = value(i, all);
    operands<Real> x = operands_of(begin, all);
    product_end<Real> end;
    if (both) {
      const operands<Real> y = operands_of(side, all);
      end.side = rows_times(out, y.a, y.b, f.g[side].tb, f.g[i].what == op::sub ? Real(-1) : Real(1));
      if (const id s = f.g[side].a; waits(s, i) && follows(s)) {
        const operands<Real> z = operands_of(s, all);
        end.first = rows_times(y.a, z.a, z.b, f.g[s].tb, Real(1));
      } else {
        compute_waiting(side, i, all, evaluate);
      }
    }
    add_steps(l, k, out.d[3], end);
    x.end = &end;
    evaluate(begin, out, x);
    return 1 + end.count;
  }
  // Does a value wait until a sum is computed?
  bool waits(id value, id sum) const { return value >= 0 && f_->where.along[value] == sum; }
  void compute_waiting(id product, id sum, const row_range& all, const evaluator<Real>& evaluate) const {
    if (const id s = f_->g[product].a; waits(s, sum)) compute(s, all, evaluate);
  }
  // Is it rows times one matrix of more than one column, which another product may follow?
  bool goes_on(id product) const {
    const node& v = f_->g[product];
    return !v.ta && !v.sum && !f_->is_known(v.a) && !mixes(product) && f_->g.sizes.value(v.d[3], f_->now.sizes) > 1;
  }
  // And is the matrix numbers, so that it may follow another?
  [[gnu::noinline]] bool follows(id product) const {
    const id matrix = f_->g[product].b;
    return goes_on(product) && (!f_->is_known(matrix) || f_->known.stored(matrix) == nullptr);
  }
  // The steps behind node k of a launch that happen in its place and with values that are known.
  void add_steps(const launch& l, int k, long long columns, product_end<Real>& end) const {
    const frame<Real>& f = *f_;
    for (int n = k + 1; n < l.count && product_end<Real>::most_steps > end.count; ++n) {
      const id before = f.p.nodes[l.first + n - 1], i = f.p.nodes[l.first + n];
      const node& v = f.g[i];
      const bool either = v.what == op::add || v.what == op::mul, left = v.what == op::sub || v.what == op::div;
      const id by = v.a == before ? v.b : v.a;
      if (f.where.inplace[i] != before || !(either || (left && v.a == before)) || !f.is_known(by)) return;
      const tensor<Real> t = f.known[by];
      if (t.count() != t.d[3] || (t.d[3] != 1 && t.d[3] != columns)) return;
      end.steps[end.count++] = {binary_packets<Real>(v.what), t.p, t.d[3] != 1};
    }
  }
  // The product that is accumulated into the sum i, if any; of two the one of less depth.
  id accumulated(id i) const {
    const node& v = f_->g[i];
    auto is_part = [&](id o) { return o >= 0 && f_->where.into[o] == i; };
    if (is_part(v.a) && is_part(v.b)) return v.what == op::add && depth(v.a) < depth(v.b) ? v.a : v.b;
    return is_part(v.a) ? v.a : is_part(v.b) ? v.b : none_id;
  }
  long long depth(id product) const {
    const node& v = f_->g[product];
    return f_->g.sizes.value(f_->g[v.a].d[v.ta ? 2 : 3], f_->now.sizes);
  }
  operands<Real> operands_of(id i, const row_range& r) const {
    const frame<Real>& f = *f_;
    const node& v = f.g[i];
    operands<Real> x;
    x.first = offset(i, r);
    tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0) continue;
      const bool by_piece = reads_by_piece(f.g, f.p, i, k);
      if (row(f.g[o].what).from == source::integers)
        x.ids =
            f.is_known(o) ? f.known.ids(o) : static_cast<const std::int64_t*>(f.data(o).data) + (by_piece ? r.from : 0);
      else if (f.is_known(o))
        *to[k] = reads_stored(f.g, v, k) ? f.weight(o) : f.known[o];
      else
        *to[k] = by_piece ? value(o, r) : f.whole(o);
    }
    return x;
  }
  // These rows of a value.
  tensor<Real> value(id i, const row_range& r) const {
    const frame<Real>& f = *f_;
    const id from = f.where.same_as[i] >= 0 ? f.where.same_as[i] : i;
    if (Real* const all = f.stored[from]) return f.piece(i, all + offset(i, r), r.n);
    if (f.p.rows.how[i] == reach::whole) return f.piece(i, f.whole(i).p + offset(i, r), r.n);
    if (is_leaf(f.g[from].what)) {
      const view& v = f.data(from);
      if (!in_place<Real>(v)) return f.piece(i, within(converted_[from], from, r), r.n);
      return f.piece(i, static_cast<Real*>(const_cast<void*>(v.data)) + offset(from, r), r.n);
    }
    if (const int k = f.where.writes_to[i]; k >= 0) {
      if (f.direct(f.output(k))) return f.piece(i, static_cast<Real*>(f.output(k).data) + offset(i, r), r.n);
      id first = i;
      while (f.where.inplace[first] >= 0) first = f.where.inplace[first];
      return f.piece(i, within(converted_[first], i, r), r.n);
    }
    return f.piece(i, within(cell_[f.where.cell[i]], i, r), r.n);
  }
  // A reshaped value in the memory of what it reshapes.
  bool only_renames(id i, const row_range& r) const {
    return f_->g[i].what == op::reshape && f_->p.rows.how[i] == reach::piece && value(f_->g[i].a, r).p == value(i, r).p;
  }
  // Has an output been written already, or does nobody want it?
  bool is_there(int k, id i, const row_range& r) const {
    const mutable_view& to = f_->output(k);
    return to.data == nullptr || (f_->direct(to) && value(i, r).p == static_cast<Real*>(to.data) + offset(i, r));
  }

  const frame<Real>* f_ = nullptr;
  long long piece_ = 0;  // its first row
  memory<Real> arena_;
  mutable memory<Real> mixed_;  // a product before it is added to something
  int threads_ = 0, nodes_ = 0;
  sequence<Real*> cell_;
  sequence<long long> chain_width_;  // by cell: elements of a row, of the value that a chain has there
  sequence<Real*> sum_;              // by thread and node, where it sums over rows; threads share those of products
  sequence<Real*> converted_;        // a piece of inputs and outputs that are not stored as Real
};

}  // namespace graft::cpu
