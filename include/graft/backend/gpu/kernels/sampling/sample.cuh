// SPDX-License-Identifier: Apache-2.0
// Sampling: chooses the next token of each row on the device, as model/sampler.h defines it: repetition penalty,
// temperature, top-k, top-p, and one draw from a counter-based random number. token_sampler has the memory that this
// needs for a running batch.
//
// One CTA samples one row of logits [rows, vocabulary]. Phases: (1) argmax; greedy decoding ends here. (2)
// Top-k: a radix select finds the key of the k-th largest score, 8 bits of the key per pass. (3) Top-p: a radix select
// weighted by probability finds the key at which the smallest scores reach a mass of 1 - p. (4) A block-wide prefix sum
// of the remaining masses finds the token at which the drawn fraction of the total is reached; tokens count in their
// order.
//
// Deterministic: probabilities are integers in units of 2^-40 of the largest one, so that sums do not depend on their
// order. Scans and reductions are CUB's. The radix select and its histogram are our own: CUB has no block-wide select,
// its histograms count keys and add no weights, and DeviceTopK and DeviceRadixSort would be several launches per row
// instead of one for all rows.
#pragma once
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/runtime/engine_memory.cuh>
#include <graft/backend/gpu/tile/tensor.cuh>
#include <graft/core/splitmix64.h>

