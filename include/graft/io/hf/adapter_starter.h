// SPDX-License-Identifier: Apache-2.0
// The tensors of a fresh adapter, module by module and leaf by leaf, as io/peft/beginnings.h says that PEFT begins them.
#pragma once
#include <graft/core/mixed_bits.h>
#include <graft/io/hf/made_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/hf/targets.h>
#include <graft/io/peft/beginnings.h>
#include <graft/io/peft/trainable_tokens.h>
#include <graft/io/peft_layer_steps.h>

namespace graft::io::hf {

class adapter_starter {
 public:
  adapter_starter(const fresh_base& base, const adapter_config& config, std::uint64_t seed)
      : base_(base), config_(config), seed_(seed) {}

  result<peft_folder> start() {
    if (config_.key("save_projection") != nullptr && !same_text(config_.type_name(), "FROD"))
      if (status s = say("save_projection", json_flag(false)); !s) return s.failure();
    if (base_.turned)
      if (status s = say("fan_in_fan_out", json_flag(true)); !s) return s.failure();
    std::vector<base_layer> modules = base_.modules;
    const result<std::vector<base_layer*>> targets = targets_of(config_, modules);
    if (!targets) return targets.failure();
    for (const base_layer& b : modules) {
      const bool hit = std::find(targets->begin(), targets->end(), &b) != targets->end();
      if (status s = hit ? begin(b) : begin_whole(b); !s) return s.failure();
    }
    for (const token_rows& rows : config_.trainable_tokens)
      if (status s = begin_rows(rows, modules); !s) return s.failure();
    result<safetensors> weights = made_.as_file("a fresh adapter");
    if (!weights) return weights.failure();
    return peft_folder{config_, std::move(*weights)};
  }

 private:
  status say(const char* key, json value) {
    json said = config_.said;
    const auto at = std::find(said.keys.begin(), said.keys.end(), key);
    if (at != said.keys.end())
      said.items[static_cast<std::size_t>(at - said.keys.begin())] = std::move(value);
    else
      said.keys.emplace_back(key), said.items.push_back(std::move(value));
    result<adapter_config> again = parse_adapter_config(json_file(said), "adapter_config.json");
    if (!again) return again.failure();
    config_ = std::move(*again);
    return ok;
  }
  status begin(const base_layer& b) {
    const safetensors none{};
    peft_source s{config_, none, b, built_in_methods()};
    s.layer.formula = chosen_method(s);
    s.layer.formula.of.trains_bias = config_.bias != trained_bias::none && b.bias;
    const result<layer_graphs> made = built_in_methods().graphs(b.kind.c_str(), s.layer.formula, b.bias);
    if (!made) return fail(b.module.c_str(), ": ", made.message());
    if (status got = take_numbers(s, made->literal, made->base_forward); !got) return got;
    if (config_.type->begun != nullptr) {
      const result<std::vector<loaded_tensor>> own = config_.type->begun(s);
      if (!own) return own.failure();
      for (const loaded_tensor& t : *own) made_.put(t.key, t.shape) = t.data;
    }
    const graph& g = made->literal;
    size_map sizes = s.layer.sizes;
    sizes["vocab"] = b.out, sizes["dim"] = b.in, sizes["n"] = b.out;  // of embeddings and norms
    if (config_.key("boft_n_butterfly_factor") != nullptr) sizes["m"] = config_.whole("boft_n_butterfly_factor");
    for (id i = 0; i < g.size; ++i) {
      if (g[i].what != op::param && g[i].what != op::frozen) continue;
      const std::string leaf = g.name(i).c_str();
      const peft_place place = place_of(config_, b, leaf);
      const std::string key = key_of(config_, place, b, leaf);
      const peft::beginning* how = peft::beginning_of(leaf);
      if (how != nullptr && *how->zero_if != '\0' && config_.on(how->zero_if)) how = &zeros;
      if (leaf == "psoft_R.weight") how = config_.on("psoft_orth") ? &zeros : &identity;
      if (made_.has(key) || place.shape == stored_as::parts || (how == nullptr && g[i].what == op::frozen)) continue;
      if (how == nullptr) return fail("it is not known how '", leaf.c_str(), "' begins");
      const std::vector<long long> shape = leaf_shape(g, i, b, sizes);
      if (std::find(shape.begin(), shape.end(), unknown) != shape.end())
        return fail(b.module.c_str(), ": the configuration does not tell how large '", leaf.c_str(), "' is");
      if (status done = fill(made_.put(key, shape_in_file(shape, place.shape, b)), *how, shape, b); !done) return done;
    }
    return ok;
  }
  status begin_rows(const token_rows& rows, const std::vector<base_layer>& modules) {
    const auto b = std::find_if(modules.begin(), modules.end(), [&](const base_layer& m) {
      return rows.module.empty() ? m.module + ".weight" == base_.table : m.module.ends_with(rows.module);
    });
    if (b == modules.end()) return ok;  // the reader says so
    const safetensors none{};
    const result<loaded_tensor> begun =
        peft::rows_begun({config_, none, *b, built_in_methods()}, rows.tokens, "token_adapter.trainable_tokens_delta");
    if (!begun) return begun.failure();
    made_.put(begun->key, begun->shape) = begun->data;
    return ok;
  }
  // Modules that are trained whole, and biases that are trained beside the adapters, begin as they are.
  status begin_whole(const base_layer& b) {
    const bool whole = is_saved_module(config_, b.module);
    const std::string key = "base_model.model." + b.module + ".";
    if (whole)
      if (status s = base_values(b, peft::begins::weight, made_.put(key + "weight", b.shape)); !s) return s;
    if (b.bias && (whole || config_.bias == trained_bias::all))
      return base_values(b, peft::begins::bias, made_.put(key + "bias", {b.out}));
    return ok;
  }

