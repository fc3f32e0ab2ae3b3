// SPDX-License-Identifier: Apache-2.0
// The attention kernels against the formula in float: every size of a head, ragged sequences, windows, caches with rows
// anywhere in them, one row and many; gradients; the same bits each time.
#include <doctest/doctest.h>
#include <graft/cuda.h>
#include <graft/model/rows.h>

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
  int head, heads, groups;
  int width() const { return (heads + 2 * groups) * head; }
  int kv() const { return groups * head; }
};
struct run_of_rows {
  long long tokens, position = 0, place = 0;
};

// Numbers as the device stores them, and what it stores.
struct tensor_of {
  std::vector<bf> stored;
  cuda::buffer memory;
  tensor_of(long long n, unsigned seed, float scale) : stored(static_cast<std::size_t>(n)) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> any(-scale, scale);
    for (bf& v : stored) v = __float2bfloat16(any(engine));
    put();
  }
  explicit tensor_of(long long n) : stored(static_cast<std::size_t>(n)) {  // not a number anywhere
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
  std::vector<std::int64_t> spans;
  cuda::buffer on_device;
  long long rows() const { return batch.rows(); }
  std::int64_t first(long long r) const { return spans[static_cast<std::size_t>(r)]; }
  std::int64_t end(long long r) const { return spans[static_cast<std::size_t>(rows() + r)]; }
  std::int64_t own(long long r) const { return spans[static_cast<std::size_t>(2 * rows() + r)]; }
  const long long* device_spans() const { return on_device.as<long long>(); }

  ragged_call(shape of, const std::vector<run_of_rows>& runs, int window, bool cached) : s(of) {
    static const std::vector<std::int64_t> ids(1 << 16);
    std::vector<row_run> parts;
    for (const run_of_rows& r : runs)
      parts.push_back({{ids.data(), static_cast<std::size_t>(r.tokens)}, r.position, r.place});
    batch.set(parts, {&window, 1}, cached);
    const auto* from = static_cast<const std::int64_t*>(batch.span_of(0).data);
    spans.assign(from, from + 3 * rows());
    put();
  }
  void put() {
    REQUIRE(bool(on_device.reserve(static_cast<long long>(spans.size()) * 8)));
    REQUIRE(cudaMemcpy(on_device.data(), spans.data(), spans.size() * 8, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  cuda::attention_size size(bool cached) const {
    return {dtype::bf16, rows(), s.head, s.heads, s.groups, cached, true};
  }
};

// Heads are multiples of 16: sixteen sums that do not wait for each other.
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

// Rows of keys with the values behind them, and where a head of either begins.
struct key_rows {
  const numbers& from;
  long long pitch, k, v;
  const float* key(long long row, int at) const { return from.data() + row * pitch + k + at; }
  const float* value(long long row, int at) const { return from.data() + row * pitch + v + at; }
};
// Probabilities of row r for query head h, on its span.
numbers probabilities(const ragged_call& c, const numbers& qkv, const key_rows& keys, long long r, int h) {
  const int d = c.s.head, group = h / (c.s.heads / c.s.groups) * d;
  const float* const q = qkv.data() + r * c.s.width() + h * d;
  numbers p;
  float most = -INFINITY, sum = 0;
  for (std::int64_t k = c.first(r); k < c.end(r); ++k)
    p.push_back(dot(q, keys.key(k, group), d) / std::sqrt(static_cast<float>(d))), most = std::max(most, p.back());
  for (float& v : p) v = std::exp(v - most), sum += v;
  for (float& v : p) v /= sum;
  return p;
}
numbers reference(const ragged_call& c, const numbers& qkv, const key_rows& keys) {
  const int d = c.s.head;
  numbers out(static_cast<std::size_t>(c.rows() * c.s.heads * d));
  for (long long r = 0; r < c.rows(); ++r)
    for (int h = 0; h < c.s.heads; ++h) {
      std::int64_t key = c.first(r);
      for (const float p : probabilities(c, qkv, keys, r, h))
        add(out.data() + (r * c.s.heads + h) * d, p, keys.value(key++, h / (c.s.heads / c.s.groups) * d), d);
    }
  return out;
}

const cuda::attention_kernels& kernels() {
  static const cuda::attention_kernels all = [] {
    cuda::attention_kernels k = cuda::all_attention_kernels<bf>();
    k.mma = cuda::all_mma_attention_kernels<bf>();
    return k;
  }();
  return all;
}
// As a device of this kind would run it: what sm_80 has, sm_90 has too.
cuda::attention_calls<bf> attention(const target& on) { return {kernels(), on}; }

void check_forward(ragged_call& c, const target& on = sm_90) {
  tensor_of qkv(c.rows() * c.s.width(), 3, 1.7F), out(c.rows() * c.s.heads * c.s.head),
      again(c.rows() * c.s.heads * c.s.head);
  INFO("head ", c.s.head, ", heads ", c.s.heads, " over ", c.s.groups, ", rows ", c.rows());
  for (tensor_of* to : {&out, &again})
    REQUIRE(bool(attention(on).forward(nullptr, c.size(false),
                                       {qkv.memory.data(), c.device_spans(), nullptr, 0, to->memory.data(), nullptr})));
  const numbers wide = qkv.wide();
  const key_rows keys{wide, c.s.width(), c.s.heads * c.s.head, c.s.heads * c.s.head + c.s.kv()};
  CHECK(distance(out.get(), reference(c, wide, keys)) < 4e-3);
  CHECK(same(out.get(), again.get()));
}
// What token steps leave between their parts.
struct room_of_parts {
  cuda::buffer sums, counters;
  explicit room_of_parts(const cuda::attention_size& p, const target& on) {
    REQUIRE(bool(sums.reserve(cuda::room_of_decode(p, on))));
    REQUIRE(bool(counters.reserve(cuda::counters_of_decode(p))));
    REQUIRE(cudaMemset(sums.data(), 0xff, static_cast<std::size_t>(sums.bytes())) == cudaSuccess);
    REQUIRE(cudaMemset(counters.data(), 0, static_cast<std::size_t>(counters.bytes())) == cudaSuccess);
  }
  void check_counters() const {
    std::vector<std::uint32_t> now(static_cast<std::size_t>(counters.bytes() / 4));
    REQUIRE(cudaMemcpy(now.data(), counters.data(), now.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(std::all_of(now.begin(), now.end(), [](std::uint32_t n) { return n == 0; }));
  }
};
cuda::attention_tensors step_over(const ragged_call& c, const tensor_of& qkv, const tensor_of& cache, long long places,
                                  const tensor_of& out, const room_of_parts& room) {
  return {.qkv = qkv.memory.data(),
          .spans = c.device_spans(),
          .cache = cache.memory.data(),
          .places = places,
          .out = out.memory.data(),
          .room = room.sums.data(),
          .counters = room.counters.as<std::uint32_t>()};
}
// What is chosen follows from the size of the cache that a call names: short rings, long ones, equal pieces.
constexpr long long many_places = 1LL << 40;
void check_cached(ragged_call& c, long long places, cuda::attention_way how, const target& on = sm_90) {
  tensor_of qkv(c.rows() * c.s.width(), 3, 1.7F), cache(places * 2 * c.s.kv(), 5, 1.7F);
  INFO("head ", c.s.head, ", heads ", c.s.heads, " over ", c.s.groups, ", rows ", c.rows(), ", span 0 from ",
       c.first(0), " to ", c.end(0));
  REQUIRE(cuda::choose_attention(c.size(true), on).how == how);
  const room_of_parts room(c.size(true), on);
  const std::vector<bf> given = cache.stored;
  for (long long r = 0; r < c.rows(); ++r)
    if (c.own(r) >= 0)
      std::copy_n(qkv.stored.begin() + r * c.s.width() + c.s.heads * c.s.head, 2 * c.s.kv(),
                  cache.stored.begin() + c.own(r) * 2 * c.s.kv());
  const std::vector<bf> written = cache.stored;
  const numbers expected = reference(c, qkv.wide(), {cache.wide(), 2 * c.s.kv(), 0, c.s.kv()});
  std::vector<std::pair<cuda::attention_choice, std::vector<bf>>> before;
  for (const long long named : {0LL, c.rows() * 1025, many_places, many_places}) {
    cuda::attention_size size = c.size(true);
    size.places = named;
    tensor_of out(c.rows() * c.s.heads * c.s.head);
    cache.stored = given;
    cache.put();
    REQUIRE(bool(attention(on).forward(nullptr, size, step_over(c, qkv, cache, places, out, room))));
    CHECK(distance(out.get(), expected) < 5e-3);
    CHECK(same(cache.get(), written));
    const cuda::attention_choice made = cuda::choose_attention(size, on);
    for (const auto& [choice, bits] : before)  // a longer ring changes no sum
      if (choice.parts == made.parts && choice.spread == made.spread) CHECK(same(out.get(), bits));
    before.emplace_back(made, out.get());
  }
  room.check_counters();
}
void check_backward(ragged_call& c, const target& on = sm_90, long long score_bytes = 2LL << 30) {
  const int d = c.s.head;
  const long long width = c.s.width(), keys_at = c.s.heads * d, values_at = keys_at + c.s.kv();
  tensor_of qkv(c.rows() * width, 3, 1.7F), dout(c.rows() * c.s.heads * d, 4, 1), grad(c.rows() * width),
      again(c.rows() * width), from_kept(c.rows() * width), out(c.rows() * c.s.heads * d);
  cuda::attention_size size = c.size(false);
  size.score_bytes = score_bytes;
  cuda::buffer room;
  REQUIRE(bool(room.reserve(cuda::room_of_attention_grad(size, on).bytes)));
  for (tensor_of* to : {&grad, &again})
    REQUIRE(bool(attention(on).backward(
        nullptr, size, {qkv.memory.data(), dout.memory.data(), c.device_spans(), to->memory.data(), room.data()})));
  cuda::buffer sums;  // kept from a forward pass, with what it gave
  REQUIRE(bool(sums.reserve(4 * c.rows() * c.s.heads)));
  REQUIRE(bool(attention(on).forward(
      nullptr, size, {qkv.memory.data(), c.device_spans(), nullptr, 0, out.memory.data(), sums.as<float>()})));
  REQUIRE(bool(attention(on).backward(nullptr, size,
                                      {qkv.memory.data(), dout.memory.data(), c.device_spans(), from_kept.memory.data(),
                                       room.data(), out.memory.data(), sums.as<float>()})));
  const numbers in = qkv.wide(), up = dout.wide();
  const key_rows keys{in, width, keys_at, values_at};
  numbers want(in.size());
  for (long long r = 0; r < c.rows(); ++r)
    for (int h = 0; h < c.s.heads; ++h) {
      const numbers p = probabilities(c, in, keys, r, h);
      const int group = h / (c.s.heads / c.s.groups) * d;
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
        const float ds = p[i] * (dp[i] - mean) / std::sqrt(static_cast<float>(d));
        add(want.data() + q, ds, keys.key(key, group), d);
        add(want.data() + key * width + keys_at + group, ds, in.data() + q, d);
      }
    }
  INFO("head ", d, ", heads ", c.s.heads, " over ", c.s.groups, ", rows ", c.rows());
  // Against the largest of the three: where a row looks at one key, its dQ is zero but for the rounding of O.
  const std::vector<bf> now = grad.get();
  double errors[3] = {}, norms[3] = {};
  for (long long r = 0; r < c.rows(); ++r)
    for (long long i = 0; i < width; ++i) {
      const int which = i < keys_at ? 0 : i < values_at ? 1 : 2;
      const auto at = static_cast<std::size_t>(r * width + i);
      const double v = want[at], e = __bfloat162float(now[at]) - v;
      errors[which] += e * e, norms[which] += v * v;
    }
  for (int which = 0; which < 3; ++which) {
    const double norm = c.rows() < 64 ? std::max({norms[0], norms[1], norms[2]}) : norms[which];
    CHECK(std::sqrt(errors[which] / norm) < 6e-3);
  }
  CHECK(same(grad.get(), again.get()));
  CHECK(same(grad.get(), from_kept.get()));
}

const std::vector<std::vector<run_of_rows>> ragged{
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
TEST_CASE("gpu attention: rows that look at nothing are zeros") {
  if (no_gpu()) return;
  ragged_call c({128, 2, 1}, {{200}}, 0, false);
  for (const long long r : {0, 5, 64, 150, 199}) c.spans[static_cast<std::size_t>(c.rows() + r)] = c.first(r);
  c.put();
  check_forward(c), check_backward(c);
}
TEST_CASE("gpu attention: many rows over a cache") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 4, 2}, {64, 2, 2}, {80, 2, 1}, {96, 3, 1}, {256, 2, 1}})
    for (const int window : {0, 40}) {
      ragged_call one(s, {{100, 0, 7}}, window, true),
          several(s, {{90, 33, 0}, {3, 500, 700}, {128, 0, 200}}, window, true);
      check_cached(one, 1300, cuda::attention_way::prefill);
      check_cached(several, 1300, cuda::attention_way::prefill);
    }
}
TEST_CASE("gpu attention: token steps of every length, 1 to 64 rows, and several rows of one sequence") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 8, 2}, {64, 2, 2}, {80, 7, 1}, {96, 6, 2}, {128, 8, 1}, {256, 8, 1}})
    for (const int window : {0, 100}) {
      for (const long long position : {0, 1, 63, 64, 65, 127, 700, 1299}) {
        ragged_call c(s, {{1, position, 0}}, window, true);
        check_cached(c, 1300, cuda::attention_way::decode);
      }
      for (const int rows : {2, 3, 16, 33, 64}) {
        std::vector<run_of_rows> runs;
        for (int r = 0; r < rows; ++r) runs.push_back({1, (r * 37) % 40, 40LL * r});
        ragged_call c(s, runs, window, true);
        check_cached(c, 40LL * rows, cuda::attention_way::decode);
      }
      ragged_call several(s, {{5, 60, 3}, {1, 0, 200}, {7, 121, 300}}, window, true);
      check_cached(several, 500, cuda::attention_way::decode);
    }
  ragged_call four({128, 32, 8}, {{1, 899, 0}, {1, 500, 900}, {1, 63, 1800}, {1, 1, 2700}}, 0, true);  // in six parts
  check_cached(four, 3600, cuda::attention_way::decode);
  ragged_call two({128, 32, 8}, {{1, 3999, 0}, {1, 900, 4000}}, 0, true);  // in six parts that have a processor each
  REQUIRE(cuda::choose_attention(two.size(true), sm_90).parts == 6);
  check_cached(two, 5000, cuda::attention_way::decode);
  for (const int head : {64, 80, 96, 128}) {  // more thread blocks than fit
    std::vector<run_of_rows> runs;
    for (int r = 0; r < 64; ++r) runs.push_back({1, (r * 37) % 300, 300LL * r});
    ragged_call c({head, 16, 8}, runs, 0, true);
    REQUIRE(cuda::choose_attention(c.size(true), sm_90).small);
    check_cached(c, 300LL * 64, cuda::attention_way::decode);
  }
}
TEST_CASE("gpu attention: token steps over long caches, whose rings go round many times") {
  if (no_gpu()) return;
  for (const int head : {64, 80, 96, 128, 256})
    for (const long long position : {4095, 9000}) {
      ragged_call c({head, 8, 4}, {{1, position, 0}, {1, 3000, 9001}}, 0, true);
      check_cached(c, 12100, cuda::attention_way::decode);
    }
}
// Thread blocks of eight warps, more than fit, whose rows end at any time: every head of every run.
TEST_CASE("gpu attention: many ragged rows by eight warps each, again and again") {
  if (no_gpu()) return;
  for (const auto& [rows, processors] : {std::pair{32, sm_90.processors}, {64, 300}}) {
    target wide = sm_90;  // for which so many rows are no crowd
    wide.processors = processors;
    std::vector<run_of_rows> runs;
    for (int r = 0; r < rows; ++r) runs.push_back({1, r * 2048 / rows, 2048LL * r});
    ragged_call c({128, 32, 8}, runs, 0, true);
    cuda::attention_size size = c.size(true);
    size.places = 1000LL * rows;  // what the choice is told: rows of that length are not spread
    const long long places = 2048LL * rows;
    const cuda::attention_choice how = cuda::choose_attention(size, wide);
    REQUIRE((how.parts == 1 && how.spread == 0 && !how.small && !how.long_ring));
    tensor_of qkv(rows * c.s.width(), 3, 1.7F), cache(places * 2 * c.s.kv(), 5, 1.7F);
    std::vector<bf> first;
    for (int run = 0; run < 30; ++run) {
      tensor_of out(1LL * rows * c.s.heads * c.s.head);
      cache.put();
      REQUIRE(bool(attention(wide).forward(nullptr, size,
                                           {.qkv = qkv.memory.data(),
                                            .spans = c.device_spans(),
                                            .cache = cache.memory.data(),
                                            .places = places,
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
TEST_CASE(
    "gpu attention: equal pieces of rows that end where pieces do, before and behind it, and of rows of any lengths") {
  if (no_gpu()) return;
  const auto check = [](const shape& s, const std::vector<long long>& lengths, int window = 0) {
    std::vector<run_of_rows> runs;
    long long place = 0;
    for (const long long n : lengths) runs.push_back({1, n - 1, place}), place += n;
    ragged_call c(s, runs, window, true);
    cuda::attention_size p = c.size(true);
    p.places = many_places;
    REQUIRE(cuda::choose_attention(p, sm_90).spread > 0);
    check_cached(c, place, cuda::attention_way::decode);
  };
  for (const shape s : {shape{128, 8, 2}, {64, 2, 2}, {80, 7, 1}, {96, 6, 2}, {128, 3, 3}}) {
    const long long piece = 64 * cuda::least_spread_cost;
    for (const long long n : {piece - 64, piece - 1, piece, piece + 1, 3 * piece + 65}) {
      check(s, {n});
      check(s, {1, n, 64, n + 1});
    }
    check(s, {1, 2000, 63, 64, 65, 1, 129, 500});  // one that is longer than all others
    check(s, {1500, 1, 1, 1, 1, 1, 1, 900}, 700);
    std::vector<long long> many;
    for (int r = 0; r < 64; ++r) many.push_back(1 + r * 37 % 150);
    check(s, many);
    many.resize(33);
    check(s, many);
  }
  check({128, 32, 8}, {3000, 17, 900});  // as many pieces as processors
}
TEST_CASE("gpu attention: rows of a token step that look at nothing are zeros, beside others") {
  if (no_gpu()) return;
  for (const int head : {64, 128}) {
    ragged_call c({head, 8, 2}, {{1, 700, 0}, {1, 5, 800}, {1, 64, 900}, {1, 2000, 1000}, {1, 9, 3100}}, 0, true);
    for (const long long r : {0, 2, 4}) {
      c.spans[static_cast<std::size_t>(c.rows() + r)] = c.first(r);
      if (r != 2) c.spans[static_cast<std::size_t>(2 * c.rows() + r)] = -1;  // the third one is kept all the same
    }
    c.put();
    check_cached(c, 3200, cuda::attention_way::decode);
  }
}
TEST_CASE("gpu attention: a captured token step is right for rows of other lengths") {
  if (no_gpu()) return;
  const shape s{128, 32, 8};
  const std::vector<std::vector<long long>> all{{1, 1, 1}, {2000, 64, 65}, {5, 3000, 1}, {1000, 1000, 1000}};
  ragged_call c(s, {{1, 0, 0}, {1, 0, 3000}, {1, 0, 6000}}, 0, true);
  cuda::attention_size p = c.size(true);
  p.places = many_places;
  tensor_of qkv(c.rows() * s.width(), 3, 1.7F), cache(9000LL * 2 * s.kv(), 5, 1.7F), out(c.rows() * s.heads * s.head),
      fresh(c.rows() * s.heads * s.head);
  const room_of_parts room(p, sm_90);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  const auto run = [&](const tensor_of& to) {
    return bool(attention(sm_90).forward(stream, p, step_over(c, qkv, cache, 9000, to, room)));
  };
  REQUIRE(run(out));
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(run(out));
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&step, graph, 0) == cudaSuccess);
  for (const std::vector<long long>& lengths : all) {
    for (long long r = 0; r < c.rows(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      c.spans[static_cast<std::size_t>(c.rows()) + at] = c.first(r) + lengths[at];
      c.spans[static_cast<std::size_t>(2 * c.rows()) + at] = c.first(r) + lengths[at] - 1;
    }
    c.put(), cache.put(), out.put(), fresh.put();
    REQUIRE(cudaGraphLaunch(step, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    const std::vector<bf> replayed = out.get();
    CHECK(std::none_of(replayed.begin(), replayed.end(), [](bf v) { return std::isnan(__bfloat162float(v)); }));
    REQUIRE(run(fresh));
    CHECK(same(replayed, fresh.get()));
  }
  room.check_counters();
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
TEST_CASE("gpu attention: gradients with dS in pieces, of heads and of keys") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 8, 4}, {64, 3, 3}, {80, 2, 1}})
    for (const auto& runs : std::vector<std::vector<run_of_rows>>{{{700}}, {{130}, {1}, {259}}})
      for (const int window : {0, 70})
        for (const long long tiles : {1, 2, 40}) {
          ragged_call c(s, runs, window, false);
          check_backward(c, sm_90,
                         tiles * (s.heads / s.groups) * ((c.rows() + 127) / 128) * 2 * cuda::score_tile_bytes);
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
  for (const long long r : {0, 5, 64, 150, 199}) c.spans[static_cast<std::size_t>(c.rows() + r)] = c.first(r);
  c.put();
  check_forward(c, sm_80), check_backward(c, sm_80);
}
TEST_CASE("gpu attention by mma.sync: many rows and few over a cache") {
  if (no_gpu()) return;
  for (const shape s : {shape{128, 8, 2}, {64, 2, 2}, {80, 7, 1}, {96, 6, 2}, {128, 16, 1}, {256, 8, 1}})
    for (const int window : {0, 40}) {
      ragged_call many(s, {{90, 33, 0}, {3, 500, 700}, {128, 0, 200}}, window, true),
          several(s, {{5, 60, 3}, {1, 0, 200}, {7, 121, 300}}, window, true);
      check_cached(many, 1300, cuda::attention_way::prefill, sm_80);
      check_cached(several, 500, cuda::attention_way::decode, sm_80);
      for (const long long position : {0, 1, 15, 16, 63, 64, 700, 1299}) {
        ragged_call c(s, {{1, position, 0}}, window, true);
        check_cached(c, 1300, cuda::attention_way::decode, sm_80);
      }
      for (const int rows : {2, 16, 33, 64}) {
        std::vector<run_of_rows> runs;
        for (int r = 0; r < rows; ++r) runs.push_back({1, (r * 37) % 40, 40LL * r});
        ragged_call c(s, runs, window, true);
        check_cached(c, 40LL * rows, cuda::attention_way::decode, sm_80);
      }
    }
}
// For compute-sanitizer: a few of each.
const std::vector<shape> small_shapes{{64, 2, 1}, {80, 2, 1}, {96, 3, 1}, {128, 4, 2}, {256, 2, 1}};
void check_small(const target& on) {
  for (const shape s : small_shapes) {
    ragged_call c(s, {{5}, {64}, {70}}, 40, false), step(s, {{1, 0, 0}, {1, 99, 100}, {3, 63, 200}}, 0, true),
        piece(s, {{70, 33, 3}}, 0, true);
    check_forward(c, on);
    check_cached(step, 300, cuda::attention_way::decode, on);  // in equal pieces too
    check_cached(piece, 300, cuda::attention_way::prefill, on);
    check_backward(c, on);
  }
}
TEST_CASE("gpu small: attention of every kind on ragged sizes") {
  if (!no_gpu()) check_small(sm_90);
}
TEST_CASE("gpu small by mma.sync: attention of every kind on ragged sizes") {
  if (!no_gpu()) check_small(sm_80);
}
