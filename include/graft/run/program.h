// SPDX-License-Identifier: Apache-2.0
// program: a graph planned once for an engine, with the call that is filled in and run next. Layers, blocks and models
// run everything through it. binding: the tensors of one of the layers or blocks that share a program. pass: a program
// with a binding, which is what a layer or a block is run by for one purpose.
//
// A call whose shapes are those of the last one only sets addresses: nothing is looked up by name or allocated.
#pragma once
#include <graft/backend/execution_mode.h>
#include <graft/derive/saved_tensors.h>
#include <graft/graph/rules_experts.h>
#include <graft/plan/fingerprint.h>
#include <graft/plan/fuse.h>
#include <graft/run/check_ids.h>
#include <graft/run/layer_state.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace graft {

// The tensors that a call brings. A layer has x and dy.
enum class call_input : unsigned char { x, dy, positions, attention_range, labels, seed, row_weights, router_gradient };
inline constexpr std::array<const char*, 8> call_inputs{"x",
                                                        "dy",
                                                        "positions",
                                                        "attention_range",
                                                        "labels",
                                                        "seed",
                                                        router_loss_names::row_weights,
                                                        router_loss_names::sums_gradient};

struct call_tensors {
  std::array<view, call_inputs.size()> in{};

  view& operator[](call_input k) { return in[static_cast<std::size_t>(k)]; }
  const view& operator[](call_input k) const { return in[static_cast<std::size_t>(k)]; }
};
struct block_call : call_tensors {
  mutable_view y{}, dx{};
  mutable_view router_counts{}, router_sums{};  // outputs of a block with the auxiliary router loss
};

template <class Engine> struct binding {
  typename Engine::binding values{};
  size_values sizes{};             // sizes of bound tensors, without those that calls bring
  view kv_cache{};                 // KV cache of a block: [slots, 2 kv], keys and values
  long long tokens = 0;            // capacity in rows of a call; 0: any number
  sequence<mutable_view> outputs;  // gradients of parameters of a block; those without memory are not computed
};

// Values that forward saves for backward: outputs from number `first` on of the forward program, leaves of the backward
// program. Each has memory of its own.
struct saved_slots {
  int first = -1;
  sequence<id> leaf;
  int attention_out = -1;       // number of the saved attention output, whose memory ends with the rows' log-sum-exp
  sequence<bool> is_routing{};  // routing tables are saved in the compute type
};

