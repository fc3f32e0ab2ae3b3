// SPDX-License-Identifier: Apache-2.0
// The attention kernels against the formula in float: every head size, ragged sequences, windows, KV caches with
// arbitrary slots, one row and many, soft caps and sinks; gradients; and bitwise repeatable results.
#include <doctest/doctest.h>
#include <graft/gpu.h>
#include <graft/model/row_batch.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

using namespace graft;

namespace {

using bf = __nv_bfloat16;
using numbers = std::vector<float>;

bool no_gpu() {
  int devices = 0;
  const bool none = cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
  if (none) std::printf("no GPU: there is no device\n");
  return none;
}

struct shape {
  int head, heads, kv_heads;
  float soft_cap = 0;  // 0: none
  bool sinks = false;
  int width() const { return sinks_at() + (sinks ? heads : 0); }
  int sinks_at() const { return (heads + 2 * kv_heads) * head; }
  int kv() const { return kv_heads * head; }
};
struct sequence_rows {
  long long tokens, position = 0, slot = 0;
};

// Numbers in bf16 on the host and on the device.
struct tensor_of {
  std::vector<bf> stored;
  gpu::buffer memory;
  tensor_of(long long n, unsigned seed, float scale) : stored(static_cast<std::size_t>(n)) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> any(-scale, scale);
    for (bf& v : stored) v = __float2bfloat16(any(engine));
    put();
  }
  explicit tensor_of(long long n) : stored(static_cast<std::size_t>(n)) {  // filled with NaN
    std::fill(stored.begin(), stored.end(), __float2bfloat16(NAN));
    put();
  }
  void put() {
    REQUIRE(bool(memory.reserve(static_cast<long long>(stored.size()) * 2)));
    REQUIRE(cudaMemcpy(memory.data(), stored.data(), stored.size() * 2, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::vector<bf> get() const {
    std::vector<bf> now(stored.size());
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(now.data(), memory.data(), now.size() * 2, cudaMemcpyDeviceToHost) == cudaSuccess);
    return now;
  }
  numbers wide() const {
    numbers all;
    for (const bf v : stored) all.push_back(__bfloat162float(v));
    return all;
  }
};

double distance(const std::vector<bf>& a, const numbers& b) {
  double d = 0, n = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double x = __bfloat162float(a[i]);
    const double y = static_cast<double>(b[i]);
    d += (x - y) * (x - y), n += y * y;
  }
  return std::isnan(d) ? INFINITY : std::sqrt(d / n);
}
bool same(const std::vector<bf>& a, const std::vector<bf>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 2) == 0;
}

struct ragged_call {
  shape s;
  row_batch batch;
  std::vector<std::int64_t> ranges;
  gpu::buffer on_device;
  long long rows() const { return batch.rows(); }
  std::int64_t first(long long r) const { return ranges[static_cast<std::size_t>(r)]; }
  std::int64_t end(long long r) const { return ranges[static_cast<std::size_t>(rows() + r)]; }
  std::int64_t own(long long r) const { return ranges[static_cast<std::size_t>(2 * rows() + r)]; }
  const long long* device_ranges() const { return on_device.as<long long>(); }

