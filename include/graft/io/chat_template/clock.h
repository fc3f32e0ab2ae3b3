// SPDX-License-Identifier: Apache-2.0
// strftime_now of chat templates: the local time in Python's format. Names of days and months are English, and
// directives that depend on a locale are refused.
#pragma once
#include <graft/io/chat_template/value.h>

#include <ctime>

namespace graft::io::jinja {

inline value formatted_time(state& s, const std::string& format, std::int64_t seconds) {
  static constexpr const char* days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
  static constexpr const char* months[] = {"January", "February", "March",     "April",   "May",      "June",
                                           "July",    "August",   "September", "October", "November", "December"};
  const auto when = static_cast<std::time_t>(seconds);
  std::tm t{};
  if (::localtime_r(&when, &t) == nullptr) return s.stop("strftime_now: the time is out of range");
  std::string out;
  const auto digits = [](int n, std::size_t width, char fill) {
    std::string d = std::to_string(n);
    return d.size() < width ? std::string(width - d.size(), fill) + d : d;
  };
  for (std::size_t i = 0; i < format.size() && s.work(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    // glibc's flag `-` leaves padding out.
    const bool bare = i + 1 < format.size() && format[i + 1] == '-';
    i += bare ? 2 : 1;
    const char c = i < format.size() ? format[i] : '\0';
    const auto two = [&](int n, char fill = '0') { out += digits(n, bare ? 1 : 2, fill); };
    switch (c) {
      case 'Y': out += std::to_string(t.tm_year + 1900); break;
      case 'y': two(t.tm_year % 100); break;
      case 'm': two(t.tm_mon + 1); break;
      case 'd': two(t.tm_mday); break;
      case 'e': two(t.tm_mday, ' '); break;
      case 'H': two(t.tm_hour); break;
      case 'I': two((t.tm_hour + 11) % 12 + 1); break;
      case 'M': two(t.tm_min); break;
      case 'S': two(t.tm_sec); break;
      case 'j': out += digits(t.tm_yday + 1, bare ? 1 : 3, '0'); break;
      case 'p': out += t.tm_hour < 12 ? "AM" : "PM"; break;
      case 'A': out += days[t.tm_wday]; break;
      case 'a': out += std::string_view(days[t.tm_wday]).substr(0, 3); break;
      case 'B': out += months[t.tm_mon]; break;
      case 'b':
      case 'h': out += std::string_view(months[t.tm_mon]).substr(0, 3); break;
      case 'F':
        out += std::to_string(t.tm_year + 1900) + "-" + digits(t.tm_mon + 1, 2, '0') + "-" + digits(t.tm_mday, 2, '0');
        break;
      case 'T':
        out += digits(t.tm_hour, 2, '0') + ":" + digits(t.tm_min, 2, '0') + ":" + digits(t.tm_sec, 2, '0');
        break;
      case 'R': out += digits(t.tm_hour, 2, '0') + ":" + digits(t.tm_min, 2, '0'); break;
      case '%': out += '%'; break;
      default:
        return s.stop("strftime_now: the directive %" +
                      std::string(c == '\0' ? "" : in_quotes({&format[i], 1}).c_str()) +
                      " is not supported, expected one of Y y m d e H I M S j p A a B b F T R");
    }
  }
  return s.text(std::move(out));
}

}  // namespace graft::io::jinja