template <class Engine> class program {
 public:
  using queue = typename Engine::queue;

  // The graph of a layer, which the caller keeps.
  program(const graph& g, launch_plan p) : runs_(g, std::move(p)), now_(g) { find_inputs(); }
  // The graph of a block.
  program(builder made, const target& to, saved_slots saved = {})
      : made_(std::move(made)),
        saved_(std::move(saved)),
        runs_(made_, fuse(made_, to)),
        now_(runs_.value()),
        of_block_(true) {
    find_inputs();
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  [[gnu::cold, gnu::noinline]] ~program() = default;  // compiled once, not at every point of destruction

  const graph& value() const { return runs_.value(); }
  const launch_plan& launches() const { return runs_.launches(); }
  const typename Engine::program& engine_program() const { return runs_; }
  const program_call& this_call() const { return now_; }
  unsigned long long key() const { return fingerprint_of(value(), launches()).key; }
  long long launched() const { return runs_.launched(); }
  // Counts how often addresses that launches use have changed.
  long long address_version() const { return runs_.address_version(); }

  // Binds the tensors of a layer or block. All that share a program have equal sizes and share its workspace.
  [[gnu::cold]] status bind(queue& q, const bound_leaves& leaves, const capacity& limits,
                            typename Engine::shared& shared, binding<Engine>& b) {
    if constexpr (Engine::reads_host_memory)
      if (status s = check_index(value(), leaves.sizes, leaves.leaf); !s) return s;
    largest_.tokens = std::max(largest_.tokens, limits.tokens), largest_.rank = limits.rank;
    if (status s = Engine::bind(q, runs_, b.values, leaves.sizes, leaves.leaf, largest_, shared); !s) return s;
    b.sizes = leaves.sizes, b.tokens = limits.tokens, b.outputs = sequence<mutable_view>(value().outs);
    has_layout_ = false;
    return ok;
  }
  status parameters_changed(queue& q, binding<Engine>& b) { return Engine::parameters_changed(q, runs_, b.values); }
  status weight_changed(queue& q, binding<Engine>& b) { return Engine::weight_changed(q, runs_, b.values); }
  // Makes `mine` read values that follow from parameters alone from another program of the layer or block, which runs
  // first. It must be called after each bind().
  void share_precomputed(binding<Engine>& mine, const program& other, const binding<Engine>& from) const {
    Engine::share_precomputed(runs_, mine.values, other.runs_, from.values);
  }

  // Begins a call with its tensors, and for a backward pass of a layer with the values that forward saved, as many as
  // the graph reads.
  status begin(const binding<Engine>& b, const call_tensors& with, const leaf_views& saved = {}) {
    const graph& g = value();
    const bool same = has_layout_ && has_last_layout(b, with);
    has_layout_ = false;  // stays so if this call is invalid
    if (same)
      for (mutable_view& v : now_.outputs) v = {};
    else
      now_.begin(b.sizes);
    const auto bring = [&](id at, const view& v) -> status {
      if (at < 0) return ok;
      now_.data[at] = v;
      return same ? status(ok) : layer_state::bind_leaf(g, at, v, now_.sizes);
    };
    if (status s = bring(kv_cache_, b.kv_cache); !s) return s;
    for (std::size_t k = 0; k < at_.size(); ++k)
      if (status s = bring(at_[k], with.in[k]); !s) return s;
    for (int k = 0; k < saved_leaves_.size(); ++k)
      if (status s = bring(saved_leaves_[k], saved[k]); !s) return s;
    if (!same)
      if (status s = layer_state::check_sizes(g, now_.sizes); !s) return s;
    const long long n = g.sizes.tokens(now_.sizes);
    if (b.tokens > 0 && n > b.tokens)
      return fail(of_block_ ? "this call" : "x", " has ", n, " rows, the ", of_block_ ? "block" : "layer",
                  " was bound for ", b.tokens, "; bind() it with a larger capacity");
    if (!same && with[call_input::x].count() > large_input && !layer_state::fits_memory(g, now_.sizes))
      return fail("x has ", n, " rows, with which a value of this layer is more than any memory holds");
    last_ = with.in, last_kv_cache_ = b.kv_cache, has_layout_ = true;
    if constexpr (Engine::reads_host_memory) return check_ids(g, now_);
    return ok;  // indices in device memory are not checked, as in other kernel libraries
  }
  // Counts the elements of an output of this call.
  long long elements(int output) const { return element_count(value(), value().out[output].at, now_.sizes); }
  // Requests an output of a layer. An output without memory is not computed.
  status request_output(int output, const mutable_view& to);
  // Computes a requested output into other memory instead.
  void redirect_output(int output, const mutable_view& to) { now_.outputs[output] = to; }
  status run(queue& q, binding<Engine>& b) { return Engine::run(q, runs_, b.values, now_); }

  // ---- Blocks
  // Sets the memory that the gradient of a parameter is written to, from the next call on.
  status bind_gradient(binding<Engine>& b, const char* name, const mutable_view& to) const {
    const int k = value().find_output(name);
    if (k < 0 || k == y_ || k == dx_ || k == router_counts_ || k == router_sums_ ||
        (saved_.first >= 0 && k >= saved_.first))
      return fail("this block has no parameter '", name, "'");
    b.outputs[k] = to;
    return ok;
  }
  id kv_cache() const { return kv_cache_; }
  int saved_count() const { return saved_.first >= 0 ? value().outs - saved_.first : saved_.leaf.size(); }
  // Gives the size of each value that a call with so many rows saves for backward, in elements of the storage type.
  std::vector<long long> saved_elements(size_values sizes, long long tokens) const {
    const graph& g = value();
    std::vector<long long> all;
    g.sizes.set_tokens(sizes, tokens);
    for (int k = 0; k < saved_count(); ++k)
      all.push_back(element_count(g, saved_node(k), sizes) * bits_of(saved_type(k)) / bits_of(Engine::storage_type));
    if (saved_.first >= 0 && saved_.attention_out >= 0) {
      const node& v = g[saved_node(saved_.attention_out)];
      const long long sums = tokens * (g.sizes.value(v.d[3], sizes) / g.sizes.value(v.k[0], sizes));
      all[static_cast<std::size_t>(saved_.attention_out)] += (32 * sums + 128) / bits_of(Engine::storage_type);
    }
    return all;
  }
  // Runs a block. `saved` is the memory of the saved values, in the order of saved_elements().
  status run(queue& q, binding<Engine>& b, const block_call& with, void* const* saved) {
    for (std::size_t k = 0; k < at_.size(); ++k)
      if (at_[k] >= 0 && with.in[k].data == nullptr)
        return has_layout_ = false, fail("tensor '", call_inputs[k], "' is missing in this call");
    if (status s = begin(b, with); !s) return s;
    if (status s = set_outputs(b, with, saved); !s) return s;
    return run(q, b);
  }

 private:
  // The axes of an output that have more than one element.
  struct output_axes {
    long long size[4];
    int count = 0;
    // Returns true if a view with the right number of elements lists them in this order. Leading axes may be merged or
    // divided: [tokens, out] may be [batch, length, out] or flat, but not [out, tokens].
    bool may_be_listed_as(const mutable_view& v) const {
      output_axes given;
      for (int k = 0; k < v.rank; ++k)
        if (v.size[k] != 1) given.size[given.count++] = v.size[k];
      int mine = count;
      while (mine > 1 && given.count > 1 && size[mine - 1] == given.size[given.count - 1]) --mine, --given.count;
      return mine <= 1 || given.count <= 1;
    }
    text words() const {
      text t;
      t << '[';
      for (int k = 0; k < count; ++k) t << (k > 0 ? ", " : "") << size[k];
      t << ']';
      return t;
    }
  };
  output_axes axes_of(int output) const {
    output_axes a;
    for (const dim d : value()[value().out[output].at].d)
      if (const long long n = value().sizes.value(d, now_.sizes); n != 1) a.size[a.count++] = n;
    return a;
  }

  // With fewer elements of x no value of a layer is too large for any memory.
  static constexpr long long large_input = 1LL << 24;

  [[gnu::cold]] void find_inputs() {
    const graph& g = value();
    for (std::size_t k = 0; k < call_inputs.size(); ++k) {
      const id at = g.find(call_inputs[k]);
      at_[k] = at >= 0 && layer_state::is_call_input(g[at]) ? at : none_id;
    }
    kv_cache_ = g.find("kv_cache"), y_ = g.find_output("y"), dx_ = g.find_output("dx");
    router_counts_ = g.find_output(router_loss_names::counts), router_sums_ = g.find_output(router_loss_names::sums);
    if (!of_block_)
      for (id at; (at = g.find(saved_name(saved_leaves_.size()).c_str())) >= 0;) saved_leaves_.push(at);
  }
  bool has_last_layout(const binding<Engine>& b, const call_tensors& with) const {
    const auto as_last = [](const view& a, const view& last) {
      return a.data != nullptr && last.data != nullptr && same_layout(a, last);
    };
    bool same = kv_cache_ < 0 || as_last(b.kv_cache, last_kv_cache_);
    for (std::size_t k = 0; k < at_.size() && same; ++k) same = at_[k] < 0 || as_last(with.in[k], last_[k]);
    return same;
  }
  // Outputs may not overlap inputs or each other, because they are written while inputs are still read.
  status check_no_overlap(int output, const mutable_view& to) const {
    const graph& g = value();
    const footprint written = footprint_of(to);
    for (const id i : at_)
      if (i >= 0 && overlap(written, footprint_of(now_.data[i])))
        return fail("output '", g.output_name(output), "' overlaps tensor '", g.name(i),
                    "'; give it memory of its own");
    for (int k = 0; k < g.outs; ++k)
      if (const mutable_view& other = now_.outputs[k]; other.data != nullptr)
        if (overlap(written, footprint_of(other)))
          return fail("output '", g.output_name(output), "' overlaps output '", g.output_name(k),
                      "'; give it memory of its own");
    return ok;
  }
  dtype saved_type(int k) const { return saved_.is_routing[k] ? Engine::compute_type : Engine::storage_type; }
  id saved_node(int k) const { return saved_.first >= 0 ? value().out[saved_.first + k].at : saved_.leaf[k]; }
  // Sets where a block's call writes, and where it reads and writes saved values.
  status set_outputs(const binding<Engine>& b, const block_call& with, void* const* saved) {
    const graph& g = value();
    for (int k = 0; k < now_.outputs.size(); ++k) now_.outputs[k] = b.outputs[k];
    for (const auto& [k, to] :
         {std::pair{y_, &with.y}, std::pair{dx_, &with.dx}, std::pair{router_counts_, &with.router_counts},
          std::pair{router_sums_, &with.router_sums}})
      if (k >= 0) now_.outputs[k] = *to;
    for (int k = 0; k < saved_count(); ++k) {
      mutable_view v{saved[k], saved_type(k)};
      const id at = saved_node(k);
      const bool one_matrix = g[at].d[0] == dim{1} && g[at].d[1] == dim{1};
      for (int axis = one_matrix ? 2 : 0; axis < 4; ++axis) v.size[v.rank++] = g.sizes.value(g[at].d[axis], now_.sizes);
      if (saved_.first >= 0)
        now_.outputs[saved_.first + k] = v;
      else
        now_.data[at] = {v.data, v.type, {v.size[0], v.size[1], v.size[2], v.size[3]}, v.rank};
    }
    if (const int k = saved_.attention_out; k >= 0) {
      const long long bytes = element_count(g, saved_node(k), now_.sizes) * bits_of(Engine::storage_type) / 8;
      now_.attention_out = saved[k];
      now_.attention_lse = reinterpret_cast<float*>(static_cast<char*>(saved[k]) + (bytes + 15) / 16 * 16);
    }
    for (int k = 0; k < g.outs; ++k)
      if (const mutable_view& to = now_.outputs[k]; to.data != nullptr)
        if (const long long n = elements(k); !is_valid(to) || to.count() != n)
          return is_valid(to) ? fail("output '", g.output_name(k), "' has ", to.count(), " elements, expected ", n)
                              : invalid_view("output ", g.output_name(k), to);
    return ok;
  }

  builder made_;
  saved_slots saved_;
  typename Engine::program runs_;
  program_call now_;
  bool of_block_ = false, has_layout_ = false;
  std::array<id, call_inputs.size()> at_{};
  id kv_cache_ = none_id;
  sequence<id> saved_leaves_;  // leaves of saved tensors in a layer's backward pass
  int y_ = -1, dx_ = -1, router_counts_ = -1, router_sums_ = -1;
  std::array<view, call_inputs.size()> last_{};  // tensors of the last call, if it was valid
  view last_kv_cache_{};
  capacity largest_{};  // largest capacity of all that share this program
};

template <class Engine> status program<Engine>::request_output(int output, const mutable_view& to) {
  const graph& g = value();
  if (to.data == nullptr) return ok;
  if (!is_valid(to)) return invalid_view("output ", g.output_name(output), to);
  if (!is_floating(to.type))
    return fail("output '", g.output_name(output), "' is ", name_of(to.type), ", expected f32, f64, bf16 or f16");
  if (const long long n = elements(output); to.count() != n)
    return fail("output '", g.output_name(output), "' has ", to.count(), " elements, expected ", n);
  if (const output_axes expected = axes_of(output); !expected.may_be_listed_as(to))
    return fail("output '", g.output_name(output), "' has shape ", shape_of(to), ", expected ", expected.words());
  if (now_.outputs[output].data != nullptr)
    return fail("the gradient of '", g.output_name(output), "' was asked for twice");
  if (status s = check_no_overlap(output, to); !s) return s;
  now_.outputs[output] = to;
  return ok;
}

template <class Engine> struct pass {
  using queue = typename Engine::queue;

  std::shared_ptr<program<Engine>> in;  // null: it is not bound
  binding<Engine> with;

  bool bound() const { return in != nullptr; }
  void unbind() { with = {}, in = nullptr; }
  const graph& g() const { return in->value(); }
  status parameters_changed(queue& q) { return in->parameters_changed(q, with); }
  status weight_changed(queue& q) { return in->weight_changed(q, with); }
  status run(queue& q) { return in->run(q, with); }
};

}  // namespace graft
