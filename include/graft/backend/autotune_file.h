// SPDX-License-Identifier: Apache-2.0
// Autotuning results on disk: the fastest candidates of one kind of device, in a text file. A file of another
// device or version is neither used nor changed, a damaged one is written anew, and note() reports both. A file that
// cannot be read or written is no error: candidates are timed again. Saving merges what other processes have written
// meanwhile and replaces the file by renaming.
#pragma once
#include <graft/core/algorithm.h>
#include <graft/core/result.h>
#include <graft/core/version.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace graft {

// Autotuning results: the fastest candidate of each kind of launch and size class, and their text form. The text is a
// line with the version, the device, one line per result, and an FNV-1a checksum of all lines before it. Candidates are
// stored by name: a program that has no candidate of that name for the sizes of a call times its own.
class autotune_results {
 public:
  // Returns null if this launch and size class have not been timed.
  const std::string* find(const std::string& what, long long size) const {
    const auto at = all_.find({what, size});
    return at == all_.end() ? nullptr : &at->second;
  }
  void put(const std::string& what, long long size, const std::string& candidate) { all_[{what, size}] = candidate; }
  // Adds the results of `more`; an existing result wins.
  void add(const autotune_results& more) { all_.insert(more.all_.begin(), more.all_.end()); }
  std::size_t size() const { return all_.size(); }
  friend bool operator==(const autotune_results&, const autotune_results&) = default;

  std::string written(std::string_view device) const {
    std::string text = first_line() + "device\t" + std::string(device) + "\n";
    for (const auto& [of, candidate] : all_)
      text += of.first + "\t" + std::to_string(of.second) + "\t" + candidate + "\n";
    return text + last_line(text);
  }
  // Reads all results or fails: for a text of another version or device, or one whose checksum does not match.
  static result<autotune_results> read(std::string_view text, std::string_view device) {
    const std::string begin = first_line();
    if (text.substr(0, begin.size()) != begin) return fail("it is no autotuning file of this version");
    const std::size_t last = text.empty() || text.back() != '\n' ? std::string_view::npos : text.rfind("end\t");
    if (last == std::string_view::npos || text[last - 1] != '\n' ||
        text.substr(last) != last_line(text.substr(0, last)))
      return fail("it is cut off or damaged");
    std::string_view rest = text.substr(begin.size(), last - begin.size());
    const std::string_view where = line_of(rest);
    if (where != "device\t" + std::string(device))
      return fail("it is of another device (", std::string(where.substr(0, 80)).c_str(), ")");
    autotune_results made;
    while (!rest.empty())
      if (const std::string_view line = line_of(rest); !made.take(line))
        return fail("'", std::string(line.substr(0, 80)).c_str(), "' is not an autotuning result");
    return made;
  }

 private:
  static std::string first_line() { return "graft autotune 1, version " + std::to_string(GRAFT_VERSION) + "\n"; }
  static std::string last_line(std::string_view before) {  // FNV-1a
    std::uint64_t h = 0xcbf29ce484222325ULL;
    for (const char c : before) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return "end\t" + std::to_string(h) + "\n";
  }
  static std::string_view line_of(std::string_view& rest) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() < rest.size() ? line.size() + 1 : rest.size());
    return line;
  }
  // Adds the result of one line; a size has at most 17 digits, so that it cannot overflow.
  bool take(std::string_view line) {
    const std::size_t first = line.find('\t'), second = line.find('\t', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos || second - first > 18) return false;
    long long size = 0;
    for (const char c : line.substr(first + 1, second - first - 1)) {
      if (c < '0' || c > '9') return false;
      size = 10 * size + (c - '0');
    }
    const std::string_view candidate = line.substr(second + 1);
    if (first == 0 || second == first + 1 || candidate.empty() || candidate.find('\t') != std::string_view::npos)
      return false;
    return put(std::string(line.substr(0, first)), size, std::string(candidate)), true;
  }

  std::map<std::pair<std::string, long long>, std::string> all_;
};

// The default path of a device: a file below $XDG_CACHE_HOME or ~/.cache. It is empty if neither is an absolute path.
inline std::string default_autotune_file(std::string_view device) {
  const char *const cache = std::getenv("XDG_CACHE_HOME"), *const home = std::getenv("HOME");
  std::string path;
  if (cache != nullptr && cache[0] == '/')
    path = cache;
  else if (home != nullptr && home[0] == '/')
    path = std::string(home) + "/.cache";
  else
    return path;
  path += "/graft/autotune-";
  for (const char c : device) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    path += plain ? c : '_';
  }
  return path + ".txt";
}

class autotune_file {
 public:
  // With an empty `path` nothing is read or saved.
  autotune_file(std::string path, std::string device) : path_(std::move(path)), device_(std::move(device)) {
    if (path_.empty()) {
      note_ = "autotuning results are not saved: there is no file for them, and neither XDG_CACHE_HOME nor HOME is set";
      return;
    }
    std::string text;
    if (!read_file(text)) return;
    result<autotune_results> read = autotune_results::read(text, device_);
    if (read) {
      all_ = std::move(*read);
      return;
    }
    is_ours_ = is_damaged(text);
    note_ = path_ + " is not used: " + read.message() +
            (is_ours_ ? "; candidates are timed and the file is written again"
                      : "; candidates are timed and not saved, name another file for them");
  }
  const std::string* find(const std::string& what, long long size) const { return all_.find(what, size); }
  // Returns true if the result was timed by this process, and not by the one that wrote the file.
  bool is_timed_here(const std::string& what, long long size) const { return timed_here_.count({what, size}) > 0; }
  void put(const std::string& what, long long size, const std::string& candidate) {
    all_.put(what, size, candidate), timed_here_.insert({what, size});
    if (!path_.empty() && is_ours_) save();
  }
  // A message for the user; it is empty if there is nothing to report.
  const std::string& note() const { return note_; }
  const std::string& path() const { return path_; }
  std::size_t size() const { return all_.size(); }

 private:
  static constexpr std::size_t largest = 1 << 24;
  struct closer {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  using open_file = std::unique_ptr<std::FILE, closer>;

  // Returns true if the text begins like a file of this version and device, or ends within such a beginning: save() may
  // then replace it.
  bool is_damaged(const std::string& text) const {
    const std::string own = autotune_results().written(device_);
    const std::size_t compared = min_of(text.size(), own.rfind("end\t"));
    return text.compare(0, compared, own, 0, compared) == 0;
  }
  // Returns false if there is no regular file that can be opened.
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
      ::mkdir(path.substr(0, at).c_str(), 0777);  // a failure shows when the file is opened
  }
  void save() {
    std::string text;
    if (read_file(text))
      if (const result<autotune_results> others = autotune_results::read(text, device_)) all_.add(*others);
    make_folders(path_);
    const std::string temporary = path_ + "." + std::to_string(::getpid());
    text = all_.written(device_);
    bool whole = false;
    {
      open_file f(std::fopen(temporary.c_str(), "wb"));
      whole = f != nullptr && std::fwrite(text.data(), 1, text.size(), f.get()) == text.size();
      if (f != nullptr) whole = std::fclose(f.release()) == 0 && whole;
    }
    if (whole && std::rename(temporary.c_str(), path_.c_str()) == 0) return;
    std::remove(temporary.c_str());
    note_ = "autotuning results cannot be saved in " + path_ + ": they are timed again by the next program";
  }

  std::string path_, device_, note_;
  autotune_results all_;
  std::set<std::pair<std::string, long long>> timed_here_;
  bool is_ours_ = true;
};

}  // namespace graft
