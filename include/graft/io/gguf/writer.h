// SPDX-License-Identifier: Apache-2.0
// Writer of GGUF files, version 3: metadata and tensors in the order in which they are added. A tensor is not copied,
// so its memory stays until save(), which replaces the file completely or not at all.
//     gguf_writer to;
//     to.put("general.architecture", "llama");
//     if (status s = to.add("token_embd.weight", weights); !s) return s;
//     return to.save("model.gguf");
#pragma once
#include <graft/io/gguf/reader.h>

namespace graft::io {

class gguf_writer {
 public:
  void put(std::string_view key, std::string_view text) {
    begin(key, 8);
    append(metadata_, static_cast<std::uint64_t>(text.size()));
    metadata_ += text;
  }
  void put(std::string_view key, const char* text) { put(key, std::string_view(text)); }
  void put(std::string_view key, float number) { begin(key, 6), append(metadata_, number); }
  void put(std::string_view key, std::uint32_t number) { begin(key, 4), append(metadata_, number); }
  void put(std::string_view key, bool flag) { begin(key, 7), metadata_ += flag ? '\1' : '\0'; }
  void put(std::string_view key, std::span<const std::string> texts) {
    begin_list(key, 8, texts.size());
    for (const std::string& text : texts) append(metadata_, static_cast<std::uint64_t>(text.size())), metadata_ += text;
  }
  void put(std::string_view key, std::span<const float> numbers) {
    begin_list(key, 6, numbers.size());
    for (const float v : numbers) append(metadata_, v);
  }
  void put(std::string_view key, std::span<const std::int32_t> numbers) {
    begin_list(key, 5, numbers.size());
    for (const std::int32_t v : numbers) append(metadata_, v);
  }
  void put(std::string_view key, const std::vector<bool>& flags) {
    begin_list(key, 7, flags.size());
    for (const bool v : flags) metadata_ += v ? '\1' : '\0';
  }
  // Repeats a value that was read from a file.
  void put(std::string_view key, const gguf_value& read) { begin(key, read.type), metadata_ += read.stored; }

  // Adds a row-major tensor of floats, halves, bf16 or blocks of ggml; other types are refused by name.
  GRAFT_LIBRARY status add(const std::string& name, const view& tensor);
  GRAFT_LIBRARY status save(const std::string& file) const;

 private:
  static constexpr std::size_t alignment = 32;  // GGUF's, where general.alignment does not say another

  template <class Number> static void append(std::string& to, Number v) {
    to.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  void begin(std::string_view key, std::uint32_t type) {
    append(metadata_, static_cast<std::uint64_t>(key.size()));
    metadata_ += key;
    append(metadata_, type);
    ++values_;
  }
  void begin_list(std::string_view key, std::uint32_t type, std::size_t count) {
    begin(key, 9), append(metadata_, type), append(metadata_, static_cast<std::uint64_t>(count));
  }

  std::string metadata_, directory_;
  std::uint64_t values_ = 0, tensors_ = 0, bytes_ = 0;
  std::vector<std::span<const std::byte>> data_;
};

}  // namespace graft::io

#if GRAFT_BODIES
namespace graft::io {

namespace detail {
// GGUF's number of a tensor's type; none for a type that these files do not have.
inline std::optional<std::uint32_t> gguf_type_number(const view& v) {
  if (v.quant != nullptr)
    return v.type == dtype::ggml ? std::optional(static_cast<std::uint32_t>(v.quant->format.block_type)) : std::nullopt;
  if (v.type == dtype::f32) return 0;
  if (v.type == dtype::f16) return 1;
  if (v.type == dtype::bf16) return 30;
  return std::nullopt;
}
}  // namespace detail

GRAFT_LIBRARY status gguf_writer::add(const std::string& name, const view& tensor) {
  const std::optional<std::uint32_t> type = detail::gguf_type_number(tensor);
  if (!type)
    return fail("tensor ", in_quotes(name), " is stored as ",
                tensor.quant != nullptr ? name_of(tensor.quant->format) : name_of(tensor.type),
                ", which is no type of GGUF files; name a type that it is converted to");
  if (tensor.rank < 1 || !tensor.contiguous())
    return fail("tensor ", in_quotes(name), " is not row-major, expected rows that follow each other");
  const auto size = static_cast<std::uint64_t>(
      tensor.quant != nullptr ? quantized_bytes(tensor.quant->format, tensor.count() / tensor.size[tensor.rank - 1],
                                                tensor.size[tensor.rank - 1])
                              : tensor.count() * bits_of(tensor.type) / 8);
  append(directory_, static_cast<std::uint64_t>(name.size()));
  directory_ += name;
  append(directory_, static_cast<std::uint32_t>(tensor.rank));
  for (int k = tensor.rank - 1; k >= 0; --k) append(directory_, static_cast<std::uint64_t>(tensor.size[k]));
  append(directory_, *type), append(directory_, bytes_);
  bytes_ += (size + alignment - 1) / alignment * alignment;
  data_.emplace_back(static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(size));
  ++tensors_;
  return ok;
}

GRAFT_LIBRARY status gguf_writer::save(const std::string& file) const {
  return guarded(file, [&]() -> status {
    static constexpr std::byte zeros[alignment]{};
    std::string header = "GGUF";
    append(header, std::uint32_t{3}), append(header, tensors_), append(header, values_);
    header += metadata_;
    header += directory_;
    const auto padding = [](std::size_t size) {
      return std::span(zeros).first((alignment - size % alignment) % alignment);
    };
    std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(header)), padding(header.size())};
    for (const std::span<const std::byte> tensor : data_)
      parts.push_back(tensor), parts.push_back(padding(tensor.size()));
    return write_file(file, parts);
  });
}

}  // namespace graft::io
#endif
