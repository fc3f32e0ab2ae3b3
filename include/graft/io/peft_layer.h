// SPDX-License-Identifier: Apache-2.0
// The part of a PEFT folder that belongs to one layer: which method it is, its tensors under the names of the formula,
// its scalars and sizes. Keys are `base_model.model.<module>.<name>`; VeRA's projections and VB-LoRA's bank are shared
// by all layers and stand at `base_model.<name>`.
#pragma once
#include <graft/io/adapter_config.h>
#include <graft/io/target.h>
#include <graft/io/tensor_values.h>
#include <graft/io/vera_projection.h>
#include <graft/model/methods.h>

#include <cmath>
#include <set>

namespace graft::io {

struct loaded_tensor {
  std::string key;  // as in the file
  std::vector<float> data;
  std::vector<long long> shape;
};
struct peft_layer {
  method formula = method::none;
  std::map<std::string, loaded_tensor> tensors;
  std::map<std::string, double> scalars;
  std::map<std::string, long long> sizes;
  std::string file;
};

// The base layer an adapter is read for: its module path and its sizes (a convolution's inputs are channels kh kw).
struct base_layer {
  layer_kind kind = layer_kind::linear;
  std::string module;
  long long out = 0, in = 0;
  std::vector<long long> shape;
  bool bias = false;
};

class peft_layer_reader {
 public:
  peft_layer_reader(const adapter_config& c, const safetensors& f, const base_layer& b) : c_(c), f_(f), b_(b) {
    layer_.file = f.file;
  }
  result<peft_layer> read() {
    if (c_.bias != trained_bias::none)
      return fail_in(f_.file,
                     "the adapter was trained with bias other than \"none\": it holds base biases, which are not read");
    if (c_.fan_in_fan_out)
      return fail_in(f_.file,
                     "fan_in_fan_out is true: the adapter is for a transposed (Conv1D) layer, expected a Linear one");
    if (status s = read_method(); !s) return s.failure();
    if (status s = all_keys_used(); !s) return s.failure();
    return std::move(layer_);
  }

 private:
  std::string prefix() const { return "base_model.model." + b_.module + "."; }
  bool has(const char* name) const { return static_cast<bool>(f_.find(prefix() + name)); }

  status take(const char* name, const std::string& key) {
    const result<tensor_view> t = f_.find(key);
    if (!t) return t.failure();
    result<std::vector<float>> values = to_float(*t);
    if (!values) return values.failure();
    for (const float v : *values)
      if (!std::isfinite(v)) return fail_in(f_.file, "tensor ", in_quotes(key), " holds a value that is not finite");
    loaded_tensor& l = layer_.tensors[name];
    l = {key, std::move(*values), {}};
    for (const std::uint64_t n : t->shape) l.shape.push_back(static_cast<long long>(n));
    used_.insert(key);
    return ok;
  }
  status take(const char* name) { return take(name, prefix() + name); }
  status take_all(std::initializer_list<const char*> names) {
    for (const char* n : names)
      if (status s = take(n); !s) return s;
    return ok;
  }
  // A convolution's factor is stored as [rows, channels, kh, kw] and used as the matrix [rows, channels kh kw].
  status flatten(const char* name, std::vector<long long> kernel) {
    loaded_tensor& t = layer_.tensors[name];
    const bool fits = t.shape.size() == 4 && t.shape[2] == kernel[0] && t.shape[3] == kernel[1];
    if (!fits)
      return fail_in(f_.file, "tensor ", in_quotes(t.key), " has ", static_cast<long long>(t.shape.size()),
                     " dimensions, expected [rows, channels, ", kernel[0], ", ", kernel[1], "]");
    t.shape = {t.shape[0], t.shape[1] * t.shape[2] * t.shape[3]};
    return ok;
  }
  status rank_and_scaling() {
    const result<int> r = rank_of(c_, b_.module);
    if (!r) return r.failure();
    const result<double> s = scaling_of(c_, b_.module);
    if (!s) return s.failure();
    layer_.sizes["r"] = *r;
    layer_.scalars["scaling"] = *s;
    return ok;
  }

