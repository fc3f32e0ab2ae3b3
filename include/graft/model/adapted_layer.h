// SPDX-License-Identifier: Apache-2.0
// A single layer with a set of named adapters, as a model has them (model/named_adapters.h): any methods and ranks side by
// side; one, several as PEFT computes them, or none is active; a change that cannot be made changes nothing.
//     adapted_layer<cpu::engine<float>> layer(rules_of<linear_kind>(), false, {.module = "model.layers.0.mlp.up_proj"});
//     layer.set("weight", view_of(w, out, in));
//     layer.add("sql", adapter);     layer.activate({"sql", "chat"});     layer.forward(x, y);
// Folders and combinations of a layer's adapters are in io/hf/layer_adapters.h. Training and merging go through runs().
#pragma once
#include <graft/model/named_adapters.h>
#include <graft/model/placed.h>
#include <graft/run/executor.h>

namespace graft {

struct layer_options {
  std::string module = "layer";  // where files have it
  adapter_capacity adapters{};
  chain several = chain::peft;
};

template <class Engine> class adapted_layer {
 public:
  using names = named_adapters::names;
  using queue = typename Engine::queue;

  adapted_layer(const kind_rules& kind, bool has_bias, layer_options how = {}, queue q = {})
      : kind_(kind),
        has_bias_(has_bias),
        module_(std::move(how.module)),
        runs_(capture_graphs({kind, formula_of<none>(), has_bias}), mode::fused, std::move(q)) {
    named_.room = how.adapters, named_.how = how.several;
  }
  const kind_rules& kind() const { return kind_; }
  const std::string& module() const { return module_; }
  bool has_bias() const { return has_bias_; }
  // Of several that are active, those behind the first have their place before their names: "1.lora_A.weight".
  executor<Engine>& runs() { return runs_; }

  // ---- the base, before its adapters
  status set(const char* name, const view& v) { return runs_.set(name, v); }
  status bind(const capacity& room = {}) { return runs_.bind(room); }
  status forward(const view& x, const mutable_view& y) { return runs_.forward(x, y); }

  // ---- adapters, by name
  // The one module of the set is this layer's, with its tensors in host memory. It is not active yet.
  status add(const std::string& name, adapter_set adapter) {
    const result<shared_adapter> made = checked(std::move(adapter));
    if (!made) return made.failure();
    return change([&](named_adapters& next) { return next.add(name, *made); }, *made);
  }
  // Takes its place, active or not.
  status replace(const std::string& name, adapter_set adapter) {
    const result<shared_adapter> made = checked(std::move(adapter));
    if (!made) return made.failure();
    return change([&](named_adapters& next) { return next.replace(name, *made); }, *made);
  }
  status remove(const std::string& name) {
    return change([&](named_adapters& next) { return next.remove(name); });
  }
  status rename(const std::string& from, const std::string& to) {
    return change([&](named_adapters& next) { return next.rename(from, to); });
  }
  // In this order; none is the base alone.
  status activate(const names& which) {
    return change([&](named_adapters& next) { return next.activate(which); });
  }
  names all_names() const { return named_.all(); }
  const names& active() const { return named_.active(); }
  shared_adapter find(const std::string& name) const {
    const shared_adapter* const at = named_.find(name);
    return at != nullptr ? *at : nullptr;
  }
  status enable(bool on) { return runs_.enable(on); }
  bool enabled() const { return runs_.enabled(); }
  class disabled_scope {
   public:
    explicit disabled_scope(adapted_layer& l) : layer_(&l), before_(l.enabled()), begun_(l.enable(false)) {}
    disabled_scope(const disabled_scope&) = delete;
    disabled_scope& operator=(const disabled_scope&) = delete;
    ~disabled_scope() { static_cast<void>(layer_->enable(before_)); }
    const status& begun() const { return begun_; }

   private:
    adapted_layer* layer_;
    bool before_;
    status begun_;
  };
  // The base alone, until the end of the scope.
  [[nodiscard]] disabled_scope disabled() { return disabled_scope(*this); }

 private:
  struct numbered {
    shared_adapter is;
    int number;
  };
  result<shared_adapter> checked(adapter_set adapter) const {
    if (adapter.modules.size() != 1)
      return fail("an adapter of a layer has one module, and this one has ",
                  static_cast<long long>(adapter.modules.size()));
    if (!adapter.modules[0].base.empty())
      return fail("the adapter brings tensors of the base layer itself; set() those, and add() the rest");
    adapter.modules[0].module = module_;
    return shared_adapter(std::make_shared<const adapter_set>(std::move(adapter)));
  }
  // `fresh`: an adapter that the change brings. What nobody names any more leaves the executor last.
  template <class Edit> status change(Edit edit, const shared_adapter& fresh = nullptr) {
    named_adapters next = named_;
    if (status s = edit(next); !s) return s;
    if (fresh != nullptr)
      if (status s = bring(fresh); !s) return s;
    const result<std::vector<int>> order = order_of(next);
    status s = order ? runs_.activate(*order) : status(order.failure());
    if (s) named_ = std::move(next);
    for (auto at = numbers_.begin(); at != numbers_.end();) {
      const bool gone = !named_.has(at->is) && bool(runs_.remove(at->number));
      at = gone ? numbers_.erase(at) : at + 1;
    }
    tensors_.forget_unused();
    return s;
  }
  // The numbers of what is active, in the order in which it acts; 0 is the base alone.
  result<std::vector<int>> order_of(const named_adapters& in) const {
    std::vector<shared_adapter> list;
    for (const std::string& n : in.active()) list.push_back(*in.find(n));
    if (list.empty()) return std::vector<int>{0};
    if (list.size() == 1) return std::vector<int>{number_of(list[0])};
    const result<shared_adapter> all = together(list, in.how);
    if (!all) return all.failure();
    std::vector<int> order;
    for (const module_adapter& m : (*all)->modules)
      order.push_back(number_of(list[static_cast<std::size_t>(std::stoi(m.among))]));
    return order;
  }
  int number_of(const shared_adapter& a) const {
    return std::find_if(numbers_.begin(), numbers_.end(), [&](const numbered& n) { return n.is == a; })->number;
  }
  status bring(const shared_adapter& a) {
    const module_adapter& m = a->modules[0];
    layer_formula f{kind_, m.of, has_bias_};
    if (named_.how == chain::exact) f.adapter.weight_on = nullptr;
    adapter_values values{{}, m.scalars, m.sizes};
    for (const auto& [name, t] : m.tensors) {
      const result<view> placed = tensors_.of(runs_.queued(), t.value(), dtype::f32, t.owner());
      if (!placed) return placed.failure();
      values.tensors[name] = *placed;
    }
    const result<int> number = runs_.add(capture_graphs(f));
    if (!number) return number.failure();
    if (status s = runs_.replace(*number, values); !s) return static_cast<void>(runs_.remove(*number)), s;
    numbers_.push_back({a, *number});
    return ok;
  }

  kind_rules kind_;
  bool has_bias_;
  std::string module_;
  executor<Engine> runs_;
  named_adapters named_;
  std::vector<numbered> numbers_;
  placed_tensors<Engine> tensors_;
};

}  // namespace graft
