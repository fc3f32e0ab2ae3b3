// SPDX-License-Identifier: Apache-2.0
// A graph of a block, planned once and run on the tensors of any block that is equal to it. What a block brings is its
// binding; what a call brings is filled in by place. Nothing is looked up by name or allocated per call.
#pragma once
#include <graft/backend/mode.h>
#include <graft/derive/keep.h>
#include <graft/plan/code.h>
#include <graft/run/check_ids.h>
#include <graft/run/named.h>

#include <algorithm>
#include <array>

namespace graft {

// The tensors that calls bring.
enum class call_input : unsigned char { x, dy, positions, span, labels, seed };
inline constexpr std::array<const char*, 6> call_inputs{"x", "dy", "positions", "span", "labels", "seed"};

struct block_call {
  std::array<view, call_inputs.size()> in{};
  mutable_view y{}, dx{};

  view& operator[](call_input k) { return in[static_cast<std::size_t>(k)]; }
};

template <class Engine> class block_program {
 public:
  using queue = typename Engine::queue;
  struct binding {
    typename Engine::bound::binding values;
    view state{};                    // the cache
    long long tokens = 0;            // rows of a call that there is room for; 0: as many as come
    sequence<mutable_view> outputs;  // of parameters' gradients, by place; those without memory are not wanted
  };
  // What forward keeps for backward: the outputs of the one from `first` on, leaves of the other. One memory for each.
  struct kept_places {
    int first = -1;
    sequence<id> leaf;
    int attended = -1;  // the one behind which the sums of attention's rows are kept
  };

  block_program(builder made, const target& to, kept_places kept = {})
      : made_(std::move(made)), kept_(std::move(kept)), runs_(made_, to) {
    const graph& g = runs_.value();
    for (std::size_t k = 0; k < call_inputs.size(); ++k) at_[k] = g.find(call_inputs[k]);
    state_ = g.find("cache"), y_ = g.find_output("y"), dx_ = g.find_output("dx");
  }
  const graph& value() const { return runs_.value(); }
  const typename Engine::bound& runs() const { return runs_; }
  const plan& launches() const { return runs_.launches(); }
  unsigned long long key() const { return encode(value(), launches()).key; }
  long long launched() const { return runs_.launched(); }
  long long moves() const { return runs_.moves(); }  // how often addresses that launches use have changed

  // All blocks of a program have the same sizes: they share its workspace.
  status bind(queue& q, const named_values& from, const adaptions& rules, const capacity& room, binding& b) {
    const graph& g = value();
    if (status s = sound(g); !s) return s;
    result<bound_leaves> leaves = bind_named(g, from, rules);
    if (!leaves) return leaves.failure();
    if constexpr (Engine::reads_host_memory)
      if (status s = check_index(g, leaves->sizes, leaves->leaf); !s) return s;
    if (state_ >= 0) {
      const auto found = from.tensors.find("cache");
      if (found == from.tensors.end())
        return fail("tensor 'cache' is not set, expected ", expected_shape(g, state_, leaves->sizes));
      if (found->second.type != Engine::keeps || !found->second.contiguous())
        return fail("tensor 'cache' is written by calls, expected ", name_of(Engine::keeps), ", row after row");
      if (status s = layer_state::bind_leaf(g, state_, found->second, leaves->sizes); !s) return s;
      b.state = found->second;
    }
    room_.tokens = std::max(room_.tokens, room.tokens);  // of all blocks that share this program
    if (status s = runs_.bind(q, leaves->sizes, leaves->leaf, room_, shared_); !s) return s;
    runs_.exchange(b.values);
    b.outputs = sequence<mutable_view>(g.outs);
    like_ = {}, b.tokens = room.tokens;
    return ok;
  }
  // Where the gradient of a parameter goes, from the next call on.
  status want(binding& b, const char* name, const mutable_view& to) {
    const int k = value().find_output(name);
    if (k < 0 || k == y_ || k == dx_ || (kept_.first >= 0 && k >= kept_.first))
      return fail("this block has no parameter '", name, "'");
    b.outputs[k] = to;
    return ok;
  }
  status parameters_changed(queue& q, binding& b) {
    runs_.exchange(b.values);
    status s = runs_.parameters_changed(q);
    runs_.exchange(b.values);
    return s;
  }

  // What follows from parameters alone, and another program of the same block computes too, is read there: bound again, it
  // is asked again.
  void take_known(binding& mine, const block_program& other, const binding& from) const {
    if constexpr (requires { Engine::bound::take_known(mine.values, from.values, sequence<id>{}); })
      Engine::bound::take_known(mine.values, from.values, same_nodes(other.value(), value()));
  }

  // The block behind reads what this one gives. Bound again, either of them, it is said again.
  static void followed_by(binding& mine, const block_program& next, const binding& with) {
    if constexpr (requires { next.runs_.made().follows(mine.values, with.values); })
      next.runs_.made().follows(mine.values, with.values);
  }
  // Elements of each value that calls with so many rows keep for the backward pass.
  std::vector<long long> kept_elements(const named_values& from, const adaptions& rules, long long tokens) const {
    const graph& g = value();
    std::vector<long long> all;
    result<bound_leaves> b = bind_named(g, from, rules);
    if (!b) return all;
    g.sizes.set_tokens(b->sizes, tokens);
    for (int k = 0; k < kept_count(); ++k) all.push_back(count(g, kept_node(k), b->sizes));
    if (kept_.first >= 0 && kept_.attended >= 0) {
      const node& v = g[kept_node(kept_.attended)];
      const long long sums = tokens * (g.sizes.value(v.d[3], b->sizes) / g.sizes.value(v.k[0], b->sizes));
      all[static_cast<std::size_t>(kept_.attended)] += (32 * sums + 128) / bits_of(Engine::keeps);
    }
    return all;
  }
  int kept_count() const { return kept_.first >= 0 ? value().outs - kept_.first : kept_.leaf.size(); }

  // `kept`: memory for what forward keeps, in the order of kept_elements.
  status run(queue& q, binding& b, const block_call& now, void* const* kept = nullptr) {
    runs_.exchange(b.values);
    status s = fill(b, now, kept);
    if (s) s = runs_.run(q);
    runs_.exchange(b.values);
    return s;
  }

 private:
  // What no tensors could mend.
  static status sound(const graph& g) {
    switch (g.bad.what) {
      case fault::none: return ok;
      case fault::too_many_sizes:
        return fail("the block names more than ", max_names, " sizes; use fewer adapters on it at the same time");
      case fault::name_is_taken: return fail("two tensors of the block are named '", g.bad.name, "' and differ");
      case fault::size_is_negative: return fail("size '", g.bad.name, "' is ", g.bad.number);
      case fault::not_differentiable:  // its node may be gone, since no gradient goes through it
        return fail("no gradient for what stands in line ", g.bad.line, " of the formula ", located(g, g.bad.at));
    }
    return ok;
  }
  id kept_node(int k) const { return kept_.first >= 0 ? value().out[kept_.first + k].at : kept_.leaf[k]; }
  status fill(const binding& b, const block_call& now, void* const* kept) {
    const graph& g = value();
    bool same = state_ < 0 || same_form(b.state, like_state_);
    for (std::size_t k = 0; k < now.in.size() && same; ++k) same = at_[k] < 0 || same_form(now.in[k], like_[k]);
    like_ = {};  // until this call is known to be one
    call& c = same ? runs_.this_call() : runs_.next_call();
    if (state_ >= 0) c.data[state_] = b.state;
    for (std::size_t k = 0; k < now.in.size(); ++k) {
      if (at_[k] < 0) continue;
      if (now.in[k].data == nullptr) return fail("tensor '", call_inputs[k], "' is missing in this call");
      c.data[at_[k]] = now.in[k];
    }
    if (!same)
      if (status s = measure(now, c); !s) return s;
    if (const long long n = g.sizes.tokens(c.sizes); b.tokens > 0 && n > b.tokens)
      return fail("this call has ", n, " rows, the block was bound for ", b.tokens,
                  "; bind() it with a larger capacity");
    like_ = now.in, like_state_ = b.state;
    for (int k = 0; k < c.outputs.size(); ++k) c.outputs[k] = b.outputs[k];
    for (const auto& [k, to] : {std::pair{y_, &now.y}, std::pair{dx_, &now.dx}})
      if (k >= 0) c.outputs[k] = *to;
    for (int k = 0; k < kept_count(); ++k) {
      mutable_view v{kept[k], Engine::keeps};
      const id at = kept_node(k);
      const bool one_matrix = g[at].d[0] == dim{1} && g[at].d[1] == dim{1};
      for (int axis = one_matrix ? 2 : 0; axis < 4; ++axis) v.size[v.rank++] = g.sizes.value(g[at].d[axis], c.sizes);
      if (kept_.first >= 0)
        c.outputs[kept_.first + k] = v;
      else
        c.data[at] = {v.data, v.type, {v.size[0], v.size[1], v.size[2], v.size[3]}, v.rank};
    }
    if (const int k = kept_.attended; k >= 0) {
      const long long bytes = count(g, kept_node(k), c.sizes) * bits_of(Engine::keeps) / 8;
      c.attended = kept[k];
      c.attention_sums = reinterpret_cast<float*>(static_cast<char*>(kept[k]) + (bytes + 15) / 16 * 16);
    }
    for (int k = 0; k < g.outs; ++k)
      if (const mutable_view& to = c.outputs[k]; to.data != nullptr)
        if (const long long n = count(g, g.out[k].at, c.sizes); !is_sound(to) || to.count() != n)
          return is_sound(to) ? fail("output '", g.output_name(k), "' has ", to.count(), " elements, expected ", n)
                              : wrong_view("output ", g.output_name(k), to);
    if constexpr (Engine::reads_host_memory) return check_ids(g, c);
    return ok;
  }
  // The sizes of a call of another form than the one before.
  status measure(const block_call& now, call& c) {
    const graph& g = value();
    if (state_ >= 0)
      if (status s = layer_state::bind_leaf(g, state_, c.data[state_], c.sizes); !s) return s;
    for (std::size_t k = 0; k < now.in.size(); ++k)
      if (at_[k] >= 0)
        if (status s = layer_state::bind_leaf(g, at_[k], now.in[k], c.sizes); !s) return s;
    if (status s = layer_state::check_sizes(g, c.sizes); !s) return s;
    return ok;
  }
  static bool same_form(const view& a, const view& b) {
    if (a.data == nullptr || b.data == nullptr || a.type != b.type || a.rank != b.rank) return false;
    for (int k = 0; k < a.rank; ++k)
      if (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)) return false;
    return true;
  }

  builder made_;
  kept_places kept_;
  typename Engine::bound runs_;
  typename Engine::shared shared_{};
  std::array<id, call_inputs.size()> at_{};
  id state_ = none_id;
  int y_ = -1, dx_ = -1;
  std::array<view, call_inputs.size()> like_{};  // of the last call, and its cache
  view like_state_{};
  capacity room_{};
};

}  // namespace graft
