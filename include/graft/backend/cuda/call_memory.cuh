// SPDX-License-Identifier: Apache-2.0
// Where the values of a call lie: one piece of device memory for all of them, in which a value takes the place of those
// that no later launch reads. The layers that share a plan share it, since they run one after the other, and so do all
// plans of a model; it is laid out for the largest call of any, and whoever holds an address asks whether it is still the
// same memory.
#pragma once
#include <graft/backend/cuda/memory.h>
#include <graft/plan/plan.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace graft::cuda {

struct normed_result {
  const void *result = nullptr, *gain = nullptr;
  long long rows = 0;
};
// What all plans of a model share; a layer has its own, which stays where it is while the layer is captured.
struct call_room {
  common_memory values, workspace;
  // What the last plan made of its result for the norm that the next one begins with: result ⊙ gain, and sums of squares
  // behind it (stream_norm.cuh). Every plan that runs takes it away.
  common_memory normed_rows;
  normed_result normed{};
};

class call_memory {
 public:
  void lie_in(common_memory* room) { memory_ = room; }
  struct value {
    int launch;  // that writes it
    id what;
    long long bytes;
  };
  // `written`: in the order of the launches; `scratch`: of the launch that needs most. Nothing moves where all fits.
  status reserve(const graph& g, const plan& p, const std::vector<value>& written, long long scratch) {
    std::vector<int> dies(static_cast<std::size_t>(g.size), -1);
    for (int l = 0; l < p.launches.size(); ++l)
      each_read(g, p, l,
                [&](id i) { dies[static_cast<std::size_t>(i)] = std::max(dies[static_cast<std::size_t>(i)], l); });
    for (int k = 0; k < g.outs; ++k) dies[static_cast<std::size_t>(unshaped(g, g.out[k].at))] = p.launches.size();
    std::vector<place> all, live;
    long long total = 0;
    for (const value& v : written) {
      std::erase_if(live, [&](const place& b) { return b.dies < v.launch; });
      place b{v.what, 0, aligned(v.bytes), std::max(v.launch, dies[static_cast<std::size_t>(v.what)])};
      for (const place& other : live)  // in the order of their places: the first gap that is wide enough
        if (b.at + b.bytes > other.at)
          b.at = std::max(b.at, other.at + other.bytes);
        else
          break;
      live.insert(
          std::upper_bound(live.begin(), live.end(), b, [](const place& x, const place& y) { return x.at < y.at; }), b);
      all.push_back(b), total = std::max(total, b.at + b.bytes);
    }
    if (all == values_ && total == scratch_at_ && total + scratch <= memory_->bytes()) return ok;
    if (status s = memory_->reserve(std::max(256LL, total + scratch)); !s) return s;
    values_ = std::move(all), scratch_at_ = total, ++made_;
    return ok;
  }
  // How often addresses have changed.
  long long made() const { return made_ + (memory_ != nullptr ? memory_->moves() : 0); }
  template <class F> void each(F f) const {
    for (const place& b : values_) f(b.what, static_cast<void*>(static_cast<char*>(memory_->data()) + b.at));
  }
  float* scratch() const { return reinterpret_cast<float*>(static_cast<char*>(memory_->data()) + scratch_at_); }

 private:
  struct place {
    id what;
    long long at, bytes;
    int dies;
    friend bool operator==(const place&, const place&) = default;
  };
  static long long aligned(long long bytes) { return (bytes + 255) / 256 * 256; }
  template <class F> static void each_read(const graph& g, const plan& p, int index, F f) {
    const graft::launch& l = p.launches[index];
    auto read = [&](id i) {
      if (i >= 0) f(unshaped(g, i));
    };
    for (int n = l.first; n < l.first + l.count; ++n)
      for (int o = 0; o < 3; ++o) read(g[p.nodes[n]].operand(o));
    for (int k = 0; l.product >= 0 && k <= l.together; ++k)
      read(p.products[l.product + k].x), read(p.products[l.product + k].residual);
    for (const int sum : {l.sum, l.beside[0], l.beside[1], l.summed[0], l.summed[1]})
      if (sum >= 0) read(p.sums[sum].left), read(p.sums[sum].right), read(p.sums[sum].factor);
  }

  common_memory* memory_ = nullptr;
  std::vector<place> values_;
  long long scratch_at_ = 0, made_ = 0;
};

}  // namespace graft::cuda
