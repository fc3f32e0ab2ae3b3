// SPDX-License-Identifier: Apache-2.0
// Tokens of a text file, for comparisons with other programs (make_tokenizer.py, compare_tokenizers.py).
//     tokenize TOKENIZER TEXT IDS            writes the text's tokens as 32-bit integers, and says how long it took
//     tokenize TOKENIZER TEXTS IDS --each    TEXTS holds many texts, each behind its length in bytes (32 bits); IDS
//                                            gets for each text the number of its tokens, those, the length of the text
//                                            they decode to, and that text. 2^32-1 alone stands for an error
// TOKENIZER is a tokenizer.json, its folder, or a GGUF file.
#include <graft/io/gguf/tokenizer.h>
#include <graft/io/tokenizer/tokenizer_file.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "../../examples/arguments.h"

using namespace graft;
using namespace graft::io;

namespace {

result<hf::tokenizer> read_any(const std::string& file) {
  if (!file.ends_with(".gguf")) return hf::read_tokenizer(file);
  const result<gguf> from = map_gguf(file);
  if (!from) return from.failure();
  return tokenizer_of(*from);
}
double seconds(std::chrono::steady_clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Encodes and decodes texts one by one.
int each(const hf::tokenizer& words, std::string_view in, const std::string& file) {
  using clock = std::chrono::steady_clock;
  clock::duration encoding{}, decoding{};
  std::string out;
  std::size_t texts = 0, bytes = 0;
  const auto put = [&](std::size_t v) {
    const auto narrow = static_cast<std::uint32_t>(v);
    out.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
  };
  while (in.size() >= 4) {
    std::uint32_t length = 0;
    std::memcpy(&length, in.data(), sizeof length);
    if (length > in.size() - 4) return std::fprintf(stderr, "a text is cut off\n"), 1;
    const std::string_view text = in.substr(4, length);
    in.remove_prefix(4 + text.size());
    ++texts, bytes += text.size();
    const auto start = clock::now();
    const auto ids = words.encode(text);
    const auto encoded = clock::now();
    encoding += encoded - start;
    if (!ids) {
      put(0xFFFFFFFF);
      continue;
    }
    const std::string back = words.decode(*ids);
    decoding += clock::now() - encoded;
    put(ids->size());
    for (const std::int64_t id : *ids) put(static_cast<std::size_t>(id));
    put(back.size());
    out += back;
  }
  if (const status s = write_file(file, std::as_bytes(std::span(out))); !s)
    return std::fprintf(stderr, "%s\n", s.message()), 1;
  const double megabytes = static_cast<double>(bytes) / 1e6;
  std::printf("{\"texts\": %zu, \"bytes\": %zu, \"encode_MB_s\": %.2f, \"decode_MB_s\": %.1f}\n", texts, bytes,
              megabytes / seconds(encoding), megabytes / seconds(decoding));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string tokenizer_file, text_file, ids_file;
  arguments in("tokenize", "Text to tokens and back, timed.");
  in.word("TOKENIZER", tokenizer_file, "tokenizer.json, its folder, or a GGUF file");
  in.word("TEXT", text_file, "file with text");
  in.word("IDS", ids_file, "file that the tokens are written to, 32 bits each");
  bool many = false;
  in.flag("--each", many, "TEXT holds many texts, each behind its length");
  if (const auto code = in.read(argc, argv)) return *code;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto start = now();
  const result<hf::tokenizer> made = read_any(tokenizer_file);
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  const result<std::vector<std::byte>> text = read_file(text_file);
  if (!text) return std::fprintf(stderr, "%s\n", text.message()), 1;
  if (many) return each(*made, as_chars(*text), ids_file);
  const auto loaded = now();
  const result<std::vector<std::int64_t>> ids = made->encode(as_chars(*text));
  if (!ids) return std::fprintf(stderr, "%s\n", ids.message()), 1;
  const auto encoded = now();
  const std::string back = made->decode(*ids);
  const auto decoded = now();
  const std::vector<std::int32_t> narrow(ids->begin(), ids->end());
  if (const status s = write_file(ids_file, std::as_bytes(std::span(narrow))); !s)
    return std::fprintf(stderr, "%s\n", s.message()), 1;
  const double megabytes = static_cast<double>(text->size()) / 1e6;
  std::printf("{\"tokens\": %zu, \"load_s\": %.3f, \"encode_MB_s\": %.2f, \"decode_MB_s\": %.1f, \"round_trip\": %s}\n",
              narrow.size(), seconds(loaded - start), megabytes / seconds(encoded - loaded),
              megabytes / seconds(decoded - encoded), back == as_chars(*text) ? "true" : "false");
  return 0;
}
