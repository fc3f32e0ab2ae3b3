// SPDX-License-Identifier: Apache-2.0
// The backward passes of one graph: one for every set of outputs that was asked for, made when it is asked for the first
// time. What nobody asked for is not computed.
#pragma once
#include <graft/derive/keep.h>
#include <graft/run/pass.h>

#include <cstdint>
#include <memory>

namespace graft {

// Outputs by number. A layer has few; those from the 64th on count as asked for.
class output_set {
 public:
  void add(int k) { bits_ |= k < 64 ? std::uint64_t{1} << k : 0; }
  bool operator[](int k) const { return k >= 64 || (bits_ >> k & 1) != 0; }
  bool operator==(const output_set& o) const { return bits_ == o.bits_; }

 private:
  std::uint64_t bits_ = 0;
};

template <class Engine> class backward_passes {
 public:
  // The pass for these outputs of a graph; `bind` binds one that is not bound.
  template <class Bind> result<pass<Engine>*> find(const graph& from, const output_set& asked, Bind bind) {
    for (auto& e : all_)
      if (e->asked == asked) return bound(*e, bind);
    sequence<bool> wanted;
    for (int k = 0; k < from.outs; ++k) wanted.push(asked[k]);
    all_.extend() = std::make_unique<entry>(entry{asked, asked_outputs(from, wanted), {}});
    return bound(*all_.back(), bind);
  }
  void unbind() { all_ = {}, last_ = nullptr; }
  // The one that ran last.
  const pass<Engine>* last() const { return last_; }
  void list(sequence<pass<Engine>*>& to) {
    for (auto& e : all_) to.push(&e->runs);
  }

 private:
  struct entry {
    output_set asked;
    builder made;
    pass<Engine> runs;
  };
  template <class Bind> result<pass<Engine>*> bound(entry& e, Bind bind) {
    if (!e.runs.bound())
      if (status s = bind(e.runs, graph(e.made)); !s) return s.failure();
    return last_ = &e.runs;
  }

  sequence<std::unique_ptr<entry>> all_;
  pass<Engine>* last_ = nullptr;
};

}  // namespace graft
