// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this folder: a temporary folder that a test deletes at its end, and safetensors bytes.
#pragma once
#include <graft/io/file.h>

#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace graft::io::test {

struct temp_folder {
  std::filesystem::path path;
  temp_folder() {
    std::random_device seed;
    path = std::filesystem::temp_directory_path() / ("graft-io-" + std::to_string(seed()) + std::to_string(seed()));
    std::filesystem::create_directories(path);
  }
  temp_folder(const temp_folder&) = delete;
  temp_folder& operator=(const temp_folder&) = delete;
  ~temp_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::size_t files() const {
    std::size_t n = 0;
    for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(path)) ++n;
    return n;
  }
};

inline std::vector<std::byte> bytes_of(std::string_view s) {
  const auto* p = reinterpret_cast<const std::byte*>(s.data());
  return {p, p + s.size()};
}

inline std::string length_prefix(std::uint64_t n) {
  std::string s;
  for (int i = 0; i < 8; ++i) s += static_cast<char>((n >> (8 * i)) & 0xff);
  return s;
}

inline std::string file_text(std::string_view header, std::size_t data_bytes) {
  return length_prefix(header.size()) + std::string(header) + std::string(data_bytes, '\1');
}

inline std::string entry(const char* dtype, const char* shape, const char* offsets) {
  return std::string("{\"dtype\":") + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}
// A header of one tensor `t`, or of two, `a` and `b`.
inline std::string one(const char* dtype, const char* shape, const char* offsets) {
  return "{\"t\":" + entry(dtype, shape, offsets) + "}";
}
inline std::string two(const char* first, const char* second) {
  return "{\"a\":" + entry("\"U8\"", "[4]", first) + ",\"b\":" + entry("\"U8\"", "[4]", second) + "}";
}

}  // namespace graft::io::test
