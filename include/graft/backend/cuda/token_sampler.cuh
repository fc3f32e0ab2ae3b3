// SPDX-License-Identifier: Apache-2.0
// Tokens chosen on the device, and brought to the host: all that a step of generation reads back.
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
    return tokens_.reserve(sequences * 8);
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
  status choose(cudaStream_t stream, long long rows, sampled_rows of) {
    of.vocabulary = vocabulary_, of.seen = how_.penalty != 1 ? seen_.as<std::uint32_t>() : nullptr;
    of.tokens = static_cast<std::int64_t*>(const_cast<void*>(tokens_.data()));
    if (status s = sample<T>(stream, rows, of, how_); !s) return s;
    return check(cudaMemcpyAsync(tokens_.host(), tokens_.data(), static_cast<std::size_t>(8 * rows),
                                 cudaMemcpyDeviceToHost, stream),
                 "reading tokens");
  }
  std::int64_t token(std::size_t row) const { return static_cast<const std::int64_t*>(tokens_.host())[row]; }

 private:
  sampling_numbers how_;
  long long vocabulary_ = 0;
  buffer seen_;
  staged_memory tokens_;
};

}  // namespace graft::cuda
