// SPDX-License-Identifier: Apache-2.0
// Makes a new adapter of any method from a configuration, initialized as PEFT does; the seed determines random values.
//     auto config = make_adapter_config("OFT", {"q_proj", "v_proj"}, {{"oft_block_size", json_number(16)}});
//     add_adapter(model, "fresh", *config);
// The configuration may also name a method that the program added; the caller's function then initializes its leaves:
//     auto config = make_adapter_config("LORA_XS", {"q_proj"}, {{"r", json_number(16)}, {"alpha", json_number(16)}},
//                                       methods);
//     add_adapter(model, "xs", *config, seed, start);
// Frozen projections of VeRA and RandLoRA follow from their key; the configuration says that files do not hold them.
#pragma once
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/default_targets.h>

#include <functional>

namespace graft::io::hf {

// The layers that an adapter may target, and the evaluator of initial values such as DoRA's norms.
struct adapter_base {
  std::vector<base_layer> modules;
  const model_weights& weights;
  bool transposed_storage = false;  // weights are stored [in, out]
  std::function<status(const graph&, const size_values&, const leaf_views&, mutable_view)> evaluate;
  std::string table{};  // name of the token embedding's weight
};
// Writes the initial values of a leaf, row-major and zero before the call, and returns true; false selects PEFT's
// initialization for a leaf of that name. The integers of an index leaf are written as floats.
using leaf_start = std::function<result<bool>(const base_layer& base, const std::string& leaf,
                                              const std::vector<long long>& shape, std::span<float> to)>;
// Returns the new adapter as the content of a PEFT folder.
GRAFT_LIBRARY result<peft_folder> initialize_adapter(const adapter_base& base, const adapter_config& config,
                                                     std::uint64_t seed, const leaf_start& start = {});

template <class Engine>
result<loaded_adapters> new_adapter(causal_lm<Engine>& model, const adapter_config& config, std::uint64_t seed = 0,
                                    const leaf_start& start = {}) {
  const auto evaluate = [&](const graph& g, const size_values& sizes, const leaf_views& leaves, mutable_view to) {
    const auto guard = model.lock();
    return Engine::evaluate_in_host_memory(model.programs().queue, g, sizes, leaves, {to});
  };
  const result<adapter_config> stated = with_default_targets(config, *model.config().family);
  if (!stated) return stated.failure();
  const bool transposed_storage = stored_in_out(model.config());
  const result<peft_folder> made =
      initialize_adapter({modules_of(model.config(), model.weights()), model.weights(), transposed_storage, evaluate,
                          model.config().family->token_embedding},
                         *stated, seed, start);
  if (!made) return made.failure();
  return adapters_from(*made, model.config(), model.weights());
}
// Adds a new adapter to the model under a name; it is not activated.
template <class Engine>
status add_adapter(causal_lm<Engine>& model, const std::string& name, const adapter_config& config,
                   std::uint64_t seed = 0, const leaf_start& start = {}) {
  result<loaded_adapters> made = new_adapter(model, config, seed, start);
  if (!made) return made.failure();
  return model.add(name, std::move(*made).with_origin());
}

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/core/splitmix64.h>
#include <graft/io/hf/adapter_from_tensors.h>
#include <graft/io/hf/target_modules.h>
#include <graft/io/peft/initializers.h>
#include <graft/io/peft/layer.h>
#include <graft/io/peft/trainable_tokens.h>

namespace graft::io::hf {

// Initializes the tensors of a new adapter, module by module and leaf by leaf, by the rules of io/peft/initializers.h.
class adapter_initializer {
 public:
  adapter_initializer(const adapter_base& base, const adapter_config& config, std::uint64_t seed,
                      const leaf_start& start)
      : base_(base), config_(config), seed_(seed), start_(start) {}

  result<peft_folder> make_folder() {
    if (config_.key("save_projection") != nullptr && !same_text(config_.type_name(), "FROD"))
      set_key("save_projection", json_bool(false));
    if (base_.transposed_storage) set_key("fan_in_fan_out", json_bool(true)), config_.fan_in_fan_out = true;
    std::vector<base_layer> modules = base_.modules;
    const result<std::vector<base_layer*>> targets = targets_of(config_, modules);
    if (!targets) return targets.failure();
    for (const base_layer& b : modules) {
      const bool hit = std::find(targets->begin(), targets->end(), &b) != targets->end();
      if (status s = hit ? begin(b) : initialize_saved_module(b); !s) return s.failure();
    }
    for (const trainable_token_rows& rows : config_.trainable_tokens)
      if (status s = initialize_token_rows(rows, modules); !s) return s.failure();
    result<safetensors> weights = tensors_.as_file("a fresh adapter");
    if (!weights) return weights.failure();
    return peft_folder{config_, std::move(*weights)};
  }

