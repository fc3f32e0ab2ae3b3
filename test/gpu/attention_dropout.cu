// SPDX-License-Identifier: Apache-2.0
// Attention with dropout of probabilities, which the kernel of a single node computes, forward and backward: against
// the formula in double, which asks the mask for each row, head and key.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/attention/reference.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>

#include <cstdio>
#include <vector>

using namespace graft;

namespace {

bool no_gpu() {
  int devices = 0;
  const bool none = cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
  if (none) std::printf("no GPU: there is no device\n");
  return none;
}

constexpr long long rows = 37, head = 40, queries = 4, groups = 2, width = (queries + 2 * groups) * head;
constexpr long long out_width = queries * head;

template <class Number> struct on_device {
  gpu::buffer memory;
  explicit on_device(const std::vector<Number>& from) {
    const std::size_t bytes = from.size() * sizeof(Number);
    REQUIRE(bool(memory.reserve(static_cast<long long>(bytes))));
    REQUIRE(cudaMemcpy(memory.data(), from.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::vector<Number> get(std::size_t n) const {
    std::vector<Number> now(n);
    REQUIRE(cudaMemcpy(now.data(), memory.data(), n * sizeof(Number), cudaMemcpyDeviceToHost) == cudaSuccess);
    return now;
  }
};
std::vector<float> random_numbers(long long n, std::uint64_t seed) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(splitmix64(seed + i) >> 40U) / static_cast<float>(1U << 23U) - 1;
  return v;
}
// Attention ranges of two sequences with causal rows, and the dropout state of each row.
std::vector<std::int64_t> spans(double dropped) {
  std::vector<std::int64_t> s(5 * rows);
  for (std::size_t r = 0; r < rows; ++r) {
    s[r] = r < 20 ? 0 : 20, s[rows + r] = static_cast<std::int64_t>(r) + 1,
    s[2 * rows + r] = static_cast<std::int64_t>(r);
    s[3 * rows + r] = static_cast<std::int64_t>(splitmix64(r) >> 1U);
    s[4 * rows + r] = attention_dropout_mask::dropped_count(dropped);
  }
  return s;
}

struct both {
  std::vector<double> out = std::vector<double>(rows * out_width), d = std::vector<double>(rows * width);
};
both reference(const std::vector<float>& qkv, const std::vector<float>& t, const std::vector<std::int64_t>& span,
               const attention_dropout_mask& drops) {
  both b;
  const double scale = 1 / std::sqrt(static_cast<double>(head));
  const auto at = [&](long long r, long long c) {
    return static_cast<double>(qkv[static_cast<std::size_t>(r * width + c)]);
  };
  for (long long r = 0; r < rows; ++r)
    for (long long h = 0; h < queries; ++h) {
      const long long k_at = (queries + h / (queries / groups)) * head, v_at = k_at + groups * head;
      const long long first = span[static_cast<std::size_t>(r)];
      std::vector<double> p, dp;
      double total = 0, mean = 0;
      for (long long key = first; key <= r; ++key) {
        double s = 0, slope = 0;
        for (long long c = 0; c < head; ++c) {
          s += at(r, h * head + c) * at(key, k_at + c) * scale;
          slope += static_cast<double>(t[static_cast<std::size_t>(r * out_width + h * head + c)]) * at(key, v_at + c);
        }
        p.push_back(std::exp(s)), total += p.back();
        dp.push_back(slope * drops.factor<double>(r, h, key));
      }
      for (std::size_t i = 0; i < p.size(); ++i) p[i] /= total, mean += p[i] * dp[i];
      for (long long key = first; key <= r; ++key) {
        const auto i = static_cast<std::size_t>(key - first);
        const double used = p[i] * drops.factor<double>(r, h, key), ds = p[i] * (dp[i] - mean) * scale;
        for (long long c = 0; c < head; ++c) {
          const auto o = static_cast<std::size_t>(r * out_width + h * head + c);
          b.out[o] += used * at(key, v_at + c);
          b.d[static_cast<std::size_t>(r * width + h * head + c)] += ds * at(key, k_at + c);
          b.d[static_cast<std::size_t>(key * width + k_at + c)] += ds * at(r, h * head + c);
          b.d[static_cast<std::size_t>(key * width + v_at + c)] += used * static_cast<double>(t[o]);
        }
      }
    }
  return b;
}
double furthest(const std::vector<float>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

}  // namespace

TEST_CASE("gpu attention: the mask follows from row, head and key, forward and backward") {
  if (no_gpu()) return;
  for (const double dropped : {0.0, 0.3, 0.9}) {
    CAPTURE(dropped);
    const std::vector<std::int64_t> span = spans(dropped);
    const std::vector<float> qkv = random_numbers(rows * width, 1), t = random_numbers(rows * out_width, 99);
    const on_device<std::int64_t> span_there(span);
    on_device<float> qkv_there(qkv), t_there(t), out(std::vector<float>(rows * out_width, NAN)),
        d(std::vector<float>(rows * width, NAN)), stats(std::vector<float>(2 * rows * queries));
    const auto* const ids = static_cast<const std::int64_t*>(span_there.memory.data());
    const gpu::tensor<float> in{{qkv_there.memory.data(), dtype::f32}, {1, 1, rows, width}};
    const auto operands =
        gpu::attention_operands_of(in, out_width, ids, head, attention_dropout_mask::of(ids, 5, rows, 0));
    const gpu::on_stream on{nullptr};
    REQUIRE(
        bool(gpu::attention_forward(on, operands, gpu::element_ptr<float>{out.memory.data(), dtype::f32}, out_width)));
    REQUIRE(bool(gpu::attention_backward(on, operands, gpu::element_ptr<float>{t_there.memory.data(), dtype::f32},
                                         out_width, gpu::element_ptr<float>{d.memory.data(), dtype::f32},
                                         static_cast<float*>(stats.memory.data()))));
    const both expected = reference(qkv, t, span, attention_dropout_mask::of(span.data(), 5, rows, 0));
    CHECK(furthest(out.get(rows * out_width), expected.out) < 1e-5);
    CHECK(furthest(d.get(rows * width), expected.d) < 5e-5);
  }
}
