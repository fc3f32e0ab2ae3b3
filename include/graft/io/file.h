// SPDX-License-Identifier: Apache-2.0
// Whole files in, whole files out. Reading takes regular files only: a FIFO would block and a device never ends.
// Writing goes to a new file beside the target which is then renamed over it, so the target is at every moment either
// the old file or the complete new one, also when the disk is full or another process has the old one mapped.
#pragma once
#include <graft/io/wording.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>
#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace graft::io {

inline constexpr std::uint64_t largest_file = std::uint64_t{1} << 40;

struct file_closer {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using open_file = std::unique_ptr<std::FILE, file_closer>;

inline text reason(int code) { return clipped(std::generic_category().message(code)); }

inline result<std::uint64_t> regular_file_size(const std::filesystem::path& path) {
  std::error_code ec;
  const std::filesystem::file_status st = std::filesystem::status(path, ec);
  const std::string name = path.string();
  if (st.type() == std::filesystem::file_type::not_found) return fail_in(name, "there is no such file");
  if (ec) return fail_in(name, "cannot look at this file: ", clipped(ec.message()));
  if (st.type() == std::filesystem::file_type::directory)
    return fail_in(name, "this is a directory, expected a regular file");
  if (st.type() != std::filesystem::file_type::regular)
    return fail_in(name, "this is a FIFO, a device or a socket, expected a regular file");
  const std::uintmax_t size = std::filesystem::file_size(path, ec);
  if (ec) return fail_in(name, "cannot tell the size of this file: ", clipped(ec.message()));
  return std::uint64_t{size};
}

inline result<std::vector<std::byte>> read_file(const std::filesystem::path& path, std::uint64_t limit = largest_file) {
  return guarded(path.string(), [&]() -> result<std::vector<std::byte>> {
    const result<std::uint64_t> size = regular_file_size(path);
    if (!size) return size.failure();
    const std::string name = path.string();
    if (*size > limit) return fail_in(name, "the file has ", number(*size), " bytes, expected at most ", number(limit));
    const open_file f(std::fopen(name.c_str(), "rb"));
    if (!f) return fail_in(name, "cannot open this file: ", reason(errno));
    std::vector<std::byte> bytes(static_cast<std::size_t>(*size));
    const std::size_t got = bytes.empty() ? 0 : std::fread(bytes.data(), 1, bytes.size(), f.get());
    if (std::ferror(f.get()) != 0) return fail_in(name, "reading failed: ", reason(errno));
    if (got != bytes.size() || std::fgetc(f.get()) != EOF)
      return fail_in(name, "the file changed its size while it was read, expected ", number(*size), " bytes");
    return bytes;
  });
}

// fclose can be the first call that sees a full disk, so its answer counts like that of fwrite.
inline status write_and_close(open_file f, const std::string& name, std::span<const std::byte> content) {
  bool good = content.empty() || std::fwrite(content.data(), 1, content.size(), f.get()) == content.size();
  good = good && std::fflush(f.get()) == 0;
#if __has_include(<unistd.h>)
  good = good && ::fsync(::fileno(f.get())) == 0;
#endif
  int code = good ? 0 : errno;
  if (std::fclose(f.release()) != 0 && good) code = errno;
  if (code != 0) return fail_in(name, "writing failed: ", reason(code), "; the old file was left as it was");
  return ok;
}

inline status write_file(const std::filesystem::path& path, std::span<const std::byte> content) {
  return guarded(path.string(), [&]() -> status {
    static std::atomic<unsigned> serial{0};
    const std::string name = path.string();
    std::string beside;
    open_file f;
    for (int attempt = 0; attempt < 16 && !f; ++attempt) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
      beside = name + ".tmp-" + std::to_string(now) + "-" + std::to_string(serial++);
      f.reset(std::fopen(beside.c_str(), "wbx"));
      if (!f && errno != EEXIST) break;
    }
    if (!f) return fail_in(name, "cannot create a file beside this one: ", reason(errno));
    std::error_code ec, ignored;
    const status written = write_and_close(std::move(f), name, content);
    if (written) std::filesystem::rename(beside, path, ec);
    if (!written || ec) std::filesystem::remove(beside, ignored);
    if (ec) return fail_in(name, "cannot replace this file: ", clipped(ec.message()));
    return written;
  });
}

}  // namespace graft::io
