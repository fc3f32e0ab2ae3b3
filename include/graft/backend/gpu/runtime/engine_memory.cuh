// SPDX-License-Identifier: Apache-2.0
// Transfers between host and device: a stream, an event and pinned memory with owners; staged memory for the small
// inputs of a call, copied by the stream so that a captured graph repeats the copy; and the upload of tensors with
// conversion.
#pragma once
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/backend/gpu/runtime/library.h>
#include <graft/backend/gpu/runtime/values.cuh>
#include <graft/core/algorithm.h>
#include <graft/core/bf16.h>
#include <graft/core/f16.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace graft::gpu {

class owned_stream {
 public:
  owned_stream() = default;
  owned_stream(const owned_stream&) = delete;
  owned_stream& operator=(const owned_stream&) = delete;
  ~owned_stream() {
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }
  status open() { return check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Pinned host memory that kernels write to.
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
  // Makes the memory at least this large. No kernel that writes to it may be running.
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
// A CUDA event: a point in the work of a stream that the host or another stream waits for.
class stream_event {
 public:
  stream_event() = default;
  stream_event(stream_event&& o) noexcept : event_(std::exchange(o.event_, nullptr)) {}
  stream_event& operator=(stream_event&& o) noexcept {
    std::swap(event_, o.event_);
    return *this;
  }
  ~stream_event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  status note(cudaStream_t stream) {
    if (event_ == nullptr)
      if (status s = check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); !s) return s;
    return check(cudaEventRecord(event_, stream), "noting a step");
  }
  // Makes the work that is queued on `stream` after this call wait for the event.
  status hold(cudaStream_t stream) const {
    return check(cudaStreamWaitEvent(stream, event_, 0), "ordering two streams");
  }
  bool over() const { return cudaEventQuery(event_) != cudaErrorNotReady; }
  status wait() const { return check(cudaEventSynchronize(event_), "waiting for a step"); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Pinned host memory with device memory of the same size. write() fills the host side after the previous copy has
// finished, and send() queues the copy. Addresses change only when the memory grows.
class staged_memory {
 public:
  staged_memory() = default;
  staged_memory(staged_memory&& o) noexcept
      : host_(std::exchange(o.host_, nullptr)),
        pinned_bytes_(std::exchange(o.pinned_bytes_, 0)),
        used_(o.used_),
        device_(std::move(o.device_)),
        copied_(std::exchange(o.copied_, nullptr)) {}
  staged_memory& operator=(staged_memory&& o) noexcept {
    std::swap(host_, o.host_), std::swap(pinned_bytes_, o.pinned_bytes_), std::swap(used_, o.used_);
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
    if (capturing != cudaStreamCaptureStatusNone) return ok;  // the caller that replays the graph waits for it
    return check(cudaEventRecord(copied_, stream), "noting a copy");
  }
  status reserve(long long bytes) {
    if (bytes <= pinned_bytes_ && copied_ != nullptr) return ok;
    if (copied_ == nullptr)
      if (status s = check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "making an event"); !s) return s;
    if (status s = check(cudaEventSynchronize(copied_), "waiting for the last copy"); !s) return s;
    if (host_ != nullptr) static_cast<void>(cudaFreeHost(std::exchange(host_, nullptr)));
    pinned_bytes_ = 0;
    const long long pinned_bytes = max_of(4096LL, 2 * bytes);
    if (status s = check(cudaMallocHost(&host_, static_cast<std::size_t>(pinned_bytes)), "allocating pinned memory");
        !s)
      return s;
    if (status s = device_.reserve(pinned_bytes); !s) return s;
    pinned_bytes_ = pinned_bytes;
    return ok;
  }
  void* host() const { return host_; }
  const void* data() const { return device_.data(); }

 private:
  void* host_ = nullptr;
  long long pinned_bytes_ = 0, used_ = 0;
  buffer device_;
  cudaEvent_t copied_ = nullptr;
};

// One element of host memory as a float.
inline float read_host_element(const void* data, dtype type, long long i) {
  switch (type) {
    case dtype::f32: return static_cast<const float*>(data)[i];
    case dtype::bf16: return widen(static_cast<const bf16*>(data)[i]);
    case dtype::f16: return widen(static_cast<const f16*>(data)[i]);
    case dtype::f64: return static_cast<float>(static_cast<const double*>(data)[i]);
    default: return 0;
  }
}
inline bool can_upload(dtype t) {
  return t == dtype::f32 || t == dtype::bf16 || t == dtype::f16 || t == dtype::f64 || t == dtype::i64;
}
// The offset of element i, counted in row-major order, of a tensor with strides.
inline long long strided_offset(const long long* size, const long long* strides, int rank, long long i) {
  long long at = 0;
  for (int k = rank - 1; k >= 0; i /= size[k--]) at += i % size[k] * strides[k];
  return at;
}
inline void write_in_host_memory(const mutable_view& to, const float* numbers) {
  long long strides[4];
  for (int k = 0; k < to.rank; ++k) strides[k] = to.stride(k);
  for (long long i = 0; i < to.count(); ++i) {
    const long long at = strided_offset(to.size, strides, to.rank, i);
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
// Copies a tensor from host memory to contiguous device memory. Numbers are stored as `as`; i64 stays i64.
GRAFT_GPU_LIBRARY result<view> upload_tensor(cudaStream_t stream, const view& host, dtype as, buffer& into);

#if GRAFT_GPU_BODIES
GRAFT_GPU_LIBRARY result<view> upload_tensor(cudaStream_t stream, const view& host, dtype as, buffer& into) {
  if (!can_upload(host.type))
    return fail("a tensor of ", name_of(host.type), " cannot be brought to the GPU yet; use one of f32, bf16 or f16");
  const dtype type = host.type == dtype::i64 ? dtype::i64 : as;
  const long long n = host.count(), bytes = n * bits_of(type) / 8;
  if (status s = into.reserve(max_of(16LL, bytes)); !s) return s.failure();
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
          read_host_element(host.data, host.type, strided_offset(host.size, strides, host.rank, i));
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
            n, unary<float>{op::detach, {into.data(), type}, element_ptr<float>(widened.as<float>())},
            "rounding a tensor");
        !s)
      return s.failure();
  }
  if (status s = check(cudaStreamSynchronize(stream), "bringing a tensor to the GPU"); !s) return s.failure();
  return placed;
}
#endif

}  // namespace graft::gpu
