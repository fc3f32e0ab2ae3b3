// SPDX-License-Identifier: Apache-2.0
// Stop strings of a sequence: text is released as soon as no stop string can begin in it any more, so that a client
// never sees a part of one.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace graft::serving {

class stop_strings {
 public:
  struct fed {
    std::string text;  // released by this call
    bool stopped = false;
  };

  stop_strings() = default;
  // Empty strings are left out: they would stop a sequence before its first token.
  explicit stop_strings(std::vector<std::string> all) : all_(std::move(all)) {
    std::erase_if(all_, [](const std::string& s) { return s.empty(); });
  }

  // Appends the bytes of a token. A stop string ends the text in front of it; of several the one that begins first.
  fed feed(std::string_view bytes) {
    held_ += bytes;
    std::size_t first = std::string::npos;
    for (const std::string& s : all_) first = std::min(first, held_.find(s));
    if (first != std::string::npos) {
      held_.resize(first);
      return {std::exchange(held_, {}), true};
    }
    const std::size_t kept = longest_beginning();
    fed out{held_.substr(0, held_.size() - kept)};
    held_.erase(0, held_.size() - kept);
    return out;
  }
  // Returns the rest at the end of a sequence that no stop string ended.
  std::string finish() { return std::exchange(held_, {}); }

 private:
  // Length of the longest end of the text that a stop string begins with.
  std::size_t longest_beginning() const {
    std::size_t longest = 0;
    for (const std::string& s : all_)
      for (std::size_t n = std::min(s.size() - 1, held_.size()); n > longest; --n)
        if (std::string_view(held_).ends_with(std::string_view(s).substr(0, n))) longest = n;
    return longest;
  }

  std::vector<std::string> all_;
  std::string held_;
};

}  // namespace graft::serving
