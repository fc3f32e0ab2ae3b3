// SPDX-License-Identifier: Apache-2.0
// Which of several launches of the same work is the quickest: what the file says, or what this device says, once, and
// then the file. Launches overlap with those before and after them, and find no weights in the L2 cache: so each is
// timed between launches of a kernel that has every multiprocessor for itself, reads more than the cache holds, and
// lets the next one begin while it ends; in turns, and the median counts. The rule's choice stays where nothing is a
// tenth quicker: what wins less here may lose in a step (docs/performance/gpu-models.md). A stream that is being captured is not
// timed on: there the rule stands until somebody has called before.
#pragma once
#include <graft/backend/choice_file.h>
#include <graft/backend/cuda/launch.h>
#include <graft/backend/cuda/launch_variants.h>
#include <graft/backend/cuda/library.h>
#include <graft/backend/cuda/memory.h>
#include <graft/backend/cuda/ptx.cuh>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

// Begins to read before the kernel ahead has ended, as one that knows its weights does.
template <class Piece>
__global__ void __launch_bounds__(512) read_through(const Piece* from, long long pieces, Piece* never) {
#if __CUDA_ARCH__ >= 900
  ptx::let_next_kernel_start();
#endif
  unsigned any = 0;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long begin = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  for (long long i = begin; i < pieces; i += 4 * step) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * step < pieces) any |= __ldcg(from + i + k * step).x;
#if __CUDA_ARCH__ >= 900
    if (i == begin) ptx::wait_for_previous_kernel();
#endif
  }
  if (any == 0x9e3779b9U) never->x = any;
}

class choice_timer {
 public:
  // `file` empty: the usual one.
  static result<std::shared_ptr<choice_timer>> open(const std::string& file) {
    cudaDeviceProp device{};
    if (status s = check(cudaGetDeviceProperties(&device, device_now()), "asking for the device"); !s)
      return s.failure();
    const std::string name = std::string(device.name) + ", sm_" + std::to_string(10 * device.major + device.minor) +
                             ", " + std::to_string(device.multiProcessorCount) + " multiprocessors";
    auto made = std::make_shared<choice_timer>(choice_file(file.empty() ? usual_choice_file(name) : file, name));
    made->processors_ = device.multiProcessorCount, made->cache_bytes_ = device.l2CacheSize;
    made->shared_bytes_ = static_cast<int>(device.sharedMemPerBlockOptin) - 16384;
    return made;
  }
  explicit choice_timer(choice_file file) : file_(std::move(file)) {}
  choice_timer(const choice_timer&) = delete;
  choice_timer& operator=(const choice_timer&) = delete;
  ~choice_timer() {
    for (const cudaEvent_t e : {begin_, end_})
      if (e != nullptr) static_cast<void>(cudaEventDestroy(e));
  }

  // The stream that the next launches belong to.
  void on(cudaStream_t stream) { stream_ = stream; }
  const std::string& note() const { return file_.note(); }
  const std::string& path() const { return file_.path(); }
  int timed() const { return timed_; }  // how many choices this program has timed

  // One of `all`, of which the first is the rule's. `run` launches one, and writes nothing but what the call that asks
  // writes afterwards.
  template <class Choice, class Run>
  result<Choice> choose(const std::string& what, long long size, const ways<Choice>& all, Run run) {
    if (all.size() < 2) return all[0].how;
    if (const std::string* const known = file_.find(what, size)) {
      for (const named_way<Choice>& w : all)
        if (*known == w.name) return w.how;
      return all[0].how;
    }
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    if (status s = check(cudaStreamIsCapturing(stream_, &capturing), "asking whether a stream is captured"); !s)
      return s.failure();
    if (capturing != cudaStreamCaptureStatusNone) return all[0].how;
    const result<int> best = quickest(all, run);
    if (!best) return best.failure();
    ++timed_;
    file_.put(what, size, all[*best].name);
    return all[*best].how;
  }
  cudaStream_t stream() const { return stream_; }
  // Spans of rows whose part of a cache is half full, and which write nothing there.
  result<const long long*> half_full(long long rows, long long places) {
    sequence<long long> numbers(static_cast<int>(3 * rows), -1);
    const long long each = places / rows;
    for (int r = 0; r < rows; ++r) {
      numbers[r] = r * each;
      numbers[static_cast<int>(rows) + r] = r * each + (each + 1) / 2;
    }
    const long long bytes = 3 * rows * static_cast<long long>(sizeof(long long));
    if (status s = spans_.reserve(bytes); !s) return s.failure();
    if (status s = check(cudaMemcpyAsync(spans_.data(), numbers.data(), static_cast<std::size_t>(bytes),
                                         cudaMemcpyHostToDevice, stream_),
                         "copying spans");
        !s)
      return s.failure();
    return spans_.as<const long long>();
  }

