// SPDX-License-Identifier: Apache-2.0
// Memory of our own: aligned to what the widest vector instructions like, so that a sum takes the same time and the same
// order wherever the rest of the program puts its tensors.
#pragma once
#include <cstddef>
#include <new>
#include <utility>

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
  ~memory() { ::operator delete(p_, alignment); }

  // At least n elements; what it held is lost when it has to grow.
  void reserve(long long n) {
    if (n <= n_) return;
    memory fresh;
    fresh.p_ = static_cast<Real*>(::operator new(static_cast<std::size_t>(n) * sizeof(Real), alignment));
    fresh.n_ = n;
    *this = std::move(fresh);
  }
  Real* data() const { return p_; }
  long long size() const { return n_; }

 private:
  static constexpr std::align_val_t alignment{64};
  Real* p_ = nullptr;
  long long n_ = 0;
};
// The next place in shared memory that is as well aligned as its beginning.
constexpr long long aligned_count(long long n) { return (n + 15) / 16 * 16; }

}  // namespace graft::cpu
