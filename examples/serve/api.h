// SPDX-License-Identifier: Apache-2.0
// OpenAI's API as values: request bodies to requests of the serving engine, and its events to response bodies. Fields
// that the server does not have are refused by name, because ignoring them would give an answer to another question.
#pragma once
#include <graft/io/chat_template/chat_template.h>
#include <graft/io/tokenizer/text_stream.h>
#include <graft/io/tokenizer/tokenizer_file.h>
#include <graft/model/serving/request.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace serve {

namespace hf = graft::io::hf;
using ordered_json = nlohmann::ordered_json;

// An error as a response: {"error": {"message", "type", "param", "code"}}.
struct api_error {
  int status = 400;
  std::string message, type = "invalid_request_error", param{}, code{};

  std::string body() const;
};
template <class T> struct parsed {
  T value{};
  std::optional<api_error> problem{};
};

// The facts of the model that requests are checked against.
struct model_facts {
  std::string name;  // that requests call the base by
  int vocabulary = 0, context = 0, default_tokens = 256;
  graft::sampling_settings sampling{};  // of requests that set none
  std::optional<hf::tokenizer> words{};
  std::optional<hf::chat_template> chat{};
};

// The adapters as requests may name them: all of the server, and those of requests that name none.
struct adapter_names {
  std::vector<std::string> all{}, usual{};
};

struct completion_request {
  std::string model;
  std::vector<graft::serving::request> prompts;  // each with its choices
  bool chat = false, stream = false, include_usage = false, logprobs = false;
  int choices = 1;  // of all prompts
};

// Splits "a+b" into names. The base's own name is none.
std::vector<std::string> adapters_of(const std::string& model, const model_facts& facts);
parsed<graft::io::json> parse_body(const std::string& body);
parsed<completion_request> parse_completion(const std::string& body, bool chat, const model_facts& facts,
                                            const adapter_names& adapters = {});
// The names in a list [{"id", "scale"}, …] as llama-server takes it, in its order. A scale is 1 or 0.
parsed<std::vector<std::string>> parse_scales(const graft::io::json& list, const std::vector<std::string>& all);

// Makes the bodies of one completion from its events.
class completion_writer {
 public:
  completion_writer(std::string id, completion_request completion, const model_facts& facts);

  // Takes an event and returns the data of a chunk of a stream; empty: nothing is to be sent yet.
  std::string take(const graft::serving::event& e);
  bool finished() const { return open_ == 0; }
  // The chunk with the usage of a stream, and the body of a completion that is not streamed.
  std::string usage_chunk(long long reused_tokens) const;
  std::string body(long long reused_tokens) const;
  long long prompt_tokens() const { return prompt_tokens_; }
  long long made_tokens() const { return made_tokens_; }
  std::string finish() const { return choices_.empty() ? "" : choices_[0].why; }
  const completion_request& completion() const { return completion_; }

 private:
  struct choice {
    std::string text{}, why{};
    hf::text_stream characters{};
    ordered_json scores = ordered_json::array();  // of tokens that a chunk has not reported yet
    std::size_t offset = 0;                       // characters before them
    bool begun = false;
  };
  ordered_json head(bool chunk) const;
  ordered_json score(const graft::serving::event& e) const;
  ordered_json logprobs(const ordered_json& scores, std::size_t offset) const;
  ordered_json usage(long long reused_tokens) const;
  std::string token_text(std::int64_t token) const;

  std::string id_;
  completion_request completion_;
  const model_facts* facts_;
  std::vector<choice> choices_;
  long long created_ = 0, prompt_tokens_ = 0, made_tokens_ = 0;
  int open_ = 0;
};

// Writes JSON; bytes that are no UTF-8 become U+FFFD.
std::string written(const ordered_json& value);

}  // namespace serve
