// SPDX-License-Identifier: Apache-2.0
// How numbers get to the device and back: a stream of a model's own; tensors that stay, in the type that kernels read;
// small numbers of a call, which go through pinned memory so that the copy is part of the stream's work and of what is
// captured.
#pragma once
#include <graft/backend/cuda/library.h>
#include <graft/backend/cuda/memory.h>
#include <graft/backend/cuda/values.cuh>
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/core/few_numbers.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace graft::cuda {

class own_stream {
 public:
  own_stream() = default;
  own_stream(const own_stream&) = delete;
  own_stream& operator=(const own_stream&) = delete;
  ~own_stream() {
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }
  status open() { return check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Memory of the host that kernels write to.
class pinned_memory {
 public:
  pinned_memory() = default;
  pinned_memory(pinned_memory&& o) noexcept : p_(std::exchange(o.p_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  pinned_memory& operator=(pinned_memory&& o) noexcept {
    std::swap(p_, o.p_), std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~pinned_memory() {
    if (p_ != nullptr) static_cast<void>(cudaFreeHost(p_));
  }
  // At least so many bytes; nothing that writes there may be under way.
  status reserve(long long bytes) {
    if (bytes <= bytes_) return ok;
    pinned_memory fresh;
    if (status s = check(cudaMallocHost(&fresh.p_, static_cast<std::size_t>(bytes)), "allocating pinned memory"); !s)
      return s;
    fresh.bytes_ = bytes;
    *this = std::move(fresh);
    return ok;
  }
  template <class T> T* as() const { return static_cast<T*>(p_); }

 private:
  void* p_ = nullptr;
  long long bytes_ = 0;
};
// A point in the work of a stream that somebody waits for.
class moment {
 public:
  moment() = default;
  moment(moment&& o) noexcept : event_(std::exchange(o.event_, nullptr)) {}
  moment& operator=(moment&& o) noexcept {
    std::swap(event_, o.event_);
    return *this;
  }
  ~moment() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  status note(cudaStream_t stream) {
    if (event_ == nullptr)
      if (status s = check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); !s) return s;
    return check(cudaEventRecord(event_, stream), "noting a step");
  }
  // What is queued there from now on comes after it.
  status hold(cudaStream_t stream) const {
    return check(cudaStreamWaitEvent(stream, event_, 0), "ordering two streams");
  }
  bool over() const { return cudaEventQuery(event_) != cudaErrorNotReady; }
  status wait() const { return check(cudaEventSynchronize(event_), "waiting for a step"); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Pinned memory and as much on the device. What is written goes over with the next send(); before it is written again the
// last copy has been made. Addresses stay while there is room.
class staged_memory {
 public:
  staged_memory() = default;
  staged_memory(staged_memory&& o) noexcept
      : host_(std::exchange(o.host_, nullptr)),
        room_(std::exchange(o.room_, 0)),
        used_(o.used_),
        device_(std::move(o.device_)),
        copied_(std::exchange(o.copied_, nullptr)) {}
  staged_memory& operator=(staged_memory&& o) noexcept {
    std::swap(host_, o.host_), std::swap(room_, o.room_), std::swap(used_, o.used_);
    std::swap(device_, o.device_), std::swap(copied_, o.copied_);
    return *this;
  }
  ~staged_memory() {
    if (host_ != nullptr) static_cast<void>(cudaFreeHost(host_));
    if (copied_ != nullptr) static_cast<void>(cudaEventDestroy(copied_));
  }

  status write(const void* from, long long bytes) {
    if (status s = reserve(bytes); !s) return s;
    if (status s = check(cudaEventSynchronize(copied_), "waiting for the last copy"); !s) return s;
    used_ = bytes;
    std::memcpy(host_, from, static_cast<std::size_t>(bytes));
    return ok;
  }
  status send(cudaStream_t stream) {
    if (used_ == 0) return ok;
    if (status s = check(
            cudaMemcpyAsync(device_.data(), host_, static_cast<std::size_t>(used_), cudaMemcpyHostToDevice, stream),
            "copying numbers of a call");
        !s)
      return s;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    if (status s = check(cudaStreamIsCapturing(stream, &capturing), "asking for a capture"); !s) return s;
    if (capturing != cudaStreamCaptureStatusNone) return ok;  // whoever replays it waits
    return check(cudaEventRecord(copied_, stream), "noting a copy");
  }
  status reserve(long long bytes) {
    if (bytes <= room_ && copied_ != nullptr) return ok;
    if (copied_ == nullptr)
      if (status s = check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "making an event"); !s) return s;
    if (status s = check(cudaEventSynchronize(copied_), "waiting for the last copy"); !s) return s;
    if (host_ != nullptr) static_cast<void>(cudaFreeHost(std::exchange(host_, nullptr)));
    room_ = 0;
    const long long room = larger_of(4096LL, 2 * bytes);
    if (status s = check(cudaMallocHost(&host_, static_cast<std::size_t>(room)), "allocating pinned memory"); !s)
      return s;
    if (status s = device_.reserve(room); !s) return s;
    room_ = room;
    return ok;
  }
  void* host() const { return host_; }
  const void* data() const { return device_.data(); }

 private:
  void* host_ = nullptr;
  long long room_ = 0, used_ = 0;
  buffer device_;
  cudaEvent_t copied_ = nullptr;
};

// One element of host memory as a float.
inline float host_number(const void* data, dtype type, long long i) {
  switch (type) {
    case dtype::f32: return static_cast<const float*>(data)[i];
    case dtype::bf16: return widen(static_cast<const bf16*>(data)[i]);
    case dtype::f16: return widen(static_cast<const f16*>(data)[i]);
    case dtype::f64: return static_cast<float>(static_cast<const double*>(data)[i]);
    default: return 0;
  }
}
inline bool can_be_placed(dtype t) {
  return t == dtype::f32 || t == dtype::bf16 || t == dtype::f16 || t == dtype::f64 || t == dtype::i64;
}
// Where element i of a tensor lies, counted row after row.
inline long long element_at(const long long* size, const long long* strides, int rank, long long i) {
  long long at = 0;
  for (int k = rank - 1; k >= 0; i /= size[k--]) at += i % size[k] * strides[k];
  return at;
}
inline void write_in_host_memory(const mutable_view& to, const float* numbers) {
  long long strides[4];
  for (int k = 0; k < to.rank; ++k) strides[k] = to.stride(k);
  for (long long i = 0; i < to.count(); ++i) {
    const long long at = element_at(to.size, strides, to.rank, i);
    const float v = numbers[i];
    switch (to.type) {
      case dtype::f32: static_cast<float*>(to.data)[at] = v; break;
      case dtype::f64: static_cast<double*>(to.data)[at] = static_cast<double>(v); break;
      case dtype::bf16: static_cast<bf16*>(to.data)[at] = narrow(v); break;
      case dtype::f16: static_cast<f16*>(to.data)[at] = narrow_to_f16(v); break;
      default: break;
    }
  }
}
// A tensor of host memory in device memory, row after row. Numbers are stored as `as`; whole numbers stay what they are.
GRAFT_CUDA_LIBRARY result<view> place_tensor(cudaStream_t stream, const view& host, dtype as, buffer& into);

#if GRAFT_CUDA_BODIES
GRAFT_CUDA_LIBRARY result<view> place_tensor(cudaStream_t stream, const view& host, dtype as, buffer& into) {
  if (!can_be_placed(host.type))
    return fail("a tensor of ", name_of(host.type), " cannot be brought to the GPU yet; use one of f32, bf16 or f16");
  const dtype type = host.type == dtype::i64 ? dtype::i64 : as;
  const long long n = host.count(), bytes = n * bits_of(type) / 8;
  if (status s = into.reserve(larger_of(16LL, bytes)); !s) return s.failure();
  view placed{into.data(), type, {host.size[0], host.size[1], host.size[2], host.size[3]}, host.rank};
  std::vector<float> wide;
  const void* from = host.data;
  buffer widened;
  const bool plain = host.type == type && host.contiguous();
  if (!plain) {
    wide.resize(static_cast<std::size_t>(n));
    long long strides[4];
    for (int k = 0; k < host.rank; ++k) strides[k] = host.stride(k);
    for (long long i = 0; i < n; ++i)
      wide[static_cast<std::size_t>(i)] =
          host_number(host.data, host.type, element_at(host.size, strides, host.rank, i));
    from = wide.data();
  }
  if (plain || type == dtype::f32) {
    if (status s =
            check(cudaMemcpyAsync(into.data(), from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream),
                  "bringing a tensor to the GPU");
        !s)
      return s.failure();
  } else {
    if (status s = widened.reserve(4 * n); !s) return s.failure();
    if (status s = check(
            cudaMemcpyAsync(widened.data(), from, static_cast<std::size_t>(4 * n), cudaMemcpyHostToDevice, stream),
            "bringing a tensor to the GPU");
        !s)
      return s.failure();
    if (status s = on_stream{stream}.elements(
            n, unary<float>{op::detach, {into.data(), type}, cells<float>(widened.as<float>())}, "rounding a tensor");
        !s)
      return s.failure();
  }
  if (status s = check(cudaStreamSynchronize(stream), "bringing a tensor to the GPU"); !s) return s.failure();
  return placed;
}
#endif

}  // namespace graft::cuda
