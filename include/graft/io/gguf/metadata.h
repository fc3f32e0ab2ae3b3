// SPDX-License-Identifier: Apache-2.0
// Typed, checked reading of the metadata of a GGUF file. A key is looked up below the file's architecture
// ("llama.block_count"); `problem` keeps the first violation.
#pragma once
#include <graft/io/gguf/reader.h>

#include <optional>

namespace graft::io::detail {

struct gguf_metadata {
  const gguf& in;
  std::string family{};
  std::optional<error> problem{};

  template <class... Parts> void reject(const Parts&... parts) {
    if (!problem) problem = fail_in(in.file, parts...);
  }
  const gguf_value* find(const char* name) const { return in.find_value(family + "." + name); }
  template <class... Parts> void reject_key(const char* name, const Parts&... parts) {
    reject("the fact '", family.c_str(), ".", name, "' is ", parts...);
  }
  void integer(const char* name, int& to, bool needed = true, int least = 1) {
    const gguf_value* f = find(name);
    if (f == nullptr && !needed) return;
    if (f == nullptr || f->what != gguf_value::kind::whole || f->whole < least || f->whole > 1'000'000'000)
      return reject_key(name, f == nullptr ? "missing" : least == 0 ? "no whole number" : "no whole number above 0");
    to = static_cast<int>(f->whole);
  }
  void real(const char* name, double& to, bool needed = false) {
    const gguf_value* f = find(name);
    if (f == nullptr && !needed) return;
    if (f == nullptr || f->what != gguf_value::kind::real || !(f->real > 0) || f->real > 1e30)
      return reject_key(name, f == nullptr ? "missing" : "no number above 0");
    to = f->real;
  }
  // Refuses a number other than the one that is computed with.
  void must_be(const char* name, double wanted, const char* why) {
    const gguf_value* f = find(name);
    if (f == nullptr || (f->what == gguf_value::kind::real && f->real == wanted) ||
        (f->what != gguf_value::kind::real && f->what != gguf_value::kind::word && f->what != gguf_value::kind::list &&
         static_cast<double>(f->whole) == wanted))
      return;
    reject_key(name, "not ", static_cast<long long>(wanted), ": ", why);
  }
  // A token id; none where it is absent or -1.
  std::optional<int> token(const char* name) {
    const gguf_value* f = in.find_value(std::string("tokenizer.ggml.") + name);
    if (f == nullptr || (f->what == gguf_value::kind::whole && (f->whole == -1 || f->whole == 0xffffffffLL))) return {};
    if (f->what == gguf_value::kind::whole && f->whole >= 0 && f->whole <= 1'000'000'000)
      return static_cast<int>(f->whole);
    return reject("the fact 'tokenizer.ggml.", name, "' is no token"), std::nullopt;
  }
};

}  // namespace graft::io::detail