  ragged_call(shape of, const std::vector<sequence_rows>& runs, int window, bool cached) : s(of) {
    static const std::vector<std::int64_t> ids(1 << 16);
    std::vector<sequence_chunk> chunks;
    for (const sequence_rows& r : runs)
      chunks.push_back({{ids.data(), static_cast<std::size_t>(r.tokens)}, r.position, r.slot});
    batch.set(chunks, {&window, 1}, cached);
    const auto* from = static_cast<const std::int64_t*>(batch.attention_range_of(0).data);
    ranges.assign(from, from + 3 * rows());
    put();
  }
  void put() {
    REQUIRE(bool(on_device.reserve(static_cast<long long>(ranges.size()) * 8)));
    REQUIRE(cudaMemcpy(on_device.data(), ranges.data(), ranges.size() * 8, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  gpu::attention_size size(bool cached) const {
    gpu::attention_size p{dtype::bf16, rows(), s.head, s.heads, s.kv_heads, cached, true};
    p.soft_cap = static_cast<double>(s.soft_cap), p.sinks = s.sinks;
    return p;
  }
  // Queries, keys and values of the call; its sinks are up to three times as large.
  tensor_of random_qkv() const {
    tensor_of qkv(rows() * s.width(), 3, 1.7F);
    for (long long r = 0; r < rows(); ++r)
      for (int i = s.sinks_at(); i < s.width(); ++i) {
        bf& sink = qkv.stored[static_cast<std::size_t>(r * s.width() + i)];
        sink = __float2bfloat16(3 * __bfloat162float(sink));
      }
    qkv.put();
    return qkv;
  }
};

// Head sizes are multiples of 16: sixteen independent sums, which vectorize.
float dot(const float* a, const float* b, int n) {
  float part[16] = {}, sum = 0;
  for (int i = 0; i < n; i += 16)
    for (int k = 0; k < 16; ++k) part[k] += a[i + k] * b[i + k];
  for (const float v : part) sum += v;
  return sum;
}
void add(float* to, float factor, const float* from, int n) {
  for (int i = 0; i < n; ++i) to[i] += factor * from[i];
}

// Rows of keys and values, and the offsets of a head's key and value in a row.
struct key_rows {
  const numbers& from;
  long long pitch, k, v;
  const float* key(long long row, int at) const { return from.data() + row * pitch + k + at; }
  const float* value(long long row, int at) const { return from.data() + row * pitch + v + at; }
};
// The probabilities of row r and query head h over its attention range, the derivatives of its capped scores, and the
// probability of its sink.
struct softmax_row {
  numbers p, slope;
  float sink = 0;
};
softmax_row probabilities(const ragged_call& c, const numbers& qkv, const key_rows& keys, long long r, int h) {
  const int d = c.s.head, group = h / (c.s.heads / c.s.kv_heads) * d;
  const float* const q = qkv.data() + r * c.s.width() + h * d;
  const float sink = c.s.sinks ? qkv[static_cast<std::size_t>(r * c.s.width() + c.s.sinks_at() + h)] : -INFINITY;
  softmax_row row;
  float most = sink;
  for (std::int64_t k = c.first(r); k < c.end(r); ++k) {
    const float s = dot(q, keys.key(k, group), d) / std::sqrt(static_cast<float>(d)),
                t = c.s.soft_cap > 0 ? std::tanh(s / c.s.soft_cap) : 0;
    row.p.push_back(c.s.soft_cap > 0 ? c.s.soft_cap * t : s), row.slope.push_back(1 - t * t);
    most = std::max(most, row.p.back());
  }
  row.sink = c.s.sinks ? std::exp(sink - most) : 0;
  float sum = row.sink;
  for (float& v : row.p) v = std::exp(v - most), sum += v;
  for (float& v : row.p) v /= sum;
  if (sum > 0) row.sink /= sum;
  return row;
}
numbers reference(const ragged_call& c, const numbers& qkv, const key_rows& keys) {
  const int d = c.s.head;
  numbers out(static_cast<std::size_t>(c.rows() * c.s.heads * d));
  for (long long r = 0; r < c.rows(); ++r)
    for (int h = 0; h < c.s.heads; ++h) {
      std::int64_t key = c.first(r);
      for (const float p : probabilities(c, qkv, keys, r, h).p)
        add(out.data() + (r * c.s.heads + h) * d, p, keys.value(key++, h / (c.s.heads / c.s.kv_heads) * d), d);
    }
  return out;
}

const gpu::attention_kernels& kernels() {
  static const gpu::attention_kernels all = [] {
    gpu::attention_kernels k = gpu::all_attention_kernels<bf>();
    k.mma = gpu::all_mma_attention_kernels<bf>();
    return k;
  }();
  return all;
}
// Kernels as a device of this kind runs them; sm_90 can also run those of sm_80.
gpu::attention_launcher<bf> attention(const target& on) { return {kernels(), on}; }

void check_forward(ragged_call& c, const target& on = sm_90) {
  const tensor_of qkv = c.random_qkv();
  tensor_of out(c.rows() * c.s.heads * c.s.head), again(c.rows() * c.s.heads * c.s.head);
  INFO("head ", c.s.head, ", heads ", c.s.heads, " over ", c.s.kv_heads, ", rows ", c.rows(), ", cap ", c.s.soft_cap,
       std::string(c.s.sinks ? ", sinks" : ""));
  for (tensor_of* to : {&out, &again})
    REQUIRE(bool(attention(on).forward(
        nullptr, c.size(false), {qkv.memory.data(), c.device_ranges(), nullptr, 0, to->memory.data(), nullptr})));
  const numbers wide = qkv.wide();
  const key_rows keys{wide, c.s.width(), c.s.heads * c.s.head, c.s.heads * c.s.head + c.s.kv()};
  CHECK(distance(out.get(), reference(c, wide, keys)) < 4e-3);
  CHECK(same(out.get(), again.get()));
}
// The workspace of decode calls.
struct decode_workspace {
  gpu::buffer sums, counters;
  explicit decode_workspace(const gpu::attention_size& p, const target& on) {
    REQUIRE(bool(sums.reserve(gpu::decode_workspace_bytes(p, on))));
    REQUIRE(bool(counters.reserve(gpu::decode_counter_bytes(p))));
    REQUIRE(cudaMemset(sums.data(), 0xff, static_cast<std::size_t>(sums.bytes())) == cudaSuccess);
    REQUIRE(cudaMemset(counters.data(), 0, static_cast<std::size_t>(counters.bytes())) == cudaSuccess);
  }
  void check_counters() const {
    std::vector<std::uint32_t> now(static_cast<std::size_t>(counters.bytes() / 4));
    REQUIRE(cudaMemcpy(now.data(), counters.data(), now.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(std::all_of(now.begin(), now.end(), [](std::uint32_t n) { return n == 0; }));
  }
};
gpu::attention_tensors step_over(const ragged_call& c, const tensor_of& qkv, const tensor_of& cache, long long slots,
                                 const tensor_of& out, const decode_workspace& workspace) {
  return {.qkv = qkv.memory.data(),
          .ranges = c.device_ranges(),
          .cache = cache.memory.data(),
          .slots = slots,
          .out = out.memory.data(),
          .workspace = workspace.sums.data(),
          .counters = workspace.counters.as<std::uint32_t>()};
}
// The dispatch depends on the number of slots that a call states: short pipelines, long ones, split-KV in equal chunks.
constexpr long long many_slots = 1LL << 40;
void check_cached(ragged_call& c, long long slots, gpu::attention_path how, const target& on = sm_90) {
  const tensor_of qkv = c.random_qkv();
  tensor_of cache(slots * 2 * c.s.kv(), 5, 1.7F);
  INFO("head ", c.s.head, ", heads ", c.s.heads, " over ", c.s.kv_heads, ", rows ", c.rows(), ", span 0 from ",
       c.first(0), " to ", c.end(0), ", cap ", c.s.soft_cap, std::string(c.s.sinks ? ", sinks" : ""));
  REQUIRE(gpu::choose_attention(c.size(true), on).path == how);
  const decode_workspace workspace(c.size(true), on);
  const std::vector<bf> given = cache.stored;
  for (long long r = 0; r < c.rows(); ++r)
    if (c.own(r) >= 0)
      std::copy_n(qkv.stored.begin() + r * c.s.width() + c.s.heads * c.s.head, 2 * c.s.kv(),
                  cache.stored.begin() + c.own(r) * 2 * c.s.kv());
  const std::vector<bf> written = cache.stored;
  const numbers expected = reference(c, qkv.wide(), {cache.wide(), 2 * c.s.kv(), 0, c.s.kv()});
  std::vector<std::pair<gpu::attention_choice, std::vector<bf>>> before;
  for (const long long named : {0LL, c.rows() * 1025, many_slots, many_slots}) {
    gpu::attention_size size = c.size(true);
    size.slots = named;
    tensor_of out(c.rows() * c.s.heads * c.s.head);
    cache.stored = given;
    cache.put();
    REQUIRE(bool(attention(on).forward(nullptr, size, step_over(c, qkv, cache, slots, out, workspace))));
    CHECK(distance(out.get(), expected) < 5e-3);
    CHECK(same(cache.get(), written));
    const gpu::attention_choice made = gpu::choose_attention(size, on);
    for (const auto& [choice, bits] : before)  // a longer pipeline changes no sum
      if (choice.kv_splits == made.kv_splits && choice.split_kv_blocks == made.split_kv_blocks)
        CHECK(same(out.get(), bits));
    before.emplace_back(made, out.get());
  }
  workspace.check_counters();
}
void check_backward(ragged_call& c, const target& on = sm_90, long long ds_bytes = 2LL << 30) {
  const int d = c.s.head;
  const long long width = c.s.width(), keys_at = c.s.heads * d, values_at = keys_at + c.s.kv();
  const tensor_of qkv = c.random_qkv();
  tensor_of dout(c.rows() * c.s.heads * d, 4, 1), grad(c.rows() * width), again(c.rows() * width),
      from_saved(c.rows() * width), out(c.rows() * c.s.heads * d);
  gpu::attention_size size = c.size(false);
  size.ds_bytes = ds_bytes;
  gpu::buffer workspace;
  REQUIRE(bool(workspace.reserve(gpu::attention_backward_workspace_of(size, on).bytes)));
  for (tensor_of* to : {&grad, &again})
    REQUIRE(bool(attention(on).backward(
        nullptr, size,
        {qkv.memory.data(), dout.memory.data(), c.device_ranges(), to->memory.data(), workspace.data()})));
  gpu::buffer sums;  // log-sum-exp of a forward pass, saved with its output
  REQUIRE(bool(sums.reserve(4 * c.rows() * c.s.heads)));
  REQUIRE(bool(attention(on).forward(
      nullptr, size, {qkv.memory.data(), c.device_ranges(), nullptr, 0, out.memory.data(), sums.as<float>()})));
  REQUIRE(
      bool(attention(on).backward(nullptr, size,
                                  {qkv.memory.data(), dout.memory.data(), c.device_ranges(), from_saved.memory.data(),
                                   workspace.data(), out.memory.data(), sums.as<float>()})));
  const numbers in = qkv.wide(), up = dout.wide();
  const key_rows keys{in, width, keys_at, values_at};
  numbers want(in.size());
  for (long long r = 0; r < c.rows(); ++r)
    for (int h = 0; h < c.s.heads; ++h) {
      const auto [p, slope, sink] = probabilities(c, in, keys, r, h);
      const int group = h / (c.s.heads / c.s.kv_heads) * d;
      const long long q = r * width + h * d;
      const float* const dy = up.data() + (r * c.s.heads + h) * d;
      numbers dp(p.size());
      float mean = 0;
      for (std::size_t i = 0; i < p.size(); ++i) {
        const long long key = c.first(r) + static_cast<long long>(i);
        dp[i] = dot(dy, keys.value(key, group), d), mean += p[i] * dp[i];
        add(want.data() + key * width + values_at + group, p[i], dy, d);
      }
      for (std::size_t i = 0; i < p.size(); ++i) {
        const long long key = c.first(r) + static_cast<long long>(i);
        const float ds = p[i] * (dp[i] - mean) * slope[i] / std::sqrt(static_cast<float>(d));
        add(want.data() + q, ds, keys.key(key, group), d);
        add(want.data() + key * width + keys_at + group, ds, in.data() + q, d);
      }
      if (c.s.sinks) want[static_cast<std::size_t>(r * width + c.s.sinks_at() + h)] = -sink * mean;
    }
  INFO("head ", d, ", heads ", c.s.heads, " over ", c.s.kv_heads, ", rows ", c.rows(), ", cap ", c.s.soft_cap,
       std::string(c.s.sinks ? ", sinks" : ""));
  // For small calls relative to the largest norm of dQ, dK and dV: a row with one key has a dQ that is only rounding
  // error.
  const std::vector<bf> now = grad.get();
  double errors[4] = {}, norms[4] = {};  // of dQ, dK, dV and the sinks
  for (long long r = 0; r < c.rows(); ++r)
    for (long long i = 0; i < width; ++i) {
      const int which = i < keys_at ? 0 : i < values_at ? 1 : i < c.s.sinks_at() ? 2 : 3;
      const auto at = static_cast<std::size_t>(r * width + i);
      const double v = want[at], e = __bfloat162float(now[at]) - v;
      errors[which] += e * e, norms[which] += v * v;
    }
  for (int which = 0; which < (c.s.sinks ? 4 : 3); ++which) {
    const double norm = c.rows() < 64 ? std::max({norms[0], norms[1], norms[2]}) : norms[which];
    CHECK(std::sqrt(errors[which] / norm) < 6e-3);
  }
  CHECK(same(grad.get(), again.get()));
  CHECK(same(grad.get(), from_saved.get()));
}

const std::vector<std::vector<sequence_rows>> ragged{
    {{1}}, {{2}, {1}}, {{64}}, {{127}}, {{128}}, {{129}}, {{5}, {64}, {65}}, {{130}, {1}, {259}}, {{300}, {300}}};

}  // namespace

TEST_CASE("gpu attention: ragged sequences and windows, every size of a head") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 4, 2}, {64, 2, 2}, {80, 2, 1}, {96, 3, 1}, {128, 3, 1}, {256, 2, 1}, {256, 1, 1}})
    for (const auto& runs : ragged)
      for (const int window : {0, 1, 70}) {
        ragged_call c(s, runs, window, false);
        check_forward(c);
      }
}
TEST_CASE("gpu attention: rows with an empty range are zeros") {
  if (no_gpu()) return;
  ragged_call c({128, 2, 1}, {{200}}, 0, false);
  for (const long long r : {0, 5, 64, 150, 199}) c.ranges[static_cast<std::size_t>(c.rows() + r)] = c.first(r);
  c.put();
  check_forward(c), check_backward(c);
}
TEST_CASE("gpu attention: many rows over a cache") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 4, 2}, {64, 2, 2}, {80, 2, 1}, {96, 3, 1}, {256, 2, 1}})
    for (const int window : {0, 40}) {
      ragged_call one(s, {{100, 0, 7}}, window, true),
          several(s, {{90, 33, 0}, {3, 500, 700}, {128, 0, 200}}, window, true);
      check_cached(one, 1300, gpu::attention_path::prefill);
      check_cached(several, 1300, gpu::attention_path::prefill);
    }
}
TEST_CASE("gpu attention: token steps of every length, 1 to 64 rows, and several rows of one sequence") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 8, 2}, {64, 2, 2}, {80, 7, 1}, {96, 6, 2}, {128, 8, 1}, {256, 8, 1}})
    for (const int window : {0, 100}) {
      for (const long long position : {0, 1, 63, 64, 65, 127, 700, 1299}) {
        ragged_call c(s, {{1, position, 0}}, window, true);
        check_cached(c, 1300, gpu::attention_path::decode);
      }
      for (const int rows : {2, 3, 16, 33, 64}) {
        std::vector<sequence_rows> runs;
        for (int r = 0; r < rows; ++r) runs.push_back({1, (r * 37) % 40, 40LL * r});
        ragged_call c(s, runs, window, true);
        check_cached(c, 40LL * rows, gpu::attention_path::decode);
      }
      ragged_call several(s, {{5, 60, 3}, {1, 0, 200}, {7, 121, 300}}, window, true);
      check_cached(several, 500, gpu::attention_path::decode);
    }
  ragged_call four({128, 32, 8}, {{1, 899, 0}, {1, 500, 900}, {1, 63, 1800}, {1, 1, 2700}}, 0, true);  // in six splits
  check_cached(four, 3600, gpu::attention_path::decode);
  ragged_call two({128, 32, 8}, {{1, 3999, 0}, {1, 900, 4000}}, 0, true);  // in six splits, one per SM
  REQUIRE(gpu::choose_attention(two.size(true), sm_90).kv_splits == 6);
  check_cached(two, 5000, gpu::attention_path::decode);
  for (const int head : {64, 80, 96, 128}) {  // more thread blocks than fit
    std::vector<sequence_rows> runs;
    for (int r = 0; r < 64; ++r) runs.push_back({1, (r * 37) % 300, 300LL * r});
    ragged_call c({head, 16, 8}, runs, 0, true);
    REQUIRE(gpu::choose_attention(c.size(true), sm_90).small);
    check_cached(c, 300LL * 64, gpu::attention_path::decode);
  }
}
TEST_CASE("gpu attention: token steps over long caches, with many rounds of the pipeline") {
  if (no_gpu()) return;
  for (const int head : {64, 80, 96, 128, 256})
    for (const long long position : {4095, 9000}) {
      ragged_call c({head, 8, 4}, {{1, position, 0}, {1, 3000, 9001}}, 0, true);
      check_cached(c, 12100, gpu::attention_path::decode);
    }
}
// Thread blocks of eight warps, more than are resident, whose rows have any lengths: every head of 30 calls is
// compared.
TEST_CASE("gpu attention: many ragged rows by blocks of eight warps, in repeated calls") {
  if (no_gpu()) return;
  for (const auto& [rows, sm_count] : {std::pair{32, sm_90.sm_count}, {64, 300}}) {
    target wide = sm_90;  // a device on which so many rows are resident
    wide.sm_count = sm_count;
    std::vector<sequence_rows> runs;
    for (int r = 0; r < rows; ++r) runs.push_back({1, r * 2048 / rows, 2048LL * r});
    ragged_call c({128, 32, 8}, runs, 0, true);
    gpu::attention_size size = c.size(true);
    size.slots = 1000LL * rows;  // stated to the dispatch: rows of that length are not split
    const long long slots = 2048LL * rows;
    const gpu::attention_choice how = gpu::choose_attention(size, wide);
    REQUIRE((how.kv_splits == 1 && how.split_kv_blocks == 0 && !how.small && !how.long_pipeline));
    tensor_of qkv(rows * c.s.width(), 3, 1.7F), cache(slots * 2 * c.s.kv(), 5, 1.7F);
    std::vector<bf> first;
    for (int run = 0; run < 30; ++run) {
      tensor_of out(1LL * rows * c.s.heads * c.s.head);
      cache.put();
      REQUIRE(bool(attention(wide).forward(nullptr, size,
                                           {.qkv = qkv.memory.data(),
                                            .ranges = c.device_ranges(),
                                            .cache = cache.memory.data(),
                                            .slots = slots,
                                            .out = out.memory.data()})));
      if (run == 0) first = out.get();
      INFO(rows, " rows, run ", run);
      CHECK(same(out.get(), first));
    }
    for (long long r = 0; r < rows; ++r)
      std::copy_n(qkv.stored.begin() + r * c.s.width() + c.s.heads * c.s.head, 2 * c.s.kv(),
                  cache.stored.begin() + c.own(r) * 2 * c.s.kv());
    CHECK(distance(first, reference(c, qkv.wide(), {cache.wide(), 2 * c.s.kv(), 0, c.s.kv()})) < 5e-3);
  }
}
TEST_CASE("gpu attention: split-KV in equal chunks, with rows that end at, before and after chunk ends") {
  if (no_gpu()) return;
  const auto check = [](const shape& s, const std::vector<long long>& lengths, int window = 0) {
    std::vector<sequence_rows> runs;
    long long slot = 0;
    for (const long long n : lengths) runs.push_back({1, n - 1, slot}), slot += n;
    ragged_call c(s, runs, window, true);
    gpu::attention_size p = c.size(true);
    p.slots = many_slots;
    REQUIRE(gpu::choose_attention(p, sm_90).split_kv_blocks > 0);
    check_cached(c, slot, gpu::attention_path::decode);
  };
  for (const shape s : {shape{128, 8, 2}, {64, 2, 2}, {80, 7, 1}, {96, 6, 2}, {128, 3, 3}}) {
    const long long chunk = 64 * gpu::min_chunk_cost;
    for (const long long n : {chunk - 64, chunk - 1, chunk, chunk + 1, 3 * chunk + 65}) {
      check(s, {n});
      check(s, {1, n, 64, n + 1});
    }
    check(s, {1, 2000, 63, 64, 65, 1, 129, 500});  // one row is longer than all others
    check(s, {1500, 1, 1, 1, 1, 1, 1, 900}, 700);
    std::vector<long long> many;
    for (int r = 0; r < 64; ++r) many.push_back(1 + r * 37 % 150);
    check(s, many);
    many.resize(33);
    check(s, many);
  }
  check({128, 32, 8}, {3000, 17, 900});  // as many chunks as SMs
}
TEST_CASE("gpu attention: rows of a token step with an empty range are zeros") {
  if (no_gpu()) return;
  for (const int head : {64, 128}) {
    ragged_call c({head, 8, 2}, {{1, 700, 0}, {1, 5, 800}, {1, 64, 900}, {1, 2000, 1000}, {1, 9, 3100}}, 0, true);
    for (const long long r : {0, 2, 4}) {
      c.ranges[static_cast<std::size_t>(c.rows() + r)] = c.first(r);
      if (r != 2) c.ranges[static_cast<std::size_t>(2 * c.rows() + r)] = -1;  // the third still writes K and V
    }
    c.put();
    check_cached(c, 3200, gpu::attention_path::decode);
  }
}
TEST_CASE("gpu attention: a captured token step is valid for rows of other lengths") {
  if (no_gpu()) return;
  const shape s{128, 32, 8};
  const std::vector<std::vector<long long>> all{{1, 1, 1}, {2000, 64, 65}, {5, 3000, 1}, {1000, 1000, 1000}};
  ragged_call c(s, {{1, 0, 0}, {1, 0, 3000}, {1, 0, 6000}}, 0, true);
  gpu::attention_size p = c.size(true);
  p.slots = many_slots;
  tensor_of qkv(c.rows() * s.width(), 3, 1.7F), cache(9000LL * 2 * s.kv(), 5, 1.7F), out(c.rows() * s.heads * s.head),
      fresh(c.rows() * s.heads * s.head);
  const decode_workspace workspace(p, sm_90);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  const auto run = [&](const tensor_of& to) {
    return bool(attention(sm_90).forward(stream, p, step_over(c, qkv, cache, 9000, to, workspace)));
  };
  REQUIRE(run(out));
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(run(out));
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&step, graph, 0) == cudaSuccess);
  for (const std::vector<long long>& lengths : all) {
    for (long long r = 0; r < c.rows(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      c.ranges[static_cast<std::size_t>(c.rows()) + at] = c.first(r) + lengths[at];
      c.ranges[static_cast<std::size_t>(2 * c.rows()) + at] = c.first(r) + lengths[at] - 1;
    }
    c.put(), cache.put(), out.put(), fresh.put();
    REQUIRE(cudaGraphLaunch(step, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    const std::vector<bf> replayed = out.get();
    CHECK(std::none_of(replayed.begin(), replayed.end(), [](bf v) { return std::isnan(__bfloat162float(v)); }));
    REQUIRE(run(fresh));
    CHECK(same(replayed, fresh.get()));
  }
  workspace.check_counters();
  cudaGraphExecDestroy(step), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
}
TEST_CASE("gpu attention: gradients") {
  if (no_gpu()) return;
  for (const shape s :
       {shape{128, 4, 2}, {64, 2, 2}, {80, 2, 1}, {96, 3, 1}, {128, 3, 1}, {128, 4, 1}, {256, 2, 1}, {256, 1, 1}})
    for (const auto& runs : ragged)
      for (const int window : {0, 70}) {
        ragged_call c(s, runs, window, false);
        check_backward(c);
      }
}
TEST_CASE("gpu attention: gradients with dS in slabs of heads and of keys") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 8, 4}, {64, 3, 3}, {80, 2, 1}})
    for (const auto& runs : std::vector<std::vector<sequence_rows>>{{{700}}, {{130}, {1}, {259}}})
      for (const int window : {0, 70})
        for (const long long tiles : {1, 2, 40}) {
          ragged_call c(s, runs, window, false);
          check_backward(c, sm_90, tiles * (s.heads / s.kv_heads) * ((c.rows() + 127) / 128) * 2 * gpu::ds_tile_bytes);
        }
}
TEST_CASE("gpu attention by mma.sync: ragged sequences and windows, every size of a head, with gradients") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 4, 2}, {64, 2, 2}, {80, 2, 1}, {96, 3, 1}, {128, 5, 1}, {256, 2, 1}, {256, 1, 1}})
    for (const auto& runs : ragged)
      for (const int window : {0, 1, 70}) {
        ragged_call c(s, runs, window, false);
        check_forward(c, sm_80);
        if (window != 1) check_backward(c, sm_80);
      }
  ragged_call c({128, 2, 1}, {{200}}, 0, false);
  for (const long long r : {0, 5, 64, 150, 199}) c.ranges[static_cast<std::size_t>(c.rows() + r)] = c.first(r);
  c.put();
  check_forward(c, sm_80), check_backward(c, sm_80);
}
TEST_CASE("gpu attention by mma.sync: many rows and few over a cache") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 8, 2}, {64, 2, 2}, {80, 7, 1}, {96, 6, 2}, {128, 16, 1}, {256, 8, 1}})
    for (const int window : {0, 40}) {
      ragged_call many(s, {{90, 33, 0}, {3, 500, 700}, {128, 0, 200}}, window, true),
          several(s, {{5, 60, 3}, {1, 0, 200}, {7, 121, 300}}, window, true);
      check_cached(many, 1300, gpu::attention_path::prefill, sm_80);
      check_cached(several, 500, gpu::attention_path::decode, sm_80);
      for (const long long position : {0, 1, 15, 16, 63, 64, 700, 1299}) {
        ragged_call c(s, {{1, position, 0}}, window, true);
        check_cached(c, 1300, gpu::attention_path::decode, sm_80);
      }
      for (const int rows : {2, 16, 33, 64}) {
        std::vector<sequence_rows> runs;
        for (int r = 0; r < rows; ++r) runs.push_back({1, (r * 37) % 40, 40LL * r});
        ragged_call c(s, runs, window, true);
        check_cached(c, 40LL * rows, gpu::attention_path::decode, sm_80);
      }
    }
}
// Shapes of every head size with a soft cap, with sinks, and with both. Rows with sinks are whole 16-byte vectors where
// there is a multiple of eight query heads.
std::vector<shape> with_options(const std::vector<shape>& shapes) {
  std::vector<shape> all;
  for (shape s : shapes)
    for (const auto& [cap, sinks] : {std::pair{1.5F, false}, {0.0F, true}, {1.5F, true}})
      s.soft_cap = cap, s.sinks = sinks, all.push_back(s);
  return all;
}
const std::vector<std::vector<sequence_rows>> ragged_with_options{
    {{1}}, {{129}}, {{5}, {64}, {65}}, {{130}, {1}, {259}}};
