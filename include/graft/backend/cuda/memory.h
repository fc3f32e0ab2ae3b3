// SPDX-License-Identifier: Apache-2.0
// Device memory with an owner, on the device that was the current one when it was first asked for. Allocation happens
// while a layer is prepared, never during a call.
#pragma once
#include <graft/backend/cuda/device.h>

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

// Memory of several whose work is in one order: as large as the one that needs most, and whoever holds an address asks
// whether it has moved.
class common_memory {
 public:
  status reserve(long long bytes) {
    if (bytes <= memory_.bytes()) return ok;
    ++moves_;
    return memory_.reserve(bytes);
  }
  void* data() const { return memory_.data(); }
  long long bytes() const { return memory_.bytes(); }
  long long moves() const { return moves_; }  // how often it has come to lie elsewhere

 private:
  buffer memory_;
  long long moves_ = 0;
};

}  // namespace graft::cuda
