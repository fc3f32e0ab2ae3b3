// SPDX-License-Identifier: Apache-2.0
// safetensors writer, byte for byte like the reference implementation: tensors sorted by type (largest alignment first)
// and then by name, the header in that order and padded with spaces so that the data is 8-byte aligned. PEFT and
// PyTorch expect the metadata {"format": "pt"}. Files are replaced by rename: a failed write leaves the old one.
#pragma once
#include <graft/io/safetensors/reader.h>

namespace graft::io {

inline metadata_map pt_metadata() { return {{"format", "pt"}}; }

// A file ready to be written: length and header, and the tensors' data, which is not copied.
struct safetensors_layout {
  std::string head;
  std::vector<std::span<const std::byte>> tensors;

  std::vector<std::span<const std::byte>> parts() const {
    std::vector<std::span<const std::byte>> all{std::as_bytes(std::span(head))};
    all.insert(all.end(), tensors.begin(), tensors.end());
    return all;
  }
};

GRAFT_LIBRARY result<safetensors_layout> lay_out_safetensors(std::span<const tensor_view> tensors,
                                                             const metadata_map& metadata = pt_metadata(),
                                                             std::string_view file = "safetensors");
GRAFT_LIBRARY result<std::vector<std::byte>> pack_safetensors(std::span<const tensor_view> tensors,
                                                              const metadata_map& metadata = pt_metadata(),
                                                              std::string_view file = "safetensors");
GRAFT_LIBRARY status write_safetensors(const std::string& path, std::span<const tensor_view> tensors,
                                       const metadata_map& metadata = pt_metadata());

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/json/json.h>
#include <graft/io/utf8.h>

#include <optional>
#include <set>

namespace graft::io {

inline status check_tensors(const std::vector<const tensor_view*>& sorted, std::string_view file) {
  std::set<std::string_view> names;
  for (const tensor_view* t : sorted) {
    if (status s = check_tensor_name(file, t->name); !s) return s;
    if (t->name == "__metadata__") return fail_in(file, "no tensor may be called __metadata__");
    if (!is_utf8(t->name)) return fail_in(file, "tensor ", in_quotes(t->name), ": the name is not UTF-8");
    if (!names.insert(t->name).second) return fail_in(file, "two tensors are called ", in_quotes(t->name));
    const std::optional<std::uint64_t> need = byte_count(t->type, t->shape);
    if (!need || *need != t->data.size())
      return fail_in(file, "tensor ", in_quotes(t->name), " has ", number(t->data.size()), " bytes, expected ",
                     need ? number(*need) : text("a size that fits"), " for shape ", shape_text(t->shape), " of ",
                     name_of(t->type));
  }
  return ok;
}

inline std::string header_text(const std::vector<const tensor_view*>& sorted, const metadata_map& metadata) {
  std::string out = "{";
  for (const auto& [key, value] : metadata)
    out += (out.size() == 1 ? "\"__metadata__\":{" : ",") + json_text(key) + ':' + json_text(value);
  if (!metadata.empty()) out += '}';
  std::uint64_t at = 0;
  for (const tensor_view* t : sorted) {
    if (out.size() > 1) out += ',';
    out += json_text(t->name) + ":{\"dtype\":\"" + name_of(t->type) + "\",\"shape\":[";
    for (std::size_t k = 0; k < t->shape.size(); ++k) out += (k == 0 ? "" : ",") + std::to_string(t->shape[k]);
    out += "],\"data_offsets\":[" + std::to_string(at) + ',' + std::to_string(at + t->data.size()) + "]}";
    at += t->data.size();
  }
  out += '}';
  out.resize((out.size() + 7) / 8 * 8, ' ');
  return out;
}

GRAFT_LIBRARY result<safetensors_layout> lay_out_safetensors(std::span<const tensor_view> tensors,
                                                             const metadata_map& metadata, std::string_view file) {
  return guarded(file, [&]() -> result<safetensors_layout> {
    std::vector<const tensor_view*> sorted;
    for (const tensor_view& t : tensors) sorted.push_back(&t);
    std::sort(sorted.begin(), sorted.end(), [](const tensor_view* a, const tensor_view* b) {
      return a->type != b->type ? a->type > b->type : a->name < b->name;
    });
    if (const status good = check_tensors(sorted, file); !good) return good.failure();
    for (const auto& [key, value] : metadata)
      if (!is_utf8(key) || !is_utf8(value)) return fail_in(file, "metadata ", in_quotes(key), " is not UTF-8");
    const std::string header = header_text(sorted, metadata);
    if (header.size() > largest_header)
      return fail_in(file, "the header has ", number(header.size()), " bytes, expected at most ",
                     number(largest_header));
    const std::uint64_t n = header.size();
    safetensors_layout out{std::string(as_chars(std::as_bytes(std::span(&n, 1)))) + header, {}};
    for (const tensor_view* t : sorted) out.tensors.push_back(t->data);
    return out;
  });
}

GRAFT_LIBRARY result<std::vector<std::byte>> pack_safetensors(std::span<const tensor_view> tensors,
                                                              const metadata_map& metadata, std::string_view file) {
  const result<safetensors_layout> layout = lay_out_safetensors(tensors, metadata, file);
  if (!layout) return layout.failure();
  return guarded(file, [&]() -> result<std::vector<std::byte>> {
    std::vector<std::byte> out;
    for (const std::span<const std::byte> part : layout->parts()) out.insert(out.end(), part.begin(), part.end());
    return out;
  });
}

GRAFT_LIBRARY status write_safetensors(const std::string& path, std::span<const tensor_view> tensors,
                                       const metadata_map& metadata) {
  const result<safetensors_layout> layout = lay_out_safetensors(tensors, metadata, path);
  if (!layout) return layout.failure();
  return write_file(path, layout->parts());
}

}  // namespace graft::io
#endif