 private:
  void set_key(const char* key, json value) {
    json& parsed = config_.parsed;
    const auto at = std::find(parsed.keys.begin(), parsed.keys.end(), key);
    if (at != parsed.keys.end())
      parsed.items[static_cast<std::size_t>(at - parsed.keys.begin())] = std::move(value);
    else
      parsed.keys.emplace_back(key), parsed.items.push_back(std::move(value));
  }
  status begin(const base_layer& b) {
    const safetensors none{};
    peft_layer_state s{config_, none, b};
    s.layer.formula = chosen_method(s);
    s.layer.formula.of.trains_bias = config_.bias != trained_bias::none && b.bias;
    const result<layer_graphs> made = built_in_methods().graphs(b.kind.c_str(), s.layer.formula, b.bias);
    if (!made) return fail(b.module.c_str(), ": ", made.message());
    if (status got = read_numbers_of(s, made->literal, made->base_forward); !got) return got;
    if (config_.type->initial_tensors != nullptr) {
      const result<std::vector<loaded_tensor>> custom_name = config_.type->initial_tensors(s);
      if (!custom_name) return custom_name.failure();
      for (const loaded_tensor& t : *custom_name) tensors_.put(t.key, t.shape) = t.data;
    }
    const graph& g = made->literal;
    size_map sizes = s.layer.sizes;
    sizes["vocab"] = b.out, sizes["dim"] = b.in, sizes["n"] = b.out;  // names of the sizes of embeddings and norms
    if (config_.key("boft_n_butterfly_factor") != nullptr) sizes["m"] = config_.whole("boft_n_butterfly_factor");
    for (id i = 0; i < g.size; ++i) {
      const bool of_file = g[i].what == op::frozen || g[i].what == op::index;
      if (g[i].what != op::param && !of_file) continue;
      const std::string leaf = g.name(i).c_str();
      const tensor_layout layout = layout_of(config_, b, leaf);
      const std::string key = key_of(config_, layout, b, leaf);
      const peft::leaf_initializer* init = peft::initializer_of(leaf);
      if (init != nullptr && *init->zero_if != '\0' && config_.on(init->zero_if)) init = &zeros;
      if (leaf == "psoft_R.weight") init = config_.on("psoft_orth") ? &zeros : &identity;
      if (tensors_.has(key) || layout.shape == tensor_shape_kind::parts ||
          (init == nullptr && of_file && !config_.custom_name))
        continue;
      const std::vector<long long> shape = leaf_shape(g, i, b, sizes);
      if (std::find(shape.begin(), shape.end(), unknown) != shape.end())
        return fail(b.module.c_str(), ": the configuration does not tell how large '", leaf.c_str(), "' is");
      std::vector<float>& to = tensors_.put(key, shape_in_file(shape, layout.shape, b));
      const result<bool> started = start_ ? start_(b, leaf, shape, to) : result<bool>(false);
      if (!started) return fail(b.module.c_str(), ": '", leaf.c_str(), "': ", started.message());
      if (*started) continue;
      if (init == nullptr)
        return fail("there is no initialization for '", leaf.c_str(), "' of ", config_.type_name(),
                    "; give new_adapter a function (leaf_start) that writes its first values");
      if (status done = fill(to, *init, shape, b); !done) return done;
    }
    return ok;
  }
  status initialize_token_rows(const trainable_token_rows& rows, const std::vector<base_layer>& modules) {
    const auto b = std::find_if(modules.begin(), modules.end(), [&](const base_layer& m) {
      return rows.module.empty() ? m.module + ".weight" == base_.table : m.module.ends_with(rows.module);
    });
    if (b == modules.end()) return ok;  // the reader reports this error
    const safetensors none{};
    const result<loaded_tensor> initial_tensors =
        peft::initial_token_rows({config_, none, *b}, rows.tokens, "token_adapter.trainable_tokens_delta");
    if (!initial_tensors) return initial_tensors.failure();
    tensors_.put(initial_tensors->key, initial_tensors->shape) = initial_tensors->data;
    return ok;
  }
  // Modules in modules_to_save, and biases that are trained with the adapter, start with the values of the base model.
  status initialize_saved_module(const base_layer& b) {
    const bool whole = is_saved_module(config_, b.module);
    const std::string key = "base_model.model." + b.module + ".";
    if (whole)
      if (status s = base_values(b, peft::initializer::weight, tensors_.put(key + "weight", b.shape)); !s) return s;
    if (b.bias && (whole || config_.bias == trained_bias::all))
      return base_values(b, peft::initializer::bias, tensors_.put(key + "bias", {b.out}));
    return ok;
  }

