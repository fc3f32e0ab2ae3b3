// SPDX-License-Identifier: Apache-2.0
// Parses the command line of a program from declarations, from which --help, defaults and error messages follow too.
//     int tokens = 32;
//     arguments in("generate", "Generates text.");
//     in.word("MODEL", model, "the model's folder");
//     in.option("--max-new-tokens N", tokens, "new tokens, at most", 0);
//     if (const auto code = in.read(argc, argv)) return *code;
// An option is written --max-new-tokens 8 or --max-new-tokens=8; after -- every argument is a word. The first mistake is
// printed as one sentence, and the exit code is 2.
#pragma once
#include <graft/core/name_suggestion.h>
#include <graft/core/result.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Reads whole numbers that are separated by any of the characters of `between`.
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
// Splits a text at commas and leaves out empty parts.
inline std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> all;
  for (std::size_t at = text.find_first_not_of(','); at < text.size(); at = text.find_first_not_of(',', at)) {
    all.emplace_back(text.substr(at, text.find(',', at) - at));
    at += all.back().size();
  }
  return all;
}

class arguments {
 public:
  arguments(std::string program, std::string summary) : program_(std::move(program)), summary_(std::move(summary)) {}

  // Declares positional arguments, in the order of the declarations.
  void word(const char* name, std::string& to, const char* what) { words_.push_back({name, what, &to, true}); }
  void optional_word(const char* name, std::string& to, const char* what) {
    words_.push_back({name, what, &to, false});
  }
  // Declares any number of further positional arguments NAME=VALUE.
  using pairs = std::vector<std::pair<std::string, std::string>>;
  void named_words(const char* name, pairs& to, const char* what) { named_ = {name, what, &to}; }

  void flag(const char* name, bool& to, const char* what) {
    options_.push_back({name,
                        "",
                        what,
                        "",
                        [&to](const std::string&) {
                          to = true;
                          return std::string();
                        },
                        {}});
  }
  // `spelling` is the option and the name of its value, "--max-new-tokens N".
  void option(const char* spelling, std::string& to, const char* what) {
    add(spelling, what, to, [&to](const std::string& given) {
      to = given;
      return std::string();
    });
  }
  // Declares an option that may be given several times.
  void option(const char* spelling, std::vector<std::string>& to, const char* what) {
    add(spelling, what, "", [&to](const std::string& given) {
      to.push_back(given);
      return std::string();
    });
  }
  void option(const char* spelling, int& to, const char* what, int least) {
    add(spelling, what, std::to_string(to), whole(to, least));
  }
  void option(const char* spelling, std::optional<int>& to, const char* what, int least) {
    add(spelling, what, "", whole(to, least));
  }
  void option(const char* spelling, double& to, const char* what) {
    char usual[32];
    static_cast<void>(std::snprintf(usual, sizeof usual, "%g", to));
    add(spelling, what, usual, real(to));
  }
  void option(const char* spelling, std::optional<double>& to, const char* what) { add(spelling, what, "", real(to)); }

  // Gives the option that was declared last an earlier name, which works for one more release and is not listed.
  void earlier_name(const char* name) { options_.back().earlier = name; }

  // Returns nothing if the program continues, otherwise its exit code: 0 after --help, 2 after a printed mistake.
  std::optional<int> read(int count, char** all) {
    bool only_words = false;
    for (int i = 1; i < count; ++i) {
      std::string word = all[i];
      if (!only_words && (word == "--help" || word == "-h")) return help(), 0;
      if (!only_words && word == "--") {
        only_words = true;
        continue;
      }
      if (only_words || !word.starts_with("--")) {
        if (const std::string problem = add_positional(word); !problem.empty()) return mistake(problem);
        continue;
      }
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const declared* const option = find(name);
      if (option == nullptr) return mistake("there is no option " + name + nearest_option(name));
      std::string value;
      if (equals != word.npos) {
        if (option->value.empty()) return mistake(name + " takes no value");
        value = word.substr(equals + 1);
      } else if (!option->value.empty()) {
        if (i + 1 == count || is_option(all[i + 1])) return mistake(name + " needs a value, " + option->value);
        value = all[++i];
      }
      if (const std::string problem = option->set(value); !problem.empty())
        return mistake(name + " takes " + problem + ", not '" + value + "'");
    }
    for (const positional& w : words_)
      if (w.needed && w.to->empty()) return mistake(w.name + " is missing");
    return std::nullopt;
  }
  // Prints a mistake and returns the exit code.
  int mistake(const std::string& problem) const {
    std::fprintf(stderr, "%s: %s; %s --help lists all options\n", program_.c_str(), problem.c_str(), program_.c_str());
    return 2;
  }

