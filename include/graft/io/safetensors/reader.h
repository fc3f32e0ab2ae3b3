// SPDX-License-Identifier: Apache-2.0
// safetensors reader. The format is an 8-byte little-endian header length N, N bytes of JSON, and the data
// (safetensors/src/tensor.rs):
//     {"__metadata__": {string: string}, name: {"dtype": D, "shape": [..], "data_offsets": [begin, end)}, ..}
// The tensors must tile the data exactly, without holes or overlaps. Beyond the reference implementation, names must be
// unique, nonempty and without NUL, and no shape may overflow even if a dimension is 0.
#pragma once
#include <graft/core/library.h>
#include <graft/io/mapped_file.h>
#include <graft/io/safetensors/convert.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

namespace graft::io {
static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

inline constexpr std::uint64_t largest_header = 100'000'000;
using metadata_map = std::map<std::string, std::string>;

// An open file. Copies share the bytes, so tensor views are valid as long as any copy lives.
struct safetensors {
  std::string file;
  owned_bytes bytes;
  metadata_map metadata;
  std::vector<tensor_view> tensors;  // sorted by name

  auto begin() const { return tensors.begin(); }
  auto end() const { return tensors.end(); }
  const tensor_view* get(std::string_view name) const {
    const auto at = std::lower_bound(begin(), end(), name, [](const tensor_view& t, auto n) { return t.name < n; });
    return at != end() && at->name == name ? &*at : nullptr;
  }
  result<tensor_view> find(std::string_view name) const;
};

GRAFT_LIBRARY result<safetensors> parse_safetensors(owned_bytes content, std::string file);
GRAFT_LIBRARY result<safetensors> parse_safetensors(std::vector<std::byte> content, std::string file);
// Reads a small file into memory, so that replacing or truncating the file later does no harm.
GRAFT_LIBRARY result<safetensors> read_safetensors(const std::string& path);
// Maps a large file; its tensors are views into the mapping.
GRAFT_LIBRARY result<safetensors> map_safetensors(const std::string& path);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/core/name_suggestion.h>
#include <graft/io/safetensors/header.h>

namespace graft::io {

GRAFT_LIBRARY result<tensor_view> safetensors::find(std::string_view name) const {
  if (const tensor_view* t = get(name)) return *t;
  const std::string wanted(name);
  name_suggester meant(wanted.c_str());
  for (const tensor_view& t : tensors) meant.offer(t.name.c_str());
  return fail_in(file, "there is no tensor ", in_quotes(name), " among the ", number(tensors.size()), " of this file",
                 clipped(meant.hint().c_str()));
}

GRAFT_LIBRARY result<safetensors> parse_safetensors(std::vector<std::byte> content, std::string file) {
  return parse_safetensors(make_owned_bytes(std::move(content)), std::move(file));
}

GRAFT_LIBRARY result<safetensors> read_safetensors(const std::string& path) {
  result<owned_bytes> bytes = read_bytes(path);
  if (!bytes) return bytes.failure();
  return parse_safetensors(std::move(*bytes), path);
}
GRAFT_LIBRARY result<safetensors> map_safetensors(const std::string& path) {
  result<owned_bytes> bytes = map_bytes(path);
  if (!bytes) return bytes.failure();
  return parse_safetensors(std::move(*bytes), path);
}

}  // namespace graft::io
#endif