namespace graft::gpu {

// ---- The kernel

struct sampling_numbers {
  bool sample = false;
  float temperature = 1, penalty = 1;
  long long top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
};
// The rows that tokens are chosen for.
struct sampled_rows {
  const void* logits = nullptr;  // [rows, vocabulary]
  long long vocabulary = 0;
  const std::int64_t *positions = nullptr, *slots = nullptr;  // position and KV-cache slot of each row of the call
  const std::int64_t* last = nullptr;  // for each row of logits, the row of the call that it belongs to
  long long length = 1;                // KV-cache slots per sequence
  std::uint32_t* seen = nullptr;       // one bit per sequence and token; null: there is no penalty
  // The tokens of rows at even positions, followed by those at odd positions, so that a step does not overwrite what
  // the previous one wrote. -1: the largest logit is not finite.
  std::int64_t* tokens = nullptr;
  long long sequences = 0;  // capacity of each half of `tokens`
};
// Advances ids, positions and attention ranges of a call (model/row_batch.h) to the next token of each row.
struct next_rows {
  static constexpr int max_window_kinds = 4;
  std::int64_t *ids = nullptr, *positions = nullptr, *ranges = nullptr;  // null: nothing is written
  int rows = 0, kinds = 0, window[max_window_kinds] = {};                // 0: a row sees all of its sequence
  // One number per thread: it is read before the kernel waits for its predecessor, and written at its end.
  static constexpr int max_numbers = 1 + 3 * max_window_kinds;
  struct number {
    std::int64_t *at = nullptr, next = 0;
  };
  __device__ number next_number(long long row, int which) const {
    if (ids == nullptr || which > 3 * kinds) return {};
    if (which == 0) return {positions + row, positions[row] + 1};
    const int kind = (which - 1) / 3, part = (which - 1) % 3;
    std::int64_t* const at = ranges + (3LL * kind + part) * rows + row;
    // The first key of a row's attention range does not move until its sliding window is full.
    const bool stays = part == 0 && (window[kind] == 0 || positions[row] + 1 < window[kind]);
    return {at, *at + (stays ? 0 : 1)};
  }
};
constexpr long long seen_words(long long vocabulary) { return (vocabulary + 31) / 32; }

namespace detail {

inline constexpr int sample_threads = 1024, radix_bins = 256;
using u64 = unsigned long long;

// Maps floats to integers of the same order.
__device__ inline std::uint32_t key_of(float v) {
  const std::uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float score_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}
// The probability of a score in units of 2^-40 of that of the largest score.
__device__ inline u64 mass(float score, float most) {
  return static_cast<u64>(::exp(static_cast<double>(score - most)) * 0x1p40);
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
  // Calls f(score, token) for the tokens of this thread in ascending order, 16 bytes a load where no score changes.
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
// The candidate of an argmax: the larger key wins, of equal keys the lower token.
struct best_token {
  std::uint32_t key = 0, token = ~0U;  // keys of scores are above 0
};
struct better_token {
  __device__ best_token operator()(const best_token& a, const best_token& b) const {
    return a.key > b.key || (a.key == b.key && a.token < b.token) ? a : b;
  }
};
using block_scan = cub::BlockScan<u64, sample_threads>;
using block_argmax = cub::BlockReduce<best_token, sample_threads>;
struct sample_memory {
  u64 bins[radix_bins], wanted;
  std::uint32_t prefix;
  int chosen;
  best_token best;
  union {
    block_scan::TempStorage scan;
    block_argmax::TempStorage argmax;
  };
};
// The sum over the threads before this one, and in `all` the sum over the block.
__device__ inline u64 exclusive_scan(u64 mine, u64& all, sample_memory& m) {
  __syncthreads();  // the storage may still be in use by the scan before
  u64 before = 0;
  block_scan(m.scan).ExclusiveSum(mine, before, all);
  return before;
}
// Radix select: the key at which the sum of the weights, taken from the largest or from the smallest key, reaches
// `wanted`. On return `wanted` is the rest that elements of that key contribute.
template <class Weight>
__device__ std::uint32_t radix_select(long long n, u64& wanted, bool from_above, const Weight& weight,
                                      sample_memory& m) {
  std::uint32_t prefix = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int b = static_cast<int>(threadIdx.x); b < radix_bins; b += sample_threads) m.bins[b] = 0;
    __syncthreads();
    for (long long i = threadIdx.x; i < n; i += sample_threads) {
      std::uint32_t key = 0;
      const u64 w = weight(i, key);
      if (w != 0 && (key & mask) == prefix) atomicAdd(&m.bins[key >> shift & 255U], w);
    }
    // A thread per bin, in the order of the selection: the bin in which the running sum reaches `wanted`, or the last
    // one.
    const int order = static_cast<int>(threadIdx.x), bin = from_above ? radix_bins - 1 - order : order;
    __syncthreads();
    const u64 mine = order < radix_bins ? m.bins[bin] : 0;
    u64 all = 0;
    const u64 before = exclusive_scan(mine, all, m);
    if (order < radix_bins && before < wanted && (before + mine >= wanted || order == radix_bins - 1))
      m.prefix = prefix | static_cast<std::uint32_t>(bin) << shift, m.wanted = wanted - before;
    __syncthreads();
    prefix = m.prefix, wanted = m.wanted, mask |= 255U << shift;
  }
  return prefix;
}
// The largest score and its token; of equal scores the lowest token. NaN counts as the largest, so that it is found.
template <class Scores>
__device__ void argmax_row(const Scores& scores, long long n, float& best, int& token, sample_memory& m) {
  best_token mine;
  scores.each(n, [&](float s, std::uint32_t i) {
    const std::uint32_t key = isnan(s) ? ~0U : key_of(s + 0.0F);  // adding zero makes -0 equal to 0
    if (key > mine.key) mine = {key, i};                          // a thread meets tokens in ascending order
  });
  mine = block_argmax(m.argmax).Reduce(mine, better_token{});
  if (threadIdx.x == 0) m.best = mine;
  __syncthreads();
  best = m.best.key == ~0U ? NAN : score_of(m.best.key), token = static_cast<int>(m.best.token);
}
// The token that is drawn: `number` in [0, 1) is the fraction of the total mass before the chosen token.
template <class Scores>
__device__ int draw(const Scores& scores, long long n, float best, const sampling_numbers& settings, double number,
                    sample_memory& m) {
  std::uint32_t least = 0;
  u64 wanted = static_cast<u64>(settings.top_k), all = 0,
      stay = n;  // how many of the tokens with the smallest surviving key pass top-k
  const auto counted = [&](long long i, std::uint32_t& key) { return key = key_of(scores[i]), u64{1}; };
  if (settings.top_k > 0 && settings.top_k < n) least = radix_select(n, wanted, true, counted, m);
  const auto weighed = [&](long long i, std::uint32_t& key) {
    const float s = scores[i];
    key = key_of(s);
    return key >= least ? mass(s, best) : u64{0};
  };
  // From here on a thread has consecutive tokens, because masses are summed in token order.
  const long long each = (n + sample_threads - 1) / sample_threads, first = threadIdx.x * each,
                  end = first + each < n ? first + each : n;
  std::uint32_t key = 0;
  u64 mine = 0;
  for (long long i = first; i < end; ++i) mine += weighed(i, key);
  exclusive_scan(mine, all, m);
  if (settings.top_p < 1) {
    wanted = static_cast<u64>((1 - settings.top_p) * static_cast<double>(all)) + 1;
    least = radix_select(n, wanted, false, weighed, m);
    u64 equal = 0;
    for (long long i = first; i < end; ++i) equal += key_of(scores[i]) == least ? 1 : 0;
    const u64 gone = (wanted - 1) / mass(score_of(least), best);
    u64 equals = 0;
    const u64 before = exclusive_scan(equal, equals, m);
    stay = equals - gone > before ? equals - gone - before : 0;  // how many of the tokens of this thread pass
  }
  u64 left = stay;
  const auto kept_mass = [&](long long i) {
    const u64 w = weighed(i, key);
    if (settings.top_p < 1 && key == least) {
      if (left == 0) return u64{0};
      --left;
    }
    return w;
  };
  mine = 0;
  for (long long i = first; i < end; ++i) mine += kept_mass(i);
  u64 reached = exclusive_scan(mine, all, m);
  const auto target = static_cast<u64>(number * static_cast<double>(all));
  if (reached <= target && target < reached + mine) {
    left = stay;
    long long i = first;
    for (reached += kept_mass(i); reached <= target; reached += kept_mass(i)) ++i;
    m.chosen = static_cast<int>(i);
  }
  __syncthreads();
  return m.chosen;
}

template <class T>
__global__ void __launch_bounds__(sample_threads)
    sample_row(sampled_rows of, sampling_numbers settings, next_rows next) {
  __shared__ sample_memory m;
  // Positions, slots and row numbers are inputs of the call, so they may be read before the preceding kernel ends.
  const int thread = static_cast<int>(threadIdx.x);
  const long long n = of.vocabulary, row = of.last[blockIdx.x], sequence = of.slots[row] / of.length,
                  position = of.positions[row];
  const next_rows::number mine = thread < next_rows::max_numbers ? next.next_number(row, thread) : next_rows::number{};
  pdl_begin();
  std::uint32_t* const seen = of.seen != nullptr ? of.seen + sequence * seen_words(n) : nullptr;
  const row_scores<T> scores{static_cast<const T*>(of.logits) + blockIdx.x * n, seen, settings.penalty,
                             settings.sample ? settings.temperature : 1.0F};
  float best = 0;
  int token = 0;
  argmax_row(scores, n, best, token, m);
  if (!isfinite(best)) token = -1;
  if (settings.sample && token >= 0) {
    const std::uint64_t stream = splitmix64(settings.seed ^ splitmix64(static_cast<std::uint64_t>(sequence)));
    const std::uint64_t drawn = splitmix64(stream ^ static_cast<std::uint64_t>(position + 1));
    token = draw(scores, n, best, settings, static_cast<double>(drawn >> 11U) * 0x1p-53, m);
  }
  if (mine.at != nullptr) *mine.at = mine.next;
  if (thread != 0) return;
  of.tokens[position % 2 * of.sequences + blockIdx.x] = token;
  if (next.ids != nullptr) next.ids[row] = token < 0 ? 0 : token;
  if (seen != nullptr && token >= 0) seen[token / 32] |= 1U << (token % 32);
}

}  // namespace detail

