// SPDX-License-Identifier: Apache-2.0
// One golden case: a base layer and an adapter that PEFT saved, and the numbers PEFT computed. The folder determines
// everything: this file knows no shape, rank or method.
#pragma once
#include <graft/backend/cpu/quantized/quantize.h>
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/bitsandbytes/reader.h>
#include <graft/io/peft/layer.h>

#include <filesystem>

#include "engine.h"

namespace golden {

using namespace graft;

struct array {
  std::vector<float> data;
  std::vector<long long> shape;
  mutable_view into() { return {data.data(), dtype::f32, {static_cast<long long>(data.size()), 1, 1, 1}, 1}; }
};

inline result<array> load(const io::safetensors& f, const std::string& name) {
  const auto t = f.find(name);
  if (!t) return t.failure();
  auto values = io::to_float(*t);
  if (!values) return values.failure();
  array a{std::move(*values), {}};
  for (const auto n : t->shape) a.shape.push_back(static_cast<long long>(n));
  return a;
}
// A view whose leading axes are joined to one, so that it has `rank` axes.
inline view flattened(const array& a, int rank) {
  view v{a.data.data(), dtype::f32, {1, 1, 1, 1}, rank};
  const int extra = static_cast<int>(a.shape.size()) - rank;
  for (int k = 0; k < static_cast<int>(a.shape.size()); ++k)
    v.size[std::max(0, k - extra)] *= a.shape[static_cast<std::size_t>(k)];
  return v;
}

inline array transposed(const array& a) {
  array t{std::vector<float>(a.data.size()), {a.shape[1], a.shape[0]}};
  for (long long i = 0; i < a.shape[0]; ++i)
    for (long long j = 0; j < a.shape[1]; ++j)
      t.data[static_cast<std::size_t>(j * a.shape[0] + i)] = a.data[static_cast<std::size_t>(i * a.shape[1] + j)];
  return t;
}

struct comparison {
  std::string name;
  double error = 0;
  bool close = false;
};
// max |ours - theirs| / max |theirs|; a NaN is never close.
inline double relative_error(const std::vector<float>& ours, const std::vector<float>& theirs) {
  double most = 0, scale = 0;
  if (ours.size() != theirs.size()) return INFINITY;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double d = std::abs(static_cast<double>(ours[i]) - static_cast<double>(theirs[i]));
    if (!(d <= most)) most = std::isnan(d) ? INFINITY : d;
    scale = std::max(scale, std::abs(static_cast<double>(theirs[i])));
  }
  return scale > 0 ? most / scale : most;
}

// Attributes of a base layer that its files do not state: the first candidate that reproduces y_disabled is used.
struct geometry {
  long long stride = 1, padding = 0;
  bool rms = false;
  double eps = 1e-5;
};

class golden_case {
 public:
  // PEFT factors the base weight in float where a file leaves the factors out (PSOFT): singular vectors are only that
  // accurate, and the same folder read by PEFT on another processor gives a y that differs by 1e-5.
  static constexpr double tolerance = 2e-5, factored_tolerance = 1e-4;

  static result<std::vector<comparison>> run(const std::filesystem::path& folder, const runner& how) {
    golden_case c;
    c.how_ = how;
    if (status s = c.open(folder); !s) return s.failure();
    if (status s = c.compute(); !s) return s.failure();
    return c.found_;
  }

