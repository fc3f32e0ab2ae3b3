// SPDX-License-Identifier: Apache-2.0
// Key and shape of a leaf's tensor in adapter_model.safetensors, for reading and writing:
//     kernel     [rows, channels kh kw] is stored as [rows, channels, kh, kw]
//     point      [rows, cols] is stored as [rows, cols, 1, 1]
//     channel    [n] is stored as [1, n, 1, 1]
//     column     [out] is stored as [out, 1], and one number as [1]
//     corner     the leaf is the leading corner of the stored tensor
//     flat       row and column indices [2, n] are stored as row · in + column, [n]
//     parts      rows, or a list of numbers, are stored as the matrices NAME.0, NAME.1, …
#pragma once
#include <graft/io/peft/layer_source.h>

namespace graft::io {

inline tensor_layout layout_of(const adapter_config& c, const base_layer& base, std::string_view leaf) {
  for (const tensor_layout& p : c.type->layouts)
    if (leaf == p.leaf && lists(p.kinds, base.kind.c_str())) return p;
  return {};
}
inline std::string key_of(const adapter_config& c, const tensor_layout& p, const base_layer& base,
                          std::string_view leaf) {
  std::string key = (p.shared ? std::string("base_model.") : "base_model.model." + base.file_path() + ".").append(leaf);
  if (p.group != nullptr) key += "." + std::to_string(p.group(c, base));
  return key;
}

inline text shape_text(const std::vector<long long>& shape) {
  text out("[");
  for (std::size_t i = 0; i < shape.size(); ++i) out << (i == 0 ? "" : ", ") << shape[i];
  return out << ']';
}

inline status check_shape(const loaded_tensor& t, const std::vector<long long>& expected, std::string_view file) {
  if (t.shape == expected) return ok;
  return fail_in(file, "key ", in_quotes(t.key), ": the tensor has shape ", shape_text(t.shape), ", expected ",
                 shape_text(expected));
}

inline size_values known_sizes(const graph& g, const base_layer& base, const size_map& sizes) {
  size_values known;
  const auto give = [&](const char* name, long long n) {
    if (const int at = g.sizes.find(name); at >= 0) known.v[at] = n;
  };
  give("out", base.out), give("in", base.in);
  if (base.kind == "experts") give("experts", base.shape[0]);
  for (const auto& [name, n] : sizes) give(name.c_str(), n);
  return known;
}
// The shape of a leaf as far as layer and configuration tell it; an axis that only its tensor tells is unknown (-1).
inline std::vector<long long> leaf_shape(const graph& g, id leaf, const base_layer& base, const size_map& sizes) {
  const size_values known = known_sizes(g, base, sizes);
  const axis_range a = listed_axes(g[leaf]);
  std::vector<long long> shape;
  for (int k = a.first; k < a.last; ++k) shape.push_back(g.sizes.value(g[leaf].d[k], known));
  return shape;
}

// Compares the trained tensors with the sizes that layer and configuration state. Tensors that PEFT recomputes have
// these sizes too and nothing else bounds them, so this check comes before any of them is drawn or allocated.
inline status check_parameters(const peft_layer_state& s, const graph& g) {
  size_values known = known_sizes(g, s.base, s.layer.sizes);
  for (id i = 0; i < g.size; ++i) {
    const auto at = s.layer.tensors.find(g.name(i).c_str());
    if (g[i].what != op::param || at == s.layer.tensors.end()) continue;
    const loaded_tensor& t = at->second;
    if (t.shape.size() > 4) return fail_in(s.file.file, "tensor ", in_quotes(t.key), " has more than 4 dimensions");
    view v{nullptr, dtype::f32, {1, 1, 1, 1}, static_cast<int>(t.shape.size())};
    std::copy(t.shape.begin(), t.shape.end(), v.size);
    if (status fits = solve_sizes(g, i, v, known); !fits)
      return fail_in(s.file.file, "key ", in_quotes(t.key), ": ", fits.message());
  }
  return ok;
}

// Makes a matrix of a convolution's factor; `kernel` is the expected kernel height and width.
inline status flatten(loaded_tensor& t, std::vector<long long> kernel, std::string_view file) {
  const bool fits = t.shape.size() == 4 && t.shape[2] == kernel[0] && t.shape[3] == kernel[1];
  if (!fits)
    return fail_in(file, "tensor ", in_quotes(t.key), " has ", static_cast<long long>(t.shape.size()),
                   " dimensions, expected [rows, channels, ", kernel[0], ", ", kernel[1], "]");
  t.shape = {t.shape[0], t.shape[1] * t.shape[2] * t.shape[3]};
  return ok;
}

// Cuts the leading corner of `shape` from a shared tensor, which t.whole keeps.
inline status crop(loaded_tensor& t, const std::vector<long long>& shape, std::string_view file) {
  bool fits = t.shape.size() == shape.size();
  for (std::size_t k = 0; fits && k < shape.size(); ++k) fits = shape[k] >= 0 && t.shape[k] >= shape[k];
  if (!fits)
    return fail_in(file, "key ", in_quotes(t.key), ": the shared tensor has shape ", shape_text(t.shape),
                   ", expected at least ", shape_text(shape));
  if (t.shape == shape) return ok;
  std::vector<float> cropped;
  std::vector<long long> at(shape.size(), 0);
  for (bool more = !shape.empty(); more;) {
    long long from = 0;
    for (std::size_t k = 0; k < shape.size(); ++k) from = from * t.shape[k] + at[k];
    const auto first = t.data.begin() + from;
    cropped.insert(cropped.end(), first, first + shape.back());
    more = false;
    for (std::size_t k = shape.size() - 1; k-- > 0 && !more;) more = ++at[k] < shape[k] || (at[k] = 0, false);
  }
  auto whole = std::make_shared<const loaded_tensor>(std::move(t));
  t = {whole->key, std::move(cropped), shape, whole->type, whole->stored, whole};
  return ok;
}

// Splits row-major indices into row indices followed by column indices; flat_indices is the inverse.
inline std::vector<std::int64_t> split_indices(const std::vector<std::int64_t>& flat, long long cols) {
  std::vector<std::int64_t> both;
  both.reserve(2 * flat.size());
  for (const std::int64_t v : flat) both.push_back(v / cols);
  for (const std::int64_t v : flat) both.push_back(v % cols);
  return both;
}
inline std::vector<std::int64_t> flat_indices(const std::vector<std::int64_t>& both, long long cols) {
  std::vector<std::int64_t> flat(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(both.size() / 2));
  for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = flat[i] * cols + both[flat.size() + i];
  return flat;
}

inline status shape_as_leaf(loaded_tensor& t, tensor_shape_kind stored, const std::vector<long long>& shape,
                            const base_layer& base, std::string_view file) {
  switch (stored) {
    case tensor_shape_kind::itself:
    case tensor_shape_kind::parts: return ok;
    case tensor_shape_kind::kernel: return flatten(t, {base.shape[2], base.shape[3]}, file);
    case tensor_shape_kind::point: return flatten(t, {1, 1}, file);
    case tensor_shape_kind::channel:
      if (t.shape.size() == 4) t.shape = {t.shape[1]};
      return ok;
    case tensor_shape_kind::corner: return crop(t, shape, file);
    case tensor_shape_kind::column:
      if (t.shape.size() == 2 && t.shape[1] == 1) t.shape.pop_back();
      return ok;
    case tensor_shape_kind::flat:
      if (!t.stored) return ok;
      if (status good = check_shape(t, {shape[1]}, file); !good) return good;
      t.indices = split_indices(t.indices, base.in), t.shape = shape;
      return ok;
  }
  return ok;
}
inline std::vector<long long> shape_in_file(const std::vector<long long>& leaf, tensor_shape_kind stored,
                                            const base_layer& base) {
  switch (stored) {
    case tensor_shape_kind::itself:
    case tensor_shape_kind::corner:
    case tensor_shape_kind::parts: break;
    case tensor_shape_kind::kernel:
      return {leaf[0], leaf[1] / (base.shape[2] * base.shape[3]), base.shape[2], base.shape[3]};
    case tensor_shape_kind::point: return {leaf[0], leaf[1], 1, 1};
    case tensor_shape_kind::channel: return {1, leaf[0], 1, 1};
    case tensor_shape_kind::flat: return {leaf[1]};
    case tensor_shape_kind::column:
      if (leaf[0] == base.out) return {leaf[0], 1};
      break;
  }
  return leaf;
}

}  // namespace graft::io
