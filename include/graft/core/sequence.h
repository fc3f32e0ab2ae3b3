// SPDX-License-Identifier: Apache-2.0
// An array that grows, also while compiling: graphs and plans are built in it without a limit on their size, and copied
// into arrays of just their length where a program keeps them. std::vector would do, but clang 14 cannot evaluate the one
// of its standard library while compiling, and its header alone costs more than this whole floor. And what every
// file with a layer compiles has many types of elements: to resize, fill and extend one more costs g++ 12 90 ms at -O2 as
// a vector and 35 ms as one of these.
#pragma once
namespace graft {

template <class T> class sequence {
 public:
  constexpr sequence() = default;
  constexpr explicit sequence(int n) : p_(n > 0 ? new T[static_cast<unsigned>(n)]{} : nullptr), n_(n), room_(n) {}
  constexpr sequence(int n, const T& value) : sequence(n) {
    for (int i = 0; i < n; ++i) p_[i] = value;
  }
  constexpr sequence(const sequence& o)
      : p_(o.n_ > 0 ? new T[static_cast<unsigned>(o.n_)]{} : nullptr), n_(o.n_), room_(o.n_) {
    for (int i = 0; i < n_; ++i) p_[i] = o.p_[i];
  }
  constexpr sequence(sequence&& o) noexcept : p_(o.p_), n_(o.n_), room_(o.room_) { o.p_ = nullptr, o.n_ = o.room_ = 0; }
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
    const int room = room_;
    p_ = o.p_, n_ = o.n_, room_ = o.room_;
    o.p_ = mine, o.n_ = 0, o.room_ = room;
    return *this;
  }
  constexpr ~sequence() { delete[] p_; }

  [[gnu::noinline]] constexpr void push(const T& value) {
    if (n_ < room_) {
      p_[n_++] = value;
      return;
    }
    T* const before = p_;  // the value may lie in it
    room_ = n_ < 8 ? 8 : 2 * n_;
    p_ = new T[static_cast<unsigned>(room_)]{};
    for (int i = 0; i < n_; ++i) p_[i] = static_cast<T&&>(before[i]);
    p_[n_++] = value;
    delete[] before;
  }
  // One more entry, to be assigned: what cannot be copied comes in so.
  constexpr T& extend() {
    reserve(n_ < room_ ? room_ : n_ < 8 ? 8 : 2 * n_);
    return p_[n_++];
  }
  // Room for so many entries. What is known to come is asked for once: an array that grows step by step is made anew each
  // time, which a compiler takes long over.
  constexpr void reserve(int room) {
    if (room <= room_) return;
    T* const p = new T[static_cast<unsigned>(room)]{};
    for (int i = 0; i < n_; ++i) p[i] = static_cast<T&&>(p_[i]);
    delete[] p_;
    p_ = p, room_ = room;
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
  int n_ = 0, room_ = 0;
};

}  // namespace graft