TEST_CASE("gpu attention with a soft cap and sinks: prompts and gradients, every size of a head") {
  if (no_gpu()) return;
  for (const target& on : {sm_90, sm_80})
    for (const shape& s : with_options({{64, 8, 1}, {80, 8, 2}, {96, 8, 8}, {128, 8, 2}, {256, 8, 4}}))
      for (const auto& runs : ragged_with_options)
        for (const int window : {0, 70}) {
          ragged_call c(s, runs, window, false);
          check_forward(c, on), check_backward(c, on);
        }
}
TEST_CASE("gpu attention with a soft cap: scores far above it") {
  if (no_gpu()) return;
  for (const target& on : {sm_90, sm_80})
    for (const shape& s : {shape{128, 4, 2, 0.2F}, {128, 3, 1, 30}, {256, 2, 1, 50}}) {
      ragged_call c(s, {{200}, {70}}, 0, false);
      check_forward(c, on), check_backward(c, on);
    }
}
TEST_CASE("gpu attention with a soft cap and sinks: dS in slabs of heads and of keys") {
  if (no_gpu()) return;
  for (const shape& s : with_options({{128, 8, 4}, {64, 8, 8}}))
    for (const long long tiles : {1, 2}) {
      ragged_call c(s, {{130}, {1}, {259}}, 70, false);
      check_backward(c, sm_90, tiles * (s.heads / s.kv_heads) * ((c.rows() + 127) / 128) * 2 * gpu::ds_tile_bytes);
    }
}
TEST_CASE("gpu attention with a soft cap and sinks: rows with an empty range are zeros") {
  if (no_gpu()) return;
  for (const target& on : {sm_90, sm_80})
    for (const shape& s : with_options({{128, 8, 1}, {256, 8, 8}})) {
      ragged_call c(s, {{200}}, 0, false), step(s, {{1, 700, 0}, {1, 5, 800}, {1, 64, 900}}, 0, true);
      for (const long long r : {0, 5, 64, 150, 199}) c.ranges[static_cast<std::size_t>(c.rows() + r)] = c.first(r);
      step.ranges[static_cast<std::size_t>(step.rows() + 1)] = step.first(1);
      c.put(), step.put();
      check_forward(c, on), check_backward(c, on);
      check_cached(step, 1000, gpu::attention_path::decode, on);
    }
}
TEST_CASE("gpu attention with a soft cap and sinks: many rows and few over a cache") {
  if (no_gpu()) return;
  for (const target& on : {sm_90, sm_80})
    for (const shape& s : with_options({{64, 8, 1}, {80, 8, 8}, {96, 8, 2}, {128, 8, 2}, {256, 8, 1}}))
      for (const int window : {0, 100}) {
        ragged_call many(s, {{90, 33, 0}, {3, 500, 700}, {128, 0, 200}}, window, true),
            several(s, {{5, 60, 3}, {1, 0, 200}, {7, 121, 300}}, window, true);
        check_cached(many, 1300, gpu::attention_path::prefill, on);
        check_cached(several, 500, gpu::attention_path::decode, on);
        for (const long long position : {0, 1, 64, 1299}) {
          ragged_call c(s, {{1, position, 0}}, window, true);
          check_cached(c, 1300, gpu::attention_path::decode, on);
        }
        for (const int rows : {2, 16}) {
          std::vector<sequence_rows> runs;
          for (int r = 0; r < rows; ++r) runs.push_back({1, (r * 37) % 40, 40LL * r});
          ragged_call c(s, runs, window, true);
          check_cached(c, 40LL * rows, gpu::attention_path::decode, on);
        }
      }
}
TEST_CASE("gpu attention with a soft cap and sinks: long caches, many chunks, and more thread blocks than fit") {
  if (no_gpu()) return;
  for (const shape& s : with_options({{64, 8, 4}, {80, 8, 4}, {96, 8, 4}, {128, 8, 4}, {256, 8, 4}})) {
    ragged_call two(s, {{1, 4095, 0}, {1, 3000, 4096}}, 0, true);
    check_cached(two, 7100, gpu::attention_path::decode);
    if (s.head > gpu::max_split_kv_head) continue;
    std::vector<sequence_rows> runs;
    for (int r = 0; r < 64; ++r) runs.push_back({1, (r * 37) % 300, 300LL * r});
    ragged_call many({s.head, 16, 8, s.soft_cap, s.sinks}, runs, 0, true);
    REQUIRE(gpu::choose_attention(many.size(true), sm_90).small);
    check_cached(many, 300LL * 64, gpu::attention_path::decode);
  }
}
// Small cases of every kind, for compute-sanitizer.
const std::vector<shape> small_shapes{{64, 2, 1},
                                      {80, 2, 1},
                                      {96, 3, 1},
                                      {128, 4, 2},
                                      {256, 2, 1},
                                      {64, 8, 2, 1.5F, true},
                                      {128, 8, 4, 1.5F, true},
                                      {256, 8, 4, 1.5F, true}};
void check_small(const target& on) {
  for (const shape s : small_shapes) {
    ragged_call c(s, {{5}, {64}, {70}}, 40, false), step(s, {{1, 0, 0}, {1, 99, 100}, {3, 63, 200}}, 0, true),
        chunk(s, {{70, 33, 3}}, 0, true);
    check_forward(c, on);
    check_cached(step, 300, gpu::attention_path::decode, on);  // also in equal chunks
    check_cached(chunk, 300, gpu::attention_path::prefill, on);
    check_backward(c, on);
  }
}
TEST_CASE("gpu small: attention of every kind on ragged sizes") {
  if (!no_gpu()) check_small(sm_90);
}
TEST_CASE("gpu small by mma.sync: attention of every kind on ragged sizes") {
  if (!no_gpu()) check_small(sm_80);
}
