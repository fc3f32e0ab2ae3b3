// SPDX-License-Identifier: Apache-2.0
// Training checkpoints: a PEFT folder with optimizer.safetensors, which holds AdamW's state and AdaLoRA's. A checkpoint
// replaces the folder atomically and preserves other files in it; a resumed run continues with the same bits.
#pragma once
#include <graft/io/atomic_folder.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/io/safetensors/optimizer_state.h>
#include <graft/model/trainer.h>

namespace graft::io::hf {

namespace detail {
template <class Engine> std::vector<tensor_view> state_tensors(trainer<Engine>& t, const std::int64_t& step) {
  std::vector<tensor_view> all = optimizer_tensors(t.optimizer(), step);
  if (t.ranks())
    for (const auto& [name, values] : t.ranks()->state())
      all.push_back({"adalora." + name, safetensors_type::f32, {values.size()}, std::as_bytes(values)});
  return all;
}
}  // namespace detail

template <class Engine>
status save_checkpoint(const std::string& folder, const loaded_adapters& adapters, trainer<Engine>& t) {
  return guarded(folder, [&]() -> status {
    const result<std::string> target = parent_folder(folder);
    if (!target) return target.failure();
    const write_observer none;
    const folder_to_remove temporary{temporary_name(*target), none};
    if (status s = t.fetch(); !s) return s;
    if (status s = save_adapters(temporary.name, adapters); !s) return s;
    const std::int64_t step = t.optimizer().steps();
    const std::string file = temporary.name + "/optimizer.safetensors";
    if (status s = write_safetensors(file, detail::state_tensors(t, step)); !s) return s;
    return swap_into_place(temporary.name, *target, none);
  });
}

// Restores a checkpoint. `t` must have been made for the same model, adapters and settings; its adapters must be the
// active adapters of `model`.
template <class Engine>
status resume(const std::string& folder, causal_lm<Engine>& model, trainer<Engine>& t,
              const method_table& methods = built_in_methods()) {
  return guarded(folder, [&]() -> status {
    const result<loaded_adapters> from = load_adapters(folder, model, methods);
    if (!from) return from.failure();
    const result<safetensors> state = read_safetensors(folder + "/optimizer.safetensors");
    if (!state) return state.failure();
    safetensors optimizer = *state;
    std::erase_if(optimizer.tensors, [](const tensor_view& v) { return v.name.starts_with("adalora."); });
    std::map<std::string, std::span<float>> ranks;
    if (t.ranks())
      for (const auto& [name, values] : t.ranks()->state()) ranks["adalora." + name] = values;
    for (const auto& [name, to] : ranks) {
      const result<tensor_view> v = state->find(name);
      if (!v) return v.failure();
      if (v->type != safetensors_type::f32 || v->data.size() != to.size_bytes())
        return fail_in(state->file, "tensor ", in_quotes(name), " is ", shape_text(v->shape), ", expected [",
                       number(to.size()), "]");
    }
    std::vector<std::pair<const adapter_tensor*, const adapter_tensor*>> copies;
    for (const module_adapter& m : model.adapters().modules) {
      const module_adapter* other = from->set.find(m.module);
      if (other == nullptr) return fail_in(folder, "does not adapt ", in_quotes(m.module), ", which is trained here");
      for (const auto& [mine, theirs] : {std::pair{&m.tensors, &other->tensors}, {&m.base, &other->base}})
        for (const auto& [name, to] : *mine) {
          const auto at = theirs->find(name);
          if (at == theirs->end() || at->second.shape != to.shape)
            return fail_in(folder, in_quotes(m.module), ": ", in_quotes(name), " is not what is trained here");
          copies.emplace_back(&at->second, &to);
        }
    }
    if (status s = read_optimizer(optimizer, t.optimizer()); !s) return s;
    for (const auto& [name, to] : ranks)
      if (!to.empty()) std::memcpy(to.data(), state->find(name)->data.data(), to.size_bytes());
    for (const auto& [theirs, mine] : copies)
      std::copy(theirs->data->begin(), theirs->data->end(), mine->data->begin());
    return t.restore_device_state();
  });
}

}  // namespace graft::io::hf
