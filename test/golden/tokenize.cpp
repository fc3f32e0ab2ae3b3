// SPDX-License-Identifier: Apache-2.0
// Tokens of a text file, for comparisons with other programs (make_tokenizer.py).
//     tokenize TOKENIZER.json TEXT IDS      writes the tokens of the text as 32-bit integers, and says how long it took;
//                                           fails where the text that they decode to is not the text (NFC aside)
#include <graft/io/hf/tokenizer_file.h>

#include <chrono>
#include <cstdio>

using namespace graft;
using namespace graft::io;

int main(int argc, char** argv) {
  if (argc != 4) return std::fputs("usage: tokenize TOKENIZER.json TEXT IDS\n", stderr), 2;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
  const auto start = now();
  const result<hf::tokenizer> made = hf::read_tokenizer(argv[1]);
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  const result<std::vector<std::byte>> text = read_file(argv[2]);
  if (!text) return std::fprintf(stderr, "%s\n", text.message()), 1;
  const auto loaded = now();
  const result<std::vector<std::int64_t>> ids = made->encode(as_chars(*text));
  if (!ids) return std::fprintf(stderr, "%s\n", ids.message()), 1;
  const auto encoded = now();
  const std::string back = made->decode(*ids);
  const auto decoded = now();
  const std::vector<std::int32_t> narrow(ids->begin(), ids->end());
  if (const status s = write_file(argv[3], std::as_bytes(std::span(narrow))); !s)
    return std::fprintf(stderr, "%s\n", s.message()), 1;
  const double megabytes = static_cast<double>(text->size()) / 1e6;
  std::printf("{\"tokens\": %zu, \"load_s\": %.3f, \"encode_MB_s\": %.2f, \"decode_MB_s\": %.1f, \"round_trip\": %s}\n",
              narrow.size(), seconds(start, loaded), megabytes / seconds(loaded, encoded),
              megabytes / seconds(encoded, decoded), back == as_chars(*text) ? "true" : "false");
  return 0;
}
