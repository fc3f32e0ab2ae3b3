// SPDX-License-Identifier: Apache-2.0
// Reductions along rows and functions of whole rows: dot products, sums over axes, softmax, top-k softmax, RMS norm and
// layer norm. A team of threads shares a row: each thread accumulates its elements by Kahan summation (1965), and the
// partial sums are added as a tree.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>

#include <cmath>
#include <limits>

namespace graft::gpu {

// ---- A CTA per row

// One CTA per row, for norms of long rows (1024 to 8192 columns): the block reads the row once and keeps it in
// registers, `Vectors` vectors of eight elements per thread. With few rows a block has many threads with one vector
// each, for latency; with many rows it has few threads with four vectors each, for occupancy. Sums have the same order
// in both cases: a tree over every 32 neighboring vectors, and these sums one after the other. cub::BlockReduce is not
// used, because the order of its sums follows from the number of threads.

inline constexpr long long min_block_row = 1024, max_block_row = 8192;

inline bool takes_block_per_row(long long n) { return n >= min_block_row && n <= max_block_row && n % 8 == 0; }
// Returns true if there are enough rows for a few warps per row to keep the device busy.
inline bool has_many_rows(long long rows) { return rows > 512; }
template <int Vectors> unsigned threads_of_row(long long n) {
  return static_cast<unsigned>(((n + 8 * Vectors - 1) / (8 * Vectors) + 31) / 32 * 32);
}

// Eight elements in their storage type; 16-bit types need half of the registers of float.
template <dtype Type> struct stored_vec8 {
  uint4 bits;
  __device__ void load(const element_ptr<float>& from, long long first) {
    bits = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(from.at) + first);
  }
  __device__ void read(float (&to)[8]) const { widen_vec8<Type>(to, bits); }
};
template <> struct stored_vec8<dtype::f32> {
  float v[8];
  __device__ void load(const element_ptr<float>& from, long long first) { load_vec8(v, {from.at, dtype::f32}, first); }
  __device__ void read(float (&to)[8]) const {
    for (int e = 0; e < 8; ++e) to[e] = v[e];
  }
};

template <dtype Type, int Vectors> struct row_vectors {
  using row_registers = stored_vec8<Type>[Vectors];
  static constexpr int max_trees = static_cast<int>(max_block_row / 256) + 4;
  long long n;  // columns
  int rank, size;

  // Calls f(k, c) for each vector k of this thread; c is its first column.
  template <class F> __device__ void each(const F& f) const {
#pragma unroll
    for (int k = 0; k < Vectors; ++k)
      if (const long long c = 8LL * (rank + k * size); c < n) f(k, c);
  }
  __device__ void load(row_registers& to, const element_ptr<float>& from, long long first) const {
    each([&](int k, long long c) { to[k].load(from, first + c); });
  }
  // Sums f(k, c), which returns the sums (x, y) of one vector, over the row.
  template <class F> __device__ float2 sums(const F& f) const {
    __shared__ float2 trees[max_trees];
    float2 partial[Vectors] = {};
    each([&](int k, long long c) { partial[k] = f(k, c); });
    const int warps = size / 32, warp = rank / 32;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Vectors; ++k) {
      const float2 tree = make_float2(warp_sum(partial[k].x), warp_sum(partial[k].y));
      if (rank % 32 == 0) trees[k * warps + warp] = tree;
    }
    __syncthreads();
    float2 all = make_float2(0, 0);
    for (int k = 0; k < Vectors * warps; ++k) all.x += trees[k].x, all.y += trees[k].y;
    return all;
  }
};
// Loads the gains of eight columns, or ones if there are none.
__device__ __forceinline__ void read_factors(float (&to)[8], const element_ptr<float>& from, long long first) {
  if (from.at != nullptr) return load_vec8(to, from, first);
  for (float& v : to) v = 1;
}

// Runs F<Type, Vectors>{of} with a block per row. Returns false if there is no kernel for the type of x or for the row
// length, or if `fits` is false.
template <template <dtype, int> class F, class Of>
result<bool> run_block_per_row(const on_stream& on, const Of& of, bool fits, const char* name) {
  const long long rows = of.x.rows(), n = of.x.d[3];
  if (!fits || !takes_block_per_row(n)) return false;
  auto run = [&](auto one_vector, auto four_vectors) -> result<bool> {
    const status s = has_many_rows(rows) ? on.blocks(rows, threads_of_row<4>(n), four_vectors, name)
                                         : on.blocks(rows, threads_of_row<1>(n), one_vector, name);
    if (!s) return s.failure();
    return true;
  };
  if (of.x.p.type == dtype::f32) return run(F<dtype::f32, 1>{of}, F<dtype::f32, 4>{of});
  if (of.x.p.type == dtype::bf16) return run(F<dtype::bf16, 1>{of}, F<dtype::bf16, 4>{of});
  return false;
}

