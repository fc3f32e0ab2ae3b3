// SPDX-License-Identifier: Apache-2.0
// The chat templates of a GGUF file: tokenizer.chat_template, further ones as tokenizer.chat_template.NAME, and the
// special tokens that templates name, whose text is in the vocabulary (gguf-py/gguf/constants.py).
//     result<hf::chat_template_source> all = chat_templates_of(*map_gguf("model.gguf"));
#pragma once
#include <graft/io/chat_template/chat_template.h>
#include <graft/io/gguf/reader.h>

namespace graft::io {

GRAFT_LIBRARY result<hf::chat_template_source> chat_templates_of(const gguf& from);

}  // namespace graft::io

#if GRAFT_BODIES
namespace graft::io {

namespace detail {
// The texts of the vocabulary that have these ids, in their order; empty where there is none.
inline std::vector<std::string> token_texts(const gguf& from, std::span<const std::int64_t> ids) {
  std::vector<std::string> all(ids.size());
  const gguf_value* const list = from.find_value("tokenizer.ggml.tokens");
  if (list == nullptr || list->what != gguf_value::kind::list || list->element != 8) return all;
  std::string_view left = list->word;  // the reader has checked all lengths
  for (std::int64_t i = 0; i < list->whole; ++i) {
    std::uint64_t n = 0;
    std::memcpy(&n, left.data(), sizeof n);
    for (std::size_t k = 0; k < ids.size(); ++k)
      if (ids[k] == i) all[k] = left.substr(sizeof n, static_cast<std::size_t>(n));
    left.remove_prefix(sizeof n + static_cast<std::size_t>(n));
  }
  return all;
}
}  // namespace detail

GRAFT_LIBRARY result<hf::chat_template_source> chat_templates_of(const gguf& from) {
  return guarded(from.file, [&]() -> result<hf::chat_template_source> {
    hf::chat_template_source out{from.file, {}, {}};
    const std::string_view key = "tokenizer.chat_template";
    for (auto at = from.metadata.lower_bound(key); at != from.metadata.end() && at->first.starts_with(key); ++at) {
      const bool named = at->first.size() > key.size() + 1 && at->first[key.size()] == '.';
      if (!named && at->first != key) continue;  // tokenizer.chat_templates lists the names
      if (at->second.what != gguf_value::kind::word)
        return fail_in(from.file, in_quotes(at->first), " is no text, expected a chat template");
      out.templates.emplace_back(named ? at->first.substr(key.size() + 1) : "default", at->second.word);
    }
    if (out.templates.empty())
      return fail_in(from.file, "there is no chat template: 'tokenizer.chat_template' is missing");
    // ggml spells "seperator".
    constexpr std::pair<const char*, const char*> special[] = {
        {"bos_token", "bos_token_id"},       {"eos_token", "eos_token_id"},     {"unk_token", "unknown_token_id"},
        {"sep_token", "seperator_token_id"}, {"pad_token", "padding_token_id"}, {"cls_token", "cls_token_id"},
        {"mask_token", "mask_token_id"}};
    std::vector<std::int64_t> ids;
    for (const auto& [name, id] : special) {
      const gguf_value* const v = from.find_value(std::string("tokenizer.ggml.") + id);
      ids.push_back(v != nullptr && v->what == gguf_value::kind::whole ? v->whole : -1);
    }
    const std::vector<std::string> texts = detail::token_texts(from, ids);
    for (std::size_t k = 0; k < ids.size(); ++k)
      if (!texts[k].empty()) out.special_tokens.emplace_back(special[k].first, texts[k]);
    return out;
  });
}

}  // namespace graft::io
#endif
