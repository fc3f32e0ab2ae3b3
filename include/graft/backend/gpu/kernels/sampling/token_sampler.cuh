// SPDX-License-Identifier: Apache-2.0
// token_sampler: samples tokens on the device into pinned host memory, which is all that a generation step reads back.
#pragma once
#include <graft/backend/gpu/kernels/sampling/sample.cuh>
#include <graft/backend/gpu/runtime/engine_memory.cuh>

namespace graft::gpu {

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