// ---- Reductions, softmax and norms

template <class Real> struct kahan_sum {
  Real sum = 0, lost = 0;
  __host__ __device__ void add(Real v) {
    const Real y = v - lost, t = sum + y;
    lost = t - t == Real(0) ? (t - sum) - y : Real(0);  // keeps an infinite sum infinite
    sum = t;
  }
};

template <class Real> struct row_dots {
  tensor<Real> out, a, b;
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    kahan_sum<Real> partial;
    for_each_column<Real, 2>({a.p + row * a.d[3], b.p + row * a.d[3]}, a.d[3], t,
                             [&](long long, const Real* v) { partial.add(v[0] * v[1]); });
    const Real sum = t.sum(partial.sum);
    if (t.is_leader()) out.p.put(row, sum);
  }
};

// out += a summed over the axes along which out has size 1.
template <class Real> struct sum_to_functor {
  tensor<Real> out, a;
  long long terms = 1;  // elements of a per element of out

  sum_to_functor(const tensor<Real>& to, const tensor<Real>& from) : out(to), a(from) {
    for (int k = 0; k < 4; ++k)
      if (out.d[k] == 1) terms *= a.d[k];
  }
  // The offset in `a` of element i, counted along the summed axes or along the others.
  __host__ __device__ long long element_offset(long long i, bool summed) const {
    long long at = 0, stride = 1;
    for (int k = 3; k >= 0; --k) {
      if (a.d[k] != 1 && (out.d[k] == 1) == summed) {
        at += i % a.d[k] * stride;
        i /= a.d[k];
      }
      stride *= a.d[k];
    }
    return at;
  }
  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    const element_ptr<Real> from = a.p + element_offset(i, false);
    kahan_sum<Real> partial;
    for (long long r = t.rank; r < terms; r += t.size) partial.add(from[element_offset(r, true)]);
    const Real sum = t.sum(partial.sum);
    if (t.is_leader()) out.p.add(i, sum);
  }
};
// Chooses the team so that loads coalesce: neighboring threads read neighboring columns if out has columns, else
// neighboring elements of the summed row.
template <class On, class Real> status sum_to(const On& on, const sum_to_functor<Real>& f, const char* name) {
  const long long n = f.out.count();
  if (f.out.d[3] > 1) return on.columns(n, f, name);
  return n < 512 && f.terms > 2048 ? on.matrices(n, f.terms, f, name) : on.rows(n, f, name);
}

