// SPDX-License-Identifier: Apache-2.0
// Which of several ways to launch the same work was quickest, by what is launched and its class of sizes, as text: a
// line each, after the device that it was timed on and before a number that tells whether every byte is there. Ways are
// kept by name: one that a program does not know, or that does not take the sizes of a call, is not taken.
#pragma once
#include <graft/core/result.h>
#include <graft/core/version.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace graft {

class choices {
 public:
  // Null where nobody has timed it.
  const std::string* find(const std::string& what, long long size) const {
    const auto at = all_.find({what, size});
    return at == all_.end() ? nullptr : &at->second;
  }
  void put(const std::string& what, long long size, const std::string& way) { all_[{what, size}] = way; }
  // Those of others; where both know one, ours stays.
  void add(const choices& more) { all_.insert(more.all_.begin(), more.all_.end()); }
  std::size_t size() const { return all_.size(); }
  friend bool operator==(const choices&, const choices&) = default;

  std::string written(std::string_view device) const {
    std::string text = first_line() + "device\t" + std::string(device) + "\n";
    for (const auto& [of, way] : all_) text += of.first + "\t" + std::to_string(of.second) + "\t" + way + "\n";
    return text + last_line(text);
  }
  // Everything or nothing: a file of another version or device, or one that is not whole, is an error.
  static result<choices> read(std::string_view text, std::string_view device) {
    const std::string begin = first_line();
    if (text.substr(0, begin.size()) != begin) return fail("it is no file of choices of this version");
    const std::size_t last = text.empty() || text.back() != '\n' ? std::string_view::npos : text.rfind("end\t");
    if (last == std::string_view::npos || text[last - 1] != '\n' ||
        text.substr(last) != last_line(text.substr(0, last)))
      return fail("it is cut off or damaged");
    std::string_view rest = text.substr(begin.size(), last - begin.size());
    const std::string_view where = line_of(rest);
    if (where != "device\t" + std::string(device))
      return fail("it is of another device (", std::string(where.substr(0, 80)).c_str(), ")");
    choices made;
    while (!rest.empty())
      if (const std::string_view line = line_of(rest); !made.take(line))
        return fail("'", std::string(line.substr(0, 80)).c_str(), "' is not a choice");
    return made;
  }

 private:
  static std::string first_line() { return "graft choices 1, version " + std::to_string(GRAFT_VERSION) + "\n"; }
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
  bool take(std::string_view line) {
    const std::size_t first = line.find('\t'), second = line.find('\t', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos || second - first > 18) return false;
    long long size = 0;
    for (const char c : line.substr(first + 1, second - first - 1)) {
      if (c < '0' || c > '9') return false;
      size = 10 * size + (c - '0');
    }
    const std::string_view way = line.substr(second + 1);
    if (first == 0 || second == first + 1 || way.empty() || way.find('\t') != std::string_view::npos) return false;
    return put(std::string(line.substr(0, first)), size, std::string(way)), true;
  }

  std::map<std::pair<std::string, long long>, std::string> all_;
};

}  // namespace graft
