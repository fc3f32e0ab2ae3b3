// SPDX-License-Identifier: Apache-2.0
// tokenizer.json (huggingface/tokenizers). Byte-level BPE is read; a part of another kind is refused with its name, for
// it would give other tokens.
#pragma once
#include <graft/core/library.h>
#include <graft/io/hf/tokenizer.h>

namespace graft::io::hf {

GRAFT_LIBRARY result<tokenizer> parse_tokenizer(std::string_view content, std::string_view file);
// `where` is the folder or the tokenizer.json in it.
GRAFT_LIBRARY result<tokenizer> read_tokenizer(const std::string& where);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/tokenizer_reader.h>

namespace graft::io::hf {

GRAFT_LIBRARY result<tokenizer> parse_tokenizer(std::string_view content, std::string_view file) {
  const result<json> parsed = parse_json(content, file);
  if (!parsed) return parsed.failure();
  if (!parsed->is_object()) return fail_in(file, "the file holds ", found(*parsed), ", expected a JSON object");
  return guarded(file, [&]() -> result<tokenizer> {
    tokenizer_reader in{*parsed, std::string(file)};
    in.all();
    if (in.problem) return *in.problem;
    return tokenizer(std::move(in.out));
  });
}

GRAFT_LIBRARY result<tokenizer> read_tokenizer(const std::string& where) {
  const std::string file = is_directory(where) ? where + "/tokenizer.json" : where;
  const result<std::vector<std::byte>> bytes = read_file(file, 200'000'000);
  if (!bytes) return bytes.failure();
  return parse_tokenizer(as_chars(*bytes), file);
}

}  // namespace graft::io::hf
#endif