template <class Real> struct softmax_functor {
  tensor<Real> out, a;
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = a.d[3];
    const element_ptr<Real> z = a.p + row * n, p = out.p + row * n;
    Real most = z[0];
    for_each_column<Real, 1>({z}, n, t, [&](long long, const Real* v) { most = *v > most ? *v : most; });
    most = t.most(most);
    kahan_sum<Real> partial;
    for_each_column<Real, 1>({z}, n, t, [&](long long, const Real* v) { partial.add(std::exp(*v - most)); });
    const Real total = t.sum(partial.sum);
    for_each_column<Real, 1>({z}, n, t, [&](long long c, const Real* v) { p.put(c, std::exp(*v - most) / total); });
  }
};
// The k largest entries of a row; of equal ones the first are among them, and NaN counts as the smallest number. The
// team finds one after the other; a thread has the entries rank, rank + size, ... in registers, or loads them again
// where a row is long.
template <class Real> struct largest_entries {
  Real last = 0;  // the k-th largest entry
  long long last_at = -1;
  bool last_is_nan = false;

  template <class Team>
  __host__ __device__ largest_entries(const element_ptr<Real>& z, long long n, long long k, const Team& t) {
    constexpr int held = 8;
    Real own[held];
#pragma unroll
    for (int e = 0; e < held; ++e) own[e] = t.rank + e * t.size < n ? z[t.rank + e * t.size] : Real(0);
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int e = 0; e < held; ++e)
        if (const long long c = t.rank + e * t.size; c < n) f(own[e], c);
      for (long long c = t.rank + held * t.size; c < n; c += t.size) f(z[c], c);
    };
    constexpr Real least = -std::numeric_limits<Real>::infinity();
    for (long long j = 0; j < k; ++j) {
      Real best = least;
      long long at = -1;
      each([&](Real v, long long c) {
        if (v == v && (j == 0 || !contains(v, c)) && (at < 0 || v > best)) best = v, at = c;
      });
      const Real most = t.most(best);
      // Of equal entries the first one: the largest of the negated indices.
      const long long first = -t.most(at >= 0 && best == most ? -at : -n);
      if (first < n) {
        last = most, last_at = first;
        continue;
      }
      long long nan_at = n;  // only NaN is left
      each([&](Real v, long long c) {
        if (v != v && (!last_is_nan || c > last_at) && c < nan_at) nan_at = c;
      });
      last_at = -t.most(-nan_at), last_is_nan = true;
    }
  }
  __host__ __device__ bool contains(Real v, long long c) const {
    if (v != v) return last_is_nan && c <= last_at;
    return last_is_nan || v > last || (v == last && c <= last_at);
  }
};
// Softmax over the k largest entries, 0 elsewhere (MoE routers); NaN if an entry is NaN.
template <class Real> struct topk_softmaxes {
  tensor<Real> out, a;
  long long k;
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = a.d[3];
    const element_ptr<Real> z = a.p + row * n, p = out.p + row * n;
    const largest_entries<Real> chosen(z, n, k, t);
    Real most = -std::numeric_limits<Real>::infinity(), partial = 0;
    for (long long c = t.rank; c < n; c += t.size) most = z[c] > most ? z[c] : most;
    most = t.most(most);
    auto share = [&](Real v, long long c) { return v != v ? v : chosen.contains(v, c) ? std::exp(v - most) : Real(0); };
    for (long long c = t.rank; c < n; c += t.size) partial += share(z[c], c);
    const Real total = t.sum(partial);
    for (long long c = t.rank; c < n; c += t.size) p.put(c, share(z[c], c) / total);
  }
};
template <class Real> struct softmax_grads {
  tensor<Real> out, p, t;
  template <class Team> __host__ __device__ void operator()(long long row, Team team) const {
    const long long n = p.d[3];
    const element_ptr<Real> q = p.p + row * n, d = t.p + row * n, to = out.p + row * n;
    kahan_sum<Real> partial;
    for_each_column<Real, 2>({q, d}, n, team, [&](long long, const Real* v) { partial.add(v[0] * v[1]); });
    const Real mean = team.sum(partial.sum);
    for_each_column<Real, 2>({q, d}, n, team, [&](long long c, const Real* v) { to.put(c, v[0] * (v[1] - mean)); });
  }
};

