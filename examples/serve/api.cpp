// SPDX-License-Identifier: Apache-2.0
#include "api.h"

#include <graft/core/name_suggestion.h>
#include <graft/model/sampler.h>

#include <charconv>
#include <ctime>
#include <random>

namespace serve {

using graft::io::json;
using graft::serving::event;
using graft::serving::finish_reason;

std::string written(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}
std::string api_error::body() const {
  ordered_json e{{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}};
  if (!param.empty()) e["param"] = param;
  if (!code.empty()) e["code"] = code;
  return written({{"error", e}});
}

std::vector<std::string> adapters_of(const std::string& model, const model_facts& facts) {
  std::vector<std::string> names;
  if (model.empty() || model == facts.name) return names;
  for (std::size_t at = 0; at <= model.size();) {
    const std::size_t plus = std::min(model.find('+', at), model.size());
    names.push_back(model.substr(at, plus - at));
    at = plus + 1;
  }
  return names;
}
parsed<json> parse_body(const std::string& body) {
  graft::result<json> read = graft::io::parse_json(body, "the body");
  if (!read) return {{}, api_error{400, read.message(), "invalid_request_error", {}, {}}};
  if (!read->is_object()) return {{}, api_error{400, "the body is no JSON object", "invalid_request_error", {}, {}}};
  return {std::move(*read), {}};
}

namespace {

// Reads the fields of a body; the first mistake is kept.
class fields {
 public:
  explicit fields(const json& body) : body_(body) {}

  std::optional<api_error> problem{};

  void wrong(const std::string& field, const std::string& message) {
    if (!problem) problem = api_error{400, message, "invalid_request_error", field, {}};
  }
  // A field that is set; null is as good as absent.
  const json* set(const char* name) {
    known_.emplace_back(name);
    const json* const v = body_.find(name);
    return v != nullptr && !v->is_null() ? v : nullptr;
  }
  void number(const char* name, double& to) {
    if (const json* v = set(name); v != nullptr)
      v->is_number() ? static_cast<void>(to = v->real) : wrong(name, std::string(name) + " is no number");
  }
  template <class Whole> void whole(const char* name, Whole& to) {
    const json* const v = set(name);
    if (v == nullptr) return;
    long long read = 0;
    const bool is_whole = v->is_unsigned() || v->what == json::kind::negative;
    const auto [end, error] = std::from_chars(v->word.data(), v->word.data() + v->word.size(), read);
    if (!is_whole || error != std::errc{} || read < std::numeric_limits<int>::min() ||
        read > std::numeric_limits<int>::max())
      return wrong(name, std::string(name) + " is no whole number of 32 bits");
    to = static_cast<int>(read);
  }
  void flag(const char* name, bool& to) {
    if (const json* v = set(name); v != nullptr)
      v->is_boolean() ? static_cast<void>(to = v->flag) : wrong(name, std::string(name) + " is neither true nor false");
  }
  void text(const char* name, std::string& to) {
    if (const json* v = set(name); v != nullptr)
      v->is_string() ? static_cast<void>(to = v->word) : wrong(name, std::string(name) + " is no text");
  }
  // Fields that do not change the answer.
  void ignore(std::initializer_list<const char*> names) {
    for (const char* name : names) known_.emplace_back(name);
  }
  // Refuses whatever was not asked for by name.
  void refuse_others() {
    for (const std::string& key : body_.keys)
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        graft::name_suggester meant(key.c_str());
        for (const std::string& k : known_) meant.offer(k.c_str());
        wrong(key, "this server does not have the field '" + key.substr(0, 80) + "'" + meant.hint().c_str());
      }
  }

