// SPDX-License-Identifier: Apache-2.0
// A folder of files that appears whole or not at all. The files are written into a new folder beside the target and
// flushed; what the target holds beyond them is linked into it; then the two folders change names in one step (Linux:
// renameat2 with RENAME_EXCHANGE, macOS: renamex_np), and the old one is removed. A process that is killed at any point
// leaves the old folder or the new one under the name, complete, and at worst one more folder with ".tmp-" in its name.
#pragma once
#include <fcntl.h>
#include <graft/io/file.h>
#include <sys/syscall.h>

#include <climits>
#include <cstdlib>
#include <filesystem>

namespace graft::io {

struct file_to_save {
  std::string name;  // without a folder
  std::vector<std::span<const std::byte>> parts;
};

// 0 or an error number. Two plain renames would leave a moment in which nothing has the name.
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

// What stays of the old folder: the same files under a second name, folders with what is in them.
inline void link_others(const std::filesystem::path& from, const std::filesystem::path& to, const save_watch& watch) {
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

// The folder that is finished beside the target takes its place; what the target holds beyond it stays.
inline status take_place(const std::string& beside, const std::string& folder, const save_watch& watch) {
  const bool replaces = exists(folder);
  if (replaces) link_others(folder, beside, watch);
  watch.step();
  if (const int code = flush_folder(beside); code != 0) return fail_in(beside, "flushing failed: ", reason(code));
  watch.step();
  const int code = replaces ? exchange_names(beside, folder) : std::rename(beside.c_str(), folder.c_str());
  if (code != 0)
    return fail_in(folder, "this folder cannot be replaced in one step: ", reason(replaces ? code : errno),
                   "; it was left as it was, save into a new folder");
  flush_folder(std::filesystem::path(folder).parent_path().string());
  return ok;
}

inline status make_beside(const std::string& beside, const std::string& folder) {
  std::error_code code;
  if (exists(folder))
    std::filesystem::create_directory(beside, folder, code);  // with the same permissions
  else
    std::filesystem::create_directory(beside, code);
  if (code) return fail_in(folder, "cannot create this folder in the one above it: ", code.message().c_str());
  return ok;
}

inline status write_beside(const std::string& beside, const std::string& folder, std::span<const file_to_save> files,
                           const save_watch& watch) {
  watch.step();
  if (status made = make_beside(beside, folder); !made) return made;
  for (const file_to_save& file : files) {
    const std::string path = beside + "/" + file.name;
    watch.step();
    open_file f(std::fopen(path.c_str(), "wbx"));
    if (!f) return fail_in(path, "cannot create this file: ", reason(errno));
    if (status written = write_and_close(std::move(f), path, file.parts, watch); !written) return written;
  }
  return take_place(beside, folder, watch);
}

// Before the exchange this is the unfinished new folder, after it the old one.
struct folder_to_remove {
  std::string name;
  const save_watch& watch;
  folder_to_remove(std::string path, const save_watch& observer) : name(std::move(path)), watch(observer) {}
  folder_to_remove(const folder_to_remove&) = delete;
  folder_to_remove& operator=(const folder_to_remove&) = delete;
  ~folder_to_remove() {
    watch.step();
    std::error_code ignored;
    std::filesystem::remove_all(name, ignored);
  }
};

// The path that a folder will have, free of links and dots.
inline result<std::string> place_of_folder(const std::string& folder) {
  std::string target = std::filesystem::weakly_canonical(folder).string();
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  if (exists(target) && !is_directory(target)) return fail_in(folder, "this is a file, expected a folder or nothing");
  return target;
}

// The folder above must exist. Files of the same names are replaced, all others stay.
inline status save_folder(const std::string& folder, std::span<const file_to_save> files,
                          const save_watch& watch = {}) {
  return guarded(folder, [&]() -> status {
    if (status good = check_file_names(folder, files); !good) return good;
    const result<std::string> target = place_of_folder(folder);
    if (!target) return target.failure();
    const folder_to_remove beside{name_beside(*target), watch};
    return write_beside(beside.name, *target, files, watch);
  });
}

// Whether it could: asked before hours of training, not after them. Nothing is left behind.
inline status can_save_folder(const std::string& folder) {
  return guarded(folder, [&]() -> status {
    const result<std::string> target = place_of_folder(folder);
    if (!target) return target.failure();
    const save_watch none;
    const folder_to_remove beside{name_beside(*target), none};
    return make_beside(beside.name, *target);
  });
}

}  // namespace graft::io