 private:
  status open(const std::filesystem::path& folder) {
    auto base = io::read_safetensors(folder / "base.safetensors");
    if (!base) return base.failure();
    auto config = io::read_adapter_config(folder / "adapter");
    if (!config) return config.failure();
    auto weights = io::read_adapter_weights(folder / "adapter");
    if (!weights) return weights.failure();
    auto expected = io::read_safetensors(folder / "expected.safetensors");
    if (!expected) return expected.failure();
    expected_ = std::move(*expected);
    for (const auto& t : base->tensors)
      if (t.name.ends_with(".weight")) layer_.module = t.name.substr(0, t.name.size() - 7);
    base_ = std::move(*base);
    if (status s = read_weight(); !s) return s;
    if (auto b = load(base_, layer_.module + ".bias")) {
      bias_ = std::move(*b);
      layer_.bias = true;
    }
    stored_transposed_ = config->fan_in_fan_out && weight_.shape.size() == 2;
    if (stored_transposed_) weight_ = transposed(weight_);
    if (status s = read_input(); !s) return s;
    layer_.weight = flattened(weight_, weight_.shape.size() == 2 ? 2 : 1);
    if (layer_.bias) layer_.bias_values = flattened(bias_, 1);
    auto adapter = io::read_peft_layer(*config, *weights, layer_);
    if (!adapter) return adapter.failure();
    adapter_ = std::move(*adapter);
    if (adapter_.base_bias) bias_ = {adapter_.base_bias->data, adapter_.base_bias->shape};
    if (adapter_.base_weight) weight_ = {adapter_.base_weight->data, adapter_.base_weight->shape};
    return ok;
  }
  // Reads the base weight: its numbers, and the stored values if it is quantized.
  status read_weight() {
    const auto t = base_.find(layer_.module + ".weight");
    if (!t) return t.failure();
    const auto read = io::quantized_reader(
                          base_.file, [&](const std::string& name) { return base_.get(name); }, planes_)
                          .read(*t);
    if (!read) return read.failure();
    if (!*read) {
      auto w = load(base_, t->name);
      if (!w) return w.failure();
      weight_ = std::move(*w);
      return ok;
    }
    quantized_ = **read;
    weight_ = {std::vector<float>(static_cast<std::size_t>(quantized_.count())),
               {quantized_.size[0], quantized_.size[1]}};
    cpu::read(quantized_, 0, quantized_.count(), weight_.data.data());
    // Blocks that cross rows have two layouts, depending on the CPU or GPU of bitsandbytes, and the files do not say
    // which.
    if (same_numbers("W_dequantized", weight_.data) || quantized_.quant->format.scaled != scale_granularity::flat_block)
      return ok;
    planes_.back().format.scaled = scale_granularity::row_flat_block;
    cpu::read(quantized_, 0, quantized_.count(), weight_.data.data());
    return ok;
  }
  status read_input() {
    const auto x = expected_.find("x");
    if (!x) return x.failure();
    layer_.shape = weight_.shape;
    layer_.out = weight_.shape[0];
    layer_.in = static_cast<long long>(weight_.data.size()) / weight_.shape[0];
    const auto axes = weight_.shape.size();
    if (x->type == io::safetensors_type::i64) {
      layer_.kind = "embedding";
      auto ids = io::to_int64(*x);
      if (!ids) return ids.failure();
      ids_ = std::move(*ids);
      return ok;
    }
    layer_.kind = axes == 1 ? "layer_norm" : axes == 4 ? "conv2d" : "linear";
    auto values = load(expected_, "x");
    if (!values) return values.failure();
    x_ = std::move(*values);
    return ok;
  }
  bool is_norm() const { return layer_.kind == "layer_norm" || layer_.kind == "rms_norm"; }
  int axes() const { return layer_.kind == "conv2d" ? 4 : is_norm() ? 1 : 2; }
  view x() const {
    if (layer_.kind == "embedding") return view_of(ids_.data(), static_cast<long long>(ids_.size()));
    return flattened(x_, layer_.kind == "conv2d" ? 4 : 2);
  }

  status bind(engine& e, const geometry& s, const view& weight, const array& bias) const {
    if (layer_.kind == "conv2d") {
      if (status r = e.size("stride", s.stride); !r) return r;
      if (status r = e.size("padding", s.padding); !r) return r;
    }
    if (is_norm())
      if (status r = e.set("eps", s.eps); !r) return r;
    if (status r = e.set("weight", weight); !r) return r;
    return layer_.bias ? e.set("bias", flattened(bias, 1)) : status(ok);
  }
  const char* kind(const geometry& s) const { return is_norm() && s.rms ? "rms_norm" : layer_.kind.c_str(); }

