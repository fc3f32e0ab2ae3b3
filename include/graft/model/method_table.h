// SPDX-License-Identifier: Apache-2.0
// The table of adapter methods that a program looks up by name: the built-in ones, and its own, added in one line,
//     method_table methods;
//     methods.add<gated_lora>("GATED_LORA", "linear conv2d");
//     result<layer_graphs> g = methods.graphs("linear", "GATED_LORA", false);
// A layer's graphs are captured on first use, by the functions that the compiler evaluates for a layer type, and
// cached.
#pragma once
#include <graft/core/result.h>
#include <graft/model/methods.h>
#include <graft/run/layer_graphs.h>

#include <iterator>
#include <mutex>

namespace graft {

// Captured graphs by formula; thread-safe.
class graph_cache {
 public:
  layer_graphs of(const layer_formula& f) {
    const std::lock_guard<std::mutex> alone(mutex_);
    for (const entry* e = first_.get(); e != nullptr; e = e->next.get())
      if (same(e->graphs.from, f)) return e->graphs;
    first_ = std::make_unique<entry>(entry{capture_graphs(f), std::move(first_)});
    return first_->graphs;
  }

 private:
  static bool same(const layer_formula& a, const layer_formula& b) {
    const kind_rules &k = a.kind, &l = b.kind;
    return a.has_bias == b.has_bias && a.adapter.trains_bias == b.adapter.trains_bias &&
           a.adapter.weight == b.adapter.weight && a.adapter.bias == b.adapter.bias &&
           a.adapter.input_gradient_weight == b.adapter.input_gradient_weight && a.adapter.size == b.adapter.size &&
           same_text(a.adapter.name, b.adapter.name) && k.outputs == l.outputs && k.weight == l.weight &&
           k.matrix == l.matrix && k.stored == l.stored && k.input == l.input && k.run == l.run &&
           same_text(k.name, l.name);
  }
  struct entry {
    layer_graphs graphs;
    std::unique_ptr<entry> next;
  };
  std::mutex mutex_;
  std::unique_ptr<entry> first_;
};

class method_table {
 public:
  method_table() {
    for (const method& m : built_in()) all_.push(m);
    added_from_ = all_.size();
  }

  // `name`, which is also the peft_type in adapter files, and `kinds` must outlive the table.
  template <adapter_formula Adapter>
  status add(const char* name, const char* kinds = "linear", with_bias bias = with_bias::either) {
    if (find(name) != nullptr) return fail("there is a method '", name, "' already; give yours another name");
    all_.push(method_of<Adapter>(name, kinds, bias));
    return ok;
  }
  const method* find(const char* name) const {
    for (const method& m : all_)
      if (same_text(m.name, name)) return &m;
    return nullptr;
  }
  struct range {
    const method *first, *last;
    const method* begin() const { return first; }
    const method* end() const { return last; }
  };
  static range built_in();
  // Returns the methods that the program added.
  range added() const { return {all_.begin() + added_from_, all_.end()}; }
  const method* begin() const { return all_.begin(); }
  const method* end() const { return all_.end(); }

  result<layer_graphs> graphs(const char* kind, const char* name, bool bias) const {
    const method* const m = find(name);
    if (m == nullptr) return fail("there is no method '", name, "'; there are ", names());
    return graphs(kind, *m, bias);
  }
  result<layer_graphs> graphs(const char* kind, const method& m, bool bias) const;
  // Returns the graphs of any formula on any kind of layer, also one that the program defines.
  layer_graphs graphs(const kind_rules& kind, const formula& of, bool bias) const {
    return cache_->of({kind, of, bias});
  }

 private:
  text names() const {
    text t;
    for (const method& m : all_) t << (t.empty() ? "" : ", ") << m.name;
    return t;
  }
  sequence<method> all_;
  int added_from_ = 0;
  std::shared_ptr<graph_cache> cache_ = std::make_shared<graph_cache>();  // copies of a table share it
};

// Returns the table for programs that add no methods.
GRAFT_LIBRARY const method_table& built_in_methods();

#if GRAFT_BODIES
GRAFT_LIBRARY method_table::range method_table::built_in() {
  return {std::begin(built_in_list::all), std::end(built_in_list::all)};
}
GRAFT_LIBRARY result<layer_graphs> method_table::graphs(const char* kind, const method& m, bool bias) const {
  for (const named_kind& k : layer_kinds) {
    if (!same_text(k.rules.name, kind)) continue;
    if (!exists_on(m, kind))
      return fail("method '", m.name, "' does not exist for this kind of layer (", kind, "); it exists on ", m.kinds);
    if (!allows(k.bias, bias) || !allows(m.bias, bias))
      return fail("method '", m.name, "' does not exist on a ", kind, " layer ", bias ? "with" : "without", " a bias");
    return graphs(k.rules, m.of, bias);
  }
  text kinds;
  for (const named_kind& k : layer_kinds) kinds << (kinds.empty() ? "" : ", ") << k.rules.name;
  return fail("there is no kind of layer '", kind, "'; there are ", kinds);
}
GRAFT_LIBRARY const method_table& built_in_methods() {
  static const method_table all;
  return all;
}
#endif

}  // namespace graft
