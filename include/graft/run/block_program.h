// SPDX-License-Identifier: Apache-2.0
// block_program: a graph of a block, planned once and run on the tensors of any equal block. A block's binding holds
// its tensors, and a call fills in its inputs by position: nothing is looked up by name or allocated per call.
#pragma once
#include <graft/backend/mode.h>
#include <graft/derive/saved_tensors.h>
#include <graft/plan/fingerprint.h>
#include <graft/plan/fuse.h>
#include <graft/run/check_ids.h>
#include <graft/run/named_values.h>

#include <algorithm>
#include <array>

namespace graft {

// The tensors that a call brings.
enum class call_input : unsigned char { x, dy, positions, attention_range, labels, seed };
inline constexpr std::array<const char*, 6> call_inputs{"x", "dy", "positions", "attention_range", "labels", "seed"};

struct block_call {
  std::array<view, call_inputs.size()> in{};
  mutable_view y{}, dx{};

  view& operator[](call_input k) { return in[static_cast<std::size_t>(k)]; }
};

template <class Engine> class block_program {
 public:
  using queue = typename Engine::queue;
  struct binding {
    typename Engine::binding values;
    size_values sizes;               // of the tensors, without those that calls bring
    view kv_cache{};                 // [slots, 2 kv]: keys and values
    long long tokens = 0;            // capacity in rows of a call; 0: any number
    sequence<mutable_view> outputs;  // gradients of parameters, by output; those without memory are not computed
  };
  // Values that forward saves for backward: outputs from number `first` on of the forward program, leaves of the
  // backward program. Each has memory of its own.
  struct saved_slots {
    int first = -1;
    sequence<id> leaf;
    int attention_out = -1;  // number of the saved attention output, whose memory ends with the rows' log-sum-exp
  };

  block_program(builder made, const target& to, saved_slots saved = {})
      : made_(std::move(made)), saved_(std::move(saved)), program_(made_, fuse(made_, to)), call_(program_.value()) {
    const graph& g = program_.value();
    for (std::size_t k = 0; k < call_inputs.size(); ++k) at_[k] = g.find(call_inputs[k]);
    kv_cache_node_ = g.find("kv_cache"), y_ = g.find_output("y"), dx_ = g.find_output("dx");
  }
  const graph& value() const { return program_.value(); }
  const typename Engine::program& program() const { return program_; }
  const call& this_call() const { return call_; }
  const plan& launches() const { return program_.launches(); }
  unsigned long long key() const { return fingerprint_of(value(), launches()).key; }
  long long launched() const { return program_.launched(); }
  // Counts how often addresses that launches use have changed.
  long long address_version() const { return program_.address_version(); }

  // Binds the tensors of a block. All blocks of a program have equal sizes and share its workspace.
  status bind(queue& q, const named_values& from, const adapter_rules& rules, const capacity& limits, binding& b) {
    const graph& g = value();
    if (status s = check_graph(g); !s) return s;
    result<bound_leaves> leaves = bind_named(g, from, rules);
    if (!leaves) return leaves.failure();
    if constexpr (Engine::reads_host_memory)
      if (status s = check_index(g, leaves->sizes, leaves->leaf); !s) return s;
    if (kv_cache_node_ >= 0) {
      const auto found = from.tensors.find("kv_cache");
      if (found == from.tensors.end())
        return fail("tensor 'kv_cache' is not set, expected ", expected_shape(g, kv_cache_node_, leaves->sizes));
      if (found->second.type != Engine::storage_type || !found->second.contiguous())
        return fail("tensor 'kv_cache' is written by calls, expected ", name_of(Engine::storage_type), ", row-major");
      if (status s = layer_state::bind_leaf(g, kv_cache_node_, found->second, leaves->sizes); !s) return s;
      b.kv_cache = found->second;
    }
    limits_.tokens = std::max(limits_.tokens, limits.tokens);  // the largest of all blocks that share this program
    if (status s = Engine::bind(q, program_, b.values, leaves->sizes, leaves->leaf, limits_, shared_); !s) return s;
    b.sizes = leaves->sizes;
    b.outputs = sequence<mutable_view>(g.outs);
    last_inputs_ = {}, b.tokens = limits.tokens;
    return ok;
  }
  // Sets the memory that the gradient of a parameter is written to, from the next call on.
  status bind_gradient(binding& b, const char* name, const mutable_view& to) {
    const int k = value().find_output(name);
    if (k < 0 || k == y_ || k == dx_ || (saved_.first >= 0 && k >= saved_.first))
      return fail("this block has no parameter '", name, "'");
    b.outputs[k] = to;
    return ok;
  }
  status parameters_changed(queue& q, binding& b) { return Engine::parameters_changed(q, program_, b.values); }

  // Makes `mine` read values that follow from parameters alone from another program of the block, where that computes
  // them too. It must be called after each bind().
  void share_precomputed(binding& mine, const block_program& other, const binding& from) const {
    Engine::share_precomputed(program_, mine.values, other.program_, from.values);
  }

  // States that the block of `next` reads this block's output. It must be called after each bind() of either.
  static void set_next(binding& mine, const block_program& next, const binding& with) {
    Engine::follows(mine.values, next.program_, with.values);
  }
  // Gives the elements of each value that a call with so many rows saves for backward.
  std::vector<long long> saved_elements(const named_values& from, const adapter_rules& rules, long long tokens) const {
    const graph& g = value();
    std::vector<long long> all;
    result<bound_leaves> b = bind_named(g, from, rules);
    if (!b) return all;
    g.sizes.set_tokens(b->sizes, tokens);
    for (int k = 0; k < saved_count(); ++k) all.push_back(count(g, saved_node(k), b->sizes));
    if (saved_.first >= 0 && saved_.attention_out >= 0) {
      const node& v = g[saved_node(saved_.attention_out)];
      const long long sums = tokens * (g.sizes.value(v.d[3], b->sizes) / g.sizes.value(v.k[0], b->sizes));
      all[static_cast<std::size_t>(saved_.attention_out)] += (32 * sums + 128) / bits_of(Engine::storage_type);
    }
    return all;
  }
  int saved_count() const { return saved_.first >= 0 ? value().outs - saved_.first : saved_.leaf.size(); }

  // `saved` is the memory of the saved values, in the order of saved_elements().
  status run(queue& q, binding& b, const block_call& inputs, void* const* saved = nullptr) {
    if (status s = bind_call(b, inputs, saved); !s) return s;
    return Engine::run(q, program_, b.values, call_);
  }

 private:
  // Reports errors of the formula, which no tensors can repair.
  static status check_graph(const graph& g) {
    switch (g.bad.what) {
      case fault::none: return ok;
      case fault::too_many_sizes:
        return fail("the block names more than ", max_names, " sizes; use fewer adapters on it at the same time");
      case fault::name_is_taken: return fail("two tensors of the block are named '", g.bad.name, "' and differ");
      case fault::size_is_negative: return fail("size '", g.bad.name, "' is ", g.bad.number);
      case fault::not_on_experts:
        return fail("method '", g.bad.name,
                    "' does not exist on the experts of a mixture: its formula is not one of an ",
                    "expert's matrix alone", g.bad.at >= 0 ? " " : "", located(g, g.bad.at));
      case fault::not_differentiable:  // its node may be missing here, since no gradient goes through it
        return fail("no gradient for what stands in line ", g.bad.line, " of the formula ", located(g, g.bad.at));
    }
    return ok;
  }
  id saved_node(int k) const { return saved_.first >= 0 ? value().out[saved_.first + k].at : saved_.leaf[k]; }
  status bind_call(const binding& b, const block_call& inputs, void* const* saved) {
    const graph& g = value();
    bool same = kv_cache_node_ < 0 || same_layout(b.kv_cache, last_kv_cache_);
    for (std::size_t k = 0; k < inputs.in.size() && same; ++k)
      same = at_[k] < 0 || same_layout(inputs.in[k], last_inputs_[k]);
    last_inputs_ = {};  // stays empty if this call is invalid
    call& c = call_;
    if (!same) c.begin(b.sizes);
    if (kv_cache_node_ >= 0) c.data[kv_cache_node_] = b.kv_cache;
    for (std::size_t k = 0; k < inputs.in.size(); ++k) {
      if (at_[k] < 0) continue;
      if (inputs.in[k].data == nullptr) return fail("tensor '", call_inputs[k], "' is missing in this call");
      c.data[at_[k]] = inputs.in[k];
    }
    if (!same)
      if (status s = infer_sizes(inputs, c); !s) return s;
    if (const long long n = g.sizes.tokens(c.sizes); b.tokens > 0 && n > b.tokens)
      return fail("this call has ", n, " rows, the block was bound for ", b.tokens,
                  "; bind() it with a larger capacity");
    last_inputs_ = inputs.in, last_kv_cache_ = b.kv_cache;
    for (int k = 0; k < c.outputs.size(); ++k) c.outputs[k] = b.outputs[k];
    for (const auto& [k, to] : {std::pair{y_, &inputs.y}, std::pair{dx_, &inputs.dx}})
      if (k >= 0) c.outputs[k] = *to;
    for (int k = 0; k < saved_count(); ++k) {
      mutable_view v{saved[k], Engine::storage_type};
      const id at = saved_node(k);
      const bool one_matrix = g[at].d[0] == dim{1} && g[at].d[1] == dim{1};
      for (int axis = one_matrix ? 2 : 0; axis < 4; ++axis) v.size[v.rank++] = g.sizes.value(g[at].d[axis], c.sizes);
      if (saved_.first >= 0)
        c.outputs[saved_.first + k] = v;
      else
        c.data[at] = {v.data, v.type, {v.size[0], v.size[1], v.size[2], v.size[3]}, v.rank};
    }
    if (const int k = saved_.attention_out; k >= 0) {
      const long long bytes = count(g, saved_node(k), c.sizes) * bits_of(Engine::storage_type) / 8;
      c.attention_out = saved[k];
      c.attention_lse = reinterpret_cast<float*>(static_cast<char*>(saved[k]) + (bytes + 15) / 16 * 16);
    }
    for (int k = 0; k < g.outs; ++k)
      if (const mutable_view& to = c.outputs[k]; to.data != nullptr)
        if (const long long n = count(g, g.out[k].at, c.sizes); !is_valid(to) || to.count() != n)
          return is_valid(to) ? fail("output '", g.output_name(k), "' has ", to.count(), " elements, expected ", n)
                              : invalid_view("output ", g.output_name(k), to);
    if constexpr (Engine::reads_host_memory) return check_ids(g, c);
    return ok;
  }
  // Solves the sizes of a call whose shapes differ from those of the last call.
  status infer_sizes(const block_call& inputs, call& c) {
    const graph& g = value();
    if (kv_cache_node_ >= 0)
      if (status s = layer_state::bind_leaf(g, kv_cache_node_, c.data[kv_cache_node_], c.sizes); !s) return s;
    for (std::size_t k = 0; k < inputs.in.size(); ++k)
      if (at_[k] >= 0)
        if (status s = layer_state::bind_leaf(g, at_[k], inputs.in[k], c.sizes); !s) return s;
    if (status s = layer_state::check_sizes(g, c.sizes); !s) return s;
    return ok;
  }
  static bool same_layout(const view& a, const view& b) {
    if (a.data == nullptr || b.data == nullptr || a.type != b.type || a.rank != b.rank) return false;
    for (int k = 0; k < a.rank; ++k)
      if (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)) return false;
    return true;
  }

  builder made_;
  saved_slots saved_;
  typename Engine::program program_;
  call call_;
  typename Engine::shared shared_{};
  std::array<id, call_inputs.size()> at_{};
  id kv_cache_node_ = none_id;
  int y_ = -1, dx_ = -1;
  std::array<view, call_inputs.size()> last_inputs_{};  // of the last valid call
  view last_kv_cache_{};
  capacity limits_{};
};

}  // namespace graft
