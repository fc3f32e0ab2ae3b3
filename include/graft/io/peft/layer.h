// SPDX-License-Identifier: Apache-2.0
// Reads one layer of a PEFT folder: its method, its tensors under the formula's names, scalars and sizes.
// io/peft/METHOD.h describes each method; the formula determines what is read: a tensor per leaf, a number per scalar,
// and the sizes that no tensor tells. Methods that the program added are read the same way; their files may omit
// "scaling" if they state r and alpha or lora_alpha.
#pragma once
#include <graft/io/peft/adapter_config.h>
#include <graft/io/peft/layer_values.h>

namespace graft::io {

GRAFT_LIBRARY result<peft_layer> read_peft_layer(const adapter_config& c, const safetensors& f, const base_layer& b);

// Sets all tensors, scalars and sizes on an executor made for the layer's method; errors name the file and the key.
template <class Executor> status attach(Executor& to, const peft_layer& layer) {
  for (const auto& [name, value] : layer.sizes)
    if (status s = to.size(name.c_str(), value); !s) return fail_in(layer.file, s.message());
  for (const auto& [name, value] : layer.scalars)
    if (status s = to.set(name.c_str(), value); !s) return fail_in(layer.file, s.message());
  for (const auto& [name, t] : layer.tensors) {
    if (t.shape.size() > 4) return fail_in(layer.file, "tensor ", in_quotes(t.key), " has more than 4 dimensions");
    view v{t.data.data(), dtype::f32, {1, 1, 1, 1}, static_cast<int>(t.shape.size())};
    if (!t.indices.empty()) v.data = t.indices.data(), v.type = dtype::i64;
    for (std::size_t k = 0; k < t.shape.size(); ++k) v.size[k] = t.shape[k];
    if (status s = to.set(name.c_str(), v); !s) return fail_in(layer.file, "key ", in_quotes(t.key), ": ", s.message());
  }
  return ok;
}

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/peft/layer_reader.h>

namespace graft::io {

GRAFT_LIBRARY result<peft_layer> read_peft_layer(const adapter_config& c, const safetensors& f, const base_layer& b) {
  return guarded(f.file, [&]() -> result<peft_layer> {
    peft_layer_state s{c, f, b};
    s.layer.file = f.file;
    if (status got = check_target(s); !got) return got.failure();
    s.layer.formula = chosen_method(s);
    s.layer.formula.of.trains_bias = c.bias != trained_bias::none && b.bias;
    const result<layer_graphs> made = built_in_methods().graphs(b.kind.c_str(), s.layer.formula, b.bias);
    if (!made) return fail_in(f.file, made.message());
    if (status got = read_numbers_of(s, made->literal, made->base_forward); !got) return got.failure();
    if (status got = read_tensors_of(s, made->literal); !got) return got.failure();
    if (status got = read_base(s); !got) return got.failure();
    if (status got = s.all_keys_used(); !got) return got.failure();
    return std::move(s.layer);
  });
}

}  // namespace graft::io
#endif
