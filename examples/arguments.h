// SPDX-License-Identifier: Apache-2.0
// The words behind a program's name. The first mistake is kept as a sentence: an option that nobody asked about, one
// without its value, and what is no number where a number is expected.
#pragma once
#include <graft/core/result.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

// Whole numbers between `between` characters.
inline graft::result<std::vector<std::int64_t>> numbers_in(std::string_view text, std::string_view between) {
  std::vector<std::int64_t> all;
  for (std::size_t at = text.find_first_not_of(between); at < text.size(); at = text.find_first_not_of(between, at)) {
    const std::string word(text.substr(at, text.find_first_of(between, at) - at));
    const char* const end = word.data() + word.size();
    if (const auto read = std::from_chars(word.data(), end, all.emplace_back());
        read.ec != std::errc{} || read.ptr != end)
      return graft::fail("'", word.substr(0, 40).c_str(), "' is no whole number");
    at += word.size();
  }
  return all;
}

class arguments {
 public:
  arguments(int count, char** all) : rest_(all + 1, all + count) {}

  bool next() {
    if (at_ == rest_.size() || !problem_.empty()) return false;
    word_ = rest_[at_++];
    return true;
  }
  bool is(std::string_view option) const { return word_ == option; }
  std::string value() {
    if (at_ < rest_.size()) return rest_[at_++];
    return wrong(word_ + " needs a value"), "";
  }
  int whole(int least) {
    const std::string option = word_, text = value();
    const auto read = numbers_in(text, "");
    if (read && read->size() == 1 && (*read)[0] >= least && (*read)[0] <= std::numeric_limits<int>::max())
      return static_cast<int>((*read)[0]);
    return wrong(option + " takes a whole number from " + std::to_string(least) + " on, not '" + text + "'"), least;
  }
  double real() {
    const std::string option = word_, text = value();
    char* end = nullptr;
    const double v = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') wrong(option + " takes a number, not '" + text + "'");
    return v;
  }
  // Not an option: what it says.
  const std::string& plain() {
    if (word_.starts_with("--")) wrong("there is no option " + word_);
    return word_;
  }
  // The first of these that nothing was said about yet is this word.
  void plain_into(std::initializer_list<std::string*> places) {
    for (std::string* const place : places)
      if (place->empty()) return void(*place = plain());
    wrong("'" + plain() + "' is a word too many");
  }
  const std::string& problem() const { return problem_; }

 private:
  void wrong(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }
  std::vector<std::string> rest_;
  std::size_t at_ = 0;
  std::string word_, problem_;
};