  double unit() { return static_cast<double>(mixed_bits(seed_ ^ mixed_bits(drawn_++)) >> 11U) * 0x1p-53; }
  void evenly(std::vector<float>& to, double bound) {
    for (float& v : to) v = static_cast<float>((2 * unit() - 1) * bound);
  }
  void normally(std::vector<float>& to, double deviation) {
    for (float& v : to) {
      const double radius = std::sqrt(-2 * std::log(1 - unit())), angle = 2 * 3.14159265358979323846 * unit();
      v = static_cast<float>(deviation * radius * std::cos(angle));
    }
  }
  status fill(std::vector<float>& to, const peft::beginning& how, const std::vector<long long>& shape,
              const base_layer& b) {
    using peft::begins;
    const auto elements = static_cast<double>(to.size());
    const double fan_in = how.fan_axis >= 0 ? static_cast<double>(shape[static_cast<std::size_t>(how.fan_axis)])
                                            : elements / static_cast<double>(shape[0]);
    switch (how.how) {
      case begins::zero: break;
      case begins::one: std::fill(to.begin(), to.end(), 1.0F); break;
      case begins::even: evenly(to, 1 / std::sqrt(fan_in)); break;
      case begins::in_pairs: {
        const bool even = shape[1] % 2 == 0;
        evenly(to, 1 / std::sqrt(even ? fan_in / 2 : fan_in));
        for (std::size_t i = 1; even && i < to.size(); i += 2) to[i] = to[i - 1];
        break;
      }
      case begins::normal: normally(to, how.value); break;
      case begins::bounded: evenly(to, *how.key != '\0' ? config_.number(how.key) : how.value); break;
      case begins::xavier: evenly(to, std::sqrt(6.0 / static_cast<double>(b.in + b.out))); break;
      case begins::stated: std::fill(to.begin(), to.end(), static_cast<float>(config_.number(how.key))); break;
      case begins::shared_out: {
        const auto most = static_cast<float>(*std::max_element(shape.begin(), shape.end()));
        std::fill(to.begin(), to.end(), 1 / most);
        break;
      }
      case begins::identity:
        for (std::size_t i = 0; i < to.size(); i += static_cast<std::size_t>(shape[1]) + 1) to[i] = 1;
        break;
      case begins::taken_out: return taken_out(b, to);
      case begins::row_norms:
      case begins::column_norms:
      case begins::weight:
      case begins::bias: return base_values(b, how.how, to);
    }
    return ok;
  }
  // What follows from the tensors of the base layer; an embedding's magnitudes are those of its dimensions.
  status base_values(const base_layer& b, peft::begins what, std::vector<float>& to) {
    const bool is_bias = what == peft::begins::bias, vector = is_bias || b.shape.size() == 1;
    const auto at = base_.weights.tensors.find(b.module + ".bias");
    if (is_bias && at == base_.weights.tensors.end()) return fail(b.module.c_str(), " has no bias");
    const view from = is_bias ? at->second : b.weight;
    builder g;
    const scope p{&g};
    const ex W = vector ? p.leaf(op::base, "from", 1, 1, 1, p.size("out"), 1)
                        : p.leaf(op::base, "from", 2, 1, 1, p.size("out"), p.size("in"));
    const bool by_column = what == peft::begins::column_norms || b.kind == "embedding";
    const bool norms = what == peft::begins::row_norms || what == peft::begins::column_norms;
    g.give(!norms ? W.i : by_column ? col_norm(W).i : row_norm(W).i, "to");
    named_values values;
    values.tensors["from"] = from;
    return evaluate(g, values, to);
  }
  // relu(P)ᵀ W over the scaling, or Qᵀ W; the directions P have been drawn before.
  status taken_out(const base_layer& b, std::vector<float>& to) {
    const std::span<const float> directions = made_.at("base_model.model." + b.module + ".deft_P");
    const long long r = static_cast<long long>(directions.size()) / b.out;
    builder g;
    const scope p{&g};
    const extent out = p.size("out");
    const ex W = p.leaf(op::base, "from", 2, 1, 1, out, p.size("in"));
    const ex P = p.frozen("directions", out, p.size("r"));
    const ex taken = t(config_.word("decomposition_method") == "qr" ? orthonormal(P) : relu(P)) * W;
    g.give((p.scalar("factor") * taken).i, "to");
    named_values values;
    values.tensors["from"] = b.weight;
    values.tensors["directions"] = view_of(directions.data(), b.out, r);
    const double alpha = config_.number("alpha");
    values.scalars["factor"] = alpha == 0 ? 1 : static_cast<double>(r) / alpha;
    return evaluate(g, values, to);
  }
  status evaluate(const builder& g, const named_values& values, std::vector<float>& to) {
    const builder one = canonical(g);
    const result<bound_leaves> bound = bind_named(one, values, {});
    if (!bound) return bound.failure();
    return base_.evaluate(one, bound->sizes, bound->leaf, view_into(to.data(), static_cast<long long>(to.size())));
  }

  static constexpr peft::beginning zeros{"", peft::begins::zero}, identity{"", peft::begins::identity};
  const fresh_base& base_;
  adapter_config config_;
  std::uint64_t seed_, drawn_ = 0;
  made_tensors made_;
};

#if GRAFT_BODIES
GRAFT_LIBRARY result<peft_folder> begin_adapter(const fresh_base& base, const adapter_config& config,
                                                std::uint64_t seed) {
  return guarded("a fresh adapter", [&] { return adapter_starter(base, config, seed).start(); });
}
#endif

}  // namespace graft::io::hf
