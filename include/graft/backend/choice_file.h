// SPDX-License-Identifier: Apache-2.0
// Choices on disk. A file that is damaged, or another device's or version's, is not read, and note() says so; a damaged
// one is written anew, and one that is somebody else's stays as it is. What cannot be read or written is no error:
// choices are timed again. A file is replaced by renaming, and what another process wrote meanwhile is kept.
#pragma once
#include <graft/backend/choices.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace graft {

// Below $XDG_CACHE_HOME, or ~/.cache; a file for each kind of device. Empty where neither is known.
inline std::string usual_choice_file(std::string_view device) {
  const char *const cache = std::getenv("XDG_CACHE_HOME"), *const home = std::getenv("HOME");
  std::string path;
  if (cache != nullptr && cache[0] == '/')
    path = cache;
  else if (home != nullptr && home[0] == '/')
    path = std::string(home) + "/.cache";
  else
    return path;
  path += "/graft/choices-";
  for (const char c : device) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    path += plain ? c : '_';
  }
  return path + ".txt";
}

class choice_file {
 public:
  // `path` empty: nothing is read and nothing kept.
  choice_file(std::string path, std::string device) : path_(std::move(path)), device_(std::move(device)) {
    if (path_.empty()) {
      note_ = "choices are not kept: there is no file for them, and neither XDG_CACHE_HOME nor HOME is set";
      return;
    }
    std::string text;
    if (!read_file(text)) return;
    result<choices> read = choices::read(text, device_);
    if (read) {
      all_ = std::move(*read);
      return;
    }
    is_ours_ = is_damaged(text);
    note_ = path_ + " is not used: " + read.message() +
            (is_ours_ ? "; choices are timed and the file is written again"
                      : "; choices are timed and not kept, name another file for them");
  }
  const std::string* find(const std::string& what, long long size) const { return all_.find(what, size); }
  void put(const std::string& what, long long size, const std::string& way) {
    all_.put(what, size, way);
    if (!path_.empty() && is_ours_) save();
  }
  // What the user should know; empty: nothing.
  const std::string& note() const { return note_; }
  const std::string& path() const { return path_; }
  std::size_t size() const { return all_.size(); }

 private:
  static constexpr std::size_t largest = 1 << 24;
  struct closer {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  using open_file = std::unique_ptr<std::FILE, closer>;

  // Something of this library that cannot be read, and not somebody else's.
  bool is_damaged(const std::string& text) const {
    const std::string own = choices().written(device_);
    const std::size_t head = own.rfind("end\t");
    return text.size() < head || text.compare(0, head, own, 0, head) == 0;
  }
  // False where there is none that can be read.
  bool read_file(std::string& text) const {
    struct stat found {};
    if (::stat(path_.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return false;
    const open_file f(std::fopen(path_.c_str(), "rb"));
    if (!f) return false;
    text.assign(largest + 1, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), f.get()));
    return true;
  }
  static void make_folders(const std::string& path) {
    for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
      ::mkdir(path.substr(0, at).c_str(), 0777);  // what cannot be made is noticed when the file is opened
  }
  void save() {
    std::string text;
    if (read_file(text))
      if (const result<choices> others = choices::read(text, device_)) all_.add(*others);
    make_folders(path_);
    const std::string beside = path_ + "." + std::to_string(::getpid());
    text = all_.written(device_);
    bool whole = false;
    {
      open_file f(std::fopen(beside.c_str(), "wb"));
      whole = f != nullptr && std::fwrite(text.data(), 1, text.size(), f.get()) == text.size();
      if (f != nullptr) whole = std::fclose(f.release()) == 0 && whole;
    }
    if (whole && std::rename(beside.c_str(), path_.c_str()) == 0) return;
    std::remove(beside.c_str());
    note_ = "choices cannot be kept in " + path_ + ": they are timed again by the next program";
  }

  std::string path_, device_, note_;
  choices all_;
  bool is_ours_ = true;
};

}  // namespace graft
