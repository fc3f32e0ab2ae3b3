// SPDX-License-Identifier: Apache-2.0
// Accepts the prefixes of a JSON object (RFC 8259) byte by byte. It is how JSON mode excludes tokens: a token may come
// next if its bytes continue a valid object. A copy is a few bytes, so that every token of a vocabulary can be tried.
// Nesting and runs of white space are bounded, since a model could continue either for ever.
#pragma once
#include <cstdint>
#include <string_view>

namespace graft::serving {

class json_object_prefix {
 public:
  static constexpr int max_depth = 60, max_spaces = 64;

  // True once the object is closed; nothing may follow.
  bool complete() const { return at_ == state::end; }
  // Appends bytes. After false the text is not the beginning of an object, and the state is of no use.
  bool feed(std::string_view bytes) {
    for (const char c : bytes)
      if (!feed(static_cast<unsigned char>(c))) return false;
    return true;
  }

 private:
  enum class state : std::uint8_t {
    begin,            // only {
    first_key,        // a key or }
    key,              // a key
    colon,            // : after a key
    value,            // any value
    first_value,      // a value or ]
    after_value,      // , or the end of the container
    text,             // in a string
    escape,           // after a backslash
    hex,              // in the digits of \u
    literal,          // in true, false, null
    minus,            // after - of a number
    zero,             // after a leading 0
    digits,           // in the integer part
    point,            // after .
    fraction,         // in the digits after .
    exponent,         // after e
    exponent_sign,    // after + or - of the exponent
    exponent_digits,  // in the digits of the exponent
    end
  };

  static bool is_space(unsigned char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
  static bool is_hex(unsigned char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
  bool go(state to) { return at_ = to, true; }
  bool open(bool object) {
    if (depth_ == max_depth) return false;
    objects_ = (objects_ << 1U) | (object ? 1U : 0U), ++depth_;
    return go(object ? state::first_key : state::first_value);
  }
  bool close(bool object) {
    if (((objects_ & 1U) != 0) != object) return false;
    objects_ >>= 1U, --depth_;
    return go(depth_ == 0 ? state::end : state::after_value);
  }
  bool begin_string(bool is_key) { return is_key_ = is_key, go(state::text); }
  bool begin_literal(const char* rest) { return rest_ = rest, go(state::literal); }

  bool feed(unsigned char c) {
    const bool between = at_ <= state::after_value;
    if (between && is_space(c)) return at_ != state::begin && ++spaces_ <= max_spaces;
    spaces_ = 0;
    switch (at_) {
      case state::begin: return c == '{' && open(true);
      case state::first_key: return c == '}' ? close(true) : c == '"' && begin_string(true);
      case state::key: return c == '"' && begin_string(true);
      case state::colon: return c == ':' && go(state::value);
      case state::first_value: return c == ']' ? close(false) : value(c);
      case state::value: return value(c);
      case state::after_value: return after_value(c);
      case state::text: return text(c);
      case state::escape: return escape(c);
      case state::hex: return is_hex(c) && (--left_ > 0 || go(state::text));
      case state::literal:
        if (c != static_cast<unsigned char>(*rest_)) return false;
        return *++rest_ != '\0' || go(state::after_value);
      case state::minus: return c == '0' ? go(state::zero) : is_digit(c) && go(state::digits);
      case state::zero:
      case state::digits:
        if (at_ == state::digits && is_digit(c)) return true;
        if (c == '.') return go(state::point);
        return c == 'e' || c == 'E' ? go(state::exponent) : after_number(c);
      case state::point: return is_digit(c) && go(state::fraction);
      case state::fraction:
        if (is_digit(c)) return true;
        return c == 'e' || c == 'E' ? go(state::exponent) : after_number(c);
      case state::exponent:
        return c == '+' || c == '-' ? go(state::exponent_sign) : is_digit(c) && go(state::exponent_digits);
      case state::exponent_sign: return is_digit(c) && go(state::exponent_digits);
      case state::exponent_digits: return is_digit(c) || after_number(c);
      case state::end: return false;
    }
    return false;
  }
  bool value(unsigned char c) {
    switch (c) {
      case '{': return open(true);
      case '[': return open(false);
      case '"': return begin_string(false);
      case 't': return begin_literal("rue");
      case 'f': return begin_literal("alse");
      case 'n': return begin_literal("ull");
      case '-': return go(state::minus);
      case '0': return go(state::zero);
      default: return is_digit(c) && go(state::digits);
    }
  }
  bool after_value(unsigned char c) {
    if (c == ',') return go((objects_ & 1U) != 0 ? state::key : state::value);
    return c == '}' ? close(true) : c == ']' && close(false);
  }
  bool after_number(unsigned char c) {
    at_ = state::after_value;
    return is_space(c) ? ++spaces_ <= max_spaces : after_value(c);
  }
  // Strings are UTF-8 (RFC 3629): `left_` continuation bytes are due, the first of them in [low_, high_].
  bool text(unsigned char c) {
    if (left_ > 0) {
      if (c < low_ || c > high_) return false;
      low_ = 0x80, high_ = 0xBF, --left_;
      return true;
    }
    if (c == '"') return go(is_key_ ? state::colon : state::after_value);
    if (c == '\\') return go(state::escape);
    if (c < 0x80) return c >= 0x20;
    if (c < 0xC2 || c > 0xF4) return false;
    left_ = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
    low_ = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    high_ = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return true;
  }
  bool escape(unsigned char c) {
    if (c == 'u') return left_ = 4, go(state::hex);
    return std::string_view("\"\\/bfnrt").find(static_cast<char>(c)) != std::string_view::npos && go(state::text);
  }

  std::uint64_t objects_ = 0;  // the open containers, the innermost in the lowest bit; 1: an object
  const char* rest_ = "";      // what is left of a literal
  int depth_ = 0, spaces_ = 0, left_ = 0;
  unsigned char low_ = 0x80, high_ = 0xBF;
  state at_ = state::begin;
  bool is_key_ = false;
};

}  // namespace graft::serving
