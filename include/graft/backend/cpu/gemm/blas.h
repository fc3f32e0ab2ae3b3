// SPDX-License-Identifier: Apache-2.0
// Large GEMM by a BLAS, if the build found one (GRAFT_BLAS): OpenBLAS, BLIS, MKL or Accelerate. It is called through
// the Fortran interface, which all of them have and which needs no header, and uses its own threads: there is no
// portable way to run a BLAS on one of ours. So it is called outside of our parallel regions only. OpenBLAS built with
// a thread pool of its own in addition to OpenMP would find the processors taken by our threads, which spin for a while
// after their work; if its functions are linked, it is told to use one thread and is called from each of ours. GEMMs of
// bf16 are found as weak symbols: MKL's gemm_bf16bf16f32 and OpenBLAS's sbgemm, which have one signature.
#pragma once
#include <graft/backend/cpu/gemm/problem.h>
#include <graft/core/dtype.h>

#include <initializer_list>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(GRAFT_BLAS)
extern "C" {
// NOLINTBEGIN(readability-identifier-naming): Fortran's names
void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
            const float*, const int*, const float*, float*, const int*);
void dgemm_(const char*, const char*, const int*, const int*, const int*, const double*, const double*, const int*,
            const double*, const int*, const double*, double*, const int*);
#if defined(__ELF__)
[[gnu::weak]] void gemm_bf16bf16f32_(const char*, const char*, const int*, const int*, const int*, const float*,
                                     const graft::bf16*, const int*, const graft::bf16*, const int*, const float*,
                                     float*, const int*);
[[gnu::weak]] void sbgemm_(const char*, const char*, const int*, const int*, const int*, const float*,
                           const graft::bf16*, const int*, const graft::bf16*, const int*, const float*, float*,
                           const int*);
#endif
// NOLINTEND(readability-identifier-naming)
#if defined(__ELF__)
[[gnu::weak]] int openblas_get_parallel(void);
[[gnu::weak]] int openblas_get_num_threads(void);
[[gnu::weak]] void openblas_set_num_threads(int);
#endif
}
#endif

namespace graft::cpu {

#if defined(GRAFT_BLAS)
inline constexpr bool has_blas = true;

// Returns true if all sizes are ints and every leading dimension is at least what the BLAS demands, also of a single
// row or column.
template <class Real, class Stored> bool fits_blas(const gemm_problem<Real, Stored, Stored>& c) {
  const long long all[] = {c.rows, c.cols, c.depth, c.stride, c.left.row, c.left.col, c.right.row, c.right.col};
  for (const long long n : all)
    if (n > std::numeric_limits<int>::max()) return false;
  return c.stride >= c.rows && (c.left.row == 1 ? c.left.col >= c.rows : c.left.row >= c.depth) &&
         (c.right.row == 1 ? c.right.col >= c.depth : c.right.row >= c.cols);
}

// The bf16 GEMM with float accumulation; null if the BLAS has none or the processor has no matrix instructions (AMX),
// without which it would be no faster than sgemm.
using bf16_gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const bf16*,
                           const int*, const bf16*, const int*, const float*, float*, const int*);
inline bf16_gemm find_bf16_gemm() {
#if defined(__ELF__) && defined(__x86_64__)
  constexpr unsigned features = 7, amx_bf16 = 1U << 22U;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(features, 0, &a, &b, &c, &d) == 0 || (d & amx_bf16) == 0) return nullptr;
  return gemm_bf16bf16f32_ != nullptr ? gemm_bf16bf16f32_ : sbgemm_;
#else
  return nullptr;
#endif
}
inline bf16_gemm bf16_gemm_function() {
  static const bf16_gemm found = find_bf16_gemm();
  return found;
}

// c.out += the product, or c.out = the product if `overwrite`, which does not read it.
template <class Real, class Stored>
void blas_gemm(const gemm_problem<Real, Stored, Stored>& c, bool overwrite = false) {
  const char left = c.left.row == 1 ? 'N' : 'T', right = c.right.row == 1 ? 'N' : 'T';
  const int m = static_cast<int>(c.rows), n = static_cast<int>(c.cols), k = static_cast<int>(c.depth),
            left_stride = static_cast<int>(c.left.row == 1 ? c.left.col : c.left.row),
            right_stride = static_cast<int>(c.right.row == 1 ? c.right.col : c.right.row),
            stride = static_cast<int>(c.stride);
  const Real beta = overwrite ? 0 : 1;
  if constexpr (std::is_same_v<Stored, bf16>)
    bf16_gemm_function()(&left, &right, &m, &n, &k, &c.sign, c.left.p, &left_stride, c.right.p, &right_stride, &beta,
                         c.out, &stride);
  else if constexpr (std::is_same_v<Real, float>)
    sgemm_(&left, &right, &m, &n, &k, &c.sign, c.left.p, &left_stride, c.right.p, &right_stride, &beta, c.out, &stride);
  else
    dgemm_(&left, &right, &m, &n, &k, &c.sign, c.left.p, &left_stride, c.right.p, &right_stride, &beta, c.out, &stride);
}

// Limits a BLAS that has a thread pool of its own to one thread for its lifetime.
class single_blas_thread {
 public:
  single_blas_thread() {
#if defined(__ELF__)
    constexpr int pool = 1;
    if (openblas_get_parallel == nullptr || openblas_get_num_threads == nullptr || openblas_set_num_threads == nullptr)
      return;
    if (openblas_get_parallel() != pool) return;
    threads_ = openblas_get_num_threads();
    if (threads_ > 1) openblas_set_num_threads(1);
#endif
  }
  single_blas_thread(const single_blas_thread&) = delete;
  single_blas_thread& operator=(const single_blas_thread&) = delete;
  ~single_blas_thread() {
#if defined(__ELF__)
    if (threads_ > 1) openblas_set_num_threads(threads_);
#endif
  }
  bool has_pool() const { return threads_ > 0; }

 private:
  int threads_ = 0;  // threads of the pool of this BLAS; 0: it has no pool or its functions are not linked
};
#else
inline constexpr bool has_blas = false;
#endif

}  // namespace graft::cpu
