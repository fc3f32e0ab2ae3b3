// SPDX-License-Identifier: Apache-2.0
// Threads through OpenMP where the compiler has it, else one after the other.
#pragma once
#include <algorithm>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace graft::cpu {

inline bool in_parallel() {
#if defined(_OPENMP)
  return omp_in_parallel() != 0;
#else
  return false;
#endif
}
inline int thread_count() {
#if defined(_OPENMP)
  return in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}
// Threads for work that falls into this many parts. A quarter of a million multiplications take four to fifteen
// microseconds, and waking a thread that has not gone to sleep takes one or two.
inline int threads_for(long long parts, long long multiplications) {
  return static_cast<int>(std::clamp<long long>(std::min(parts, multiplications / 250000), 1, thread_count()));
}
// f(thread) for every thread below n, at the same time. One thread is the caller's own: inside a parallel region, even of
// one thread, the products in f would have their threads created anew each time.
template <class F> void on_threads(int n, F f) {
#if defined(_OPENMP)
  if (n > 1) {
#pragma omp parallel for schedule(static, 1) num_threads(n)
    for (int t = 0; t < n; ++t) f(t);
    return;
  }
#endif
  for (int t = 0; t < n; ++t) f(t);
}
// f(first, end) of a share of n for each thread, where moving an element takes as long as eight multiplications.
template <class F> void on_shares(long long n, long long elements, F f) {
  const int threads = threads_for(n, 8 * elements);
  on_threads(threads, [&](int t) { f(n * t / threads, n * (t + 1) / threads); });
}
// f(part) for every part, each by the next thread that is free: one that was woken late, or gets less of the memory's
// speed, does fewer of them, and none waits long for the others.
// Ahead of all of them, first(part) of as many as that is.
template <class First, class F> void on_free_threads(int n, int first_parts, First first, int parts, F f) {
#if defined(_OPENMP)
  if (n > 1) {
#pragma omp parallel num_threads(n)
    {
      if (first_parts > 0) {
#pragma omp for schedule(dynamic, 1)
        for (int p = 0; p < first_parts; ++p) first(p);
      }
#pragma omp for schedule(dynamic, 1)
      for (int p = 0; p < parts; ++p) f(p);
    }
    return;
  }
#else
  static_cast<void>(n);
#endif
  for (int p = 0; p < first_parts; ++p) first(p);
  for (int p = 0; p < parts; ++p) f(p);
}

}  // namespace graft::cpu