template <class T>
status sample_tokens(cudaStream_t stream, long long rows, const sampled_rows& of, const sampling_numbers& settings,
                     const next_rows& next = {}) {
  if (rows == 0) return ok;
  return launch_pdl(stream, &detail::sample_row<T>, static_cast<unsigned>(rows), detail::sample_threads,
                    "choosing tokens", of, settings, next);
}

// ---- Its memory

// token_sampler: samples tokens on the device into pinned host memory, which is all that a generation step reads back.

template <class T> class token_sampler {
 public:
  status reserve(const sampling_numbers& settings, long long vocabulary, long long sequences) {
    settings_ = settings, vocabulary_ = vocabulary;
    if (settings.penalty != 1)
      if (status s = seen_.reserve(sequences * seen_words(vocabulary) * 4); !s) return s;
    sequences_ = sequences;
    return tokens_.reserve(2 * sequences * 8);
  }
  // Starts a sequence: marks the tokens of its prompt for the repetition penalty.
  status begin(cudaStream_t stream, long long sequence, std::span<const std::int64_t> prompt) {
    if (settings_.penalty == 1) return ok;
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(seen_words(vocabulary_)));
    for (const std::int64_t t : prompt) bits[static_cast<std::size_t>(t / 32)] |= 1U << (t % 32);
    std::uint32_t* const to = seen_.as<std::uint32_t>() + sequence * seen_words(vocabulary_);
    if (status s = check(cudaMemcpyAsync(to, bits.data(), bits.size() * 4, cudaMemcpyHostToDevice, stream),
                         "bringing a prompt to the GPU");
        !s)
      return s;
    return check(cudaStreamSynchronize(stream), "bringing a prompt to the GPU");
  }
  // Queues the kernel; token() may be called once the stream has passed it.
  status choose(cudaStream_t stream, long long rows, sampled_rows of, const next_rows& next);
  // `position` is that of the row which the token was chosen for.
  std::int64_t token(std::size_t row, long long position) const {
    return tokens_.as<std::int64_t>()[static_cast<std::size_t>(position % 2 * sequences_) + row];
  }

 private:
  sampling_numbers settings_;
  long long vocabulary_ = 0, sequences_ = 0;
  buffer seen_;
  pinned_memory tokens_;
};

// Defined outside the class so that an extern template declaration can keep programs from compiling it again.
template <class T>
status token_sampler<T>::choose(cudaStream_t stream, long long rows, sampled_rows of, const next_rows& next) {
  of.vocabulary = vocabulary_, of.seen = settings_.penalty != 1 ? seen_.as<std::uint32_t>() : nullptr;
  of.tokens = tokens_.as<std::int64_t>(), of.sequences = sequences_;
  return sample_tokens<T>(stream, rows, of, settings_, next);
}

}  // namespace graft::gpu
