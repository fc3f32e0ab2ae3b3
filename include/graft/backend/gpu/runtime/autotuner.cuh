// SPDX-License-Identifier: Apache-2.0
// Autotuning: times the candidates of one launch on this device, once, and stores the fastest one in a file.
//
// In a model a launch overlaps its neighbors and finds no weights in the L2 cache. Each sample therefore runs the
// candidate between launches of flush_l2_kernel, which occupies every SM, reads twice the size of the L2
// cache and takes part in programmatic dependent launch. The candidates are timed in turns and the median counts. The
// rule's choice, which is candidate 0, stays unless another one is faster by a tenth: a smaller gain may be a loss in a
// model's step. Nothing is timed while the stream is captured; the rule's choice is used until a call outside of a
// capture has timed it.
#pragma once
#include <graft/backend/autotune_file.h>
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/dispatch/autotune_candidates.h>
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/backend/gpu/runtime/launch.h>
#include <graft/core/algorithm.h>

namespace graft::gpu {

// Reads `vectors` elements of `from`. The first loads are issued before griddepcontrol.wait, as a GEMM prefetches
// weights. The store to `never` does not happen in practice; it keeps the compiler from removing the loads.
template <class Vector>
__global__ void __launch_bounds__(512) flush_l2_kernel(const Vector* from, long long vectors, Vector* never) {
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
#endif
  unsigned any = 0;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long begin = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  for (long long i = begin; i < vectors; i += 4 * step) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * step < vectors) any |= __ldcg(from + i + k * step).x;
#if __CUDA_ARCH__ >= 900
    if (i == begin) ptx::wait_for_dependency();
#endif
  }
  if (any == 0x9e3779b9U) never->x = any;
}

class autotuner {
 public:
  // With an empty `file` the default file of this device is used. Vector is the type that flush_l2_kernel reads: a
  // template, so that only programs that enable autotuning compile the kernel.
  template <class Vector> static result<std::shared_ptr<autotuner>> open(const std::string& file) {
    cudaDeviceProp device{};
    if (status s = check(cudaGetDeviceProperties(&device, current_device()), "asking for the device"); !s)
      return s.failure();
    const std::string name = std::string(device.name) + ", sm_" + std::to_string(10 * device.major + device.minor) +
                             ", " + std::to_string(device.multiProcessorCount) + " multiprocessors";
    auto made = std::make_shared<autotuner>(autotune_file(file.empty() ? default_autotune_file(name) : file, name));
    made->sm_count_ = device.multiProcessorCount, made->cache_bytes_ = device.l2CacheSize;
    made->shared_bytes_ = static_cast<int>(device.sharedMemPerBlockOptin) - 16384;
    made->flush_ = &autotuner::flush_l2<Vector>;
    return made;
  }
  explicit autotuner(autotune_file file) : file_(std::move(file)) {}
  autotuner(const autotuner&) = delete;
  autotuner& operator=(const autotuner&) = delete;
  ~autotuner() {
    for (const cudaEvent_t e : {begin_, end_})
      if (e != nullptr) static_cast<void>(cudaEventDestroy(e));
  }

  // Sets the stream that the next candidates are timed on.
  void on(cudaStream_t stream) { stream_ = stream; }
  const std::string& note() const { return file_.note(); }
  const std::string& path() const { return file_.path(); }
  int timed() const { return timed_; }  // choices timed by this process

  // Returns the fastest of `all`; all[0] is the rule's choice. `run` launches one candidate and may only write what the
  // caller's own launch overwrites afterwards.
  template <class Choice, class Run>
  result<Choice> choose(const std::string& what, long long size, const candidates<Choice>& all, Run run) {
    if (all.size() < 2) return all[0].choice;
    if (const std::string* const known = file_.find(what, size)) {
      for (const candidate<Choice>& w : all)
        if (*known == w.name) return w.choice;
      // A candidate that was timed here may not take every size of its size class. A name that the file had may be of
      // no candidate of this program: then the candidates are timed again, once.
      if (file_.is_timed_here(what, size)) return all[0].choice;
    }
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    if (status s = check(cudaStreamIsCapturing(stream_, &capturing), "asking whether a stream is captured"); !s)
      return s.failure();
    if (capturing != cudaStreamCaptureStatusNone) return all[0].choice;
    const result<int> best = fastest(all, run);
    if (!best) return best.failure();
    ++timed_;
    file_.put(what, size, all[*best].name);
    return all[*best].choice;
  }
  cudaStream_t stream() const { return stream_; }
  // Attention ranges for timing, [3, rows]: every row reads half of its share of the cache slots and writes no slot
  // (-1).
  result<const long long*> half_full_ranges(long long rows, long long slots) {
    sequence<long long> numbers(static_cast<int>(3 * rows), -1);
    const long long each = slots / rows;
    for (int r = 0; r < rows; ++r) {
      numbers[r] = r * each;
      numbers[static_cast<int>(rows) + r] = r * each + (each + 1) / 2;
    }
    const long long bytes = 3 * rows * static_cast<long long>(sizeof(long long));
    if (status s = ranges_.reserve(bytes); !s) return s.failure();
    if (status s = check(cudaMemcpyAsync(ranges_.data(), numbers.data(), static_cast<std::size_t>(bytes),
                                         cudaMemcpyHostToDevice, stream_),
                         "copying attention ranges");
        !s)
      return s.failure();
    return ranges_.as<const long long>();
  }

