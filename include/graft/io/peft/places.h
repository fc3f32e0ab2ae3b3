// SPDX-License-Identifier: Apache-2.0
// Where the tensor of a leaf lies in a file and how it is shaped there, for reading and for writing.
//     kernel     [rows, channels kh kw]  as  [rows, channels, kh, kw]        point      [rows, cols]  as  [rows, cols, 1, 1]
//     channel    [n]                     as  [1, n, 1, 1]                    corner     the beginning of every axis
//     flat       [2, n], rows and columns, as [n], row · in + column         parts      their rows, or all their numbers
//     column     [out]                   as  [out, 1], and one number as [1]
#pragma once
#include <graft/io/peft/source.h>

namespace graft::io {

inline peft_place place_of(const adapter_config& c, const base_layer& base, std::string_view leaf) {
  for (const peft_place& p : c.type->places)
    if (leaf == p.leaf && lists(p.kinds, base.kind.c_str())) return p;
  return {};
}
inline std::string key_of(const adapter_config& c, const peft_place& p, const base_layer& base, std::string_view leaf) {
  std::string key = (p.shared ? std::string("base_model.") : "base_model.model." + base.module + ".").append(leaf);
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

// The sizes of a leaf that the layer and the configuration tell; `unknown` where only its tensor does.
inline std::vector<long long> leaf_shape(const graph& g, id leaf, const base_layer& base, const size_map& sizes) {
  size_values known;
  const auto give = [&](const char* name, long long n) {
    if (const int at = g.sizes.find(name); at >= 0) known.v[at] = n;
  };
  give("out", base.out), give("in", base.in);
  for (const auto& [name, n] : sizes) give(name.c_str(), n);
  const axes a = listed_axes(g[leaf]);
  std::vector<long long> shape;
  for (int k = a.first; k < a.last; ++k) shape.push_back(g.sizes.value(g[leaf].d[k], known));
  return shape;
}

// A convolution's factor as a matrix or a column.
inline status flatten(loaded_tensor& t, std::vector<long long> kernel, std::string_view file) {
  const bool fits = t.shape.size() == 4 && t.shape[2] == kernel[0] && t.shape[3] == kernel[1];
  if (!fits)
    return fail_in(file, "tensor ", in_quotes(t.key), " has ", static_cast<long long>(t.shape.size()),
                   " dimensions, expected [rows, channels, ", kernel[0], ", ", kernel[1], "]");
  t.shape = {t.shape[0], t.shape[1] * t.shape[2] * t.shape[3]};
  return ok;
}

inline status cut_corner(loaded_tensor& t, const std::vector<long long>& shape, std::string_view file) {
  bool fits = t.shape.size() == shape.size();
  for (std::size_t k = 0; fits && k < shape.size(); ++k) fits = shape[k] >= 0 && t.shape[k] >= shape[k];
  if (!fits)
    return fail_in(file, "key ", in_quotes(t.key), ": the shared tensor has shape ", shape_text(t.shape),
                   ", expected at least ", shape_text(shape));
  if (t.shape == shape) return ok;
  std::vector<float> cut;
  std::vector<long long> at(shape.size(), 0);
  for (bool more = !shape.empty(); more;) {
    long long from = 0;
    for (std::size_t k = 0; k < shape.size(); ++k) from = from * t.shape[k] + at[k];
    const auto first = t.data.begin() + from;
    cut.insert(cut.end(), first, first + shape.back());
    more = false;
    for (std::size_t k = shape.size() - 1; k-- > 0 && !more;) more = ++at[k] < shape[k] || (at[k] = 0, false);
  }
  auto whole = std::make_shared<const loaded_tensor>(std::move(t));
  t = {whole->key, std::move(cut), shape, whole->type, whole->stored, whole};
  return ok;
}

// Rows, then columns, of entries that are numbered row after row.
inline std::vector<std::int64_t> split_places(const std::vector<std::int64_t>& flat, long long cols) {
  std::vector<std::int64_t> both;
  both.reserve(2 * flat.size());
  for (const std::int64_t v : flat) both.push_back(v / cols);
  for (const std::int64_t v : flat) both.push_back(v % cols);
  return both;
}
inline std::vector<std::int64_t> joined_places(const std::vector<std::int64_t>& both, long long cols) {
  std::vector<std::int64_t> flat(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(both.size() / 2));
  for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = flat[i] * cols + both[flat.size() + i];
  return flat;
}

inline status shape_as_leaf(loaded_tensor& t, stored_as how, const std::vector<long long>& shape,
                            const base_layer& base, std::string_view file) {
  switch (how) {
    case stored_as::itself:
    case stored_as::parts: return ok;
    case stored_as::kernel: return flatten(t, {base.shape[2], base.shape[3]}, file);
    case stored_as::point: return flatten(t, {1, 1}, file);
    case stored_as::channel:
      if (t.shape.size() == 4) t.shape = {t.shape[1]};
      return ok;
    case stored_as::corner: return cut_corner(t, shape, file);
    case stored_as::column:
      if (t.shape.size() == 2 && t.shape[1] == 1) t.shape.pop_back();
      return ok;
    case stored_as::flat:
      if (!t.stored) return ok;
      if (status good = check_shape(t, {shape[1]}, file); !good) return good;
      t.places = split_places(t.places, base.in), t.shape = shape;
      return ok;
  }
  return ok;
}
inline std::vector<long long> shape_in_file(const std::vector<long long>& leaf, stored_as how, const base_layer& base) {
  switch (how) {
    case stored_as::itself:
    case stored_as::corner:
    case stored_as::parts: break;
    case stored_as::kernel: return {leaf[0], leaf[1] / (base.shape[2] * base.shape[3]), base.shape[2], base.shape[3]};
    case stored_as::point: return {leaf[0], leaf[1], 1, 1};
    case stored_as::channel: return {1, leaf[0], 1, 1};
    case stored_as::flat: return {leaf[1]};
    case stored_as::column:
      if (leaf[0] == base.out) return {leaf[0], 1};
      break;
  }
  return leaf;
}

}  // namespace graft::io
