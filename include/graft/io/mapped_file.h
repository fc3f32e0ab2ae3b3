// SPDX-License-Identifier: Apache-2.0
// Memory-mapped files (mmap): opening a model takes milliseconds, processes share the pages, and bytes that are never
// used are never read. Files that cannot be mapped are read into memory instead. A mapped file must not be shortened;
// files that this library writes are replaced by rename, which leaves existing mappings intact.
#pragma once
#include <graft/io/file.h>

namespace graft::io {

// Bytes with shared ownership: copies share them, and the last copy frees or unmaps them.
struct owned_bytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> all;
};

GRAFT_LIBRARY owned_bytes make_owned_bytes(std::vector<std::byte> bytes);
GRAFT_LIBRARY result<owned_bytes> read_bytes(const std::string& name);
GRAFT_LIBRARY result<owned_bytes> map_bytes(const std::string& name);

}  // namespace graft::io

#if GRAFT_BODIES
#include <fcntl.h>
#include <sys/mman.h>

namespace graft::io {

GRAFT_LIBRARY owned_bytes make_owned_bytes(std::vector<std::byte> bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> all = *owner;
  return {std::move(owner), all};
}

GRAFT_LIBRARY result<owned_bytes> read_bytes(const std::string& name) {
  result<std::vector<std::byte>> bytes = read_file(name);
  if (!bytes) return bytes.failure();
  return make_owned_bytes(std::move(*bytes));
}

GRAFT_LIBRARY result<owned_bytes> map_bytes(const std::string& name) {
  return guarded(name, [&]() -> result<owned_bytes> {
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
    return owned_bytes{std::move(owner), {static_cast<const std::byte*>(at), n}};
  });
}

}  // namespace graft::io
#endif
