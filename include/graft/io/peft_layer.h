// SPDX-License-Identifier: Apache-2.0
// The part of a PEFT folder that belongs to one layer: which method it is, its tensors under the names of the formula,
// its scalars and sizes. VeRA's projections and VB-LoRA's bank are shared by all layers and stand at
// `base_model.<name>`.
#pragma once
#include <graft/io/peft_source.h>
#include <graft/io/target.h>
#include <graft/io/vera_projection.h>

namespace graft::io {

inline status rank_and_scaling(peft_source& s) {
  const result<int> r = rank_of(s.config, s.base.module);
  if (!r) return r.failure();
  const result<double> scale = scaling_of(s.config, s.base.module);
  if (!scale) return scale.failure();
  s.layer.sizes["r"] = *r;
  s.layer.scalars["scaling"] = *scale;
  return ok;
}

inline status read_lora(peft_source& s) {
  if (status got = rank_and_scaling(s); !got) return got;
  if (s.base.kind == "embedding") {
    s.choose(s.config.use_dora ? "dora_embedding" : "lora_embedding");
    if (status got = s.take_all({"lora_embedding_A", "lora_embedding_B"}); !got) return got;
    if (s.has("base_layer.weight")) {
      if (status got = s.take("base_layer.weight"); !got) return got;
      s.layer.base_weight = std::move(s.layer.tensors.extract("base_layer.weight").mapped());
    }
  } else {
    s.choose(s.config.use_dora ? "dora" : s.config.lora_bias ? "lora_with_bias" : "lora");
    if (status got = s.take_all({"lora_A.weight", "lora_B.weight"}); !got) return got;
    if (s.config.lora_bias)
      if (status got = s.take("lora_B.bias"); !got) return got;
  }
  if (s.config.use_dora)
    if (status got = s.take("lora_magnitude_vector"); !got) return got;
  if (s.base.kind != "conv2d") return ok;
  if (s.config.use_dora) {
    loaded_tensor& m = s.layer.tensors["lora_magnitude_vector"];
    if (m.shape.size() == 4) m.shape = {m.shape[1]};  // stored as [1, out, 1, 1]
  }
  if (status got = s.flatten("lora_A.weight", {s.base.shape[2], s.base.shape[3]}); !got) return got;
  return s.flatten("lora_B.weight", {1, 1});
}
inline status read_adalora(peft_source& s) {
  s.choose("adalora");
  long long kept = s.config.adalora.init_r;
  for (const auto& [name, flags] : s.config.adalora.kept)
    if (name == s.base.module + ".lora_E") kept = std::count(flags.begin(), flags.end(), true);
  s.layer.sizes["r"] = kept;
  const double alpha = s.config.alpha > 0 ? s.config.alpha : s.config.adalora.init_r;
  s.layer.scalars["scaling"] = alpha / (s.config.adalora.init_r + 1e-5);
  return s.take_all({"lora_A", "lora_B", "lora_E"});
}
// PEFT changes a block size, or a number of blocks, that does not divide the input to the nearest divisor.
inline long long nearest_divisor(long long size, long long wanted) {
  if (wanted >= size) return size;
  for (long long off = 0;; ++off) {
    if (wanted - off >= 1 && size % (wanted - off) == 0) return wanted - off;
    if (size % (wanted + off) == 0) return wanted + off;
  }
}
inline status read_oft(peft_source& s) {
  const oft_fields& o = s.config.oft;
  const std::string form = std::string(o.use_cayley_neumann ? "oft_neumann" : "oft") +
                           (o.block_share ? "_shared" : "") + (o.coft ? "_projected" : "");
  s.choose(form.c_str());
  if (status got = s.take("oft_R.weight"); !got) return got;
  const long long b =
      o.block_size > 0 ? nearest_divisor(s.base.in, o.block_size) : s.base.in / nearest_divisor(s.base.in, s.config.r);
  s.layer.sizes["b"] = b;
  if (o.use_cayley_neumann) s.layer.sizes["terms"] = o.num_cayley_neumann_terms;
  const long long blocks = o.block_share ? 1 : s.base.in / b;
  if (o.coft)
    s.layer.scalars["coft_limit"] = o.eps / std::sqrt(2.0 * static_cast<double>(blocks));  // ||Q||_F = sqrt(2) ||v||
  return ok;
}
inline status read_loha(peft_source& s) {
  if (status got = rank_and_scaling(s); !got) return got;
  s.choose(s.has("hada_t1") ? "loha_conv" : "loha");
  if (s.has("hada_t1"))
    if (status got = s.take_all({"hada_t1", "hada_t2"}); !got) return got;
  return s.take_all({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"});
}
inline status read_lokr(peft_source& s) {
  if (status got = rank_and_scaling(s); !got) return got;
  const bool first_low = s.has("lokr_w1_a"), second_low = s.has("lokr_w2_a");
  s.choose(first_low ? (second_low ? "lokr_both_low" : "lokr_first_low") : (second_low ? "lokr" : "lokr_both_full"));
  if (!first_low && !second_low) s.layer.sizes.erase("r");  // no factor has a rank then
  s.layer.sizes["a"] = factorize(s.base.out, s.config.lokr.decompose_factor).m;
  s.layer.sizes["c"] = factorize(s.base.in, s.config.lokr.decompose_factor).m;
  if (status got = first_low ? s.take_all({"lokr_w1_a", "lokr_w1_b"}) : s.take("lokr_w1"); !got) return got;
  return second_low ? s.take_all({"lokr_w2_a", "lokr_w2_b"}) : s.take("lokr_w2");
}
// The shared pair is as large as the largest layer; this layer uses A[:, :in] and B[:out].
inline status slice_projections(peft_source& s) {
  loaded_tensor &a = s.layer.tensors["vera_A"], &b = s.layer.tensors["vera_B"];
  if (a.shape.size() != 2 || b.shape.size() != 2 || a.shape[1] < s.base.in || b.shape[0] < s.base.out)
    return fail_in(s.file.file,
                   "the shared projections vera_A and vera_B are smaller than the layer, expected at least [r, ",
                   s.base.in, "] and [", s.base.out, ", r]");
  std::vector<float> cut;
  for (long long r = 0; r < a.shape[0]; ++r)
    cut.insert(cut.end(), a.data.begin() + r * a.shape[1], a.data.begin() + r * a.shape[1] + s.base.in);
  a.data = std::move(cut);
  a.shape[1] = s.base.in;
  b.data.resize(static_cast<std::size_t>(s.base.out * b.shape[1]));
  b.shape[0] = s.base.out;
  return ok;
}
inline status read_vera(peft_source& s) {
  s.choose("vera");
  s.layer.sizes["r"] = s.config.r;
  if (status got = s.take_all({"vera_lambda_b", "vera_lambda_d"}); !got) return got;
  if (!s.config.vera.save_projection) {
    const long long in = std::max(s.base.in, s.base.largest_in), out = std::max(s.base.out, s.base.largest_out);
    const result<vera_projection> p = make_vera_projection(s.config.vera.projection_prng_key, s.config.r, in, out);
    if (!p) return p.failure();
    s.layer.tensors["vera_A"] = {"vera_A from projection_prng_key", p->A, {s.config.r, in}};
    s.layer.tensors["vera_B"] = {"vera_B from projection_prng_key", p->B, {out, s.config.r}};
    return slice_projections(s);
  }
  if (status got = s.take("vera_A", "base_model.vera_A"); !got) return got;
  if (status got = s.take("vera_B", "base_model.vera_B"); !got) return got;
  return slice_projections(s);
}
inline status read_miss(peft_source& s) {
  const char* const by_kind[] = {"miss", "miss_mini", "miss_bat"};
  s.choose(by_kind[static_cast<int>(s.config.miss.kind)]);
  s.layer.sizes["r"] = s.config.r;
  if (s.config.miss.kind == miss_kind::mini) s.layer.sizes["mini_r"] = s.config.miss.mini_r;
  return s.take("miss_block");
}
inline status read_vblora(peft_source& s) {
  if (s.config.vblora.save_only_topk_weights)
    return fail_in(s.file.file,
                   "save_only_topk_weights is true: such a file holds no logits; save with it set to false");
  s.choose("vblora");
  s.layer.sizes["r"] = s.config.r;
  s.layer.sizes["topk"] = s.config.vblora.topk;
  s.layer.sizes["num_vectors"] = s.config.vblora.num_vectors;
  s.layer.sizes["vector_length"] = s.config.vblora.vector_length;
  if (status got = s.take_all({"vblora_logits_A", "vblora_logits_B"}); !got) return got;
  return s.take("vblora_vector_bank", "base_model.vblora_vector_bank");
}
// A method that the program added: a tensor for every leaf of its formula, for this module or shared by all, and a
// number in adapter_config.json for every scalar and for the sizes that no tensor tells. `scaling` may be left out where
// the file states r and alpha or lora_alpha.
inline status read_own(peft_source& s) {
  const auto& numbers = s.config.numbers;
  s.choose(s.config.own.c_str());
  const result<layer_graphs> made = s.methods.graphs(s.base.kind.c_str(), s.layer.formula.name, s.base.bias);
  if (!made) return fail_in(s.file.file, made.message());
  const graph& g = made->merge;
  for (id i = 0; i < g.size; ++i) {
    const std::string name = g.name(i).c_str();
    if (g[i].what == op::param || g[i].what == op::frozen) {
      const bool shared = !s.has(name.c_str()) && s.file.find("base_model." + name);
      if (status got = shared ? s.take(name.c_str(), "base_model." + name) : s.take(name.c_str()); !got) return got;
    } else if (g[i].what == op::scalar) {
      const char* const alpha = numbers.contains("alpha") ? "alpha" : "lora_alpha";
      if (numbers.contains(name))
        s.layer.scalars[name] = numbers.at(name);
      else if (name == "scaling" && numbers.contains(alpha) && numbers.contains("r"))
        s.layer.scalars[name] = numbers.at(alpha) / numbers.at("r");
      else
        return fail_in(s.file.file, "adapter_config.json beside it has no number ", in_quotes(name), ", which ",
                       s.layer.formula.name, " needs");
    }
  }
  for (const auto& [name, v] : numbers) {
    if (g.sizes.find(name.c_str()) < 0 || made->base_forward.sizes.find(name.c_str()) >= 0) continue;
    if (v < 1 || v > std::numeric_limits<int>::max() || v != std::floor(v))
      return fail_in(s.file.file, "adapter_config.json beside it states a size ", in_quotes(name),
                     " that is no positive integer");
    s.layer.sizes[name] = static_cast<long long>(v);
  }
  return ok;
}
inline status read_method(peft_source& s) {
  switch (s.config.type) {
    case peft_type::lora: return read_lora(s);
    case peft_type::adalora: return read_adalora(s);
    case peft_type::oft: return read_oft(s);
    case peft_type::boft: {  // the number of factors is the tensor's: PEFT may have used fewer than its file says
      const boft_fields& o = s.config.boft;
      s.choose("boft");
      s.layer.sizes["b"] = o.block_size > 0 ? o.block_size : s.base.in / o.block_num;
      return s.take_all({"boft_R", "boft_s"});
    }
    case peft_type::hra:
      s.choose(s.config.apply_gs ? "hra_gram_schmidt" : "hra");
      s.layer.sizes["r"] = s.config.r;
      return s.take("hra_u");
    case peft_type::ia3: {
      const result<bool> ff = is_feedforward(s.config, s.base.module);
      if (!ff) return ff.failure();
      s.choose(*ff ? "ia3_feedforward" : "ia3");
      return s.take("ia3_l");
    }
    case peft_type::loha: return read_loha(s);
    case peft_type::lokr: return read_lokr(s);
    case peft_type::vera: return read_vera(s);
    case peft_type::ln_tuning:
      s.choose(s.base.bias ? "ln_tuning" : "ln_tuning_weight");
      if (status got = s.take("ln_tuning_layers.weight"); !got || !s.base.bias) return got;
      return s.take("ln_tuning_layers.bias");
    case peft_type::miss: return read_miss(s);
    case peft_type::vblora: return read_vblora(s);
    case peft_type::own: return read_own(s);
  }
  return ok;
}

inline result<peft_layer> read_peft_layer(const adapter_config& c, const safetensors& f, const base_layer& b,
                                          const method_table& methods = built_in_methods()) {
  if (c.bias != trained_bias::none)
    return fail_in(f.file,
                   "the adapter was trained with bias other than \"none\": it holds base biases, which are not read");
  if (c.fan_in_fan_out)
    return fail_in(f.file,
                   "fan_in_fan_out is true: the adapter is for a transposed (Conv1D) layer, expected a Linear one");
  peft_source s{c, f, b, methods};
  s.layer.file = f.file;
  if (status got = read_method(s); !got) return got.failure();
  if (status got = s.all_keys_used(); !got) return got.failure();
  return std::move(s.layer);
}

// Hands everything to an executor made for the layer's method; an error names the file and the key.
template <class Executor> status attach(Executor& to, const peft_layer& layer) {
  for (const auto& [name, value] : layer.sizes)
    if (status s = to.size(name.c_str(), value); !s) return fail_in(layer.file, s.message());
  for (const auto& [name, value] : layer.scalars)
    if (status s = to.set(name.c_str(), value); !s) return fail_in(layer.file, s.message());
  for (const auto& [name, t] : layer.tensors) {
    if (t.shape.size() > 4) return fail_in(layer.file, "tensor ", in_quotes(t.key), " has more than 4 dimensions");
    view v{t.data.data(), graft::dtype::f32, {1, 1, 1, 1}, static_cast<int>(t.shape.size())};
    for (std::size_t k = 0; k < t.shape.size(); ++k) v.size[k] = t.shape[k];
    if (status s = to.set(name.c_str(), v); !s) return fail_in(layer.file, "key ", in_quotes(t.key), ": ", s.message());
  }
  return ok;
}

}  // namespace graft::io