 private:
  struct declared {
    std::string name, value, what, usual;
    std::function<std::string(const std::string&)> set;  // returns what was expected, or nothing on success
    std::string earlier{};                               // a name of an earlier release; empty: there is none
  };
  struct positional {
    std::string name, what;
    std::string* to = nullptr;
    bool needed = true;
  };
  struct positional_pairs {
    std::string name, what;
    pairs* to = nullptr;
  };

  template <class Set> void add(const std::string& spelling, const char* what, const std::string& usual, Set set) {
    const std::size_t space = spelling.find(' ');
    options_.push_back({spelling.substr(0, space), spelling.substr(space + 1), what, usual, set, {}});
  }
  template <class To> static std::function<std::string(const std::string&)> whole(To& to, int least) {
    return [&to, least](const std::string& given) {
      const auto read = numbers_in(given, "");
      if (read && read->size() == 1 && (*read)[0] >= least && (*read)[0] <= std::numeric_limits<int>::max())
        return to = static_cast<int>((*read)[0]), std::string();
      return "a whole number from " + std::to_string(least) + " on";
    };
  }
  template <class To> static std::function<std::string(const std::string&)> real(To& to) {
    return [&to](const std::string& given) {
      char* end = nullptr;
      const double v = std::strtod(given.c_str(), &end);
      if (given.empty() || *end != '\0' || !std::isfinite(v)) return std::string("a number");
      return to = v, std::string();
    };
  }
  const declared* find(const std::string& name) const {
    for (const declared& o : options_)
      if (o.name == name || (!name.empty() && o.earlier == name)) return &o;
    return nullptr;
  }
  bool is_option(const std::string& word) const {
    const std::string name = word.substr(0, word.find('='));
    return name == "--help" || find(name) != nullptr;
  }
  std::string nearest_option(const std::string& name) const {
    graft::name_suggester meant(name.c_str());
    for (const declared& o : options_) meant.offer(o.name.c_str());
    meant.offer("--help");
    return meant.hint().c_str();
  }
  std::string add_positional(const std::string& word) {
    for (positional& w : words_)
      if (w.to->empty()) {
        *w.to = word;
        return "";
      }
    if (named_.to == nullptr) return "'" + word + "' is a word too many";
    const std::size_t equals = word.find('=');
    if (equals == word.npos || equals == 0 || equals + 1 == word.size())
      return "'" + word + "' is a word too many, expected " + named_.name;
    named_.to->emplace_back(word.substr(0, equals), word.substr(equals + 1));
    return "";
  }

  // Prints an entry of the list, with its explanation wrapped at 110 characters.
  static void list(const std::string& left, const std::string& what, std::size_t column) {
    std::string line = "  " + left;
    if (line.size() + 2 > column) std::printf("%s\n", line.c_str()), line.clear();
    for (std::size_t at = 0; at < what.size();) {
      line.resize(column, ' ');
      std::size_t end = what.size();
      if (end - at > 110 - column) {
        end = what.rfind(' ', at + 110 - column);
        if (end == what.npos || end <= at) end = what.size();
      }
      std::printf("%s%s\n", line.c_str(), what.substr(at, end - at).c_str());
      line.clear();
      at = end < what.size() ? end + 1 : end;
    }
  }
  void help() const {
    std::string usage = "usage: " + program_;
    for (const positional& w : words_) usage += w.needed ? " " + w.name : " [" + w.name + "]";
    if (named_.to != nullptr) usage += " [" + named_.name + " ...]";
    std::printf("%s%s\n\n%s\n\n", usage.c_str(), options_.empty() ? "" : " [options]", summary_.c_str());
    const auto spelled = [](const declared& o) { return o.value.empty() ? o.name : o.name + " " + o.value; };
    std::size_t column = 8;
    for (const positional& w : words_) column = std::max(column, w.name.size() + 4);
    column = std::max(column, named_.name.size() + 4);
    for (const declared& o : options_) column = std::max(column, std::min<std::size_t>(spelled(o).size(), 26) + 4);
    for (const positional& w : words_) list(w.name, w.what, column);
    if (named_.to != nullptr) list(named_.name, named_.what, column);
    if (!words_.empty() || named_.to != nullptr) std::printf("\n");
    for (const declared& o : options_)
      list(spelled(o), o.usual.empty() ? o.what : o.what + " (default: " + o.usual + ")", column);
    list("--help", "prints this text", column);
  }

  std::string program_, summary_;
  std::vector<positional> words_;
  positional_pairs named_;
  std::vector<declared> options_;
};