  status read_method() {
    switch (c_.type) {
      case peft_type::lora: return read_lora();
      case peft_type::adalora: return read_adalora();
      case peft_type::oft: return read_oft();
      case peft_type::boft: layer_.formula = method::boft; return take_all({"boft_R", "boft_s"});
      case peft_type::hra:
        layer_.formula = c_.apply_gs ? method::hra_gram_schmidt : method::hra;
        layer_.sizes["r"] = c_.r;
        return take("hra_u");
      case peft_type::ia3: {
        const result<bool> ff = is_feedforward(c_, b_.module);
        if (!ff) return ff.failure();
        layer_.formula = *ff ? method::ia3_feedforward : method::ia3;
        return take("ia3_l");
      }
      case peft_type::loha: return read_loha();
      case peft_type::lokr: return read_lokr();
      case peft_type::vera: return read_vera();
      case peft_type::ln_tuning:
        layer_.formula = b_.bias ? method::ln_tuning : method::ln_tuning_weight;
        if (status s = take("ln_tuning_layers.weight"); !s || !b_.bias) return s;
        return take("ln_tuning_layers.bias");
      case peft_type::miss: return read_miss();
      case peft_type::vblora: return read_vblora();
    }
    return ok;
  }
  status read_lora() {
    if (status s = rank_and_scaling(); !s) return s;
    if (b_.kind == layer_kind::embedding) {
      layer_.formula = c_.use_dora ? method::dora_embedding : method::lora_embedding;
      if (status s = take_all({"lora_embedding_A", "lora_embedding_B"}); !s) return s;
    } else {
      layer_.formula = c_.use_dora ? method::dora : c_.lora_bias ? method::lora_with_bias : method::lora;
      if (status s = take_all({"lora_A.weight", "lora_B.weight"}); !s) return s;
      if (c_.lora_bias)
        if (status s = take("lora_B.bias"); !s) return s;
    }
    if (c_.use_dora)
      if (status s = take("lora_magnitude_vector"); !s) return s;
    if (b_.kind != layer_kind::conv2d) return ok;
    if (c_.use_dora) {
      loaded_tensor& m = layer_.tensors["lora_magnitude_vector"];
      if (m.shape.size() == 4) m.shape = {m.shape[1]};  // stored as [1, out, 1, 1]
    }
    if (status s = flatten("lora_A.weight", {b_.shape[2], b_.shape[3]}); !s) return s;
    return flatten("lora_B.weight", {1, 1});
  }
  status read_adalora() {
    layer_.formula = method::adalora;
    long long kept = c_.adalora.init_r;
    for (const auto& [name, flags] : c_.adalora.kept)
      if (name == b_.module + ".lora_E") kept = std::count(flags.begin(), flags.end(), true);
    layer_.sizes["r"] = kept;
    const double alpha = c_.alpha > 0 ? c_.alpha : c_.adalora.init_r;
    layer_.scalars["scaling"] = alpha / (c_.adalora.init_r + 1e-5);
    return take_all({"lora_A", "lora_B", "lora_E"});
  }
  // PEFT changes a block size, or a number of blocks, that does not divide the input to the nearest divisor.
  static long long nearest_divisor(long long size, long long wanted) {
    if (wanted >= size) return size;
    for (long long off = 0;; ++off) {
      if (wanted - off >= 1 && size % (wanted - off) == 0) return wanted - off;
      if (size % (wanted + off) == 0) return wanted + off;
    }
  }
  status read_oft() {
    const oft_fields& o = c_.oft;
    const int form = (o.use_cayley_neumann ? 4 : 0) + (o.coft ? 2 : 0) + (o.block_share ? 1 : 0);
    layer_.formula = static_cast<method>(static_cast<int>(method::oft) + form);
    if (status s = take("oft_R.weight"); !s) return s;
    const long long b = o.block_size > 0 ? nearest_divisor(b_.in, o.block_size) : b_.in / nearest_divisor(b_.in, c_.r);
    layer_.sizes["b"] = b;
    if (o.use_cayley_neumann) layer_.sizes["terms"] = o.num_cayley_neumann_terms;
    const long long blocks = o.block_share ? 1 : b_.in / b;
    if (o.coft)
      layer_.scalars["coft_limit"] = o.eps / std::sqrt(2.0 * static_cast<double>(blocks));  // ||Q||_F = sqrt(2) ||v||
    return ok;
  }
  status read_loha() {
    if (status s = rank_and_scaling(); !s) return s;
    layer_.formula = has("hada_t1") ? method::loha_conv : method::loha;
    if (layer_.formula == method::loha_conv)
      if (status s = take_all({"hada_t1", "hada_t2"}); !s) return s;
    return take_all({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"});
  }
  status read_lokr() {
    if (status s = rank_and_scaling(); !s) return s;
    const bool first_low = has("lokr_w1_a"), second_low = has("lokr_w2_a");
    layer_.formula = first_low ? (second_low ? method::lokr_both_low : method::lokr_first_low)
                               : (second_low ? method::lokr : method::lokr_second_full);
    if (!first_low && !second_low) layer_.sizes.erase("r");  // no factor has a rank then
    layer_.sizes["a"] = factorize(b_.out, c_.lokr.decompose_factor).m;
    layer_.sizes["c"] = factorize(b_.in, c_.lokr.decompose_factor).m;
    if (status s = first_low ? take_all({"lokr_w1_a", "lokr_w1_b"}) : take("lokr_w1"); !s) return s;
    return second_low ? take_all({"lokr_w2_a", "lokr_w2_b"}) : take("lokr_w2");
  }
  status read_vera() {
    layer_.formula = method::vera;
    layer_.sizes["r"] = c_.r;
    if (status s = take_all({"vera_lambda_b", "vera_lambda_d"}); !s) return s;
    if (!c_.vera.save_projection) {
      const result<vera_projection> p = make_vera_projection(c_.vera.projection_prng_key, c_.r, b_.in, b_.out);
      if (!p) return p.failure();
      layer_.tensors["vera_A"] = {"vera_A from projection_prng_key", p->A, {c_.r, b_.in}};
      layer_.tensors["vera_B"] = {"vera_B from projection_prng_key", p->B, {b_.out, c_.r}};
      return ok;
    }
    if (status s = take("vera_A", "base_model.vera_A"); !s) return s;
    if (status s = take("vera_B", "base_model.vera_B"); !s) return s;
    return slice_projections();
  }
  // The shared pair is as large as the largest layer; this layer uses A[:, :in] and B[:out].
  status slice_projections() {
    loaded_tensor &a = layer_.tensors["vera_A"], &b = layer_.tensors["vera_B"];
    if (a.shape.size() != 2 || b.shape.size() != 2 || a.shape[1] < b_.in || b.shape[0] < b_.out)
      return fail_in(f_.file,
                     "the shared projections vera_A and vera_B are smaller than the layer, expected at least [r, ",
                     b_.in, "] and [", b_.out, ", r]");
    std::vector<float> cut;
    for (long long r = 0; r < a.shape[0]; ++r)
      cut.insert(cut.end(), a.data.begin() + r * a.shape[1], a.data.begin() + r * a.shape[1] + b_.in);
    a.data = std::move(cut);
    a.shape[1] = b_.in;
    b.data.resize(static_cast<std::size_t>(b_.out * b.shape[1]));
    b.shape[0] = b_.out;
    return ok;
  }
  status read_miss() {
    const method by_kind[] = {method::miss, method::miss_mini, method::miss_bat};
    layer_.formula = by_kind[static_cast<int>(c_.miss.kind)];
    layer_.sizes["r"] = c_.r;
    if (c_.miss.kind == miss_kind::mini) layer_.sizes["mini_r"] = c_.miss.mini_r;
    return take("miss_block");
  }
  status read_vblora() {
    if (c_.vblora.save_only_topk_weights)
      return fail_in(f_.file, "save_only_topk_weights is true: such a file holds no logits; save with it set to false");
    layer_.formula = method::vblora;
    layer_.sizes["r"] = c_.r;
    layer_.sizes["topk"] = c_.vblora.topk;
    layer_.sizes["num_vectors"] = c_.vblora.num_vectors;
    layer_.sizes["vector_length"] = c_.vblora.vector_length;
    if (status s = take_all({"vblora_logits_A", "vblora_logits_B"}); !s) return s;
    return take("vblora_vector_bank", "base_model.vblora_vector_bank");
  }
  status all_keys_used() const {
    for (const tensor_view& t : f_.tensors)
      if (t.name.rfind(prefix(), 0) == 0 && !used_.contains(t.name))
        return fail_in(f_.file, "tensor ", in_quotes(t.name), " is not part of this adapter (", name_of(c_.type), ")");
    return ok;
  }

  const adapter_config& c_;
  const safetensors& f_;
  const base_layer& b_;
  peft_layer layer_;
  std::set<std::string> used_;
};

inline result<peft_layer> read_peft_layer(const adapter_config& c, const safetensors& f, const base_layer& b) {
  return peft_layer_reader(c, f, b).read();
}

// Hands everything to an executor made for the layer's method; an error names the file and the key.
template <class Real> status attach(executor<Real>& to, const peft_layer& layer) {
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
