// SPDX-License-Identifier: Apache-2.0
// Device memory with an owner, on the device that was the current one when it was first asked for. Allocation happens
// while a layer is prepared, never during a call.
#pragma once
#include <graft/backend/cuda/device.h>
#include <graft/core/sequence.h>

#include <cstddef>
#include <utility>

namespace graft::cuda {

class buffer {
 public:
  buffer() = default;
  buffer(buffer&& other) noexcept
      : p_(std::exchange(other.p_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), device_(other.device_) {}
  buffer& operator=(buffer&& other) noexcept {
    std::swap(p_, other.p_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    return *this;
  }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() { free(); }

  // At least this many bytes; what the buffer held is lost when it has to grow.
  status reserve(long long bytes) {
    if (bytes <= bytes_) return ok;
    if (p_ == nullptr) device_ = device_now();
    free();
    const on_device here(device_);
    if (status s = check(cudaMalloc(&p_, static_cast<std::size_t>(bytes)), "allocating device memory"); !s)
      return fail(s.message(), "; ", bytes, " bytes were asked for");
    bytes_ = bytes;
    return ok;
  }
  void* data() const { return p_; }
  template <class T> T* as() const { return static_cast<T*>(p_); }
  long long bytes() const { return bytes_; }
  int device() const { return device_; }

 private:
  void free() {
    if (p_ == nullptr) return;
    const on_device here(device_);
    static_cast<void>(cudaFree(std::exchange(p_, nullptr)));
    bytes_ = 0;
  }

  void* p_ = nullptr;
  long long bytes_ = 0;
  int device_ = 0;
};

// Memory of several whose work is in one order: as large as the one that needs most. Where it grows by moving, whoever
// holds an address asks whether it is still the same memory. Addresses that others have, in launches that were captured,
// stay: it then grows by a further piece, and what needs one stretch lies within a piece.
class common_memory {
 public:
  enum class growth : unsigned char { by_moving, by_pieces };
  common_memory() = default;
  explicit common_memory(growth how) : how_(how) {}

  status reserve(long long bytes) {
    if (bytes <= bytes_) return ok;
    if (how_ == growth::by_moving) ++moves_, bytes_ = 0, pieces_ = {};
    buffer fresh;
    if (status s = fresh.reserve(bytes - bytes_); !s) return s;
    pieces_.extend() = {bytes, std::move(fresh)}, bytes_ = bytes;
    return ok;
  }
  void* data() const { return at(0); }
  void* at(long long place) const {
    long long begin = 0;
    for (const piece& p : pieces_) {
      if (place < p.end) return p.memory.as<char>() + (place - begin);
      begin = p.end;
    }
    return nullptr;
  }
  // The first place from `place` on where so many bytes lie within one piece, or within the next one.
  long long unbroken(long long place, long long bytes) const {
    if (how_ == growth::by_pieces)
      for (const piece& p : pieces_)
        if (place < p.end && place + bytes > p.end) place = p.end;
    return place;
  }
  long long bytes() const { return bytes_; }
  long long moves() const { return moves_; }  // how often it has come to lie elsewhere

 private:
  struct piece {
    long long end;
    buffer memory;
  };
  sequence<piece> pieces_;
  long long bytes_ = 0, moves_ = 0;
  growth how_ = growth::by_moving;
};

}  // namespace graft::cuda