 private:
  static constexpr int rounds = 7, launches = 6;  // launches per sample; one if a sample takes more than 0.2 ms

  status prepare() {
    if (status s = check(cudaStreamSynchronize(stream_), "waiting"); !s) return s;
    for (cudaEvent_t* const e : {&begin_, &end_})
      if (*e == nullptr)
        if (status s = check(cudaEventCreate(e), "making an event"); !s) return s;
    if (cache_.bytes() > 0) return ok;
    if (status s = cache_.reserve(2 * max_of(cache_bytes_, 1LL << 20)); !s) return s;
    return check(cudaMemsetAsync(cache_.data(), 0, static_cast<std::size_t>(cache_.bytes()), stream_), "clearing");
  }
  template <class Choice, class Run> result<int> fastest(const candidates<Choice>& all, Run& run) {
    const long long launched = launch_count();
    if (status s = prepare(); !s) return s.failure();
    const auto nothing = [] { return status(ok); };
    const auto timed_launch_of = [&](int k) { return [&, k] { return run(all[k].choice); }; };
    struct samples {
      float of[rounds];
    };
    sequence<samples> took(all.size() + 1);  // the last entry times the flushes without a candidate
    float longest = 0;
    for (int round = 0; round <= rounds; ++round)  // round 0 loads the kernels and measures how long they take
      for (int k = 0; k < took.size(); ++k) {
        const int times = round == 0 || longest > 0.2F ? 1 : launches;
        const result<float> time = k < all.size() ? sample(timed_launch_of(k), times) : sample(nothing, times);
        if (!time) return time.failure();
        if (round > 0) took[k].of[round - 1] = *time;
        longest = max_of(longest, *time);
      }
    sequence<float> median;
    for (samples& t : took) {
      insertion_sort(t.of, t.of + rounds);
      median.push(t.of[rounds / 2]);
    }
    int best = 0;
    const float gain = (median[0] - median.back()) / 10;
    for (int k = 1; k < all.size(); ++k)
      if (median[k] < median[best] && median[k] < median[0] - gain) best = k;
    detail::launch_counter() = launched;  // launches for timing are not launches of a plan
    return best;
  }
  // Returns the milliseconds of `times` launches, each followed by a flush of the L2 cache.
  template <class Work> result<float> sample(const Work& work, int times) {
    if (status s = (this->*flush_)(); !s) return s.failure();
    if (status s = check(cudaEventRecord(begin_, stream_), "timing"); !s) return s.failure();
    for (int k = 0; k < times; ++k) {
      if (status s = work(); !s) return s.failure();
      if (status s = (this->*flush_)(); !s) return s.failure();
    }
    if (status s = check(cudaEventRecord(end_, stream_), "timing"); !s) return s.failure();
    if (status s = check(cudaEventSynchronize(end_), "timing"); !s) return s.failure();
    float milliseconds = 0;
    if (status s = check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing"); !s) return s.failure();
    return milliseconds;
  }
  // The shared memory attribute is set here, because each file that nvcc compiles has its own instance of the kernel.
  template <class Vector> status flush_l2() {
    if (status s = check(
            cudaFuncSetAttribute(flush_l2_kernel<Vector>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_),
            "emptying the cache");
        !s)
      return s;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t config{dim3(static_cast<unsigned>(sm_count_)),
                                    dim3(512),
                                    static_cast<std::size_t>(shared_bytes_),
                                    stream_,
                                    &early,
                                    device_has_pdl() ? 1U : 0U};
    const auto* from = cache_.as<Vector>();
    auto* never = cache_.as<Vector>();
    long long vectors = cache_.bytes() / static_cast<long long>(sizeof(Vector));
    void* arguments[] = {&from, &vectors, &never};
    return launch(config, reinterpret_cast<const void*>(&flush_l2_kernel<Vector>), arguments, "emptying the cache");
  }

  autotune_file file_;
  status (autotuner::*flush_)() = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  buffer cache_, ranges_;
  long long cache_bytes_ = 0;
  int sm_count_ = 1, shared_bytes_ = 0, timed_ = 0;
};

}  // namespace graft::gpu
