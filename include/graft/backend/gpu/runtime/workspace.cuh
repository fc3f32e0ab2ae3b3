// SPDX-License-Identifier: Apache-2.0
// Workspace of calls: the device memory of all values that launches exchange within a call. Liveness analysis
// assigns offsets: a value or the scratch memory of a launch reuses the space of values that no later launch reads. All
// plans of a layer, or of a model, run one after the other and share the memory, which is as large as the largest call
// needs.
#pragma once
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/core/algorithm.h>
#include <graft/plan/plan.h>

#include <initializer_list>

namespace graft::gpu {

class workspace_layout {
 public:
  static constexpr int between_calls = -1;
  void use_memory(growing_buffer* memory) { memory_ = memory; }
  struct value {
    int launch;  // the launch that writes it, or between_calls
    id what;     // node that the memory belongs to; none_id for scratch memory
    long long bytes;
  };
  // Assigns offsets to the values of `written`, which is in launch order; `workspace` bytes at the beginning are shared
  // by all launches. If the layout is unchanged and fits the memory, no address changes.
  status reserve(const graph& g, const launch_plan& p, const sequence<value>& written, long long workspace) {
    sequence<int> last_use(g.size, -1);
    for (int l = 0; l < p.launches.size(); ++l) each_read(g, p, l, [&](id i) { last_use[i] = max_of(last_use[i], l); });
    for (int k = 0; k < g.outs; ++k) last_use[unshaped(g, g.out[k].at)] = p.launches.size();
    const lifetime always{none_id, between_calls, memory_->contiguous_offset(0, aligned(workspace)), aligned(workspace),
                          p.launches.size()};
    sequence<lifetime> all(1, always), live(1, always);
    long long total = always.at + always.bytes;
    for (const value& v : written) {
      for (int k = live.size() - 1; k >= 0; --k)
        if (live[k].last_use < v.launch) live[k] = live.back(), live.pop();
      lifetime b{v.what, v.launch, 0, aligned(max_of(1LL, v.bytes)), v.launch};
      if (v.what >= 0) b.last_use = max_of(v.launch, last_use[v.what]);
      for (long long before = -1; before != b.at;) {  // first fit
        before = b.at;
        for (const lifetime& other : live)
          if (b.at < other.at + other.bytes && other.at < b.at + b.bytes) b.at = other.at + other.bytes;
        b.at = memory_->contiguous_offset(b.at, b.bytes);
      }
      live.push(b), all.push(b), total = max_of(total, b.at + b.bytes);
    }
    if (same(all, lifetimes_) && total <= memory_->bytes()) return ok;
    if (status s = memory_->reserve(max_of(256LL, total)); !s) return s;
    lifetimes_ = std::move(all), ++layout_version_;
    scratch_at_ = sequence<long long>(p.launches.size() + 1, -1);
    for (int k = 1; k < lifetimes_.size(); ++k)
      if (lifetimes_[k].what < 0) scratch_at_[lifetimes_[k].launch + 1] = lifetimes_[k].at;
    return ok;
  }
  // Counts how often addresses have changed.
  long long layout_version() const { return layout_version_ + (memory_ != nullptr ? memory_->address_version() : 0); }
  template <class F> void each(F f) const {
    for (const lifetime& b : lifetimes_)
      if (b.what >= 0) f(b.what, memory_->at(b.at));
  }
  void* workspace() const { return lifetimes_.empty() ? nullptr : memory_->at(lifetimes_[0].at); }
  // Scratch memory of a launch; null if it needs none.
  float* scratch(int launch) const {
    const long long at = scratch_at_[launch + 1];
    return at < 0 ? nullptr : static_cast<float*>(memory_->at(at));
  }

 private:
  struct lifetime {
    id what;
    int launch;
    long long at, bytes;
    int last_use;
    friend bool operator==(const lifetime&, const lifetime&) = default;
  };
  static bool same(const sequence<lifetime>& a, const sequence<lifetime>& b) {
    bool all = a.size() == b.size();
    for (int k = 0; all && k < a.size(); ++k) all = a[k] == b[k];
    return all;
  }
  static long long aligned(long long bytes) { return (bytes + 255) / 256 * 256; }
  template <class F> static void each_read(const graph& g, const launch_plan& p, int index, F f) {
    const graft::launch& l = p.launches[index];
    auto read = [&](id i) {
      if (i >= 0) f(unshaped(g, i));
    };
    for (int n = l.first; n < l.first + l.count; ++n)
      for (int o = 0; o < 3; ++o) read(g[p.nodes[n]].operand(o));
    p.visit(l, [&](const auto& one) {
      if constexpr (requires { one.each_further_read(p, read); }) one.each_further_read(p, read);
    });
    p.each_wgrad(l, [&](int sum) {
      const wgrad_launch& w = p.all<wgrad_launch>()[sum];
      read(w.left), read(w.right), read(w.factor);
    });
  }

  growing_buffer* memory_ = nullptr;
  sequence<lifetime> lifetimes_;    // entry 0 is the workspace that all launches share
  sequence<long long> scratch_at_;  // offset of scratch memory: entry 0 between calls, entry k + 1 of launch k
  long long layout_version_ = 0;
};

}  // namespace graft::gpu