 private:
  const json& body_;
  std::vector<std::string> known_;
};

void read_stop(fields& in, graft::serving::request& r) {
  const json* const stop = in.set("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) return r.stop.push_back(stop->word);
  if (!stop->is_list() || stop->items.size() > 16) return in.wrong("stop", "stop is no text and no list of at most 16");
  for (const json& s : stop->items)
    s.is_string() ? r.stop.push_back(s.word) : in.wrong("stop", "stop has an element that is no text");
}
void read_sampling(fields& in, graft::serving::request& r) {
  graft::sampling_settings& s = r.sampling;
  in.number("temperature", s.temperature), in.number("top_p", s.top_p), in.number("min_p", s.min_p);
  int top_k = s.top_k;
  in.whole("top_k", top_k);
  s.top_k = std::max(top_k, top_k == -1 ? 0 : top_k);  // vLLM writes -1 for all tokens
  in.number("repetition_penalty", s.repetition_penalty), in.number("presence_penalty", s.presence_penalty);
  in.number("frequency_penalty", s.frequency_penalty);
  if (const json* v = in.set("seed"); v != nullptr) {
    if (v->is_unsigned())
      s.seed = v->whole;
    else
      in.wrong("seed", "seed is no whole number from 0 on");
  } else {
    static thread_local std::mt19937_64 random{std::random_device{}()};
    s.seed = random();
  }
  s.sample = true;
}
void read_logit_bias(fields& in, graft::serving::request& r) {
  const json* const bias = in.set("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() || bias->keys.size() > 1024)
    return in.wrong("logit_bias", "logit_bias is no object with at most 1024 tokens");
  for (std::size_t i = 0; i < bias->keys.size(); ++i) {
    const std::string& key = bias->keys[i];
    std::int64_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc{} || end != key.data() + key.size() || !bias->items[i].is_number())
      return in.wrong("logit_bias", "logit_bias has an entry that is no token with a number");
    r.logit_bias.emplace_back(token, bias->items[i].real);
  }
}
void read_response_format(fields& in, graft::serving::request& r) {
  const json* const format = in.set("response_format");
  if (format == nullptr) return;
  const json* const type = format->is_object() ? format->find("type") : nullptr;
  if (type != nullptr && type->says("json_object"))
    r.json_object = true;
  else if (type == nullptr || !type->says("text"))
    in.wrong("response_format",
             "response_format has a type that this server does not have, expected text or json_object");
}

// The prompts of /v1/completions: a text, tokens, or a list of either.
std::vector<std::vector<std::int64_t>> read_prompts(fields& in, const model_facts& facts) {
  std::vector<std::vector<std::int64_t>> all;
  const auto tokens = [&](const json& list) {
    std::vector<std::int64_t> ids;
    for (const json& t : list.items) {
      if (!t.is_unsigned() || t.whole >= static_cast<std::uint64_t>(facts.vocabulary)) {
        in.wrong("prompt", "the prompt has an element that is no token of this model");
        break;
      }
      ids.push_back(static_cast<std::int64_t>(t.whole));
    }
    all.push_back(std::move(ids));
  };
  const auto text = [&](const json& t) {
    if (!facts.words) return in.wrong("prompt", "the model has no tokenizer; send the prompt as token ids");
    const auto ids = facts.words->encode(t.word);
    ids ? all.push_back(*ids) : in.wrong("prompt", ids.message());
  };
  const json* const prompt = in.set("prompt");
  if (prompt == nullptr) return in.wrong("prompt", "the prompt is missing"), all;
  if (prompt->is_string()) return text(*prompt), all;
  if (!prompt->is_list() || prompt->items.empty())
    return in.wrong("prompt", "the prompt is no text and no list of texts or tokens"), all;
  if (prompt->items[0].is_number()) return tokens(*prompt), all;
  if (prompt->items.size() > 256) return in.wrong("prompt", "there are more than 256 prompts"), all;
  for (const json& p : prompt->items)
    p.is_string() ? text(p)
    : p.is_list() ? tokens(p)
                  : in.wrong("prompt", "the prompt has an element that is no prompt");
  return all;
}

// The parts of a message's content that are texts become one text, since templates differ in whether they know parts.
void join_parts(fields& in, json& messages) {
  for (json& m : messages.items)
    for (std::size_t k = 0; m.is_object() && k < m.keys.size(); ++k) {
      if (m.keys[k] != "content" || !m.items[k].is_list()) continue;
      json joined;
      joined.what = json::kind::word;
      for (const json& part : m.items[k].items) {
        const json *const type = part.is_object() ? part.find("type") : nullptr, *const text = part.is_object()
                                                                                                   ? part.find("text")
                                                                                                   : nullptr;
        if (type == nullptr || !type->says("text") || text == nullptr || !text->is_string())
          return in.wrong("messages", "a message has content that is no text, and the model reads nothing else");
        joined.word += text->word;
      }
      m.items[k] = std::move(joined);
    }
}
std::vector<std::vector<std::int64_t>> read_messages(fields& in, const model_facts& facts) {
  const json* const given = in.set("messages");
  if (given == nullptr || !given->is_list() || given->items.empty())
    return in.wrong("messages", "messages is no list of messages"), std::vector<std::vector<std::int64_t>>{};
  json messages = *given;
  for (const json& m : messages.items)
    if (!m.is_object() || m.find("role") == nullptr || !m.find("role")->is_string())
      in.wrong("messages", "messages has an element without a role");
  join_parts(in, messages);
  hf::chat_options options;
  options.add_generation_prompt = true;
  in.flag("add_generation_prompt", options.add_generation_prompt);
  if (const json* v = in.set("tools"); v != nullptr) options.tools = *v;
  if (const json* v = in.set("documents"); v != nullptr) options.documents = *v;
  if (const json* v = in.set("chat_template_kwargs"); v != nullptr && v->is_object())
    for (std::size_t k = 0; k < v->keys.size(); ++k) options.variables.emplace_back(v->keys[k], v->items[k]);
  if (!facts.words || !facts.chat)
    in.wrong("messages",
             facts.words
                 ? "the model has no chat template; use /v1/completions, or start the server with --chat-template"
                 : "the model has no tokenizer; use /v1/completions with token ids");
  if (in.problem) return {};
  const auto text = facts.chat->render(messages, options);
  if (!text) return in.wrong("messages", text.message()), std::vector<std::vector<std::int64_t>>{};
  const auto ids = facts.words->encode(*text, false);
  if (!ids) return in.wrong("messages", ids.message()), std::vector<std::vector<std::int64_t>>{};
  return {*ids};
}

// Which adapters act: those that the model's name names, those of `lora`, or else the usual ones.
void read_adapters(fields& in, completion_request& out, graft::serving::request& r, const model_facts& facts,
                   const adapter_names& adapters) {
  in.text("model", out.model);
  const json* const scales = in.set("lora");
  if (scales != nullptr && !adapters_of(out.model, facts).empty())
    return in.wrong("lora", "the request names adapters in model and in lora, expected one of them");
  r.adapters = adapters_of(out.model, facts);
  if (scales != nullptr) {
    parsed<std::vector<std::string>> read = parse_scales(*scales, adapters.all);
    if (read.problem) return in.wrong("lora", read.problem->message);
    r.adapters = std::move(read.value);
  } else if (out.model.empty()) {
    r.adapters = adapters.usual;
  }
  out.model.clear();
  for (const std::string& name : r.adapters) out.model += (out.model.empty() ? "" : "+") + name;
  if (out.model.empty()) out.model = facts.name;
}

const char* word_of(finish_reason why) {
  switch (why) {
    case finish_reason::stop: return "stop";
    case finish_reason::length: return "length";
    case finish_reason::cancelled: return "cancelled";
    case finish_reason::deadline: return "timeout";
    case finish_reason::failed: return "error";
  }
  return "error";
}

}  // namespace

parsed<std::vector<std::string>> parse_scales(const json& list, const std::vector<std::string>& all) {
  const auto wrong = [](const std::string& message) -> parsed<std::vector<std::string>> {
    return {{}, api_error{400, message, "invalid_request_error", {}, {}}};
  };
  std::vector<std::string> names;
  std::vector<bool> named(all.size());
  if (!list.is_list()) return wrong("expected a list of adapters, each {\"id\": NUMBER, \"scale\": NUMBER}");
  for (const json& one : list.items) {
    const json *const id = one.is_object() ? one.find("id") : nullptr, *const scale = one.is_object()
                                                                                          ? one.find("scale")
                                                                                          : nullptr;
    if (id == nullptr || !id->is_unsigned() || scale == nullptr || !scale->is_number() || one.keys.size() != 2)
      return wrong("expected an adapter as {\"id\": NUMBER, \"scale\": NUMBER}");
    if (id->whole >= all.size())
      return wrong("there is no adapter with the id " + id->word.substr(0, 20) + "; /lora-adapters lists them");
    if (named[id->whole]) return wrong("the adapter with the id " + id->word + " is named twice");
    named[id->whole] = true;
    if (scale->real != 0 && scale->real != 1)
      return wrong("the scale " + scale->word.substr(0, 20) +
                   " is neither 0 nor 1; an adapter acts as it is stored, so store it with another lora_alpha");
    if (scale->real == 1) names.push_back(all[id->whole]);
  }
  return {std::move(names), {}};
}
parsed<completion_request> parse_completion(const std::string& body, bool chat, const model_facts& facts,
                                            const adapter_names& adapters) {
  const parsed<json> read = parse_body(body);
  if (read.problem) return {{}, read.problem};
  fields in(read.value);
  completion_request out;
  graft::serving::request r;
  out.chat = chat, r.sampling = facts.sampling;
  read_adapters(in, out, r, facts, adapters);
  std::optional<int> tokens;
  in.whole("max_tokens", tokens);
  if (chat) in.whole("max_completion_tokens", tokens);
  in.whole("n", r.choices), in.whole("priority", r.priority);
  in.flag("stream", out.stream), in.flag("ignore_eos", r.ignore_eos);
  if (const json* v = in.set("stream_options"); v != nullptr) {
    const json* const usage = v->is_object() ? v->find("include_usage") : nullptr;
    if (usage != nullptr && usage->is_boolean()) out.include_usage = usage->flag;
  }
  read_sampling(in, r), read_stop(in, r), read_logit_bias(in, r), read_response_format(in, r);
  if (chat) {
    int top = 0;
    in.flag("logprobs", out.logprobs), in.whole("top_logprobs", top);
    if (out.logprobs) r.logprobs = top;
    std::string choice = "auto";
    in.text("tool_choice", choice);
    if (choice != "auto" && choice != "none") in.wrong("tool_choice", "tool_choice can be auto or none here");
  } else {
    in.whole("logprobs", r.logprobs);
    out.logprobs = r.logprobs.has_value();
    bool echo = false;
    int best = r.choices;
    in.flag("echo", echo), in.whole("best_of", best);
    if (echo) in.wrong("echo", "this server does not echo prompts");
    if (best != r.choices) in.wrong("best_of", "this server has no best_of other than n");
  }
  const auto prompts = chat ? read_messages(in, facts) : read_prompts(in, facts);
  in.ignore(
      {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key"});
  in.refuse_others();
  if (in.problem) return {{}, in.problem};
  for (const auto& p : prompts) {
    r.prompt = p;
    const int remaining = facts.context - static_cast<int>(std::min<std::size_t>(p.size(), 1U << 30U));
    r.max_tokens = tokens.value_or(std::max(1, std::min(facts.default_tokens, remaining)));
    out.prompts.push_back(r);
  }
  if (r.choices < 1 || r.choices > 100000)
    return {{}, api_error{400, "n is no number from 1 to 100000", "invalid_request_error", "n", {}}};
  out.choices = r.choices * static_cast<int>(std::min<std::size_t>(out.prompts.size(), 1024));
  return {std::move(out), {}};
}

completion_writer::completion_writer(std::string id, completion_request completion, const model_facts& facts)
    : id_(std::move(id)),
      completion_(std::move(completion)),
      facts_(&facts),
      choices_(static_cast<std::size_t>(completion_.choices)),
      created_(static_cast<long long>(std::time(nullptr))),
      open_(completion_.choices) {
  for (const auto& p : completion_.prompts) prompt_tokens_ += static_cast<long long>(p.prompt.size());
}
std::string completion_writer::token_text(std::int64_t token) const {
  return facts_->words ? std::string(facts_->words->bytes(token, false)) : "token_id:" + std::to_string(token);
}
ordered_json completion_writer::head(bool chunk) const {
  const char* const object = !completion_.chat ? "text_completion"
                             : chunk           ? "chat.completion.chunk"
                                               : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", completion_.model}};
}
ordered_json completion_writer::score(const event& e) const {
  const auto entry = [&](std::int64_t token, double logprob) {
    const std::string text = token_text(token);
    ordered_json bytes = ordered_json::array();
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
    return ordered_json{{"token", text}, {"logprob", logprob}, {"bytes", bytes}};
  };
  ordered_json one = entry(e.token, e.logprob);
  one["top_logprobs"] = ordered_json::array();
  for (const auto& t : e.top) one["top_logprobs"].push_back(entry(t.token, t.logprob));
  return one;
}
// /v1/completions has lists of tokens, /v1/chat/completions a list of objects.
ordered_json completion_writer::logprobs(const ordered_json& scores, std::size_t offset) const {
  if (!completion_.logprobs) return nullptr;
  if (completion_.chat) return {{"content", scores}};
  ordered_json out{{"tokens", ordered_json::array()},
                   {"token_logprobs", ordered_json::array()},
                   {"top_logprobs", ordered_json::array()},
                   {"text_offset", ordered_json::array()}};
  for (const ordered_json& s : scores) {
    ordered_json top = ordered_json::object();
    for (const ordered_json& t : s["top_logprobs"]) top[t["token"].get<std::string>()] = t["logprob"];
    out["tokens"].push_back(s["token"]), out["token_logprobs"].push_back(s["logprob"]);
    out["top_logprobs"].push_back(top), out["text_offset"].push_back(offset);
    offset += s["bytes"].size();
  }
  return out;
}
ordered_json completion_writer::usage(long long reused_tokens) const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", made_tokens_},
          {"total_tokens", prompt_tokens_ + made_tokens_},
          {"prompt_tokens_details", {{"cached_tokens", reused_tokens}}}};
}
std::string completion_writer::take(const event& e) {
  choice& c = choices_[static_cast<std::size_t>(e.choice)];
  std::string text = c.characters.feed(e.text);
  if (e.finished) text += c.characters.finish(), c.why = word_of(e.why), --open_;
  if (e.token >= 0) {
    ++made_tokens_;
    if (!facts_->words) text = (c.text.empty() ? "" : ",") + std::to_string(e.token);
    if (completion_.logprobs) c.scores.push_back(score(e));
  }
  c.text += text;
  const bool first = !std::exchange(c.begun, true);
  if (!completion_.stream || (text.empty() && !e.finished && !(completion_.chat && first))) return {};
  ordered_json one{{"index", e.choice}};
  if (completion_.chat) {
    one["delta"] = ordered_json::object();
    if (first) one["delta"]["role"] = "assistant";
    if (!text.empty() || first) one["delta"]["content"] = text;
  } else {
    one["text"] = text;
  }
  const std::size_t bytes = c.scores.size();
  one["logprobs"] = logprobs(std::exchange(c.scores, ordered_json::array()), c.offset);
  c.offset += bytes > 0 ? text.size() : 0;
  one["finish_reason"] = e.finished ? ordered_json(c.why) : ordered_json(nullptr);
  ordered_json chunk = head(true);
  chunk["choices"] = ordered_json::array({one});
  if (completion_.include_usage) chunk["usage"] = nullptr;
  return written(chunk);
}
std::string completion_writer::usage_chunk(long long reused_tokens) const {
  ordered_json chunk = head(true);
  chunk["choices"] = ordered_json::array(), chunk["usage"] = usage(reused_tokens);
  return written(chunk);
}
std::string completion_writer::body(long long reused_tokens) const {
  ordered_json all = head(false);
  all["choices"] = ordered_json::array();
  for (std::size_t k = 0; k < choices_.size(); ++k) {
    const choice& c = choices_[k];
    ordered_json one{{"index", k}};
    if (completion_.chat)
      one["message"] = {{"role", "assistant"}, {"content", c.text}};
    else
      one["text"] = c.text;
    one["logprobs"] = logprobs(c.scores, 0);
    one["finish_reason"] = c.why;
    all["choices"].push_back(one);
  }
  all["usage"] = usage(reused_tokens);
  return written(all);
}

}  // namespace serve
