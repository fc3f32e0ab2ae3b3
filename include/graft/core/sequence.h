// SPDX-License-Identifier: Apache-2.0
// sequence<T>: a growing array that also works in constant evaluation; graphs and plans are built in it, and stored in
// arrays of their exact size afterwards. It replaces std::vector, because clang 14 cannot evaluate libstdc++'s vector
// at compile time, its header costs more than all of floor 0, and each further element type costs g++ 12 90 ms at -O2
// as a vector and 35 ms as a sequence.
#pragma once
namespace graft {

template <class T> class sequence {
 public:
  constexpr sequence() = default;
  constexpr explicit sequence(int n) : p_(n > 0 ? new T[static_cast<unsigned>(n)]{} : nullptr), n_(n), capacity_(n) {}
  constexpr sequence(int n, const T& value) : sequence(n) {
    for (int i = 0; i < n; ++i) p_[i] = value;
  }
  constexpr sequence(const sequence& o)
      : p_(o.n_ > 0 ? new T[static_cast<unsigned>(o.n_)]{} : nullptr), n_(o.n_), capacity_(o.n_) {
    for (int i = 0; i < n_; ++i) p_[i] = o.p_[i];
  }
  constexpr sequence(sequence&& o) noexcept : p_(o.p_), n_(o.n_), capacity_(o.capacity_) {
    o.p_ = nullptr, o.n_ = o.capacity_ = 0;
  }
  constexpr sequence& operator=(const sequence& o) {
    if (this == &o) return *this;
    n_ = 0;
    reserve(o.n_);
    for (int i = 0; i < o.n_; ++i) p_[i] = o.p_[i];
    n_ = o.n_;
    return *this;
  }
  constexpr sequence& operator=(sequence&& o) noexcept {
    T* const mine = p_;
    const int capacity = capacity_;
    p_ = o.p_, n_ = o.n_, capacity_ = o.capacity_;
    o.p_ = mine, o.n_ = 0, o.capacity_ = capacity;
    return *this;
  }
  constexpr ~sequence() { delete[] p_; }

  [[gnu::noinline]] constexpr void push(const T& value) {
    if (n_ < capacity_) {
      p_[n_++] = value;
      return;
    }
    T* const before = p_;  // `value` may refer to an element of it
    capacity_ = n_ < 8 ? 8 : 2 * n_;
    p_ = new T[static_cast<unsigned>(capacity_)]{};
    for (int i = 0; i < n_; ++i) p_[i] = static_cast<T&&>(before[i]);
    p_[n_++] = value;
    delete[] before;
  }
  // Appends a default-constructed entry to assign to; move-only elements are added with it.
  constexpr T& extend() {
    reserve(n_ < capacity_ ? capacity_ : n_ < 8 ? 8 : 2 * n_);
    return p_[n_++];
  }
  // Reserve where the final size can be estimated: each reallocation costs a constant evaluation many steps.
  constexpr void reserve(int capacity) {
    if (capacity <= capacity_) return;
    T* const p = new T[static_cast<unsigned>(capacity)]{};
    for (int i = 0; i < n_; ++i) p[i] = static_cast<T&&>(p_[i]);
    delete[] p_;
    p_ = p, capacity_ = capacity;
  }
  constexpr void pop() { --n_; }
  constexpr void clear() { n_ = 0; }
  constexpr int size() const { return n_; }
  constexpr bool empty() const { return n_ == 0; }
  constexpr T& operator[](int i) { return p_[i]; }
  constexpr const T& operator[](int i) const { return p_[i]; }
  constexpr T& back() { return p_[n_ - 1]; }
  constexpr T* data() { return p_; }
  constexpr const T* data() const { return p_; }
  constexpr T* begin() { return p_; }
  constexpr T* end() { return p_ + n_; }
  constexpr const T* begin() const { return p_; }
  constexpr const T* end() const { return p_ + n_; }

 private:
  T* p_ = nullptr;
  int n_ = 0, capacity_ = 0;
};

}  // namespace graft
