// SPDX-License-Identifier: Apache-2.0
// Reading and writing of whole files. Only regular files are read: a FIFO would block and a device never ends. A file
// is written under a temporary name in the same folder, flushed (fsync) and renamed over the target, so that the target
// is always either the old file or the complete new one, even if the disk is full or a process has the old file mapped.
#pragma once
#include <graft/core/library.h>
#include <graft/io/error_text.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace graft::io {

inline constexpr std::uint64_t largest_file = std::uint64_t{1} << 40;

struct file_closer {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using open_file = std::unique_ptr<std::FILE, file_closer>;

GRAFT_LIBRARY text reason(int code);

// Paths are std::string; a std::filesystem::path converts to one.
GRAFT_LIBRARY bool is_directory(const std::string& path);
GRAFT_LIBRARY bool exists(const std::string& path);
GRAFT_LIBRARY result<std::uint64_t> regular_file_size(const std::string& name);
GRAFT_LIBRARY result<std::vector<std::byte>> read_file(const std::string& name, std::uint64_t limit = largest_file);

// The content of a file as consecutive byte ranges, so that large tensors are written without being copied together.
using byte_ranges = std::span<const std::span<const std::byte>>;

// A callback that runs before each call that changes the disk: for progress, and for tests that kill the process there.
struct write_observer {
  void (*before_step)(void* state) = nullptr;
  void* state = nullptr;
  void step() const {
    if (before_step != nullptr) before_step(state);
  }
};

// Writes, flushes and closes. fclose may be the first call to report a full disk, so its result is checked too.
GRAFT_LIBRARY status write_and_close(open_file f, const std::string& name, byte_ranges parts,
                                     const write_observer& watch = {});
// A temporary name in the same folder that no other call and no other process uses.
GRAFT_LIBRARY std::string temporary_name(const std::string& name);
GRAFT_LIBRARY status write_file(const std::string& name, byte_ranges parts);
GRAFT_LIBRARY status write_file(const std::string& name, std::span<const std::byte> content);

}  // namespace graft::io

#if GRAFT_BODIES
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace graft::io {

GRAFT_LIBRARY text reason(int code) { return clipped(std::strerror(code)); }

GRAFT_LIBRARY bool is_directory(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

GRAFT_LIBRARY bool exists(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0;
}

GRAFT_LIBRARY result<std::uint64_t> regular_file_size(const std::string& name) {
  struct stat found {};
  if (::stat(name.c_str(), &found) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return fail_in(name, "there is no such file");
    return fail_in(name, "cannot look at this file: ", reason(errno));
  }
  if (S_ISDIR(found.st_mode)) return fail_in(name, "this is a directory, expected a regular file");
  if (!S_ISREG(found.st_mode)) return fail_in(name, "this is a FIFO, a device or a socket, expected a regular file");
  return static_cast<std::uint64_t>(found.st_size);
}

GRAFT_LIBRARY result<std::vector<std::byte>> read_file(const std::string& name, std::uint64_t limit) {
  return guarded(name, [&]() -> result<std::vector<std::byte>> {
    const result<std::uint64_t> size = regular_file_size(name);
    if (!size) return size.failure();
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

GRAFT_LIBRARY status write_and_close(open_file f, const std::string& name, byte_ranges parts,
                                     const write_observer& watch) {
  bool good = true;
  for (const std::span<const std::byte> part : parts) {
    watch.step();
    good = good && (part.empty() || std::fwrite(part.data(), 1, part.size(), f.get()) == part.size());
  }
  watch.step();
  good = good && std::fflush(f.get()) == 0;
  good = good && ::fsync(::fileno(f.get())) == 0;
  int code = good ? 0 : errno;
  if (std::fclose(f.release()) != 0 && good) code = errno;
  if (code != 0) return fail_in(name, "writing failed: ", reason(code), "; the old file was left as it was");
  return ok;
}

GRAFT_LIBRARY std::string temporary_name(const std::string& name) {
  static std::atomic<unsigned> serial{0};
  return name + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(serial++);
}

GRAFT_LIBRARY status write_file(const std::string& name, byte_ranges parts) {
  return guarded(name, [&]() -> status {
    std::string temporary;
    open_file f;
    for (int attempt = 0; attempt < 16 && !f; ++attempt) {
      temporary = temporary_name(name);
      f.reset(std::fopen(temporary.c_str(), "wbx"));
      if (!f && errno != EEXIST) break;
    }
    if (!f) return fail_in(name, "cannot create a file beside this one: ", reason(errno));
    status written = write_and_close(std::move(f), name, parts);
    const int code = written && std::rename(temporary.c_str(), name.c_str()) != 0 ? errno : 0;
    if (!written || code != 0) std::remove(temporary.c_str());
    if (code != 0) return fail_in(name, "cannot replace this file: ", reason(code));
    return written;
  });
}

GRAFT_LIBRARY status write_file(const std::string& name, std::span<const std::byte> content) {
  return write_file(name, byte_ranges(&content, 1));
}

}  // namespace graft::io
#endif