template <class Real> struct row_moments {
  Real mean = 0, scale;
  template <class Team>
  __host__ __device__ row_moments(const element_ptr<Real>& x, long long n, Real eps, bool rms, Team t) {
    kahan_sum<Real> sum, squares;
    if (!rms) {
      for_each_column<Real, 1>({x}, n, t, [&](long long, const Real* v) { sum.add(*v); });
      mean = t.sum(sum.sum) / static_cast<Real>(n);
    }
    for_each_column<Real, 1>({x}, n, t, [&](long long, const Real* v) { squares.add((*v - mean) * (*v - mean)); });
    scale = Real(1) / std::sqrt(t.sum(squares.sum) / static_cast<Real>(n) + eps);
  }
};
template <class Real> struct normalize_functor {
  tensor<Real> out, x;
  element_ptr<Real> eps;
  bool rms;
  element_ptr<Real> factors{};  // optional gain per column
  template <class Team> __host__ __device__ void operator()(long long row, Team t) const {
    const long long n = x.d[3];
    const element_ptr<Real> in = x.p + row * n, to = out.p + row * n;
    const row_moments<Real> m(in, n, eps[0], rms, t);
    if (factors.at == nullptr)
      return for_each_column<Real, 1>({in}, n, t,
                                      [&](long long c, const Real* v) { to.put(c, (*v - m.mean) * m.scale); });
    for_each_column<Real, 2>({in, factors}, n, t,
                             [&](long long c, const Real* v) { to.put(c, (v[0] - m.mean) * m.scale * v[1]); });
  }
};
// One CTA per long row. The kernel is chosen by the row length only, so a row gives the same bits in every
// batch.
template <dtype Type, int Vectors> struct normalized_by_blocks {
  normalize_functor<float> f;

  __device__ void operator()(long long row, const block_team& t) const {
    const long long n = f.x.d[3];
    const row_vectors<Type, Vectors> vectors{n, t.rank, t.size};
    const float share = 1 / static_cast<float>(n);
    typename row_vectors<Type, Vectors>::row_registers x;
    vectors.load(x, f.x.p, row * n);
    float w[8];
    if constexpr (Vectors == 1)  // few rows: x and the gains load together
      vectors.each([&](int, long long c) { read_factors(w, f.factors, c); });
    const float eps = f.eps[0];
    auto sum_of = [&](const auto& term) {
      return vectors.sums([&](int k, long long) {
        float v[8], sum = 0;
        x[k].read(v);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += term(v[e]);
        return make_float2(sum, 0);
      });
    };
    const float mean = f.rms ? 0 : sum_of([](float v) { return v; }).x * share;
    const float squares = sum_of([&](float v) { return (v - mean) * (v - mean); }).x;
    const float scale = 1 / std::sqrt(squares * share + eps);
    vectors.each([&](int k, long long c) {
      float v[8];
      x[k].read(v);
      if constexpr (Vectors > 1) read_factors(w, f.factors, c);
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = (v[e] - mean) * scale * w[e];
      store_vec8(v, f.out.p, row * n + c);
    });
  }
};
// RMS norm of few bf16 rows, as in decode: a short kernel with all types known at compile time, with the same bits as
// the general kernel.
template <dtype Factors> struct rms_norm_skinny {
  const uint4* x;
  uint4* out;
  const void* factors;
  const float* eps;
  int vectors;  // vectors of eight columns per row, one per thread

  __device__ void operator()(long long row, const block_team& t) const {
    __shared__ float trees[max_block_row / 256];
    const bool inside = t.rank < vectors;
    const long long at = row * vectors + t.rank;
    uint4 bits = make_uint4(0, 0, 0, 0);
    float v[8], w[8];
    if (inside) bits = x[at], load_vec8(w, {const_cast<void*>(factors), Factors}, 8LL * t.rank);
    const float more = *eps;
    widen_vec8<dtype::bf16>(v, bits);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += v[e] * v[e];
    sum = warp_sum(sum);
    if (t.rank % 32 == 0) trees[t.rank / 32] = sum;
    __syncthreads();
    float squares = 0;
#pragma unroll 8
    for (int k = 0; k < t.size / 32; ++k) squares += trees[k];
    const float scale = 1 / std::sqrt(squares * (1 / static_cast<float>(8 * vectors)) + more);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = v[e] * scale * w[e];
    if (inside) out[at] = narrow_vec8<dtype::bf16>(v);
  }
};
inline bool takes_skinny(const normalize_functor<float>& f) {
  const long long rows = f.x.rows();
  return f.rms && !has_many_rows(rows) && takes_block_per_row(f.x.d[3]) && f.factors.at != nullptr &&
         f.x.p.type == dtype::bf16 && f.out.p.type == dtype::bf16 && f.eps.type == dtype::f32 &&
         (f.factors.type == dtype::f32 || f.factors.type == dtype::bf16);
}
template <dtype Factors, class On>
status normalize_skinny(const On& on, const normalize_functor<float>& f, const char* name) {
  const long long n = f.x.d[3];
  return on.blocks(f.x.rows(), threads_of_row<1>(n),
                   rms_norm_skinny<Factors>{static_cast<const uint4*>(f.x.p.at), static_cast<uint4*>(f.out.p.at),
                                            f.factors.at, static_cast<const float*>(f.eps.at), static_cast<int>(n / 8)},
                   name);
}
template <class On, class Real> status normalize(const On& on, const normalize_functor<Real>& f, const char* name) {
  return on.rows(f.x.rows(), f, name);
}
template <runs_on_stream On> status normalize(const On& on, const normalize_functor<float>& f, const char* name) {
  bool aligned = true;
  for (const element_ptr<float>& c : {f.x.p, f.out.p, f.factors}) aligned = aligned && is_aligned16(c);
  if (aligned && takes_skinny(f))
    return f.factors.type == dtype::f32 ? normalize_skinny<dtype::f32>(on, f, name)
                                        : normalize_skinny<dtype::bf16>(on, f, name);
  const result<bool> done = run_block_per_row<normalized_by_blocks>(on, f, aligned, name);
  if (!done) return done.failure();
  return *done ? status(ok) : on.rows(f.x.rows(), f, name);
}

}  // namespace graft::gpu
