// SPDX-License-Identifier: Apache-2.0
// Benchmark contenders on the CPU: the bare GEMM by the BLAS that the library was built with, else by Eigen; the fused
// layer; and the formula op by op (eager). Peak flops and bandwidth are measured on one large GEMM and one long sum.
#pragma once
#include <graft/backend/cpu/gemm/blas.h>
#include <graft/backend/cpu/runtime/convert.h>
#include <graft/bench/measurement.h>
#include <graft/bench/synthetic_tensors.h>
#include <graft/cpu.h>
#include <time.h>

#include <Eigen/Core>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace graft::bench_detail {

inline constexpr long long cpu_caches = 96LL << 20U;  // bytes; more than most machines have for several cores

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// Returns the CPU time of all threads of this process; zero if the system does not report it.
inline double processor_seconds() {
  timespec t{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0) return 0;
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
// Times a call. With GRAFT_BUSY, for machines that do other work too, CPU time replaces wall time; it is the time of a
// call only if OMP_NUM_THREADS is 1.
template <class F> sample time_of(const F& f) {
  static const bool busy = std::getenv("GRAFT_BUSY") != nullptr;
  const double wall = wall_seconds(), processor = processor_seconds();
  f();
  const sample s{wall_seconds() - wall, processor_seconds() - processor};
  return busy && s.processor > 0 ? sample{s.processor, s.processor} : s;
}
template <class F> double seconds_of(const F& f) { return time_of(f).wall; }
template <class Real> std::vector<Real> synthetic(long long n, unsigned long long seed) {
  std::vector<Real> v(static_cast<std::size_t>(n));
  synthetic_values next(seed);
  for (Real& x : v) x = static_cast<Real>(next());
  return v;
}
template <class Real> using row_major = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real> using matrix_at = Eigen::Map<const row_major<Real>>;

// Computes y = x wᵀ by the BLAS that the library was built with, else by Eigen.
template <class Real> void multiply(const matrix_at<Real>& x, const matrix_at<Real>& w, row_major<Real>& y) {
#if defined(GRAFT_BLAS)
  const int m = static_cast<int>(x.rows()), n = static_cast<int>(w.rows()), k = static_cast<int>(x.cols());
  const Real one = 1, zero = 0;
  if constexpr (sizeof(Real) == sizeof(float))
    sgemm_("T", "N", &n, &m, &k, &one, w.data(), &k, x.data(), &k, &zero, y.data(), &n);
  else
    dgemm_("T", "N", &n, &m, &k, &one, w.data(), &k, x.data(), &k, &zero, y.data(), &n);
#else
  y.noalias() = x * w.transpose();
#endif
}

template <class Real> device measured_cpu() {
  static const device found = [] {
    constexpr int n = 1024;
    const auto a = synthetic<Real>(n * n, 1), b = synthetic<Real>(n * n, 2), c = synthetic<Real>(16 * n * n, 3);
    row_major<Real> y(n, n);
    Real sum = 0;
    double product = 1, read = 1;
    for (int i = 0; i < 5; ++i) {
      product = std::min(
          product, seconds_of([&] { multiply(matrix_at<Real>(a.data(), n, n), matrix_at<Real>(b.data(), n, n), y); }));
      read = std::min(read, seconds_of([&] { sum += matrix_at<Real>(c.data(), 16, n * n).sum(); }));
    }
    benchmark::DoNotOptimize(sum);
    return device{"this CPU", 2.0 * n * n * n / product, 16.0 * n * n * sizeof(Real) / read};
  }();
  return found;
}

// Copies of a layer with their own tensors, called in turn so that no call finds its weights in a cache.
template <class Layer> class cpu_layers {
 public:
  using real = typename cpu::layer<Layer>::real;
  static constexpr dtype stored = storage<typename Layer::element>::type;

  cpu_layers(execution_mode run_mode, long long tokens, const bench_options& o) : x_(shape_of_input<Layer>(tokens, o)) {
    y_.resize(static_cast<std::size_t>(outputs_of<Layer>(tokens, o)));
    numbers_ = synthetic<real>(x_.count(), 1), ids_.assign(x_.type == dtype::i64 ? numbers_.size() : 0, 1);
    if (x_.type != dtype::i64) x_.type = dtype_of<real>();
    x_.data = ids_.empty() ? static_cast<const void*>(numbers_.data()) : ids_.data();
    const int copies = copies_exceeding(cpu_caches, parameters_and_weights<Layer>(o) * bits_of(stored) / 8);
    for (int i = 0; i < copies && good_; ++i) {
      layers_.push_back(std::make_unique<cpu::layer<Layer>>(run_mode));
      good_ = set_synthetic_tensors<Layer>(
          o, [&](const char* name, const view& shape) { return set_tensor(name, shape); },
          [&](const char* name) { return layers_.back()->set(name, 0.5); });
      if (good_) good_ = call(layers_.size() - 1);
    }
  }
  const status& good() const { return good_; }
  sample operator()() {
    const sample t = time_of([&] { good_ = call(next_); });
    next_ = (next_ + 1) % layers_.size();
    return t;
  }
  double launches() const { return static_cast<double>(layers_[0]->forward_plan()->launches.size()); }

 private:
  status set_tensor(const char* name, view shape) {
    if (shape.type == dtype::i64) {
      const auto* const from = static_cast<const std::byte*>(shape.data);
      data_.emplace_back(from, from + shape.count() * static_cast<long long>(sizeof(std::int64_t)));
      shape.data = data_.back().data();
      return layers_.back()->set(name, shape);
    }
    const std::vector<real> v = synthetic<real>(shape.count(), data_.size() + 7);
    data_.emplace_back(v.size() * static_cast<std::size_t>(bits_of(stored)) / 8);
    cpu::convert_to(v.data(), shape.count(), data_.back().data(), stored, 0);
    shape.data = data_.back().data(), shape.type = stored;
    return layers_.back()->set(name, shape);
  }
  status call(std::size_t i) {
    return layers_[i]->forward(x_, view_into(y_.data(), static_cast<long long>(y_.size())));
  }

  view x_;
  std::vector<real> numbers_, y_;
  std::vector<std::int64_t> ids_;
  std::vector<std::unique_ptr<cpu::layer<Layer>>> layers_;
  std::vector<std::vector<std::byte>> data_;
  std::size_t next_ = 0;
  status good_ = ok;
};

template <class Layer>
make_measurement cpu_contender(execution_mode run_mode, long long tokens, const bench_options& o) {
  return [=]() -> std::shared_ptr<measurement> {
    auto layers = std::make_shared<cpu_layers<Layer>>(run_mode, tokens, o);
    if (!layers->good()) return std::fprintf(stderr, "bench: %s\n", layers->good().message()), nullptr;
    measurement made{[=] { return (*layers)(); }, cost_at<Layer, cpu_target>(tokens, o), layers->launches()};
    if (run_mode == execution_mode::eager) {  // every call computes all operations
      const eager_work work = eager_work_at<Layer>(tokens, o, true);
      made.does = work.does, made.launches = work.launches;
    }
    return std::make_shared<measurement>(std::move(made));
  };
}
// Makes the bare GEMM with the sizes of a linear layer; for other kinds of layer, the layer without its adapter.
template <class Layer> make_measurement cpu_bare(long long tokens, const bench_options& o) {
  using base = bare_layer<Layer>;
  if constexpr (!std::is_same_v<typename Layer::kind, linear_kind>) {
    return cpu_contender<base>(execution_mode::fused, tokens, o);
  } else {
    return [=] {
      using real = typename cpu::layer<base>::real;
      struct product {
        long long m, n, k;
        std::vector<real> x;
        std::vector<std::vector<real>> w;
        row_major<real> y;
        std::size_t next = 0;
      };
      const view x = shape_of_input<Layer>(tokens, o);
      auto p = std::make_shared<product>();
      p->m = x.size[0], p->k = x.size[1], p->n = outputs_of<Layer>(tokens, o) / p->m;
      p->x = synthetic<real>(x.count(), 1), p->y.resize(p->m, p->n);
      const int copies = copies_exceeding(cpu_caches, p->n * p->k * static_cast<long long>(sizeof(real)));
      for (int i = 0; i < copies; ++i) p->w.push_back(synthetic<real>(p->n * p->k, static_cast<unsigned>(i) + 2U));
      auto call = [=] {
        const matrix_at<real> w(p->w[p->next].data(), p->n, p->k);
        p->next = (p->next + 1) % p->w.size();
        return time_of([&] {
          multiply(matrix_at<real>(p->x.data(), p->m, p->k), w, p->y);
          benchmark::DoNotOptimize(p->y.data());
        });
      };
      return std::make_shared<measurement>(measurement{call, cost_at<base, cpu_target>(tokens, o), 1});
    };
  }
}

}  // namespace graft::bench_detail

namespace graft {

// Registers the contenders of a layer type for each number of tokens: NAME/bare/16, NAME/eager/16, NAME/fused/16.
template <class Layer> void bench(std::initializer_list<long long> tokens, const bench_options& o = {}) {
  using namespace bench_detail;
  const std::string name = o.name.empty() ? type_name<Layer>() : o.name;
  const auto machine = [] { return measured_cpu<typename cpu::layer<Layer>::real>(); };
  for (const long long n : tokens) {
    const auto of = [&](const char* run_mode) { return name + "/" + run_mode + "/" + std::to_string(n); };
    const make_measurement bare = cpu_bare<Layer>(n, o);
    if (o.bare) register_benchmark(of("bare"), bare, nullptr, machine);
    if (o.eager) register_benchmark(of("eager"), cpu_contender<Layer>(execution_mode::eager, n, o), bare, machine);
    if (o.fused) register_benchmark(of("fused"), cpu_contender<Layer>(execution_mode::fused, n, o), bare, machine);
  }
}

}  // namespace graft