  double uniform() { return static_cast<double>(splitmix64(seed_ ^ splitmix64(drawn_++)) >> 11U) * 0x1p-53; }
  void fill_uniform(std::vector<float>& to, double bound) {
    for (float& v : to) v = static_cast<float>((2 * uniform() - 1) * bound);
  }
  void fill_normal(std::vector<float>& to, double deviation) {
    for (float& v : to) {
      const double radius = std::sqrt(-2 * std::log(1 - uniform())), angle = 2 * 3.14159265358979323846 * uniform();
      v = static_cast<float>(deviation * radius * std::cos(angle));
    }
  }
  status fill(std::vector<float>& to, const peft::leaf_initializer& init, const std::vector<long long>& shape,
              const base_layer& b) {
    using peft::initializer;
    const auto elements = static_cast<double>(to.size());
    const double fan_in = init.fan_axis >= 0 ? static_cast<double>(shape[static_cast<std::size_t>(init.fan_axis)])
                                             : elements / static_cast<double>(shape[0]);
    switch (init.kind) {
      case initializer::zero: break;
      case initializer::one: std::fill(to.begin(), to.end(), 1.0F); break;
      case initializer::kaiming_uniform: fill_uniform(to, 1 / std::sqrt(fan_in)); break;
      case initializer::paired_columns: {
        const bool even = shape[1] % 2 == 0;
        fill_uniform(to, 1 / std::sqrt(even ? fan_in / 2 : fan_in));
        for (std::size_t i = 1; even && i < to.size(); i += 2) to[i] = to[i - 1];
        break;
      }
      case initializer::normal: fill_normal(to, init.value); break;
      case initializer::bounded: fill_uniform(to, *init.key != '\0' ? config_.number(init.key) : init.value); break;
      case initializer::xavier: fill_uniform(to, std::sqrt(6.0 / static_cast<double>(b.in + b.out))); break;
      case initializer::from_config:
        std::fill(to.begin(), to.end(), static_cast<float>(config_.number(init.key)));
        break;
      case initializer::one_over_longest: {
        const auto most = static_cast<float>(*std::max_element(shape.begin(), shape.end()));
        std::fill(to.begin(), to.end(), 1 / most);
        break;
      }
      case initializer::identity:
        for (std::size_t i = 0; i < to.size(); i += static_cast<std::size_t>(shape[1]) + 1) to[i] = 1;
        break;
      case initializer::deft_inverse: return fill_deft_inverse(b, to);
      case initializer::row_norms:
      case initializer::column_norms:
      case initializer::weight:
      case initializer::bias: return base_values(b, init.kind, to);
    }
    return ok;
  }
  // Initial values that are computed from a tensor of the base layer: a copy, or norms of rows or columns. The
  // magnitudes of an embedding (DoRA) are norms of columns.
  status base_values(const base_layer& b, peft::initializer what, std::vector<float>& to) {
    const bool is_bias = what == peft::initializer::bias, vector = is_bias || b.shape.size() == 1;
    const auto at = base_.weights.tensors.find(b.module + ".bias");
    if (is_bias && at == base_.weights.tensors.end()) return fail(b.module.c_str(), " has no bias");
    const view from = is_bias ? at->second : b.weight;
    builder g;
    const scope p{&g};
    const ex W = vector ? p.leaf(op::base, "from", 1, 1, 1, p.size("out"), 1)
                        : p.leaf(op::base, "from", 2, 1, 1, p.size("out"), p.size("in"));
    const bool by_column = what == peft::initializer::column_norms || b.kind == "embedding";
    const bool norms = what == peft::initializer::row_norms || what == peft::initializer::column_norms;
    g.add_output(!norms ? W.i : by_column ? col_norm(W).i : row_norm(W).i, "to");
    named_values values;
    values.tensors["from"] = from;
    return evaluate(g, values, to);
  }
  // DEFT's R: relu(P)ᵀ W / scaling, or Qᵀ W / scaling with P = Q R for "qr". P must have its initial values already.
  status fill_deft_inverse(const base_layer& b, std::vector<float>& to) {
    const std::span<const float> directions = tensors_.at("base_model.model." + b.module + ".deft_P");
    const long long r = static_cast<long long>(directions.size()) / b.out;
    builder g;
    const scope p{&g};
    const extent out = p.size("out");
    const ex W = p.leaf(op::base, "from", 2, 1, 1, out, p.size("in"));
    const ex P = p.frozen("directions", out, p.size("r"));
    const ex taken = t(config_.word("decomposition_method") == "qr" ? orthonormal(P) : relu(P)) * W;
    g.add_output((p.scalar("factor") * taken).i, "to");
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

  static constexpr peft::leaf_initializer zeros{"", peft::initializer::zero}, identity{"", peft::initializer::identity};
  const adapter_base& base_;
  adapter_config config_;
  std::uint64_t seed_, drawn_ = 0;
  const leaf_start& start_;
  owned_tensors tensors_;
};

GRAFT_LIBRARY result<peft_folder> initialize_adapter(const adapter_base& base, const adapter_config& config,
                                                     std::uint64_t seed, const leaf_start& start) {
  return guarded("a fresh adapter", [&] { return adapter_initializer(base, config, seed, start).make_folder(); });
}

}  // namespace graft::io::hf
#endif
