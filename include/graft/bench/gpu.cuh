// SPDX-License-Identifier: Apache-2.0
// Benchmark contenders on a GPU: the bare GEMM by cuBLASLt, the fused layer, and the formula op by op (eager). A sample
// is a CUDA graph replay of several calls that cycle through copies of the weights, equally many for every contender
// and more than the L2 cache holds, after a pause and an untimed replay. Without the pause the power limit slows later
// contenders.
#pragma once
#include <graft/bench/cublaslt.cuh>
#include <graft/bench/measurement.h>
#include <graft/bench/synthetic_tensors.h>
#include <graft/gpu.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace graft::gpu::bench_detail {

using namespace graft::bench_detail;

// Returns the bytes of weights that the calls of a sample cycle through: three times the L2 cache.
inline long long bytes_exceeding_l2() {
  const auto bytes = device_attribute(cudaDevAttrL2CacheSize);
  return 3LL * (bytes ? *bytes : 64 << 20);
}
inline cudaStream_t bench_stream() {
  static const cudaStream_t made = [] {
    cudaStream_t s = nullptr;
    static_cast<void>(cudaStreamCreate(&s));
    return s;
  }();
  return made;
}
template <class T> status fill_synthetic(buffer& to, long long n, unsigned long long seed, float scale) {
  std::vector<T> host(static_cast<std::size_t>(n));
  synthetic_values next(seed);
  for (T& v : host) v = static_cast<T>(scale * next());
  if (status s = to.reserve(n * static_cast<long long>(sizeof(T))); !s) return s;
  return check(cudaMemcpy(to.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copying numbers");
}

// Calls captured in a CUDA graph; a sample is their mean time.
class gpu_calls {
 public:
  status capture(int calls, const enqueue_function& enqueue, int pause_ms) {
    pause_ms_ = pause_ms;
    if (status s = enqueue(bench_stream()); !s) return s;
    if (status s = check(cudaStreamSynchronize(bench_stream()), "a first call"); !s) return s;
    return replay_.capture(bench_stream(), calls, enqueue);
  }
  sample time_call() const {
    if (pause_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
    replay_.untimed();
    return {replay_.seconds(), 0};
  }

 private:
  replay replay_;
  int pause_ms_ = 0;
};

template <class Layer> struct gpu_copies {
  long long m, n, k;
  int copies, calls;
  gpu_copies(long long tokens, const bench_options& o) {
    const view x = shape_of_input<Layer>(tokens, o);
    m = x.size[0], k = x.size[1], n = outputs_of<Layer>(tokens, o) / m;
    copies = copies_exceeding(bytes_exceeding_l2(), n * k * bits_of(storage<typename Layer::element>::type) / 8);
    calls = tokens > 64 ? copies : 2 * copies;
  }
};

template <class Layer> class gpu_layers {
 public:
  using T = typename device_type<typename Layer::element>::type;

  status open(execution_mode run_mode, long long tokens, const bench_options& o) {
    const gpu_copies<Layer> r(tokens, o);
    if (status s = fill_synthetic<T>(x_, r.m * r.k, 1, 2); !s) return s;
    if (status s = y_.reserve(r.m * r.n * static_cast<long long>(sizeof(T))); !s) return s;
    for (int i = 0; i < r.copies; ++i) {
      layers_.push_back(std::make_unique<layer<Layer>>(run_mode));
      const status given = set_synthetic_tensors<Layer>(
          o, [&](const char* name, const view& shape) { return set_tensor(name, shape); },
          [&](const char* name) { return layers_.back()->set(name, 1.0); });
      if (!given) return given;
      layers_.back()->on(bench_stream(), o.gpu_exclusive);
      if (status s = layers_.back()->bind({.tokens = tokens}); !s) return s;
    }
    const view x{x_.data(), dtype_of<T>, {r.m, r.k, 1, 1}, 2};
    const mutable_view y{y_.data(), dtype_of<T>, {r.m, r.n, 1, 1}, 2};
    const bool exclusive = o.gpu_exclusive;
    const auto round_robin = [=, this](cudaStream_t stream) -> status {
      for (int c = 0; c < r.calls; ++c) {
        layer<Layer>& l = *layers_[static_cast<std::size_t>(c % r.copies)];
        l.on(stream, exclusive);
        if (status s = l.forward(x, y); !s) return s;
      }
      return ok;
    };
    const long long before = launch_count();
    if (status s = layers_[0]->forward(x, y); !s) return s;
    launches_ = static_cast<double>(launch_count() - before);
    return calls_.capture(r.calls, round_robin, o.pause_ms);
  }
  sample time_call() const { return calls_.time_call(); }
  double launches() const { return launches_; }

 private:
  status set_tensor(const char* name, view shape) {
    data_.emplace_back();
    if (shape.type == dtype::i64) {
      const long long bytes = shape.count() * static_cast<long long>(sizeof(std::int64_t));
      if (status s = data_.back().reserve(bytes); !s) return s;
      const cudaError_t copied =
          cudaMemcpy(data_.back().data(), shape.data, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice);
      if (status s = check(copied, "copying"); !s) return s;
      shape.data = data_.back().data();
      return layers_.back()->set(name, shape);
    }
    const float scale = shape.size[shape.rank - 1] > 1000 ? 0.05F : 0.6F;
    if (status s = fill_synthetic<T>(data_.back(), shape.count(), data_.size(), scale); !s) return s;
    shape.data = data_.back().data(), shape.type = dtype_of<T>;
    return layers_.back()->set(name, shape);
  }

  buffer x_, y_;
  std::vector<buffer> data_;
  std::vector<std::unique_ptr<layer<Layer>>> layers_;
  gpu_calls calls_;
  double launches_ = 0;
};

// Makes a measurement once, since repetitions in random order return to it.
inline make_measurement cached(const std::function<result<measurement>()>& make) {
  auto made = std::make_shared<std::shared_ptr<measurement>>();
  return [=] {
    if (*made != nullptr) return *made;
    if (result<measurement> c = make())
      *made = std::make_shared<measurement>(std::move(*c));
    else
      std::fprintf(stderr, "bench: %s\n", c.message());
    return *made;
  };
}
template <class Layer>
make_measurement gpu_contender(execution_mode run_mode, long long tokens, const bench_options& o) {
  return cached([=]() -> result<measurement> {
    auto layers = std::make_shared<gpu_layers<Layer>>();
    if (status s = layers->open(run_mode, tokens, o); !s) return s.failure();
    const cost does = run_mode == execution_mode::eager ? eager_work_at<Layer>(tokens, o, false).does
                                                        : cost_at<Layer, sm_90>(tokens, o);
    return measurement{[=] { return layers->time_call(); }, does, layers->launches()};
  });
}
template <class T> struct gpu_product {
  cublaslt_gemm<T> by;
  buffer x, y;
  std::vector<buffer> w;
  gpu_calls calls;

  status open(long long m, long long n, long long k, int copies, int count, int pause_ms) {
    if (status s = by.open(m, n, k); !s) return s;
    if (status s = fill_synthetic<T>(x, m * k, 1, 2); !s) return s;
    if (status s = y.reserve(m * n * static_cast<long long>(sizeof(T))); !s) return s;
    w.resize(static_cast<std::size_t>(copies));
    for (buffer& b : w)
      if (status s = fill_synthetic<T>(b, n * k, 2, 0.05F); !s) return s;
    const auto round_robin = [=, this](cudaStream_t stream) -> status {
      for (int c = 0; c < count; ++c)
        if (status s = by.run(stream, x.data(), w[static_cast<std::size_t>(c % copies)].data(), y.data()); !s) return s;
      return ok;
    };
    if (status s = round_robin(bench_stream()); !s) return s;
    if (status s = by.choose(bench_stream(), count, round_robin); !s) return s;
    return calls.capture(count, round_robin, pause_ms);
  }
};
template <class Layer> make_measurement gpu_bare(long long tokens, const bench_options& o) {
  using base = bare_layer<Layer>;
  if constexpr (!std::is_same_v<typename Layer::kind, linear_kind>)
    return gpu_contender<base>(execution_mode::fused, tokens, o);
  else
    return cached([=]() -> result<measurement> {
      const gpu_copies<Layer> r(tokens, o);
      auto p = std::make_shared<gpu_product<typename gpu_layers<Layer>::T>>();
      if (status s = p->open(r.m, r.n, r.k, r.copies, r.calls, o.pause_ms); !s) return s.failure();
      return measurement{[=] { return p->calls.time_call(); }, cost_at<base, sm_90>(tokens, o), 1};
    });
}
inline double quickest_of_three(const gpu_calls& calls) {
  return std::min({calls.time_call().wall, calls.time_call().wall, calls.time_call().wall});
}
// Measures the peak flops and bandwidth that this GPU reaches on one large GEMM and one long copy.
template <class T> device measured_gpu() {
  static const device found = [] {
    constexpr long long n = 8192;
    double product = 1e-3, copy = 1e-3;
    gpu_product<T> p;
    if (p.open(n, n, n, 1, 1, 30)) product = quickest_of_three(p.calls);
    constexpr std::size_t bytes = 1U << 30U;
    buffer from, to;
    gpu_calls calls;
    const auto once = [&](cudaStream_t s) {
      return check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, s), "copying");
    };
    if (from.reserve(bytes) && to.reserve(bytes) && calls.capture(1, once, 0)) copy = quickest_of_three(calls);
    return device{"this GPU", 2.0 * n * n * n / product, 2.0 * static_cast<double>(bytes) / copy};
  }();
  return found;
}

}  // namespace graft::gpu::bench_detail

namespace graft::gpu {

// Registers the contenders of a layer type for each number of tokens: NAME/bare/16, NAME/eager/16, NAME/fused/16.
template <class Layer> void bench(std::initializer_list<long long> tokens, const bench_options& o = {}) {
  using namespace bench_detail;
  using T = typename gpu_layers<Layer>::T;
  const std::string name = o.name.empty() ? type_name<Layer>() : o.name;
  const auto add = [&](const std::string& full, const make_measurement& mine, const make_measurement& reference) {
    register_benchmark(full, mine, reference, [] { return measured_gpu<T>(); })->Iterations(1);
  };
  for (const long long n : tokens) {
    const auto of = [&](const char* run_mode) { return name + "/" + run_mode + "/" + std::to_string(n); };
    const make_measurement bare = gpu_bare<Layer>(n, o);
    if (o.bare) add(of("bare"), bare, nullptr);
    if (o.eager) add(of("eager"), gpu_contender<Layer>(execution_mode::eager, n, o), bare);
    if (o.fused) add(of("fused"), gpu_contender<Layer>(execution_mode::fused, n, o), bare);
  }
}

}  // namespace graft::gpu
