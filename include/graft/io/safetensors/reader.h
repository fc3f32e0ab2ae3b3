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
#include <graft/io/json/json.h>

#include <numeric>
#include <optional>

namespace graft::io {

// Parses and checks the JSON header of a safetensors file: every entry must agree with the size of the data.
inline std::optional<std::vector<std::uint64_t>> unsigned_list(const json& v) {
  if (!v.is_list()) return std::nullopt;
  std::vector<std::uint64_t> out;
  out.reserve(v.items.size());
  for (const json& e : v.items) {
    if (!e.is_unsigned()) return std::nullopt;
    out.push_back(e.whole);
  }
  return out;
}

// Parses one entry of the header. The result has no data yet; `range` receives its offsets into the data section.
inline result<tensor_view> parse_tensor(std::string_view file, const std::string& name, const json& info,
                                        std::pair<std::uint64_t, std::uint64_t>& range) {
  const auto bad = [&](const auto&... parts) { return fail_in(file, "tensor ", in_quotes(name), ": ", parts...); };
  if (const status s = check_tensor_name(file, name); !s) return s.failure();
  if (!info.is_object()) return bad("expected an object with dtype, shape and data_offsets");
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (info.find(key) == nullptr) return bad("the key '", key, "' is missing");
  const json& type_name = *info.find("dtype");
  if (!type_name.is_string()) return bad("dtype is not a string, expected one like \"F32\"");
  const std::optional<safetensors_type> type = safetensors_type_named(type_name.word);
  if (!type) return bad("unknown dtype ", in_quotes(type_name.word), ", expected one like \"F32\"");
  std::optional<std::vector<std::uint64_t>> shape = unsigned_list(*info.find("shape"));
  if (!shape) return bad("shape must be a list of integers from 0 to 2^64-1");
  const std::optional<std::vector<std::uint64_t>> offsets = unsigned_list(*info.find("data_offsets"));
  if (!offsets || offsets->size() != 2) return bad("data_offsets must be two integers, [begin, end)");
  range = {(*offsets)[0], (*offsets)[1]};
  if (range.second < range.first)
    return bad("data_offsets [", number(range.first), ", ", number(range.second), ") end before they begin");
  const std::optional<std::uint64_t> need = byte_count(*type, *shape);
  if (!need)
    return bad("shape ", shape_text(*shape), " of ", name_of(*type), " overflows or is not a whole number of bytes");
  if (*need != range.second - range.first)
    return bad("data_offsets hold ", number(range.second - range.first), " bytes, expected ", number(*need),
               " for shape ", shape_text(*shape), " of ", name_of(*type));
  return tensor_view{name, *type, std::move(*shape), {}};
}

inline status parse_header(const json& header, std::span<const std::byte> data, safetensors& out) {
  using range = std::pair<std::uint64_t, std::uint64_t>;
  std::vector<std::pair<range, std::size_t>> order;
  std::vector<std::size_t> by_name(header.keys.size());
  std::iota(by_name.begin(), by_name.end(), std::size_t{0});
  std::sort(by_name.begin(), by_name.end(), [&](auto a, auto b) { return header.keys[a] < header.keys[b]; });
  for (const std::size_t at : by_name) {
    const std::string& name = header.keys[at];
    const json& info = header.items[at];
    if (name == "__metadata__") {
      if (!info.is_object()) return fail_in(out.file, "__metadata__ must be an object of strings");
      for (std::size_t k = 0; k < info.keys.size(); ++k) {
        if (!info.items[k].is_string())
          return fail_in(out.file, "__metadata__ ", in_quotes(info.keys[k]), " must be a string");
        out.metadata[info.keys[k]] = info.items[k].word;
      }
      continue;
    }
    range r;
    result<tensor_view> t = parse_tensor(out.file, name, info, r);
    if (!t) return t.failure();
    order.emplace_back(r, out.tensors.size());
    out.tensors.push_back(std::move(*t));
  }
  std::sort(order.begin(), order.end());
  std::uint64_t filled = 0;
  for (const auto& [r, index] : order) {
    tensor_view& t = out.tensors[index];
    if (r.first != filled)
      return fail_in(out.file, "tensor ", in_quotes(t.name), ": data_offsets begin at ", number(r.first), ", expected ",
                     number(filled), ", the end of the tensor before it (no holes, no overlaps)");
    if (r.second > data.size())
      return fail_in(out.file, "tensor ", in_quotes(t.name), ": data_offsets end at ", number(r.second),
                     ", expected at most the ", number(data.size()), " bytes of data in the file");
    t.data = data.subspan(r.first, r.second - r.first);
    filled = r.second;
  }
  if (filled != data.size())
    return fail_in(out.file, "the file holds ", number(data.size()), " bytes of data, expected the ", number(filled),
                   " bytes of its tensors");
  return ok;
}

// Returns true if the eight bytes of the header length are text, in ASCII or UTF-8: the file is then no safetensors
// file.
inline bool begins_with_text(std::string_view chars) {
  return std::all_of(chars.begin(), chars.begin() + 8, [](char c) {
    return plain(c) || c == '\n' || c == '\r' || c == '\t' || static_cast<unsigned char>(c) - 0x80U < 0x78U;
  });
}
inline std::string_view first_line(std::string_view chars) {
  const std::size_t begin = std::min(chars.find_first_not_of("\r\n\t "), chars.size());
  return chars.substr(begin, chars.find_first_of("\r\n", begin) - begin);
}

GRAFT_LIBRARY result<safetensors> parse_safetensors(owned_bytes content, std::string file) {
  return guarded(file, [&]() -> result<safetensors> {
    safetensors out{file, std::move(content), {}, {}};
    const std::span<const std::byte> all = out.bytes.all;
    const std::string_view chars = as_chars(all);
    if (all.size() < 8) return fail_in(file, "the file has ", number(all.size()), " bytes, expected at least 8");
    std::uint64_t n = 0;
    std::memcpy(&n, all.data(), 8);
    if (n > largest_header && (chars.starts_with("PK\x03\x04") || chars.starts_with("\x80")))
      return fail_in(file, "this is a pickle checkpoint, which can run code when it is read; save it with safetensors");
    if (n > largest_header && chars.starts_with("version https://git-lfs"))
      return fail_in(file, "this is a pointer of Git LFS, which stands for the file; fetch the file with git lfs pull");
    if (n > largest_header && chars.starts_with("GGUF"))
      return fail_in(file, "this is a GGUF file, expected safetensors");
    if (n > largest_header && begins_with_text(chars))
      return fail_in(file, "this is a text that begins with ", in_quotes(first_line(chars), 40),
                     ", expected a safetensors file");
    if (n > largest_header)
      return fail_in(file, "the header length is ", number(n), ", expected at most ", number(largest_header));
    if (n > all.size() - 8)
      return fail_in(file, "the header length is ", number(n), ", expected at most the ", number(all.size() - 8),
                     " bytes that follow it");
    const result<json> header = parse_json(chars.substr(8, n), file + " (header)", 4);
    if (!header) return header.failure();
    if (!header->is_object()) return fail_in(file, "the header must be a JSON object");
    const status good = parse_header(*header, all.subspan(8 + n), out);
    if (!good) return good.failure();
    return out;
  });
}

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
