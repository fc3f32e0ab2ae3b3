// SPDX-License-Identifier: Apache-2.0
// Look-ups by index with their adjoints: rows or columns of a table (gather, scatter; an embedding), and single
// elements of a matrix (pick, place).
#pragma once
#include <graft/backend/cpu/ops/vector.h>
#include <graft/backend/cpu/runtime/convert.h>
#include <graft/backend/cpu/runtime/tensor.h>
#include <graft/backend/table_shard.h>

#include <cstdint>

namespace graft::cpu {

template <class Real, weights Of = weights::any>
void gather(tensor<Real> out, tensor<Real> w, const std::int64_t* ids, bool by_column, table_shard part = {}) {
  const long long n = out.d[3], entries = w.d[by_column ? 3 : 2];
  for (long long t = 0; t < out.d[2]; ++t) {
    Real* to = out.p + t * n;
    const long long id = ids[t] - part.first;
    if (part.is && (id < 0 || id >= entries)) {
      std::fill_n(to, n, Real(0));
      continue;
    }
    if (w.stored != nullptr)
      convert_row<Real, Of>(by_column ? w.stored->transposed() : *w.stored, id, to);
    else if (!by_column)
      std::copy_n(w.p + id * n, n, to);
    else
      for (long long c = 0; c < n; ++c) to[c] = w.p[c * w.d[3] + id];
  }
}
template <class Real> void scatter(tensor<Real> w, tensor<Real> rows, const std::int64_t* ids, bool by_column) {
  const long long n = rows.d[3];
  for (long long t = 0; t < rows.d[2]; ++t) {
    const Real* from = rows.p + t * n;
    if (!by_column)
      add(w.p + ids[t] * n, from, n);
    else
      for (long long c = 0; c < n; ++c) w.p[c * w.d[3] + ids[t]] += from[c];
  }
}

// place adds n numbers to elements of a matrix, and pick reads n elements. The index `at` has n rows, then n columns.
template <class Real> void scatter_elements(tensor<Real> out, tensor<Real> numbers, const std::int64_t* at) {
  const long long n = numbers.count();
  for (long long i = 0; i < n; ++i) out.p[at[i] * out.d[3] + at[n + i]] += numbers.p[i];
}
template <class Real> void gather_elements(tensor<Real> numbers, tensor<Real> a, const std::int64_t* at) {
  const long long n = numbers.count();
  for (long long i = 0; i < n; ++i) numbers.p[i] = a.p[at[i] * a.d[3] + at[n + i]];
}

}  // namespace graft::cpu
