// SPDX-License-Identifier: Apache-2.0
// Runs a row-wise launch: all nodes of the launch on one chunk of rows, then on the next chunk. The values of a chunk
// stay in the cache. The base GEMM writes directly to y, the low-rank branch is accumulated into it, elementwise steps
// run in place, and sums over rows accumulate. A GEMM, and what is computed on the rows of experts, uses all threads
// inside; for other nodes the threads divide the rows of the chunk. Memory is reserved before the call.
#pragma once
#include <graft/backend/cpu/runtime/call_frame.h>
#include <graft/backend/cpu/runtime/threads.h>

namespace graft::cpu {

// Nodes other than GEMMs use several threads from split_rows rows on, or from split_elements elements of work on.
inline constexpr long long split_rows = 64, split_elements = 1 << 16;

template <class Real> class row_executor {
 public:
  // Reserves memory for chunks of `rows` rows of calls with up to `tokens` rows.
  [[gnu::cold]] void reserve(const graph& g, const launch_plan& p, const buffers& where, const size_values& sizes,
                             long long tokens, long long rows) {
    threads_ = thread_count(), nodes_ = g.size;
    cell_ = sequence<Real*>(where.cells), chain_width_ = sequence<long long>(where.cells);
    sum_ = sequence<Real*>(threads_ * nodes_), converted_ = sequence<Real*>(nodes_);
    sequence<long long> cells(where.cells);
    auto chunk_elements_of = [&](id i) { return tokens == 0 ? 0 : element_count(g, i, sizes) / tokens * rows; };
    long long total = 0;
    auto reserve_elements = [&](long long n) { return std::exchange(total, total + aligned_count(n)); };
    struct found {
      Real** to;
      long long offset;
    };
    sequence<found> placements;
    for (id i = 0; i < g.size; ++i) {
      if (!p.live[i] || p.when.of[i] != stage::call) continue;
      if (where.cell[i] >= 0) {
        long long& n = cells[where.cell[i]];
        n = std::max(n, chunk_elements_of(i));
      }
      for (int t = 0; t < threads_; ++t)
        if (p.rows.dependence_of[i] == row_dependence::sum && (t == 0 || !uses_all_threads(g, i)))
          placements.push({&sum_[t * nodes_ + i], reserve_elements(element_count(g, i, sizes))});
      const bool output = where.writes_to[i] >= 0 && where.inplace[i] < 0;
      if (output || (g[i].what == op::input && p.rows.axis[i] >= 0))
        placements.push({&converted_[i], reserve_elements(chunk_elements_of(i))});
    }
    for (int c = 0; c < where.cells; ++c) placements.push({&cell_[c], reserve_elements(cells[c])});
    arena_.reserve(std::max(1LL, total));
    for (const found& at : placements) *at.to = arena_.data() + at.offset;
  }
  long long elements() const { return arena_.size(); }
  Real* sum(id i) const { return sum_[i]; }

  void run(const call_frame<Real>& f, const launch& l, long long rows_at_once) {
    each_sum(f, l, [&](id i, Real* of_thread) {
      std::fill_n(of_thread, element_count(f.g, i, f.current_call.sizes), Real(0));
    });
    f_ = &f;
    const evaluator<Real> evaluate{f.g, f.current_call.sizes, f.by};
    for (chunk_begin_ = 0; chunk_begin_ < f.tokens; chunk_begin_ += rows_at_once) {
      const row_range all{chunk_begin_, std::min(rows_at_once, f.tokens - chunk_begin_), 0};
      for (id i = 0; i < f.g.size; ++i)  // converts inputs that are not stored as Real
        if (f.g[i].what == op::input && f.p.live[i] && f.p.rows.axis[i] >= 0 && f.stored[i] == nullptr)
          if (const view& v = f.data(i); !in_place<Real>(v))
            parallel_rows(all, f.row_elements(i), [&](const row_range& r) {
              read_floats(v, r.from * f.row_elements(i), r.n * f.row_elements(i), within_chunk(converted_[i], i, r));
            });
      for (int k = 0; k < l.count;) {
        const id i = f.p.nodes[l.first + k];
        if (is_routed(f.g[i].what)) {
          compute(i, all, evaluate), ++k;
          continue;
        }
        const int chain_count = chain_length(l, k, all);
        if (chain_count == 1 && is_parallel_gemm(f.g, accumulated_product(i) >= 0 ? accumulated_product(i) : i) &&
            !is_skipped(i, all)) {
          k += compute_product(l, k, all, evaluate);
          continue;
        }
        if (chain_count > 1 || !is_skipped(i, all))
          parallel_rows(all, chain_work(l, k, chain_count),
                        [&](const row_range& r) { compute_chain(l, k, chain_count, r, evaluate); });
        k += chain_count;
      }
      for (int k = 0; k < f.g.outs; ++k)
        if (const id i = f.g.out[k].at; f.p.rows.dependence_of[i] == row_dependence::chunk &&
                                        f.p.launch_of[i] == index(l) && !is_written(k, i, all))
          parallel_rows(all, f.row_elements(i), [&](const row_range& r) {
            const tensor<Real> v = value(i, r);
            write(v.p, offset(i, r), v.count(), f.output(k));
          });
    }
    each_sum(f, l, [&](id i, Real* of_thread) {
      if (of_thread != sum(i)) add(sum(i), of_thread, element_count(f.g, i, f.current_call.sizes));
    });
  }

 private:
  struct row_range {
    long long from, n;
    int thread;
  };
  // Returns true for a matmul with one matrix: one threaded GEMM computes all rows of the chunk.
  static bool is_parallel_gemm(const graph& g, id i) {
    const node& v = g[i];
    if (v.what != op::matmul) return false;
    const bool one_right = g[v.b].d[0] == dim{1} && g[v.b].d[1] == dim{1},
               one_left = g[v.a].d[0] == dim{1} && g[v.a].d[1] == dim{1};
    return one_right && (one_left || (!v.ta && !v.sum));
  }
  // Returns true for a node that divides its own work: the threads do not divide the rows of the chunk among them. The
  // rows of experts could not be divided, since those of a token are anywhere in the chunk.
  static bool uses_all_threads(const graph& g, id i) { return is_routed(g[i].what) || is_parallel_gemm(g, i); }
  // A chain is a sequence of memory-bound nodes that run on a few rows at a time, so that a value is still in a cache
  // when the next node reads it. This is the number of elements of the widest value at a time.
  static constexpr long long chain_elements = 1 << 15;
  [[gnu::noinline]] bool is_skipped(id i, const row_range& all) const {
    return f_->where.into[i] >= 0 || f_->where.computed_with[i] >= 0 || f_->where.same_as[i] >= 0 || is_alias(i, all);
  }
  bool can_chain(id i) const {
    const op_class kind = traits_of(f_->g[i].what).kind;
    return f_->p.rows.dependence_of[i] == row_dependence::chunk && accumulated_product(i) < 0 &&
           (kind == op_class::pointwise || kind == op_class::rowwise || kind == op_class::layout ||
            is_small_product(i));
  }
  // Returns true for a GEMM with a small matrix of type Real, whose order of sums does not depend on the number of
  // rows.
  bool is_small_product(id i) const {
    const node& v = f_->g[i];
    for (const id o : {v.a, v.b})
      if (o >= 0 && f_->is_precomputed(o) && f_->precomputed.stored(o) != nullptr) return false;
    return v.what == op::matmul && !v.sum && !v.ta && !has_row_adapters(i) &&
           (f_->is_precomputed(v.a) || f_->is_precomputed(v.b)) && depth(i) <= small_k_max &&
           f_->g.sizes.value(v.d[3], f_->current_call.sizes) <= small_k_max;
  }
  // The number of nodes of the chain that begins with node k. Values of one chain that share a workspace cell must have
  // equally long rows: else one would overwrite rows of the other that are still to be read.
  int chain_length(const launch& l, int k, const row_range& all) {
    const call_frame<Real>& f = *f_;
    if (!can_chain(f.p.nodes[l.first + k])) return 1;
    for (long long& width : chain_width_) width = 0;
    int n = 0;
    for (; k + n < l.count; ++n) {
      const id i = f.p.nodes[l.first + k + n];
      if (is_skipped(i, all)) continue;
      if (!can_chain(i) || !fits_chain(i)) break;
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
  // The cost of a row of a value in elements; an element of a small GEMM counts for its inner size / 8. A sum over rows
  // counts as nothing, so that few rows stay on one thread and the order of the sum does not change.
  long long row_work(id i) const {
    const node& v = f_->g[i];
    if (f_->p.rows.dependence_of[i] == row_dependence::sum) return 0;
    const dim depth = v.what == op::rotate   ? f_->g[v.b].d[3]
                      : v.what == op::matmul ? f_->g[v.a].d[v.ta ? 2 : 3]
                                             : dim{1};
    return f_->row_elements(i) * std::max(1LL, f_->g.sizes.value(depth, f_->current_call.sizes) / 8);
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
        if (const id i = f_->p.nodes[l.first + k + n]; !is_skipped(i, r))
          compute(i, {r.from + at, std::min(rows, r.n - at), r.thread}, evaluate);
  }
  // Runs f(range) on each thread for its share of the rows; row_elements is the cost of a row.
  template <class F> void parallel_rows(const row_range& all, long long row_elements, F f) const {
    const bool is_parallel = all.n >= split_rows || (all.n > 1 && all.n * row_elements >= split_elements);
    const int threads =
        is_parallel ? static_cast<int>(std::min<long long>(all.n, std::min(thread_count(), threads_))) : 1;
    run_on_threads(threads, [&](int t) {
      const long long from = all.n * t / threads, end = all.n * (t + 1) / threads;
      f(row_range{all.from + from, end - from, t});
    });
  }
  // Calls each(node, memory) for every thread's partial sum of each node that sums over rows.
  template <class F> void each_sum(const call_frame<Real>& f, const launch& l, F each) const {
    for (int k = 0; k < l.count; ++k)
      if (const id i = f.p.nodes[l.first + k]; f.p.rows.dependence_of[i] == row_dependence::sum)
        for (int t = 0; t < threads_; ++t)
          if (Real* const p = sum_[t * nodes_ + i]) each(i, p);
  }
  int index(const launch& l) const { return f_->p.launch_of[f_->p.nodes[l.first]]; }
  long long offset(id i, const row_range& r) const { return r.from * f_->row_elements(i); }
  // The address of a row in memory that holds one chunk.
  Real* within_chunk(Real* piece, id i, const row_range& r) const {
    return piece + (r.from - chunk_begin_) * f_->row_elements(i);
  }

  void compute(id i, const row_range& r, const evaluator<Real>& evaluate) const {
    const call_frame<Real>& f = *f_;
    const node& v = f.g[i];
    if (f.p.rows.dependence_of[i] == row_dependence::sum)
      return evaluate(i, f.full(i, sum_[r.thread * nodes_ + i]), operands_of(i, r), 1);
    const tensor<Real> out = value(i, r);
    if (const id product = accumulated_product(i); product >= 0) {
      const id begin = product == v.a ? v.b : v.a;
      if (f.where.into[begin] == i) {
        has_row_adapters(begin) ? multiply_multi_lora(begin, out, r, evaluate)
                                : evaluate(begin, out, operands_of(begin, r));
      } else {
        const tensor<Real> start = f.is_precomputed(begin) ? f.precomputed[begin] : value(begin, r);
        if (start.p != out.p) std::copy_n(start.p, out.count(), out.p);
      }
      if (!has_row_adapters(product))
        return evaluate(product, out, operands_of(product, r), v.what == op::sub ? -1 : 1);
      scratch_.reserve(out.count());
      multiply_multi_lora(product, f.row_chunk(product, scratch_.data(), r.n), r, evaluate);
      for (long long e = 0; e < out.count(); ++e)
        out.p[e] += v.what == op::sub ? -scratch_.data()[e] : scratch_.data()[e];
    } else if (has_row_adapters(i)) {
      multiply_multi_lora(i, out, r, evaluate);
    } else {
      if (accumulates_result(v.what)) std::fill_n(out.p, out.count(), Real(0));
      evaluate(i, out, operands_of(i, r));
    }
  }
  // Returns true if rows of this GEMM have adapters of their own.
  bool has_row_adapters(id i) const { return f_->multi_lora != nullptr && f_->multi_lora->has(i); }
  [[gnu::noinline]] void multiply_multi_lora(id i, const tensor<Real>& out, const row_range& r,
                                             const evaluator<Real>& evaluate) const {
    operands<Real> x = operands_of(i, r);
    x.a.p = const_cast<Real*>(f_->multi_lora->scaled(i, x.a.p, x.a.d[3], r.from, r.n));
    evaluate(i, out, x);
    f_->multi_lora->add_adapters(i, x.a.p, x.a.d[3], out.p, out.d[3], r.from, r.n);
  }
  // Computes a GEMM, or the sum of two, with its epilogue. Returns the number of nodes that it has computed.
  int compute_product(const launch& l, int k, const row_range& all, const evaluator<Real>& evaluate) const {
    const call_frame<Real>& f = *f_;
    const id i = f.p.nodes[l.first + k], branch = accumulated_product(i),
             begin = branch < 0 ? i : f.g[i].a + f.g[i].b - branch;
    const bool both = branch >= 0 && f.where.into[begin] == i;
    if (both) compute_deferred(begin, i, all, evaluate);
    if (f.p.rows.dependence_of[i] != row_dependence::chunk || (branch >= 0 && !both) || !is_linear(begin) ||
        (both && !is_dense_linear(branch))) {
      if (both) compute_deferred(branch, i, all, evaluate);
      return compute(i, all, evaluate), 1;
    }
    const tensor<Real> out = value(i, all);
    operands<Real> x = operands_of(begin, all);
    gemm_epilogue<Real> end;
    if (both) {
      const operands<Real> y = operands_of(branch, all);
      end.branch = linear_problem(out, y.a, y.b, f.g[branch].tb, f.g[i].what == op::sub ? Real(-1) : Real(1));
      if (const id s = f.g[branch].a; waits_for(s, i) && is_dense_linear(s)) {
        const operands<Real> z = operands_of(s, all);
        end.first = linear_problem(y.a, z.a, z.b, f.g[s].tb, Real(1));
      } else {
        compute_deferred(branch, i, all, evaluate);
      }
    }
    add_steps(l, k, out.d[3], end);
    x.end = &end;
    evaluate(begin, out, x);
    return 1 + end.count;
  }
  // Returns true if a shrink result is computed together with the sum that reads its branch (buffers::computed_with).
  bool waits_for(id value, id sum) const { return value >= 0 && f_->where.computed_with[value] == sum; }
  void compute_deferred(id product, id sum, const row_range& all, const evaluator<Real>& evaluate) const {
    if (const id s = f_->g[product].a; waits_for(s, sum)) compute(s, all, evaluate);
  }
  // Returns true for rows times one matrix of more than one column, a GEMM that can have an epilogue.
  bool is_linear(id product) const {
    const node& v = f_->g[product];
    return !v.ta && !v.sum && !f_->is_precomputed(v.a) && !has_row_adapters(product) &&
           f_->g.sizes.value(v.d[3], f_->current_call.sizes) > 1;
  }
  // Returns true if the matrix is also of type Real, so that the GEMM can be part of an epilogue.
  [[gnu::noinline]] bool is_dense_linear(id product) const {
    const id matrix = f_->g[product].b;
    return is_linear(product) && (!f_->is_precomputed(matrix) || f_->precomputed.stored(matrix) == nullptr);
  }
  // Adds the elementwise nodes after node k of a launch that run in place with precomputed operands as epilogue steps.
  void add_steps(const launch& l, int k, long long columns, gemm_epilogue<Real>& end) const {
    const call_frame<Real>& f = *f_;
    for (int n = k + 1; n < l.count && gemm_epilogue<Real>::max_steps > end.count; ++n) {
      const id before = f.p.nodes[l.first + n - 1], i = f.p.nodes[l.first + n];
      const node& v = f.g[i];
      const bool either = v.what == op::add || v.what == op::mul, left = v.what == op::sub || v.what == op::div;
      const id by = v.a == before ? v.b : v.a;
      if (f.where.inplace[i] != before || !(either || (left && v.a == before)) || !f.is_precomputed(by)) return;
      const tensor<Real> t = f.precomputed[by];
      if (t.count() != t.d[3] || (t.d[3] != 1 && t.d[3] != columns)) return;
      end.steps[end.count++] = {binary_packets<Real>(v.what), t.p, t.d[3] != 1};
    }
  }
  // The GEMM that is accumulated into the sum i, or none; of two the one with the smaller inner size.
  id accumulated_product(id i) const {
    const node& v = f_->g[i];
    auto is_part = [&](id o) { return o >= 0 && f_->where.into[o] == i; };
    if (is_part(v.a) && is_part(v.b)) return v.what == op::add && depth(v.a) < depth(v.b) ? v.a : v.b;
    return is_part(v.a) ? v.a : is_part(v.b) ? v.b : none_id;
  }
  long long depth(id product) const {
    const node& v = f_->g[product];
    return f_->g.sizes.value(f_->g[v.a].d[v.ta ? 2 : 3], f_->current_call.sizes);
  }
  operands<Real> operands_of(id i, const row_range& r) const {
    const call_frame<Real>& f = *f_;
    const node& v = f.g[i];
    operands<Real> x;
    x.first = offset(i, r);
    tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    for (int k = 0; k < 3; ++k) {
      const id o = v.operand(k);
      if (o < 0) continue;
      const bool by_piece = reads_by_chunk(f.g, f.p, i, k);
      if (traits_of(f.g[o].what).from == source::integers)
        x.ids = f.is_precomputed(o) ? f.precomputed.ids(o)
                                    : static_cast<const std::int64_t*>(f.data(o).data) + (by_piece ? r.from : 0);
      else if (f.is_precomputed(o))
        *to[k] = reads_stored(f.g, v, k) ? f.weight(o) : f.precomputed[o];
      else
        *to[k] = by_piece ? value(o, r) : f.whole(o);
    }
    return x;
  }
  // The tensor of these rows of a value.
  tensor<Real> value(id i, const row_range& r) const {
    const call_frame<Real>& f = *f_;
    const id from = f.where.same_as[i] >= 0 ? f.where.same_as[i] : i;
    if (Real* const all = f.stored[from]) return f.row_chunk(i, all + offset(i, r), r.n);
    if (f.p.rows.dependence_of[i] == row_dependence::whole) return f.row_chunk(i, f.whole(i).p + offset(i, r), r.n);
    if (is_leaf(f.g[from].what)) {
      const view& v = f.data(from);
      if (!in_place<Real>(v)) return f.row_chunk(i, within_chunk(converted_[from], from, r), r.n);
      return f.row_chunk(i, static_cast<Real*>(const_cast<void*>(v.data)) + offset(from, r), r.n);
    }
    if (const int k = f.where.writes_to[i]; k >= 0) {
      if (f.direct(f.output(k))) return f.row_chunk(i, static_cast<Real*>(f.output(k).data) + offset(i, r), r.n);
      id first = i;
      while (f.where.inplace[first] >= 0) first = f.where.inplace[first];
      return f.row_chunk(i, within_chunk(converted_[first], i, r), r.n);
    }
    return f.row_chunk(i, within_chunk(cell_[f.where.cell[i]], i, r), r.n);
  }
  // Returns true for a reshaped value that shares the memory of its operand.
  bool is_alias(id i, const row_range& r) const {
    return f_->g[i].what == op::reshape && f_->p.rows.dependence_of[i] == row_dependence::chunk &&
           value(f_->g[i].a, r).p == value(i, r).p;
  }
  // Returns true if an output has been written in place or is not wanted.
  bool is_written(int k, id i, const row_range& r) const {
    const mutable_view& to = f_->output(k);
    return to.data == nullptr || (f_->direct(to) && value(i, r).p == static_cast<Real*>(to.data) + offset(i, r));
  }

  const call_frame<Real>* f_ = nullptr;
  long long chunk_begin_ = 0;  // first row of the current chunk
  memory<Real> arena_;
  mutable memory<Real> scratch_;  // a GEMM before it is added to a sum
  int threads_ = 0, nodes_ = 0;
  sequence<Real*> cell_;
  sequence<long long> chain_width_;  // by cell: row length of the values of a chain in it
  sequence<Real*> sum_;              // by thread and node: partial sum over rows; a GEMM has only that of thread 0
  sequence<Real*> converted_;        // by node: a chunk of inputs and outputs that are not stored as Real
};

}  // namespace graft::cpu
