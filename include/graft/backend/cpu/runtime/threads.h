// SPDX-License-Identifier: Apache-2.0
// Threads by OpenMP if the compiler has it; otherwise work runs serially.
#pragma once
#include <algorithm>
#include <atomic>
#include <utility>
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
// The number of threads for work of this many parts, with at least 250000 multiplications each: they take 4 to 15 µs,
// and waking a thread that still spins takes 1 or 2 µs.
inline int threads_for(long long parts, long long multiplications) {
  return static_cast<int>(std::clamp<long long>(std::min(parts, multiplications / 250000), 1, thread_count()));
}
// Whether products are batch-invariant: each row of a result has the same bits whatever number of rows the product has.
// It holds for the thread that asks for it, and for all threads of its parallel regions.
namespace detail {
inline bool& batch_invariant_here() {
  thread_local bool here = false;
  return here;
}
}  // namespace detail
inline bool is_batch_invariant() { return detail::batch_invariant_here(); }
class batch_invariant_scope {
 public:
  explicit batch_invariant_scope(bool on) : before_(std::exchange(detail::batch_invariant_here(), on)) {}
  batch_invariant_scope(const batch_invariant_scope&) = delete;
  batch_invariant_scope& operator=(const batch_invariant_scope&) = delete;
  ~batch_invariant_scope() { detail::batch_invariant_here() = before_; }

 private:
  bool before_;
};
#if defined(_OPENMP)
// The size of the team that runs work of n > 1 threads: always all threads, of which those from n on wait at the end.
// libgomp ends the threads that a smaller team leaves over and the next larger team creates them anew, which costs more
// than to wake them and loses their thread_local buffers.
inline int team_size(int n) { return std::max(n, thread_count()); }
#endif
// Runs f(thread) for every thread below n in parallel. For n = 1 there is no parallel region: inside one, even of a
// single thread, GEMMs in f would create their threads anew each time.
template <class F> void run_on_threads(int n, F f) {
#if defined(_OPENMP)
  if (n > 1) {
    const bool batch_invariant = is_batch_invariant();
#pragma omp parallel num_threads(team_size(n))
    for (int t = omp_get_thread_num(); t < n; t += omp_get_num_threads()) {
      const batch_invariant_scope same(batch_invariant);
      f(t);
    }
    return;
  }
#endif
  for (int t = 0; t < n; ++t) f(t);
}
// Runs f(first, end) for an equal share of [0, n) per thread. Moving an element counts as eight multiplications.
template <class F> void parallel_for(long long n, long long elements, F f) {
  const int threads = threads_for(n, 8 * elements);
  run_on_threads(threads, [&](int t) { f(n * t / threads, n * (t + 1) / threads); });
}
// Runs prepare() on every thread, then first(p) for all prologue tasks and after a barrier f(p) for all parts, each on
// the next free thread, so that a thread that woke late or gets less memory bandwidth takes fewer parts.
template <class Prepare, class First, class F>
void parallel_dynamic(int n, Prepare prepare, int prologue_tasks, First first, int parts, F f) {
#if defined(_OPENMP)
  if (n > 1) {
    std::atomic<int> next_task{0}, next_part{0};
    const bool batch_invariant = is_batch_invariant();
#pragma omp parallel num_threads(team_size(n))
    {
      const batch_invariant_scope same(batch_invariant);
      const bool works = omp_get_thread_num() < n;
      if (works) {
        prepare();
        for (int p = next_task++; p < prologue_tasks; p = next_task++) first(p);
      }
      if (prologue_tasks > 0) {
#pragma omp barrier
      }
      if (works)
        for (int p = next_part++; p < parts; p = next_part++) f(p);
    }
    return;
  }
#else
  static_cast<void>(n);
#endif
  prepare();
  for (int p = 0; p < prologue_tasks; ++p) first(p);
  for (int p = 0; p < parts; ++p) f(p);
}

}  // namespace graft::cpu
