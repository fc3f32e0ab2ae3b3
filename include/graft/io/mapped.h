// SPDX-License-Identifier: Apache-2.0
// The bytes of a file without a copy of them: mapped into memory, so that opening a model takes milliseconds, processes
// share the pages, and what is never read is never loaded. Where a file system cannot map, the bytes are read instead.
// A mapped file must not be shortened in place: files that this library writes are replaced by rename and never are.
#pragma once
#include <graft/io/file.h>

namespace graft::io {

// Copies share the bytes; they go away with the last one.
struct held_bytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> all;
};

GRAFT_LIBRARY held_bytes hold(std::vector<std::byte> bytes);
GRAFT_LIBRARY result<held_bytes> read_bytes(const std::string& name);
GRAFT_LIBRARY result<held_bytes> map_bytes(const std::string& name);

}  // namespace graft::io

#if GRAFT_BODIES
#include <fcntl.h>
#include <sys/mman.h>

namespace graft::io {

GRAFT_LIBRARY held_bytes hold(std::vector<std::byte> bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> all = *owner;
  return {std::move(owner), all};
}

GRAFT_LIBRARY result<held_bytes> read_bytes(const std::string& name) {
  result<std::vector<std::byte>> bytes = read_file(name);
  if (!bytes) return bytes.failure();
  return hold(std::move(*bytes));
}

GRAFT_LIBRARY result<held_bytes> map_bytes(const std::string& name) {
  return guarded(name, [&]() -> result<held_bytes> {
    const result<std::uint64_t> size = regular_file_size(name);
    if (!size) return size.failure();
    if (*size == 0 || *size > largest_file) return read_bytes(name);
    const open_file f(std::fopen(name.c_str(), "rb"));
    if (!f) return fail_in(name, "cannot open this file: ", reason(errno));
    struct stat opened {};
    if (::fstat(::fileno(f.get()), &opened) != 0 || static_cast<std::uint64_t>(opened.st_size) != *size)
      return fail_in(name, "the file changed while it was opened, expected ", number(*size), " bytes");
    const std::size_t n = static_cast<std::size_t>(*size);
    void* const at = ::mmap(nullptr, n, PROT_READ, MAP_PRIVATE, ::fileno(f.get()), 0);
    if (at == MAP_FAILED) return read_bytes(name);
    std::shared_ptr<const void> owner(at, [n](void* mapped) { ::munmap(mapped, n); });
    return held_bytes{std::move(owner), {static_cast<const std::byte*>(at), n}};
  });
}

}  // namespace graft::io
#endif
