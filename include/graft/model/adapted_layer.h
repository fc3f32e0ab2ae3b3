// SPDX-License-Identifier: Apache-2.0
// A single layer with named adapters of any methods and ranks, of which none, one or several are active (the names are
// in model/adapter_registry.h). A change that fails changes nothing.
//     adapted_layer<cpu::engine<float>> layer(rules_of<linear_kind>(), false,
//                                             {.module = "model.layers.0.mlp.up_proj"});
//     layer.set("weight", view_of(w, out, in));
//     layer.add("sql", adapter);     layer.activate({"sql", "chat"});     layer.forward(x, y);
// io/hf/layer_adapters.h loads, saves and combines a layer's adapters. Training and merging use layer_executor().
#pragma once
#include <graft/model/adapter_registry.h>
#include <graft/model/device_tensors.h>
#include <graft/run/executor.h>

namespace graft {

struct layer_options {
  std::string module = "layer";  // path of the layer in adapter files
  adapter_capacity adapters{};
  composition several = composition::peft;
};

template <class Engine> class adapted_layer {
 public:
  using names = adapter_registry::names;
  using queue = typename Engine::queue;

  adapted_layer(const kind_rules& kind, bool has_bias, layer_options options = {}, queue q = {})
      : kind_(kind),
        has_bias_(has_bias),
        module_(std::move(options.module)),
        executor_(capture_graphs({kind, formula_of<none>(), has_bias}), execution_mode::fused, std::move(q)) {
    registry_.capacity = options.adapters, registry_.rule = options.several;
  }
  adapted_layer(adapted_layer&&) noexcept = default;
  adapted_layer& operator=(adapted_layer&& o) noexcept {
    if (this == &o) return *this;  // the members' own assignments would empty a layer that is assigned to itself
    std::destroy_at(this);
    std::construct_at(this, std::move(o));
    return *this;
  }
  const kind_rules& kind() const { return kind_; }
  const std::string& module() const { return module_; }
  bool has_bias() const { return has_bias_; }
  // Tensors of the second and further active adapters are named with their position in front: "1.lora_A.weight".
  executor<Engine>& layer_executor() { return executor_; }

  // ---- The base layer, whose tensors are set before adapters are added.
  status set(const char* name, const view& v) { return executor_.set(name, v); }
  status bind(const capacity& limits = {}) { return executor_.bind(limits); }
  status forward(const view& x, const mutable_view& y) { return executor_.forward(x, y); }

  // ---- Adapters by name.
  // Adds the adapter without activating it. The set has one module, whose tensors are in host memory.
  status add(const std::string& name, adapter_set adapter) {
    const result<shared_adapter> made = checked(std::move(adapter));
    if (!made) return made.failure();
    return change([&](adapter_registry& next) { return next.add(name, *made); }, *made);
  }
  // Replaces an adapter; the new one is active if the old one is.
  status replace(const std::string& name, adapter_set adapter) {
    const result<shared_adapter> made = checked(std::move(adapter));
    if (!made) return made.failure();
    return change([&](adapter_registry& next) { return next.replace(name, *made); }, *made);
  }
  status remove(const std::string& name) {
    return change([&](adapter_registry& next) { return next.remove(name); });
  }
  status rename(const std::string& from, const std::string& to) {
    return change([&](adapter_registry& next) { return next.rename(from, to); });
  }
  // Activates adapters in this order; an empty list activates the base alone.
  status activate(const names& which) {
    return change([&](adapter_registry& next) { return next.activate(which); });
  }
  names all_names() const { return registry_.all(); }
  const names& active() const { return registry_.active(); }
  shared_adapter find(const std::string& name) const {
    const shared_adapter* const at = registry_.find(name);
    return at != nullptr ? *at : nullptr;
  }
  status enable(bool on) { return executor_.enable(on); }
  bool enabled() const { return executor_.enabled(); }
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
  // Runs the base alone until the end of the scope.
  [[nodiscard]] disabled_scope disabled() { return disabled_scope(*this); }

 private:
  result<shared_adapter> checked(adapter_set adapter) const {
    if (adapter.modules.size() != 1)
      return fail("an adapter of a layer has one module, and this one has ",
                  static_cast<long long>(adapter.modules.size()));
    if (!adapter.modules[0].base.empty())
      return fail("the adapter brings tensors of the base layer itself; set() those, and add() the rest");
    adapter.modules[0].module = module_;
    return shared_adapter(std::make_shared<const adapter_set>(std::move(adapter)));
  }
  // `fresh`: an adapter that the change adds. Adapters that no name refers to are removed from the executor at the end,
  // when none of them is active.
  template <class Edit> status change(Edit edit, const shared_adapter& fresh = nullptr) {
    adapter_registry next = registry_;
    if (status s = edit(next); !s) return s;
    if (fresh != nullptr) {
      const result<int> number = add_to_executor(fresh);
      if (!number) return number.failure();
      next.set_number(fresh, *number);
    }
    const result<std::vector<int>> order = order_of(next);
    status s = order ? executor_.activate(*order) : status(order.failure());
    if (s) std::swap(registry_, next);
    for (const int gone : next.ids_not_in(registry_)) static_cast<void>(executor_.remove(gone));
    tensors_.evict_unused();
    return s;
  }
  // Returns the executor's numbers of the active adapters, in the order in which they act; 0 is the base alone.
  result<std::vector<int>> order_of(const adapter_registry& in) const {
    std::vector<shared_adapter> list;
    for (const std::string& n : in.active()) list.push_back(*in.find(n));
    if (list.empty()) return std::vector<int>{0};
    if (list.size() == 1) return std::vector<int>{in.number_of(list[0])};
    const result<shared_adapter> all = compose_adapters(list, in.rule);
    if (!all) return all.failure();
    std::vector<int> order;
    for (const module_adapter& m : (*all)->modules)
      order.push_back(in.number_of(list[static_cast<std::size_t>(std::stoi(m.adapter_name))]));
    return order;
  }
  result<int> add_to_executor(const shared_adapter& a) {
    const module_adapter& m = a->modules[0];
    layer_formula f{kind_, m.of, has_bias_};
    if (registry_.rule == composition::exact) f.adapter.weight_with_base = nullptr;
    named_values values{{}, m.scalars, m.sizes};
    for (const auto& [name, t] : m.tensors) {
      const result<view> on_device = tensors_.of(executor_.queued(), t.value(), dtype::f32, t.owner());
      if (!on_device) return on_device.failure();
      values.tensors[name] = *on_device;
    }
    const result<int> number = executor_.add(capture_graphs(f));
    if (!number) return number.failure();
    if (status s = executor_.replace(*number, values); !s)
      return static_cast<void>(executor_.remove(*number)), s.failure();
    return *number;
  }

  kind_rules kind_;
  bool has_bias_;
  std::string module_;
  executor<Engine> executor_;
  adapter_registry registry_;
  device_tensors<Engine> tensors_;
};

}  // namespace graft
