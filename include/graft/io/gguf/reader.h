// SPDX-License-Identifier: Apache-2.0
// Reader of GGUF, ggml's file format (docs/gguf.md of ggml), versions 2 and 3. The file holds metadata by name, a
// directory of tensors (name, sizes from the innermost axis on, type, offset), and the tensor data, each tensor
// aligned. Tensors are views into the mapped file. Files are downloaded, so every length is checked against the bytes
// left.
#pragma once
#include <graft/core/quant_formats.h>
#include <graft/io/mapped_file.h>

#include <cstring>
#include <map>
#include <optional>
#include <utility>

namespace graft::io {

struct gguf_value {
  enum class kind : unsigned char { whole, real, flag, word, list } what = kind::whole;
  std::int64_t whole = 0;
  double real = 0;
  std::string_view word{};    // text; lists: the raw bytes of the elements
  std::uint32_t element = 0;  // lists: GGUF number of the element type; `whole` is how many
  std::uint32_t type = 0;     // as GGUF numbers it
  std::string_view stored{};  // the value's bytes in the file, which a copy of the file repeats
};
struct gguf {
  std::string file;
  owned_bytes bytes;
  std::map<std::string, gguf_value, std::less<>> metadata;
  std::map<std::string, view, std::less<>> tensors;

  const gguf_value* find_value(std::string_view name) const {
    const auto at = metadata.find(name);
    return at == metadata.end() ? nullptr : &at->second;
  }
};

namespace detail {
// Blocks contain their scales, so all tensors of a format share one quant_state without pointers.
template <class Format> const quant_state& ggml_quant_state() {
  static const quant_state p{.format = Format::format()};
  return p;
}
struct gguf_type {
  dtype type = dtype::f32;
  const quant_state* quant = nullptr;
};
inline std::optional<gguf_type> gguf_type_of(std::uint32_t number) {
  switch (number) {
    case 0: return gguf_type{dtype::f32};
    case 1: return gguf_type{dtype::f16};
    case 30: return gguf_type{dtype::bf16};
    default: break;
  }
  std::optional<gguf_type> found;
  quant_formats::ggml_formats::for_each([&](auto format) {
    if (number == static_cast<std::uint32_t>(format.ggml_type_id))
      found = gguf_type{dtype::ggml, &ggml_quant_state<decltype(format)>()};
  });
  return found;
}
// Names of the types that are not read (enum ggml_type of ggml.h), for the message that refuses them.
inline const char* name_of_unread_type(std::uint32_t number) {
  static constexpr std::pair<std::uint32_t, const char*> names[] = {
      {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"},
      {22, "IQ2_S"}, {24, "I8"},    {25, "I16"},     {26, "I32"},    {27, "I64"},     {28, "F64"},   {29, "IQ1_M"},
      {34, "TQ1_0"}, {35, "TQ2_0"}, {40, "NVFP4"},   {41, "Q1_0"},   {42, "Q2_0"}};
  for (const auto& [type, name] : names)
    if (type == number) return name;
  return "unknown";
}
inline text names_of_read_types() {
  text all;
  all << "f32, f16, bf16";
  quant_formats::ggml_formats::for_each([&](auto format) { all << ", " << format.name; });
  return all;
}

// Reads the file front to back. After the first error `problem` is set, and all further reads return zeros.
struct gguf_reader {
  gguf& to;
  std::size_t at = 0;
  std::optional<error> problem{};

  std::size_t left() const { return to.bytes.all.size() - at; }
  template <class... Parts> void reject(const Parts&... parts) {
    if (!problem) problem = fail_in(to.file, parts...);
  }
  template <class Number> Number number_of() {
    Number v{};
    if (problem) return v;
    if (left() < sizeof v) return reject("the file ends within its header"), v;
    std::memcpy(&v, to.bytes.all.data() + at, sizeof v);
    return at += sizeof v, v;
  }
  std::string_view word() {
    const auto n = number_of<std::uint64_t>();
    if (!problem && n > left()) reject("a name or a text of ", number(n), " bytes does not fit into the file");
    if (problem) return {};
    const std::string_view s(reinterpret_cast<const char*>(to.bytes.all.data() + at), static_cast<std::size_t>(n));
    return at += s.size(), s;
  }
  gguf_value value(std::uint32_t type) {
    using kind = gguf_value::kind;
    auto whole = [](auto v) { return gguf_value{kind::whole, static_cast<std::int64_t>(v)}; };
    switch (type) {
      case 0: return whole(number_of<std::uint8_t>());
      case 1: return whole(number_of<std::int8_t>());
      case 2: return whole(number_of<std::uint16_t>());
      case 3: return whole(number_of<std::int16_t>());
      case 4: return whole(number_of<std::uint32_t>());
      case 5: return whole(number_of<std::int32_t>());
      case 6: return {kind::real, 0, static_cast<double>(number_of<float>())};
      case 7: return {kind::flag, number_of<std::uint8_t>() != 0 ? 1 : 0};
      case 8: return {kind::word, 0, 0, word()};
      case 9: return list();
      case 10: return whole(number_of<std::uint64_t>());
      case 11: return whole(number_of<std::int64_t>());
      case 12: return {kind::real, 0, number_of<double>()};
      default: return reject("a metadata value has the type ", number(type), ", expected one of 0 to 12"), gguf_value{};
    }
  }
  gguf_value list() {  // checks a list (tokenizer vocabularies, merges) and stores its offset
    const auto type = number_of<std::uint32_t>();
    const auto count = number_of<std::uint64_t>();
    if (type == 9) reject("a list holds lists, which is not supported");
    if (!problem && count > left()) reject("a list of ", number(count), " elements does not fit into the file");
    const std::size_t begin = at;
    for (std::uint64_t i = 0; i < count && !problem; ++i) static_cast<void>(value(type));
    const std::string_view elements(reinterpret_cast<const char*>(to.bytes.all.data()) + begin, at - begin);
    return {gguf_value::kind::list, static_cast<std::int64_t>(count), 0, elements, type};
  }
  void read_metadata_value() {
    const std::string_view name = word();
    const auto type = number_of<std::uint32_t>();
    const std::size_t begin = at;
    gguf_value v = value(type);
    v.type = type, v.stored = {reinterpret_cast<const char*>(to.bytes.all.data()) + begin, at - begin};
    if (!problem && !to.metadata.emplace(name, v).second) reject("the fact ", in_quotes(name), " is there twice");
  }
  // Offsets are relative to the begin of the data section, which is known only after the last directory entry.
  void read_tensor(std::map<std::string, std::uint64_t>& offsets) {
    const std::string_view name = word();
    const auto axes = number_of<std::uint32_t>();
    if (!problem && (axes < 1 || axes > 4)) reject("tensor ", in_quotes(name), " has ", number(axes), " axes");
    std::uint64_t size[4] = {1, 1, 1, 1}, count = 1;
    for (std::uint32_t k = 0; k < axes && !problem; ++k) {
      size[k] = number_of<std::uint64_t>();
      if (size[k] == 0 || size[k] > (std::uint64_t{1} << 48) / count)
        reject("tensor ", in_quotes(name), " has an axis of ", number(size[k]), " elements");
      else
        count *= size[k];
    }
    const auto type = number_of<std::uint32_t>();
    const auto offset = number_of<std::uint64_t>();
    if (problem) return;
    const std::optional<gguf_type> stored = gguf_type_of(type);
    if (!stored)
      return reject("tensor ", in_quotes(name), " has ggml's type ", number(type), " (", name_of_unread_type(type),
                    "), expected one of ", names_of_read_types(), "; quantize the model to one of them");
    if (stored->quant != nullptr &&
        (axes < 2 || axes > 3 || size[0] % static_cast<std::uint64_t>(stored->quant->format.block) != 0))
      return reject("tensor ", in_quotes(name), " is ", name_of(stored->quant->format), " with rows of ",
                    number(size[0]),
                    " elements, expected a matrix or those of experts, whose rows are whole blocks of ",
                    stored->quant->format.block);
    view v{nullptr, stored->type};
    v.rank = static_cast<int>(axes), v.quant = stored->quant;
    for (int k = 0; k < v.rank; ++k) v.size[k] = static_cast<long long>(size[v.rank - 1 - k]);
    if (!to.tensors.emplace(name, v).second) reject("the tensor ", in_quotes(name), " is there twice");
    offsets[std::string(name)] = offset;
  }
  void locate_tensors(const std::map<std::string, std::uint64_t>& offsets) {
    std::uint64_t alignment = 32;
    if (const gguf_value* a = to.find_value("general.alignment"); a != nullptr) {
      if (a->what != gguf_value::kind::whole || a->whole < 8 || a->whole > 65536 || a->whole % 8 != 0)
        return reject("'general.alignment' is no multiple of 8 up to 65536");
      alignment = static_cast<std::uint64_t>(a->whole);
    }
    const std::uint64_t data_begin = (at + alignment - 1) / alignment * alignment, size = to.bytes.all.size();
    for (auto& [name, v] : to.tensors) {
      const std::uint64_t offset = offsets.at(name);
      const auto bytes =
          static_cast<std::uint64_t>(v.quant != nullptr ? quantized_bytes(v) : v.count() * bits_of(v.type) / 8);
      if (offset % alignment != 0)
        return reject("tensor ", in_quotes(name), " begins at ", number(offset), ", which is no multiple of ",
                      number(alignment));
      if (data_begin > size || offset > size - data_begin || bytes > size - data_begin - offset)
        return reject("tensor ", in_quotes(name), " of ", number(bytes), " bytes reaches beyond the end of the file");
      v.data = to.bytes.all.data() + data_begin + offset;
    }
  }
};
}  // namespace detail

inline result<gguf> parse_gguf(owned_bytes bytes, const std::string& file) {
  return guarded(file, [&]() -> result<gguf> {
    gguf out{file, std::move(bytes), {}, {}};
    detail::gguf_reader in{out};
    if (in.number_of<std::uint32_t>() != 0x46554747U) return fail_in(file, "this is no GGUF file");
    const auto version = in.number_of<std::uint32_t>();
    if (version != 2 && version != 3)
      return fail_in(file, "GGUF of version ", number(version),
                     ", expected 2 or 3, in the order of bytes of this machine");
    const auto tensors = in.number_of<std::uint64_t>(), metadata = in.number_of<std::uint64_t>();
    std::map<std::string, std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < metadata && !in.problem; ++i) in.read_metadata_value();
    for (std::uint64_t i = 0; i < tensors && !in.problem; ++i) in.read_tensor(offsets);
    if (!in.problem) in.locate_tensors(offsets);
    if (in.problem) return *in.problem;
    return out;
  });
}
inline result<gguf> map_gguf(const std::string& file) {
  result<owned_bytes> bytes = map_bytes(file);
  if (!bytes) return bytes.failure();
  return parse_gguf(std::move(*bytes), file);
}

}  // namespace graft::io