  // The base layer alone, with any weight and bias.
  result<array> base_forward(const geometry& s, const view& weight, const array& bias) const {
    const auto graphs = built_in_methods().graphs(kind(s), "none", layer_.bias);
    if (!graphs) return graphs.failure();
    const auto e = how_.make(*graphs);
    if (status r = bind(*e, s, weight, bias); !r) return r.failure();
    auto like = load(expected_, "y_disabled");
    if (!like) return like.failure();
    if (status r = e->forward(x(), like->into()); !r) return r.failure();
    return like;
  }
  result<geometry> find_geometry() const {
    std::vector<geometry> candidates;
    if (is_norm())
      candidates = {
          {1, 0, false, 1e-5}, {1, 0, true, 1e-6}, {1, 0, true, 1e-5}, {1, 0, false, 1e-12}, {1, 0, false, 1e-6}};
    else if (layer_.kind != "conv2d")
      return geometry{};
    for (long long stride = 1; candidates.size() < 32 && stride <= 4; ++stride)
      for (long long pad = 0; pad < 8; ++pad) candidates.push_back({stride, pad, false, 1e-5});
    auto expected = load(expected_, "y_disabled");
    if (!expected) return expected.failure();
    for (const geometry& s : candidates)
      if (auto y = base_forward(s, flattened(weight_, axes()), bias_);
          y && relative_error(y->data, expected->data) < 2e-5)
        return s;
    return fail("no stride, padding or eps reproduces y_disabled: the base layer cannot be represented");
  }

  // A weight in the layout of the base layer's file.
  std::vector<float> as_stored(const array& weight) const {
    return stored_transposed_ ? transposed(weight).data : weight.data;
  }
  status compare(const std::string& name, const std::vector<float>& ours, double allowed = tolerance) {
    auto theirs = load(expected_, name);
    if (!theirs) return theirs.failure();
    const double error = relative_error(ours, theirs->data);
    const bool factored = adapter_.tensors.contains("psoft_A");
    found_.push_back({name, error, error <= (factored ? factored_tolerance : allowed)});
    return ok;
  }
  // grad.base_model.model.<module>.<name>.<adapter>[.weight] is the gradient of <name>[.weight].
  std::string parameter_of(std::string key) const {
    key.erase(0, key.find('.') + std::string(".base_model.model.").size() + layer_.module.size() + 1);
    if (adapter_.tensors.contains(key)) return key;  // a tensor of the base layer, whose key has no adapter name
    const auto dot = key.find('.'), next = key.find('.', dot + 1);
    std::string name = key.substr(0, dot) + (next == key.npos ? "" : key.substr(next));
    if (!adapter_.tensors.contains(name) && name.ends_with(".weight")) name.resize(name.size() - 7);
    // A tensor that a group of layers shares is NAME, and its gradient has the key NAME.0.
    const auto shared = adapter_.tensors.find(name.substr(0, name.rfind('.')));
    if (shared != adapter_.tensors.end() && shared->second.parts.empty()) return shared->first;
    return name;
  }

