// SPDX-License-Identifier: Apache-2.0
// The next token of each row on the device, as model/sampling.h says it: repetition penalty, temperature, top-k, top-p, a
// draw by counter. A thread block for each row. The k-th largest score and the one that top-p cuts at are found digit by
// digit of their bits; probabilities are whole numbers of 2^-40 of the largest one, so that sums have no order. The scan is
// our own because CUB's headers open a namespace ::cuda, beside which nobody could write cuda::layer any more.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/tensor.cuh>
#include <graft/core/mixed_bits.h>

namespace graft::cuda {

struct sampling_numbers {
  bool sample = false;
  float temperature = 1, penalty = 1;
  long long top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
};
// Rows that tokens are chosen for: logits [rows, vocabulary], and where each row stands.
struct sampled_rows {
  const void* logits = nullptr;
  long long vocabulary = 0;
  const std::int64_t *positions = nullptr, *places = nullptr, *last = nullptr;  // of the call; last: the rows meant
  long long length = 1;                                                         // places of a sequence in the cache
  std::uint32_t* seen = nullptr;  // a bit for each token of each sequence; null: nothing is penalised
  // Of rows at even positions, and behind them those at odd ones: a step does not write where the one before it did. -1:
  // the largest logit is not a finite number.
  std::int64_t* tokens = nullptr;
  long long sequences = 0;  // that there is room for
};
// The numbers of a call (model/rows.h) become those of the next one, a token further for each row.
struct next_rows {
  static constexpr int most_kinds = 4;
  std::int64_t *ids = nullptr, *positions = nullptr, *spans = nullptr;  // null: nothing is written
  int rows = 0, kinds = 0, window[most_kinds] = {};                     // 0: a row sees all of its sequence
  // One number for each of a few threads: they are read early, and written when this call has read them.
  static constexpr int most_numbers = 1 + 3 * most_kinds;
  struct number {
    std::int64_t *at = nullptr, next = 0;
  };
  __device__ number next_number(long long row, int which) const {
    if (ids == nullptr || which > 3 * kinds) return {};
    if (which == 0) return {positions + row, positions[row] + 1};
    const int kind = (which - 1) / 3, part = (which - 1) % 3;
    std::int64_t* const at = spans + (3LL * kind + part) * rows + row;
    // The first key that a row sees stays, until a window is full.
    const bool stays = part == 0 && (window[kind] == 0 || positions[row] + 1 < window[kind]);
    return {at, *at + (stays ? 0 : 1)};
  }
};
constexpr long long seen_words(long long vocabulary) { return (vocabulary + 31) / 32; }

namespace detail {

inline constexpr int sample_threads = 1024, digits = 256;
using whole = unsigned long long;

// Larger floats have larger keys.
__device__ inline std::uint32_t key_of(float v) {
  const std::uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float score_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}
__device__ inline whole mass(float score, float most) {
  return static_cast<whole>(::exp(static_cast<double>(score - most)) * 0x1p40);
}

template <class T> struct row_scores {
  const T* logits;
  const std::uint32_t* seen;
  float penalty, temperature;
  __device__ float operator[](long long i) const {
    float s = static_cast<float>(logits[i]);
    if (seen != nullptr && (seen[i / 32] >> (i % 32) & 1U) != 0) s = s < 0 ? s * penalty : s / penalty;
    return temperature == 1 ? s : s / temperature;
  }
  // f(score, token) for the tokens of this thread, in their order: by eights where logits are scores and lie so.
  template <class F> __device__ void each(long long n, const F& f) const {
    const auto first = static_cast<std::uint32_t>(threadIdx.x), end = static_cast<std::uint32_t>(n);
    if constexpr (sizeof(T) == 2)
      if (seen == nullptr && temperature == 1 && n % 8 == 0 && reinterpret_cast<std::uintptr_t>(logits) % 16 == 0) {
#pragma unroll 2
        for (std::uint32_t i = 8 * first; i < end; i += 8 * sample_threads) {
          const uint4 eight = *reinterpret_cast<const uint4*>(logits + i);
#pragma unroll
          for (std::uint32_t e = 0; e < 8; ++e) f(static_cast<float>(reinterpret_cast<const T*>(&eight)[e]), i + e);
        }
        return;
      }
#pragma unroll 1
    for (std::uint32_t i = first; i < end; i += sample_threads) f((*this)[i], i);
  }
};
struct sample_memory {
  whole bins[digits], wanted;
  std::uint32_t prefix, keys[32], places[32];
  int chosen;
  whole warp_sums[32];
};
// The sum of what the threads before this one bring, and of all.
__device__ inline whole before_me(whole mine, whole& all, sample_memory& m) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  whole upto = mine;
  for (int d = 1; d < 32; d *= 2) {
    const whole other = __shfl_up_sync(0xffffffffU, upto, d);
    if (lane >= d) upto += other;
  }
  __syncthreads();
  if (lane == 31) m.warp_sums[warp] = upto;
  __syncthreads();
  whole before = 0;
  all = 0;
  for (int w = 0; w < sample_threads / 32; ++w) before += w < warp ? m.warp_sums[w] : 0, all += m.warp_sums[w];
  return before + upto - mine;
}
// The key at which weights, from the largest or the smallest key on, reach `wanted`; and what is wanted of those there.
template <class Weight>
__device__ std::uint32_t find_key(long long n, whole& wanted, bool from_above, const Weight& weight, sample_memory& m) {
  std::uint32_t prefix = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int b = static_cast<int>(threadIdx.x); b < digits; b += sample_threads) m.bins[b] = 0;
    __syncthreads();
    for (long long i = threadIdx.x; i < n; i += sample_threads) {
      std::uint32_t key = 0;
      const whole w = weight(i, key);
      if (w != 0 && (key & mask) == prefix) atomicAdd(&m.bins[key >> shift & 255U], w);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int b = from_above ? digits - 1 : 0;
      for (int k = 0; k + 1 < digits && m.bins[b] < wanted; ++k) wanted -= m.bins[b], b += from_above ? -1 : 1;
      m.prefix = prefix | static_cast<std::uint32_t>(b) << shift, m.wanted = wanted;
    }
    __syncthreads();
    prefix = m.prefix, wanted = m.wanted, mask |= 255U << shift;
  }
  return prefix;
}
// The largest score; of equals the lowest token. NaN is larger than everything, so that it is found.
template <class Scores>
__device__ void find_best(const Scores& scores, long long n, float& best, int& place, sample_memory& m) {
  std::uint32_t most = 0, at = ~0U;  // keys of scores are above 0
  const auto take = [&](float s, std::uint32_t i) {
    const std::uint32_t key = isnan(s) ? ~0U : key_of(s + 0.0F);  // zeros are equal
    if (key > most) most = key, at = i;                           // a thread meets tokens in their order
  };
  scores.each(n, take);
  const auto of_warp = [&] {
    const std::uint32_t key = __reduce_max_sync(~0U, most);
    at = __reduce_min_sync(~0U, most == key ? at : ~0U), most = key;
  };
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  of_warp();
  if (lane == 0) m.keys[warp] = most, m.places[warp] = at;
  __syncthreads();
  most = m.keys[lane], at = m.places[lane];
  of_warp();
  best = most == ~0U ? NAN : score_of(most), place = static_cast<int>(at);
}
template <class Scores>
__device__ int draw(const Scores& scores, long long n, float best, const sampling_numbers& how, double number,
                    sample_memory& m) {
  std::uint32_t least = 0;
  whole wanted = static_cast<whole>(how.top_k), all = 0, stay = n;  // stay: of those at the least key
  const auto counted = [&](long long i, std::uint32_t& key) { return key = key_of(scores[i]), whole{1}; };
  if (how.top_k > 0 && how.top_k < n) least = find_key(n, wanted, true, counted, m);
  const auto weighed = [&](long long i, std::uint32_t& key) {
    const float s = scores[i];
    key = key_of(s);
    return key >= least ? mass(s, best) : whole{0};
  };
  // From here on a thread has neighbouring tokens, since they count in their order.
  const long long each = (n + sample_threads - 1) / sample_threads, first = threadIdx.x * each,
                  end = first + each < n ? first + each : n;
  std::uint32_t key = 0;
  whole mine = 0;
  for (long long i = first; i < end; ++i) mine += weighed(i, key);
  before_me(mine, all, m);
  if (how.top_p < 1) {
    wanted = static_cast<whole>((1 - how.top_p) * static_cast<double>(all)) + 1;
    least = find_key(n, wanted, false, weighed, m);
    whole equal = 0;
    for (long long i = first; i < end; ++i) equal += key_of(scores[i]) == least ? 1 : 0;
    const whole gone = (wanted - 1) / mass(score_of(least), best);
    whole equals = 0;
    const whole before = before_me(equal, equals, m);
    stay = equals - gone > before ? equals - gone - before : 0;  // of this thread's
  }
  whole left = stay;
  const auto kept = [&](long long i) {
    const whole w = weighed(i, key);
    if (how.top_p < 1 && key == least) {
      if (left == 0) return whole{0};
      --left;
    }
    return w;
  };
  mine = 0;
  for (long long i = first; i < end; ++i) mine += kept(i);
  whole reached = before_me(mine, all, m);
  const auto target = static_cast<whole>(number * static_cast<double>(all));
  if (reached <= target && target < reached + mine) {
    left = stay;
    long long i = first;
    for (reached += kept(i); reached <= target; reached += kept(i)) ++i;
    m.chosen = static_cast<int>(i);
  }
  __syncthreads();
  return m.chosen;
}

