// SPDX-License-Identifier: Apache-2.0
// Atomic replacement of a folder: either all of its files are updated or none. The files are written and flushed into a
// new folder next to the target, files of the target that are not replaced are hard-linked into it, and the two folders
// exchange names in one system call (Linux: renameat2 with RENAME_EXCHANGE, macOS: renamex_np with RENAME_SWAP); the
// old folder is then removed. A process killed at any point leaves the complete old or the complete new folder under
// the name, and at most one further folder with ".tmp-" in its name.
#pragma once
#include <fcntl.h>
#include <graft/io/file.h>
#include <sys/syscall.h>

#include <climits>
#include <cstdlib>
#include <filesystem>

namespace graft::io {

struct file_to_save {
  std::string name;  // a file name, without a path
  std::vector<std::span<const std::byte>> parts;
};

// Exchanges the names of two folders; returns 0 or errno. Two plain renames would leave a moment without a target.
inline int exchange_names(const std::string& a, const std::string& b) {
#if defined(SYS_renameat2)
  return ::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), 2U) == 0 ? 0 : errno;
#elif defined(RENAME_SWAP)
  return ::renamex_np(a.c_str(), b.c_str(), RENAME_SWAP) == 0 ? 0 : errno;
#else
  return a == b ? 0 : ENOSYS;
#endif
}

inline int flush_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  const int code = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  ::close(fd);
  return code;
}

// Adds to `to` what only `from` has: files as hard links, symbolic links as copies, folders recursively.
inline void link_others(const std::filesystem::path& from, const std::filesystem::path& to,
                        const write_observer& watch) {
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::filesystem::path there = to / entry.path().filename();
    if (std::filesystem::exists(std::filesystem::symlink_status(there))) continue;
    watch.step();
    if (entry.is_symlink())
      std::filesystem::copy_symlink(entry.path(), there);
    else if (entry.is_directory())
      std::filesystem::create_directory(there, entry.path()), link_others(entry.path(), there, watch);
    else
      std::filesystem::create_hard_link(entry.path(), there);
  }
}

inline status check_file_names(const std::string& folder, std::span<const file_to_save> files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string& name = files[i].name;
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\0", 2)) != name.npos)
      return fail_in(folder, in_quotes(name), " is not the name of a file in this folder");
    for (std::size_t k = 0; k < i; ++k)
      if (files[k].name == name) return fail_in(folder, "two files are called ", in_quotes(name));
  }
  return ok;
}

// Gives the finished temporary folder the name of the target, after linking the target's other files into it.
inline status swap_into_place(const std::string& temporary, const std::string& folder, const write_observer& watch) {
  const bool replaces = exists(folder);
  if (replaces) link_others(folder, temporary, watch);
  watch.step();
  if (const int code = flush_folder(temporary); code != 0) return fail_in(temporary, "flushing failed: ", reason(code));
  watch.step();
  const int code = replaces ? exchange_names(temporary, folder) : std::rename(temporary.c_str(), folder.c_str());
  if (code != 0)
    return fail_in(folder, "this folder cannot be replaced in one step: ", reason(replaces ? code : errno),
                   "; it was left as it was, save into a new folder");
  flush_folder(std::filesystem::path(folder).parent_path().string());
  return ok;
}

inline status make_temporary(const std::string& temporary, const std::string& folder) {
  std::error_code code;
  if (exists(folder))
    std::filesystem::create_directory(temporary, folder, code);  // with the same permissions
  else
    std::filesystem::create_directory(temporary, code);
  if (code) return fail_in(folder, "cannot create this folder in the one above it: ", code.message().c_str());
  return ok;
}

inline status write_temporary(const std::string& temporary, const std::string& folder,
                              std::span<const file_to_save> files, const write_observer& watch) {
  watch.step();
  if (status made = make_temporary(temporary, folder); !made) return made;
  for (const file_to_save& file : files) {
    const std::string path = temporary + "/" + file.name;
    watch.step();
    open_file f(std::fopen(path.c_str(), "wbx"));
    if (!f) return fail_in(path, "cannot create this file: ", reason(errno));
    if (status written = write_and_close(std::move(f), path, file.parts, watch); !written) return written;
  }
  return swap_into_place(temporary, folder, watch);
}

// Removes a folder at the end of its scope: the unfinished new folder before the exchange, the old one after it.
struct folder_to_remove {
  std::string name;
  const write_observer& watch;
  folder_to_remove(std::string path, const write_observer& observer) : name(std::move(path)), watch(observer) {}
  folder_to_remove(const folder_to_remove&) = delete;
  folder_to_remove& operator=(const folder_to_remove&) = delete;
  ~folder_to_remove() {
    watch.step();
    std::error_code ignored;
    std::filesystem::remove_all(name, ignored);
  }
};

// The canonical path of the target folder, without links and dots.
inline result<std::string> parent_folder(const std::string& folder) {
  std::string target = std::filesystem::weakly_canonical(folder).string();
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  if (exists(target) && !is_directory(target)) return fail_in(folder, "this is a file, expected a folder or nothing");
  return target;
}

// Writes the files into `folder`, whose parent must exist. Other files of the folder remain.
inline status save_folder(const std::string& folder, std::span<const file_to_save> files,
                          const write_observer& watch = {}) {
  return guarded(folder, [&]() -> status {
    if (status good = check_file_names(folder, files); !good) return good;
    const result<std::string> target = parent_folder(folder);
    if (!target) return target.failure();
    const folder_to_remove temporary{temporary_name(*target), watch};
    return write_temporary(temporary.name, *target, files, watch);
  });
}

// Checks that save_folder can create its files, so that a training run fails at its start rather than at its end. The
// check leaves nothing on the disk.
inline status can_save_folder(const std::string& folder) {
  return guarded(folder, [&]() -> status {
    const result<std::string> target = parent_folder(folder);
    if (!target) return target.failure();
    const write_observer none;
    const folder_to_remove temporary{temporary_name(*target), none};
    return make_temporary(temporary.name, *target);
  });
}

}  // namespace graft::io
