// SPDX-License-Identifier: Apache-2.0
// What is fuzzed of the server: bodies of requests. An accepted one has prompts of tokens that the model has; a refused
// one has a response with a message.
#pragma once
#include "../../examples/serve/api.h"
#include "chat_templates.h"

namespace fuzz {

// One that has most of the fields, for mutations.
inline constexpr std::string_view small_http_body =
    "{\"model\":\"base+mine\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\","
    "\"content\":\"Hello\"}],\"prompt\":[\"one\",\"two\"],\"max_tokens\":5,\"temperature\":0.7,\"top_p\":0.9,\"top_k\":"
    "40,"
    "\"n\":2,\"stop\":[\"\\n\",\"end\"],\"seed\":7,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
    "\"logit_bias\":{\"5\":-1.5},\"logprobs\":2,\"presence_penalty\":0.1,\"frequency_penalty\":-0.1,"
    "\"response_format\":{\"type\":\"json_object\"},\"priority\":1}";

inline const serve::model_facts& small_model() {
  static const serve::model_facts facts = [] {
    serve::model_facts f;
    f.name = "base", f.vocabulary = 256, f.context = 512;
    std::string vocabulary;
    for (int c = 33; c < 127; ++c) {
      const std::string escaped = c == '"' || c == '\\' ? "\\" : "";
      vocabulary += (vocabulary.empty() ? "\"" : ",\"") + escaped + static_cast<char>(c) + "\":" + std::to_string(c);
    }
    auto words = graft::io::hf::parse_tokenizer(
        "{\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
        ","
        "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{" +
            vocabulary + "},\"merges\":[]}}",
        "small tokenizer");
    auto chat = graft::io::hf::chat_template::parse(small_chat_template, "small template");
    if (!words || !chat) std::abort();
    f.words.emplace(std::move(*words)), f.chat.emplace(std::move(*chat));
    return f;
  }();
  return facts;
}

inline bool feed_http_body(std::string_view body) {
  const serve::model_facts& facts = small_model();
  for (const bool chat : {false, true}) {
    const serve::parsed<serve::completion_request> read = serve::parse_completion(std::string(body), chat, facts);
    if (read.problem) {
      if (read.problem->message.empty() || read.problem->status < 400) return false;
      if (!graft::io::parse_json(read.problem->body(), "the response")) return false;
      continue;
    }
    if (read.value.prompts.empty()) return false;
    for (const graft::serving::request& r : read.value.prompts)
      for (const std::int64_t token : r.prompt)
        if (token < 0 || token >= facts.vocabulary) return false;
  }
  return true;
}

}  // namespace fuzz