 private:
  static constexpr int rounds = 7, launches = 6;  // of a sample; one of a launch that takes long

  status prepare() {
    if (status s = check(cudaStreamSynchronize(stream_), "waiting"); !s) return s;
    for (cudaEvent_t* const e : {&begin_, &end_})
      if (*e == nullptr)
        if (status s = check(cudaEventCreate(e), "making an event"); !s) return s;
    if (cache_.bytes() > 0) return ok;
    if (status s = cache_.reserve(2 * larger_of(cache_bytes_, 1LL << 20)); !s) return s;
    return check(cudaMemsetAsync(cache_.data(), 0, static_cast<std::size_t>(cache_.bytes()), stream_), "clearing");
  }
  template <class Choice, class Run> result<int> quickest(const ways<Choice>& all, Run& run) {
    const long long launched = launch_count();
    if (status s = prepare(); !s) return s.failure();
    const auto nothing = [] { return status(ok); };
    const auto way = [&](int k) { return [&, k] { return run(all[k].how); }; };
    struct samples {
      float of[rounds];
    };
    sequence<samples> took(all.size() + 1);  // the last one: without any
    float longest = 0;
    for (int round = 0; round <= rounds; ++round)  // the first one loads the kernels, and tells how long they take
      for (int k = 0; k < took.size(); ++k) {
        const int times = round == 0 || longest > 0.2F ? 1 : launches;
        const result<float> time = k < all.size() ? sample(way(k), times) : sample(nothing, times);
        if (!time) return time.failure();
        if (round > 0) took[k].of[round - 1] = *time;
        longest = larger_of(longest, *time);
      }
    sequence<float> median;
    for (samples& t : took) {
      put_in_order(t.of, t.of + rounds);
      median.push(t.of[rounds / 2]);
    }
    int best = 0;
    const float gain = (median[0] - median.back()) / 10;
    for (int k = 1; k < all.size(); ++k)
      if (median[k] < median[best] && median[k] < median[0] - gain) best = k;
    detail::launch_counter() = launched;  // these are none of a plan's
    return best;
  }
  // Milliseconds of so many of them, each between two that read.
  template <class Work> result<float> sample(const Work& work, int times) {
    if (status s = read(); !s) return s.failure();
    if (status s = check(cudaEventRecord(begin_, stream_), "timing"); !s) return s.failure();
    for (int k = 0; k < times; ++k) {
      if (status s = work(); !s) return s.failure();
      if (status s = read(); !s) return s.failure();
    }
    if (status s = check(cudaEventRecord(end_, stream_), "timing"); !s) return s.failure();
    if (status s = check(cudaEventSynchronize(end_), "timing"); !s) return s.failure();
    float milliseconds = 0;
    if (status s = check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing"); !s) return s.failure();
    return milliseconds;
  }
  // The room is asked for where it is used: each file that nvcc compiles has a kernel of its own of this template.
  status read();

  choice_file file_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  buffer cache_, spans_;
  long long cache_bytes_ = 0;
  int processors_ = 1, shared_bytes_ = 0, timed_ = 0;
};

#if GRAFT_CUDA_BODIES
GRAFT_CUDA_LIBRARY status choice_timer::read() {
  if (status s =
          check(cudaFuncSetAttribute(read_through<uint4>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_),
                "emptying the cache");
      !s)
    return s;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t how{dim3(static_cast<unsigned>(processors_)),
                               dim3(512),
                               static_cast<std::size_t>(shared_bytes_),
                               stream_,
                               &early,
                               device_chains() ? 1U : 0U};
  const uint4* from = cache_.as<uint4>();
  uint4* never = cache_.as<uint4>();
  long long pieces = cache_.bytes() / 16;
  void* arguments[] = {&from, &pieces, &never};
  return launch(how, reinterpret_cast<const void*>(&read_through<uint4>), arguments, "emptying the cache");
}
#endif

}  // namespace graft::cuda
