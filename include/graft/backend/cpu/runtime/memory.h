// SPDX-License-Identifier: Apache-2.0
// Owned memory, aligned for the widest vector instructions, so that a sum takes the same time and the same order
// wherever a program puts its tensors. Large blocks ask for huge pages: the page faults of a value as large as a
// weight, which is made after each parameter change, would take as long as computing it.
#pragma once
#include <cstddef>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace graft::cpu {

template <class Real> class memory {
 public:
  memory() = default;
  memory(memory&& o) noexcept : p_(std::exchange(o.p_, nullptr)), n_(std::exchange(o.n_, 0)) {}
  memory& operator=(memory&& o) noexcept {
    std::swap(p_, o.p_), std::swap(n_, o.n_);
    return *this;
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() { ::operator delete(p_, alignment_of(n_)); }

  // Reserves at least n elements; growing discards the contents.
  void reserve(long long n) {
    if (n > n_) grow(n);
  }
  Real* data() const { return p_; }
  long long size() const { return n_; }

 private:
  [[gnu::noinline]] void grow(long long n) {
    memory fresh;
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(Real);
    fresh.p_ = static_cast<Real*>(::operator new(bytes, alignment_of(n)));
    fresh.n_ = n;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (is_large(n)) static_cast<void>(::madvise(fresh.p_, bytes / large_page * large_page, MADV_HUGEPAGE));
#endif
    *this = std::move(fresh);
  }
  static constexpr std::size_t large_page = std::size_t{1} << 21;
  static bool is_large(long long n) { return static_cast<std::size_t>(n) * sizeof(Real) >= 2 * large_page; }
  static std::align_val_t alignment_of(long long n) { return std::align_val_t{is_large(n) ? large_page : 64}; }
  Real* p_ = nullptr;
  long long n_ = 0;
};
// Rounds n up to a multiple of 16 elements, so that the next value in shared memory is aligned.
constexpr long long aligned_count(long long n) { return (n + 15) / 16 * 16; }

}  // namespace graft::cpu
