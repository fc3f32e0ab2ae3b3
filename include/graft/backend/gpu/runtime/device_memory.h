// SPDX-License-Identifier: Apache-2.0
// Owners of device memory: a buffer, and a buffer that grows. A buffer belongs to the device that was current when it
// was first reserved. Memory is allocated when a layer is bound, never during a call.
#pragma once
#include <graft/backend/gpu/runtime/device.h>
#include <graft/core/sequence.h>

#include <atomic>
#include <cstddef>
#include <utility>

namespace graft::gpu {

// What the buffers of this process hold on all devices, and how many allocations they have made. The free memory of a
// device says neither, because other programs change it and the driver allocates in pages of 2 MB.
struct memory_counters {
  std::atomic<long long> bytes{0}, allocations{0};
};
inline memory_counters device_memory;

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

  // Makes the buffer at least this large; its contents are lost if it has to grow.
  status reserve(long long bytes) {
    if (bytes <= bytes_) return ok;
    if (p_ == nullptr) device_ = current_device();
    free();
    const device_guard here(device_);
    if (status s = check(cudaMalloc(&p_, static_cast<std::size_t>(bytes)), "allocating device memory"); !s)
      return fail(s.message(), "; ", bytes, " bytes were asked for");
    bytes_ = bytes;
    device_memory.bytes += bytes, ++device_memory.allocations;
    return ok;
  }
  void* data() const { return p_; }
  template <class T> T* as() const { return static_cast<T*>(p_); }
  long long bytes() const { return bytes_; }
  int device() const { return device_; }

 private:
  void free() {
    if (p_ == nullptr) return;
    const device_guard here(device_);
    static_cast<void>(cudaFree(std::exchange(p_, nullptr)));
    device_memory.bytes -= std::exchange(bytes_, 0);
  }

  void* p_ = nullptr;
  long long bytes_ = 0;
  int device_ = 0;
};

// Device memory for several users whose work is ordered on one stream; it is as large as the largest of them needs.
// by_moving allocates new memory when it grows, so users compare address_version() before they use a stored address.
// by_chunks adds a chunk, so addresses in captured graphs stay valid; contiguous_offset() keeps a value within one
// chunk.
class growing_buffer {
 public:
  enum class growth : unsigned char { by_moving, by_chunks };
  growing_buffer() = default;
  explicit growing_buffer(growth growth_mode) : growth_mode_(growth_mode) {}

  status reserve(long long bytes) {
    if (bytes <= bytes_) return ok;
    if (growth_mode_ == growth::by_moving) ++address_version_, bytes_ = 0, chunks_ = {};
    buffer fresh;
    if (status s = fresh.reserve(bytes - bytes_); !s) return s;
    chunks_.extend() = {bytes, std::move(fresh)}, bytes_ = bytes;
    return ok;
  }
  void* data() const { return at(0); }
  void* at(long long offset) const {
    long long begin = 0;
    for (const chunk& p : chunks_) {
      if (offset < p.end) return p.memory.as<char>() + (offset - begin);
      begin = p.end;
    }
    return nullptr;
  }
  // Returns the first offset at or after `offset` from which `bytes` bytes do not cross the end of an existing chunk.
  long long contiguous_offset(long long offset, long long bytes) const {
    if (growth_mode_ == growth::by_chunks)
      for (const chunk& p : chunks_)
        if (offset < p.end && offset + bytes > p.end) offset = p.end;
    return offset;
  }
  long long bytes() const { return bytes_; }
  long long address_version() const { return address_version_; }  // counts how often the memory has moved

 private:
  struct chunk {
    long long end;  // offset of the first byte after this chunk
    buffer memory;
  };
  sequence<chunk> chunks_;
  long long bytes_ = 0, address_version_ = 0;
  growth growth_mode_ = growth::by_moving;
};

}  // namespace graft::gpu
