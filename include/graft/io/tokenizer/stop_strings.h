// SPDX-License-Identifier: Apache-2.0
// Stop strings: texts that end a generated text and are not part of it. A text arrives in pieces, so what may be the
// begin of a stop string is held back until it is known.
//     stop_strings stops({"\n\n", "User:"});
//     show(stops.feed(piece));   if (stops.found()) …the text ends here…   else at the end show(stops.finish());
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace graft::io::hf {

class stop_strings {
 public:
  explicit stop_strings(std::vector<std::string> all) : all_(std::move(all)) { std::erase(all_, std::string()); }

  // Appends a piece and returns the text that is certainly before any stop string.
  std::string feed(std::string_view text) {
    if (found_) return {};
    waiting_ += text;
    std::size_t first = waiting_.npos, held = 0;
    for (const std::string& s : all_) first = std::min(first, waiting_.find(s));
    found_ = first != waiting_.npos;
    if (!found_)
      for (const std::string& s : all_) held = std::max(held, begun(s));
    std::string out = waiting_.substr(0, found_ ? first : waiting_.size() - held);
    waiting_.erase(0, found_ ? waiting_.size() : out.size());
    return out;
  }
  // Returns the text that was held back, at the end of a text without a stop string.
  std::string finish() { return std::exchange(waiting_, std::string()); }
  bool found() const { return found_; }

 private:
  // Returns how many characters at the end are the beginning of a stop string.
  std::size_t begun(const std::string& stop) const {
    for (std::size_t n = std::min(stop.size() - 1, waiting_.size()); n > 0; --n)
      if (waiting_.ends_with(std::string_view(stop).substr(0, n))) return n;
    return 0;
  }

  std::vector<std::string> all_;
  std::string waiting_;
  bool found_ = false;
};

}  // namespace graft::io::hf
