// SPDX-License-Identifier: Apache-2.0
// Where the values of a call lie: one piece of device memory for all of them, in which a value takes the place of those
// that no later launch reads, and so does the scratch memory of a launch. All plans of a layer share it, since they run one
// after the other, and so do all plans of a model; it is laid out for the largest call of any.
#pragma once
#include <graft/backend/cuda/memory.h>
#include <graft/core/few_numbers.h>
#include <graft/plan/plan.h>

#include <initializer_list>

namespace graft::cuda {

struct normed_result {
  const void *result = nullptr, *gain = nullptr;
  long long rows = 0;
};
// What all plans of a model share, or those of a layer, whose memory stays where it is: a caller may have captured them.
struct call_room {
  explicit call_room(common_memory::growth how) : values(how) {}
  common_memory values;
  // What the last plan made of its result for the norm that the next one begins with: result ⊙ gain, and sums of squares
  // behind it (stream_norm.cuh). Every plan that runs takes it away.
  common_memory normed_rows;
  normed_result normed{};
};

class call_memory {
 public:
  static constexpr int between_calls = -1;
  void lie_in(common_memory* room) { memory_ = room; }
  struct value {
    int launch;  // that writes it
    id what;     // none: scratch memory of the launch, or of what is computed between calls
    long long bytes;
  };
  // `written`: in the order of the launches; `workspace`: bytes that all of them use. Nothing moves where all fits.
  status reserve(const graph& g, const plan& p, const sequence<value>& written, long long workspace) {
    sequence<int> dies(g.size, -1);
    for (int l = 0; l < p.launches.size(); ++l) each_read(g, p, l, [&](id i) { dies[i] = larger_of(dies[i], l); });
    for (int k = 0; k < g.outs; ++k) dies[unshaped(g, g.out[k].at)] = p.launches.size();
    const place always{none_id, between_calls, memory_->unbroken(0, aligned(workspace)), aligned(workspace),
                       p.launches.size()};
    sequence<place> all(1, always), live(1, always);
    long long total = always.at + always.bytes;
    for (const value& v : written) {
      for (int k = live.size() - 1; k >= 0; --k)
        if (live[k].dies < v.launch) live[k] = live.back(), live.pop();
      place b{v.what, v.launch, 0, aligned(larger_of(1LL, v.bytes)), v.launch};
      if (v.what >= 0) b.dies = larger_of(v.launch, dies[v.what]);
      for (long long before = -1; before != b.at;) {  // the first gap that is wide enough
        before = b.at;
        for (const place& other : live)
          if (b.at < other.at + other.bytes && other.at < b.at + b.bytes) b.at = other.at + other.bytes;
        b.at = memory_->unbroken(b.at, b.bytes);
      }
      live.push(b), all.push(b), total = larger_of(total, b.at + b.bytes);
    }
    if (same(all, places_) && total <= memory_->bytes()) return ok;
    if (status s = memory_->reserve(larger_of(256LL, total)); !s) return s;
    places_ = std::move(all), ++made_;
    scratch_at_ = sequence<long long>(p.launches.size() + 1, -1);
    for (int k = 1; k < places_.size(); ++k)
      if (places_[k].what < 0) scratch_at_[places_[k].launch + 1] = places_[k].at;
    return ok;
  }
  // How often addresses have changed.
  long long made() const { return made_ + (memory_ != nullptr ? memory_->moves() : 0); }
  template <class F> void each(F f) const {
    for (const place& b : places_)
      if (b.what >= 0) f(b.what, memory_->at(b.at));
  }
  void* workspace() const { return places_.empty() ? nullptr : memory_->at(places_[0].at); }
  // Of a launch; null where it needs none.
  float* scratch(int launch) const {
    const long long at = scratch_at_[launch + 1];
    return at < 0 ? nullptr : static_cast<float*>(memory_->at(at));
  }

 private:
  struct place {
    id what;
    int launch;
    long long at, bytes;
    int dies;
    friend bool operator==(const place&, const place&) = default;
  };
  static bool same(const sequence<place>& a, const sequence<place>& b) {
    bool all = a.size() == b.size();
    for (int k = 0; all && k < a.size(); ++k) all = a[k] == b[k];
    return all;
  }
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
  sequence<place> places_;          // the workspace first
  sequence<long long> scratch_at_;  // between calls, and of each launch
  long long made_ = 0;
};

}  // namespace graft::cuda
