// SPDX-License-Identifier: Apache-2.0
// The contenders on a GPU: the bare product by cuBLASLt, the layer fused, and as the formula is written. A sample is the
// replay of a graph of several calls that go round equally many weights for every contender, more than the L2 cache holds,
// after a pause and an untimed replay: without the pause the power limit slows whatever comes later.
#pragma once
#include <graft/bench/contender.h>
#include <graft/bench/cublaslt.cuh>
#include <graft/bench/leaves.h>
#include <graft/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace graft::cuda::bench_detail {

using namespace graft::bench_detail;

// Weights as many as these bytes: three times what the L2 cache holds.
inline long long beyond_cache() {
  const auto bytes = attribute_of_device(cudaDevAttrL2CacheSize);
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
template <class T> status draw_into(buffer& to, long long n, unsigned long long seed, float scale) {
  std::vector<T> host(static_cast<std::size_t>(n));
  numbers next(seed);
  for (T& v : host) v = static_cast<T>(scale * next());
  if (status s = to.reserve(n * static_cast<long long>(sizeof(T))); !s) return s;
  return check(cudaMemcpy(to.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copying numbers");
}

// Calls in turn, captured; and what a sample of them is.
class gpu_calls {
 public:
  status capture(int calls, const enqueue_function& enqueue, int pause_ms) {
    pause_ms_ = pause_ms;
    if (status s = enqueue(bench_stream()); !s) return s;
    if (status s = check(cudaStreamSynchronize(bench_stream()), "a first call"); !s) return s;
    return replay_.capture(bench_stream(), calls, enqueue);
  }
  double sample() const {
    if (pause_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
    replay_.untimed();
    return replay_.seconds();
  }

 private:
  replay replay_;
  int pause_ms_ = 0;
};

template <class Layer> struct gpu_rotation {
  long long m, n, k;
  int copies, calls;
  gpu_rotation(long long tokens, const bench_options& o) {
    const view x = shape_of_input<Layer>(tokens, o);
    m = x.size[0], k = x.size[1], n = outputs_of<Layer>(tokens, o) / m;
    copies = copies_beyond(beyond_cache(), n * k * bits_of(storage<typename Layer::element>::type) / 8);
    calls = tokens > 64 ? copies : 2 * copies;
  }
};

template <class Layer> class gpu_layers {
 public:
  using T = typename device_type<typename Layer::element>::type;

  status open(mode how, long long tokens, const bench_options& o) {
    const gpu_rotation<Layer> r(tokens, o);
    if (status s = draw_into<T>(x_, r.m * r.k, 1, 2); !s) return s;
    if (status s = y_.reserve(r.m * r.n * static_cast<long long>(sizeof(T))); !s) return s;
    for (int i = 0; i < r.copies; ++i) {
      layers_.push_back(std::make_unique<layer<Layer>>(how));
      const status given = give_leaves<Layer>(
          o, [&](const char* name, const view& shape) { return give(name, shape); },
          [&](const char* name) { return layers_.back()->set(name, 1.0); });
      if (!given) return given;
      layers_.back()->on(bench_stream(), o.gpu_alone);
      if (status s = layers_.back()->bind({.tokens = tokens}); !s) return s;
    }
    const view x{x_.data(), dtype_of<T>, {r.m, r.k, 1, 1}, 2};
    const mutable_view y{y_.data(), dtype_of<T>, {r.m, r.n, 1, 1}, 2};
    const bool alone = o.gpu_alone;
    const auto in_turn = [=, this](cudaStream_t stream) -> status {
      for (int c = 0; c < r.calls; ++c) {
        layer<Layer>& l = *layers_[static_cast<std::size_t>(c % r.copies)];
        l.on(stream, alone);
        if (status s = l.forward(x, y); !s) return s;
      }
      return ok;
    };
    const long long before = launch_count();
    if (status s = layers_[0]->forward(x, y); !s) return s;
    launches_ = static_cast<double>(launch_count() - before);
    return calls_.capture(r.calls, in_turn, o.pause_ms);
  }
  double sample() const { return calls_.sample(); }
  double launches() const { return launches_; }

 private:
  status give(const char* name, view shape) {
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
    if (status s = draw_into<T>(data_.back(), shape.count(), data_.size(), scale); !s) return s;
    shape.data = data_.back().data(), shape.type = dtype_of<T>;
    return layers_.back()->set(name, shape);
  }

  buffer x_, y_;
  std::vector<buffer> data_;
  std::vector<std::unique_ptr<layer<Layer>>> layers_;
  gpu_calls calls_;
  double launches_ = 0;
};

// Made once and kept: repetitions in random order come back to it.
inline make_contender kept(const std::function<result<contender>()>& make) {
  auto made = std::make_shared<std::shared_ptr<contender>>();
  return [=] {
    if (*made != nullptr) return *made;
    if (result<contender> c = make())
      *made = std::make_shared<contender>(std::move(*c));
    else
      std::fprintf(stderr, "bench: %s\n", c.message());
    return *made;
  };
}
template <class Layer> make_contender gpu_contender(mode how, long long tokens, const bench_options& o) {
  return kept([=]() -> result<contender> {
    auto layers = std::make_shared<gpu_layers<Layer>>();
    if (status s = layers->open(how, tokens, o); !s) return s.failure();
    return contender{[=] { return layers->sample(); }, cost_at<Layer, sm_90>(tokens, o), layers->launches()};
  });
}
template <class T> struct gpu_product {
  lt_product<T> by;
  buffer x, y;
  std::vector<buffer> w;
  gpu_calls calls;

  status open(long long m, long long n, long long k, int copies, int count, int pause_ms) {
    if (status s = by.open(m, n, k); !s) return s;
    if (status s = draw_into<T>(x, m * k, 1, 2); !s) return s;
    if (status s = y.reserve(m * n * static_cast<long long>(sizeof(T))); !s) return s;
    w.resize(static_cast<std::size_t>(copies));
    for (buffer& b : w)
      if (status s = draw_into<T>(b, n * k, 2, 0.05F); !s) return s;
    const auto in_turn = [=, this](cudaStream_t stream) -> status {
      for (int c = 0; c < count; ++c)
        if (status s = by.run(stream, x.data(), w[static_cast<std::size_t>(c % copies)].data(), y.data()); !s) return s;
      return ok;
    };
    if (status s = in_turn(bench_stream()); !s) return s;
    if (status s = by.choose(bench_stream(), count, in_turn); !s) return s;
    return calls.capture(count, in_turn, pause_ms);
  }
};
template <class Layer> make_contender gpu_bare(long long tokens, const bench_options& o) {
  using base = bare_layer<Layer>;
  if constexpr (!std::is_same_v<typename Layer::kind, linear_kind>)
    return gpu_contender<base>(mode::fused, tokens, o);
  else
    return kept([=]() -> result<contender> {
      const gpu_rotation<Layer> r(tokens, o);
      auto p = std::make_shared<gpu_product<typename gpu_layers<Layer>::T>>();
      if (status s = p->open(r.m, r.n, r.k, r.copies, r.calls, o.pause_ms); !s) return s.failure();
      return contender{[=] { return p->calls.sample(); }, cost_at<base, sm_90>(tokens, o), 1};
    });
}
// What this GPU reaches on one large product and on one long copy.
template <class T> device measured_gpu() {
  static const device found = [] {
    constexpr long long n = 8192;
    double product = 1e-3, copy = 1e-3;
    gpu_product<T> p;
    if (p.open(n, n, n, 1, 1, 30)) product = std::min({p.calls.sample(), p.calls.sample(), p.calls.sample()});
    constexpr std::size_t bytes = 1U << 30U;
    buffer from, to;
    gpu_calls calls;
    const auto once = [&](cudaStream_t s) {
      return check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, s), "copying");
    };
    if (from.reserve(bytes) && to.reserve(bytes) && calls.capture(1, once, 0))
      copy = std::min({calls.sample(), calls.sample(), calls.sample()});
    return device{"this GPU", 2.0 * n * n * n / product, 2.0 * static_cast<double>(bytes) / copy};
  }();
  return found;
}

}  // namespace graft::cuda::bench_detail

namespace graft::cuda {

// Registers a layer type with its contenders, for each number of tokens: NAME/bare/16, NAME/eager/16, NAME/fused/16.
template <class Layer> void bench(std::initializer_list<long long> tokens, const bench_options& o = {}) {
  using namespace bench_detail;
  using T = typename gpu_layers<Layer>::T;
  const std::string name = o.name.empty() ? type_name<Layer>() : o.name;
  const auto add = [&](const std::string& full, const make_contender& mine, const make_contender& beside) {
    enter(full, mine, beside, [] { return measured_gpu<T>(); })->Iterations(1);
  };
  for (const long long n : tokens) {
    const auto of = [&](const char* how) { return name + "/" + how + "/" + std::to_string(n); };
    const make_contender bare = gpu_bare<Layer>(n, o);
    if (o.bare) add(of("bare"), bare, nullptr);
    if (o.eager) add(of("eager"), gpu_contender<Layer>(mode::eager, n, o), bare);
    if (o.fused) add(of("fused"), gpu_contender<Layer>(mode::fused, n, o), bare);
  }
}

}  // namespace graft::cuda