template <class T>
__global__ void __launch_bounds__(sample_threads) sample_row(sampled_rows of, sampling_numbers how, next_rows next) {
  __shared__ sample_memory m;
  // Numbers of the rows are the call's: no kernel since its beginning has written them.
  const int thread = static_cast<int>(threadIdx.x);
  const long long n = of.vocabulary, row = of.last[blockIdx.x], sequence = of.places[row] / of.length,
                  position = of.positions[row];
  const next_rows::number mine = thread < next_rows::most_numbers ? next.next_number(row, thread) : next_rows::number{};
  take_turn();
  std::uint32_t* const seen = of.seen != nullptr ? of.seen + sequence * seen_words(n) : nullptr;
  const row_scores<T> scores{static_cast<const T*>(of.logits) + blockIdx.x * n, seen, how.penalty,
                             how.sample ? how.temperature : 1.0F};
  float best = 0;
  int token = 0;
  find_best(scores, n, best, token, m);
  if (!isfinite(best)) token = -1;
  if (how.sample && token >= 0) {
    const std::uint64_t stream = mixed_bits(how.seed ^ mixed_bits(static_cast<std::uint64_t>(sequence)));
    const std::uint64_t drawn = mixed_bits(stream ^ static_cast<std::uint64_t>(position + 1));
    token = draw(scores, n, best, how, static_cast<double>(drawn >> 11U) * 0x1p-53, m);
  }
  if (mine.at != nullptr) *mine.at = mine.next;
  if (thread != 0) return;
  of.tokens[position % 2 * of.sequences + blockIdx.x] = token;
  if (next.ids != nullptr) next.ids[row] = token < 0 ? 0 : token;
  if (seen != nullptr && token >= 0) seen[token / 32] |= 1U << (token % 32);
}

}  // namespace detail

template <class T>
status sample(cudaStream_t stream, long long rows, const sampled_rows& of, const sampling_numbers& how,
              const next_rows& next = {}) {
  if (rows == 0) return ok;
  return launch_chained(stream, &detail::sample_row<T>, static_cast<unsigned>(rows), detail::sample_threads,
                        "choosing tokens", of, how, next);
}

}  // namespace graft::cuda
