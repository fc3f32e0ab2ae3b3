// SPDX-License-Identifier: Apache-2.0
// GGUF, ggml's file format (docs/gguf.md of ggml), versions 2 and 3: facts by name, then tensors by name with sizes, type
// and place, then their bytes, each beginning at a multiple of the alignment. Tensors are used where they lie. The file
// comes from a download, so every length is held against what is left of it. Sizes are listed from the innermost on.
#pragma once
#include <graft/core/encodings.h>
#include <graft/io/mapped.h>

#include <cstring>
#include <map>
#include <optional>

namespace graft::io {

struct gguf_fact {
  enum class kind : unsigned char { whole, real, flag, word, list } what = kind::whole;
  std::int64_t whole = 0;
  double real = 0;
  std::string_view word{};
};
struct gguf {
  std::string file;
  held_bytes bytes;
  std::map<std::string, gguf_fact, std::less<>> facts;
  std::map<std::string, view, std::less<>> tensors;

  const gguf_fact* fact(std::string_view name) const {
    const auto at = facts.find(name);
    return at == facts.end() ? nullptr : &at->second;
  }
};

namespace detail {
// What lies beside the codes of every tensor of a type: nothing, they are blocks.
inline const planes& q8_0_planes() {
  static const planes p{.how = encodings::q8_0_codes::how()};
  return p;
}
inline const planes& q4_0_planes() {
  static const planes p{.how = encodings::q4_0_codes::how()};
  return p;
}
struct gguf_type {
  dtype type = dtype::f32;
  const planes* beside = nullptr;
};
inline std::optional<gguf_type> gguf_type_of(std::uint32_t number) {
  switch (number) {
    case 0: return gguf_type{dtype::f32};
    case 1: return gguf_type{dtype::f16};
    case 30: return gguf_type{dtype::bf16};
    case encodings::q8_0_codes::number_in_files: return gguf_type{dtype::ggml, &q8_0_planes()};
    case encodings::q4_0_codes::number_in_files: return gguf_type{dtype::ggml, &q4_0_planes()};
    default: return std::nullopt;
  }
}

// Reads on until something is wrong; then `problem` is set and stays.
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
  gguf_fact value(std::uint32_t type) {
    using kind = gguf_fact::kind;
    auto whole = [](auto v) { return gguf_fact{kind::whole, static_cast<std::int64_t>(v)}; };
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
      default: return reject("a fact has the type ", number(type), ", expected one of 0 to 12"), gguf_fact{};
    }
  }
  gguf_fact list() {  // of tokens and the like: passed over
    const auto type = number_of<std::uint32_t>();
    const auto count = number_of<std::uint64_t>();
    if (type == 9) reject("a list holds lists, which is not supported");
    if (!problem && count > left()) reject("a list of ", number(count), " elements does not fit into the file");
    for (std::uint64_t i = 0; i < count && !problem; ++i) static_cast<void>(value(type));
    return {gguf_fact::kind::list, static_cast<std::int64_t>(count)};
  }
  void read_fact() {
    const std::string_view name = word();
    const gguf_fact v = value(number_of<std::uint32_t>());
    if (!problem && !to.facts.emplace(name, v).second) reject("the fact ", in_quotes(name), " is there twice");
  }
  // The place is relative to where the bytes begin, which is known after the last of these.
  void read_tensor(std::map<std::string, std::uint64_t>& places) {
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
    const auto place = number_of<std::uint64_t>();
    if (problem) return;
    const std::optional<gguf_type> stored = gguf_type_of(type);
    if (!stored)
      return reject("tensor ", in_quotes(name), " has ggml's type ", number(type),
                    ", expected F32 (0), F16 (1), BF16 (30), Q8_0 (8) or Q4_0 (2); quantize the model to one of them");
    if (stored->beside != nullptr &&
        (axes != 2 || size[0] % static_cast<std::uint64_t>(stored->beside->how.block) != 0))
      return reject("tensor ", in_quotes(name), " is ", name_of(stored->beside->how), " with rows of ", number(size[0]),
                    " elements, expected a matrix whose rows are whole blocks of ", stored->beside->how.block);
    view v{nullptr, stored->type};
    v.rank = static_cast<int>(axes), v.beside = stored->beside;
    for (int k = 0; k < v.rank; ++k) v.size[k] = static_cast<long long>(size[v.rank - 1 - k]);
    if (!to.tensors.emplace(name, v).second) reject("the tensor ", in_quotes(name), " is there twice");
    places[std::string(name)] = place;
  }
  void place_tensors(const std::map<std::string, std::uint64_t>& places) {
    std::uint64_t alignment = 32;
    if (const gguf_fact* a = to.fact("general.alignment"); a != nullptr) {
      if (a->what != gguf_fact::kind::whole || a->whole < 8 || a->whole > 65536 || a->whole % 8 != 0)
        return reject("'general.alignment' is no multiple of 8 up to 65536");
      alignment = static_cast<std::uint64_t>(a->whole);
    }
    const std::uint64_t begins = (at + alignment - 1) / alignment * alignment, size = to.bytes.all.size();
    for (auto& [name, v] : to.tensors) {
      const std::uint64_t place = places.at(name);
      const auto bytes = static_cast<std::uint64_t>(
          v.beside != nullptr ? bytes_of_codes(v.beside->how, v.size[0], v.size[1]) : v.count() * bits_of(v.type) / 8);
      if (place % alignment != 0)
        return reject("tensor ", in_quotes(name), " begins at ", number(place), ", which is no multiple of ",
                      number(alignment));
      if (begins > size || place > size - begins || bytes > size - begins - place)
        return reject("tensor ", in_quotes(name), " of ", number(bytes), " bytes reaches beyond the end of the file");
      v.data = to.bytes.all.data() + begins + place;
    }
  }
};
}  // namespace detail

inline result<gguf> parse_gguf(held_bytes bytes, const std::string& file) {
  return guarded(file, [&]() -> result<gguf> {
    gguf out{file, std::move(bytes), {}, {}};
    detail::gguf_reader in{out};
    if (in.number_of<std::uint32_t>() != 0x46554747U) return fail_in(file, "this is no GGUF file");
    const auto version = in.number_of<std::uint32_t>();
    if (version != 2 && version != 3)
      return fail_in(file, "GGUF of version ", number(version),
                     ", expected 2 or 3, in the order of bytes of this machine");
    const auto tensors = in.number_of<std::uint64_t>(), facts = in.number_of<std::uint64_t>();
    std::map<std::string, std::uint64_t> places;
    for (std::uint64_t i = 0; i < facts && !in.problem; ++i) in.read_fact();
    for (std::uint64_t i = 0; i < tensors && !in.problem; ++i) in.read_tensor(places);
    if (!in.problem) in.place_tensors(places);
    if (in.problem) return *in.problem;
    return out;
  });
}
inline result<gguf> map_gguf(const std::string& file) {
  result<held_bytes> bytes = map_bytes(file);
  if (!bytes) return bytes.failure();
  return parse_gguf(std::move(*bytes), file);
}

}  // namespace graft::io