  status compute() {
    const auto g = find_geometry();
    if (!g) return g.failure();
    const auto found = built_in_methods().graphs(kind(*g), adapter_.formula, layer_.bias);
    if (!found) return found.failure();
    const layer_graphs& graphs = *found;
    const auto made = how_.make(graphs);
    engine& e = *made;
    if (status s = bind(e, *g, quantized_.data != nullptr ? quantized_ : flattened(weight_, axes()), bias_); !s)
      return s;
    if (status s = io::attach(e, adapter_); !s) return s;

    if (quantized_.data != nullptr) return compute_quantized(e, *g);
    auto y = load(expected_, "y");
    if (!y) return y.failure();
    std::fill(y->data.begin(), y->data.end(), NAN);
    if (status s = e.forward(x(), y->into()); !s) return s;
    if (status s = compare("y", y->data); !s) return s;
    if (status s = compare("y_eval", y->data); !s) return s;
    if (status s = gradients(e, ""); !s) return s;

    array merged = weight_, merged_bias = bias_, unmerged = weight_;
    const bool bias_too = graphs.merge.result("bias") >= 0;
    if (status s = e.merge(merged.into(), bias_too ? merged_bias.into() : mutable_view{}); !s) return s;
    if (status s = compare("W_merged", as_stored(merged)); !s) return s;
    auto y_merged = base_forward(*g, flattened(merged, axes()), merged_bias);
    if (!y_merged) return y_merged.failure();
    if (status s = compare("y_merged", y_merged->data); !s) return s;
    if (graphs.unmerging.weight) {  // otherwise the formula replaces the weight, and PEFT keeps the base
      std::fill(unmerged.data.begin(), unmerged.data.end(), NAN);
      if (status s = e.unmerge("weight", flattened(merged, axes()), unmerged.into()); !s) return s;
    }
    if (status s = compare("W_unmerged", as_stored(unmerged)); !s) return s;
    if (status s = e.enable(false); !s) return s;
    if (status s = e.forward(x(), y->into()); !s) return s;
    return compare("y_disabled", y->data);
  }
  // A quantized base: compares with PEFT's results, and with those of the adapter on a float layer with the dequantized
  // weight, which are exact. LLM.int8 rounds activations when it does not train.
  status compute_quantized(engine& e, const geometry& g) {
    exactly("W_dequantized", weight_.data);
    if (status s = quantizes(); !s) return s;
    auto y = load(expected_, "y_exact");
    if (!y) return y.failure();
    std::fill(y->data.begin(), y->data.end(), NAN);
    if (status s = e.forward(x(), y->into()); !s) return s;
    if (status s = compare("y_exact", y->data); !s) return s;
    if (status s = compare("y", y->data); !s) return s;
    if (status s = gradients(e, "_exact"); !s) return s;
    if (expected_.get("W_merged_exact") != nullptr)
      if (status s = merges(e, g); !s) return s;
    auto base = base_forward(g, quantized_, bias_), exact = base_forward(g, flattened(weight_, axes()), bias_);
    if (!base) return base.failure();
    if (!exact) return exact.failure();
    const double off = relative_error(base->data, exact->data);
    found_.push_back({"base", off, off <= tolerance});
    if (status s = e.enable(false); !s) return s;
    if (status s = e.forward(x(), y->into()); !s) return s;
    return compare("y_disabled", y->data, quantized_.type == dtype::int8 ? 3e-2 : tolerance);
  }
  // Quantizes the original numbers and compares stored values and scales with those of the file.
  status quantizes() {
    const auto original = load(expected_, "W_original");
    if (!original) return original.failure();
    const auto made =
        cpu::quantize(original->data.data(), quantized_.size[0], quantized_.size[1], quantized_.quant->format);
    if (!made) return made.failure();
    std::vector<float> back(weight_.data.size());
    cpu::read(made->as_view(), 0, quantized_.count(), back.data());
    exactly("W_dequantized", back);
    const bool same = std::memcmp(made->data.data(), quantized_.data, made->data.size()) == 0;
    found_.push_back({"quantized", same ? 0.0 : 1.0, same});
    return ok;
  }
  status merges(engine& e, const geometry& g) {
    array merged = weight_, merged_bias = bias_;
    const bool bias_too = built_in_methods().graphs(kind(g), adapter_.formula, layer_.bias)->merge.result("bias") >= 0;
    if (status s = e.merge(merged.into(), bias_too ? merged_bias.into() : mutable_view{}); !s) return s;
    if (status s = compare("W_merged_exact", merged.data); !s) return s;
    auto y_merged = base_forward(g, flattened(merged, axes()), merged_bias);
    if (!y_merged) return y_merged.failure();
    if (status s = compare("y_merged_exact", y_merged->data); !s) return s;
    if (expected_.get("W_merged_requantized") == nullptr) return ok;
    const auto exact = load(expected_, "W_merged_exact");
    if (!exact) return exact.failure();
    const auto again =
        cpu::quantize(exact->data.data(), quantized_.size[0], quantized_.size[1], quantized_.quant->format);
    if (!again) return again.failure();
    cpu::read(again->as_view(), 0, quantized_.count(), merged.data.data());
    exactly("W_merged_requantized", merged.data);
    return ok;
  }
  // True if equal except for the sign of a zero: bitsandbytes dequantizes FP4's 8 to either, depending on the shape.
  bool same_numbers(const std::string& name, const std::vector<float>& ours) const {
    const auto theirs = load(expected_, name);
    return theirs && theirs->data == ours;
  }
  void exactly(const std::string& name, const std::vector<float>& ours) {
    const bool same = same_numbers(name, ours);
    found_.push_back({name, same ? 0.0 : 1.0, same});
  }
  // `exact` is the suffix of the names of the tensors to compare with.
  status gradients(engine& e, const std::string& exact) {
    auto dy = load(expected_, "dy");
    if (!dy) return dy.failure();
    std::vector<std::string> keys;
    std::vector<array> values;
    for (const auto& t : expected_.tensors)
      if (t.name.starts_with("grad" + exact + ".")) {
        auto like = load(expected_, t.name);
        if (!like) return like.failure();
        std::fill(like->data.begin(), like->data.end(), NAN);
        keys.push_back(t.name);
        values.push_back(std::move(*like));
      }
    std::vector<gradient> into;
    std::map<std::string, array> in_parts;  // gradients of parameters that the file stores as several tensors
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const std::string name = parameter_of(keys[k]), leaf = name.substr(0, name.rfind('.'));
      if (const auto at = adapter_.tensors.find(leaf); at != adapter_.tensors.end() && !at->second.parts.empty()) {
        const auto [whole, fresh] = in_parts.try_emplace(leaf, array{at->second.data, at->second.shape});
        if (fresh) into.push_back({leaf, whole->second.into()});
      } else {
        into.push_back({name, values[k].into()});
      }
    }
    const bool has_dx = layer_.kind != "embedding";
    array dx = has_dx ? x_ : array{};
    const view d = flattened(*dy, layer_.kind == "conv2d" ? 4 : 2);
    if (status s = e.backward(x(), d, has_dx ? dx.into() : mutable_view{}, into); !s) return s;
    if (has_dx)
      if (status s = compare("dx" + exact, dx.data); !s) return s;
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const std::string name = parameter_of(keys[k]), leaf = name.substr(0, name.rfind('.'));
      if (const auto whole = in_parts.find(leaf); whole != in_parts.end()) {
        const auto& parts = adapter_.tensors.at(leaf).parts;
        long long first = 0;
        for (int part = std::stoi(name.substr(name.rfind('.') + 1)), p = 0; p < part; ++p)
          first += parts[static_cast<std::size_t>(p)][0] * parts[static_cast<std::size_t>(p)][1];
        std::copy_n(whole->second.data.begin() + first, values[k].data.size(), values[k].data.begin());
      }
      if (status s = compare(keys[k], values[k].data); !s) return s;
    }
    return ok;
  }

  runner how_;
  io::base_layer layer_;
  io::safetensors base_, expected_;
  io::quant_state_pool planes_;
  view quantized_{};  // the base weight, if it is quantized
  io::peft_layer adapter_;
  array weight_, bias_, x_;
  std::vector<std::int64_t> ids_;
  std::vector<comparison> found_;
  bool stored_transposed_ = false;  // PEFT's fan_in_fan_out
};

}  // namespace golden
