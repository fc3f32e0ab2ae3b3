// SPDX-License-Identifier: Apache-2.0
// The part of a PEFT folder that belongs to one layer: which method it is, its tensors under the names of the formula,
// its scalars and sizes. Everything about a method is in io/peft/NAME.h; here its formula is asked what it needs: a tensor
// for every leaf, a number for every scalar and for the sizes that no tensor tells. A method that the program added is
// read in the same way; it may leave `scaling` out where its file states r and alpha or lora_alpha.
#pragma once
#include <graft/io/adapter_config.h>
#include <graft/io/peft/layer_values.h>

namespace graft::io {

GRAFT_LIBRARY result<peft_layer> read_peft_layer(const adapter_config& c, const safetensors& f, const base_layer& b,
                                                 const method_table& methods = built_in_methods());

// Hands everything to an executor made for the layer's method; an error names the file and the key.
template <class Executor> status attach(Executor& to, const peft_layer& layer) {
  for (const auto& [name, value] : layer.sizes)
    if (status s = to.size(name.c_str(), value); !s) return fail_in(layer.file, s.message());
  for (const auto& [name, value] : layer.scalars)
    if (status s = to.set(name.c_str(), value); !s) return fail_in(layer.file, s.message());
  for (const auto& [name, t] : layer.tensors) {
    if (t.shape.size() > 4) return fail_in(layer.file, "tensor ", in_quotes(t.key), " has more than 4 dimensions");
    view v{t.data.data(), dtype::f32, {1, 1, 1, 1}, static_cast<int>(t.shape.size())};
    if (!t.places.empty()) v.data = t.places.data(), v.type = dtype::i64;
    for (std::size_t k = 0; k < t.shape.size(); ++k) v.size[k] = t.shape[k];
    if (status s = to.set(name.c_str(), v); !s) return fail_in(layer.file, "key ", in_quotes(t.key), ": ", s.message());
  }
  return ok;
}

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/peft_layer_steps.h>

namespace graft::io {

GRAFT_LIBRARY result<peft_layer> read_peft_layer(const adapter_config& c, const safetensors& f, const base_layer& b,
                                                 const method_table& methods) {
  return guarded(f.file, [&]() -> result<peft_layer> {
    peft_source s{c, f, b, methods};
    s.layer.file = f.file;
    if (status got = check_target(s); !got) return got.failure();
    s.layer.formula = chosen_method(s);
    s.layer.formula.of.trains_bias = c.bias != trained_bias::none && b.bias;
    const result<layer_graphs> made = methods.graphs(b.kind.c_str(), s.layer.formula, b.bias);
    if (!made) return fail_in(f.file, made.message());
    if (status got = take_numbers(s, made->literal, made->base_forward); !got) return got.failure();
    if (status got = take_tensors(s, made->literal); !got) return got.failure();
    if (status got = take_base(s); !got) return got.failure();
    if (status got = s.all_keys_used(); !got) return got.failure();
    return std::move(s.layer);
  });
}

}  // namespace graft::io
#endif
