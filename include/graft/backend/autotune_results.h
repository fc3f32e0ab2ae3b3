// SPDX-License-Identifier: Apache-2.0
// Autotuning results: the fastest candidate of each kind of launch and size class, and their text form. The text is a
// line with the version, the device, one line per result, and an FNV-1a checksum of all lines before it. Candidates are
// stored by name: a program that has no candidate of that name for the sizes of a call times its own.
#pragma once
#include <graft/core/result.h>
#include <graft/core/version.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace graft {

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

}  // namespace graft
