// SPDX-License-Identifier: Apache-2.0
// Tokens chosen on the device, and written to the host's memory: all that a step of generation reads back.
#pragma once
#include <graft/backend/cuda/engine_memory.cuh>
#include <graft/backend/cuda/sample.cuh>

namespace graft::cuda {

template <class T> class token_sampler {
 public:
  status reserve(const sampling_numbers& how, long long vocabulary, long long sequences) {
    how_ = how, vocabulary_ = vocabulary;
    if (how.penalty != 1)
      if (status s = seen_.reserve(sequences * seen_words(vocabulary) * 4); !s) return s;
    sequences_ = sequences;
    return tokens_.reserve(2 * sequences * 8);
  }
  // A new sequence: what its prompt has said.
  status begin(cudaStream_t stream, long long sequence, std::span<const std::int64_t> prompt) {
    if (how_.penalty == 1) return ok;
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(seen_words(vocabulary_)));
    for (const std::int64_t t : prompt) bits[static_cast<std::size_t>(t / 32)] |= 1U << (t % 32);
    std::uint32_t* const to = seen_.as<std::uint32_t>() + sequence * seen_words(vocabulary_);
    if (status s = check(cudaMemcpyAsync(to, bits.data(), bits.size() * 4, cudaMemcpyHostToDevice, stream),
                         "bringing a prompt to the GPU");
        !s)
      return s;
    return check(cudaStreamSynchronize(stream), "bringing a prompt to the GPU");
  }
  // Queued; the tokens can be read when the stream has come so far.
  status choose(cudaStream_t stream, long long rows, sampled_rows of, const next_rows& next);
  // `position`: of the row that it was chosen for.
  std::int64_t token(std::size_t row, long long position) const {
    return tokens_.as<std::int64_t>()[static_cast<std::size_t>(position % 2 * sequences_) + row];
  }

 private:
  sampling_numbers how_;
  long long vocabulary_ = 0, sequences_ = 0;
  buffer seen_;
  pinned_memory tokens_;
};

// Outside the class, so that a program may compile it once (extern template).
template <class T>
status token_sampler<T>::choose(cudaStream_t stream, long long rows, sampled_rows of, const next_rows& next) {
  of.vocabulary = vocabulary_, of.seen = how_.penalty != 1 ? seen_.as<std::uint32_t>() : nullptr;
  of.tokens = tokens_.as<std::int64_t>(), of.sequences = sequences_;
  return sample<T>(stream, rows, of, how_, next);
}

}  // namespace graft::cuda
