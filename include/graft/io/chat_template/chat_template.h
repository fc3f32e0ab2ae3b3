// SPDX-License-Identifier: Apache-2.0
// Chat templates: messages to the text of a prompt, as apply_chat_template of transformers renders it. The template
// comes from a folder (tokenizer_config.json, chat_template.jinja) or as a string (GGUF's tokenizer.chat_template).
//     result<hf::chat_template> chat = hf::read_chat_template("Llama-3.2-1B-Instruct");
//     result<std::string> prompt =
//         chat->render(hf::chat_messages({{"user", "Hello"}}), {.add_generation_prompt = true});
// Templates are not trusted: they see the given values and nothing else, and what they may use is bounded.
#pragma once
#include <graft/core/library.h>
#include <graft/io/chat_template/syntax.h>
#include <graft/io/chat_template/value.h>

#include <optional>

namespace graft::io::hf {

struct chat_options {
  json tools{};      // a list of JSON schemas of functions; null where there are none
  json documents{};  // a list of objects with title and text; null where there are none
  bool add_generation_prompt = false;
  std::vector<std::pair<std::string, json>> variables{};  // such as enable_thinking; they come before special tokens
  std::optional<std::int64_t> now{};  // what strftime_now prints, in seconds since 1970; the clock where it is absent
  jinja::template_limits limits{};
};

// One message with text, which is all that most programs need; others make the JSON values themselves.
struct chat_message {
  std::string role, content;
};
GRAFT_LIBRARY json chat_messages(const std::vector<chat_message>& all);

// A parsed template with the special tokens of its tokenizer. Rendering does not change it, so that several threads
// may share it.
class chat_template {
 public:
  // `file` is named in errors. Special tokens (bos_token, eos_token, …) become variables.
  GRAFT_LIBRARY static result<chat_template> parse(
      std::string_view source, std::string_view file,
      std::vector<std::pair<std::string, std::string>> special_tokens = {});
  // `messages` is a list of objects with role, content and whatever else the template reads, such as tool_calls.
  GRAFT_LIBRARY result<std::string> render(const json& messages, const chat_options& options = {}) const;

 private:
  chat_template() = default;
  std::string file_;
  jinja::syntax_tree tree_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
};

// The templates of a folder by name; a single one is named "default".
struct chat_template_source {
  std::string file;
  std::vector<std::pair<std::string, std::string>> templates, special_tokens;
};
GRAFT_LIBRARY result<chat_template_source> read_chat_templates(const std::string& folder);

// The template that transformers would take: `name` where it is given, else "tool_use" for calls with tools where there
// is one, else "default".
GRAFT_LIBRARY result<chat_template> choose_chat_template(const chat_template_source& from, bool with_tools = false,
                                                         std::string_view name = {});
GRAFT_LIBRARY result<chat_template> read_chat_template(const std::string& folder, bool with_tools = false,
                                                       std::string_view name = {});

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/chat_template/evaluator.h>
#include <graft/io/chat_template/parser.h>

#include <filesystem>

namespace graft::io::hf {

// The error of a template. The text of raise_exception is kept as it is written, also above ASCII.
inline error template_error(std::string_view file, const jinja::state& s) {
  if (!s.raised) return fail_in(file, "line ", s.line, ": ", clipped(s.problem, 600));
  std::string message;
  for (std::string_view rest = s.problem; !rest.empty() && message.size() < 600;) {
    const std::size_t n = std::max<std::size_t>(1, utf8_length(rest));
    message += rest[0] == '\0' ? " " : rest.substr(0, n);
    rest.remove_prefix(n);
  }
  return fail_in(file, "the template refuses the messages: ", message.c_str());
}

GRAFT_LIBRARY json chat_messages(const std::vector<chat_message>& all) {
  const auto word = [](const std::string& s) {
    json v;
    v.what = json::kind::word, v.word = s;
    return v;
  };
  json list;
  list.what = json::kind::list;
  for (const chat_message& m : all) {
    json& one = list.items.emplace_back();
    one.what = json::kind::object;
    one.keys = {"role", "content"}, one.items = {word(m.role), word(m.content)};
  }
  return list;
}

GRAFT_LIBRARY result<chat_template> chat_template::parse(
    std::string_view source, std::string_view file, std::vector<std::pair<std::string, std::string>> special_tokens) {
  return guarded(file, [&]() -> result<chat_template> {
    jinja::state s;
    if (source.size() > s.limits.source_bytes)
      return fail_in(file, "the template has ", number(source.size()), " bytes, expected at most ",
                     number(s.limits.source_bytes));
    if (!is_utf8(source)) return fail_in(file, "the template is not UTF-8");
    if (source.find('\0') != source.npos) return fail_in(file, "the template holds a NUL character");
    chat_template made;
    made.file_ = file, made.special_tokens_ = std::move(special_tokens);
    std::vector<jinja::token> tokens;
    jinja::lexer lexer(source, s);
    if (!lexer.run(tokens) || !jinja::parser(std::move(tokens), s, made.tree_).run()) return template_error(file, s);
    return made;
  });
}

// A message's reasoning under each name that templates read: transformers (utils/chat_template_utils.py) gives the
// first of reasoning_content, thinking and reasoning that is set as reasoning_content, and as thinking where that is
// absent.
inline jinja::value with_reasoning(jinja::state& s, const jinja::value& message) {
  const jinja::value* found = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    if (found == nullptr || found->is(jinja::kind::none)) found = jinja::find(s, message, std::string_view(name));
  if (found == nullptr || found->is(jinja::kind::none)) return message;
  const jinja::value reasoning = *found;
  std::vector<jinja::value> keys{jinja::string("thinking")}, items{reasoning};
  for (std::size_t i = 0; i < message.size(); ++i)
    jinja::put(s, keys, items, message.body->keys[i], message.items()[i]);
  jinja::put(s, keys, items, jinja::string("reasoning_content"), reasoning);
  return s.collection(jinja::kind::dict, std::move(items), std::move(keys));
}

GRAFT_LIBRARY result<std::string> chat_template::render(const json& messages, const chat_options& options) const {
  return guarded(file_, [&]() -> result<std::string> {
    jinja::state s;
    s.limits = options.limits;
    if (!messages.is_list())
      return fail_in(file_, "the messages are not a list, expected objects with role and content");
    const auto is_object_list = [](const json& v) {
      return v.is_null() ||
             (v.is_list() && std::all_of(v.items.begin(), v.items.end(), [](const json& i) { return i.is_object(); }));
    };
    if (!is_object_list(messages)) return fail_in(file_, "a message is not an object with role and content");
    if (!is_object_list(options.tools)) return fail_in(file_, "the tools are not a list of JSON schemas");
    if (!is_object_list(options.documents)) return fail_in(file_, "the documents are not a list of objects");
    std::vector<jinja::value> chat;
    for (const json& message : messages.items) {
      const jinja::value v = jinja::from_json(s, message);
      if (!s.failed) chat.push_back(with_reasoning(s, v));
    }
    jinja::evaluator run(tree_, s, options.now ? *options.now : static_cast<std::int64_t>(std::time(nullptr)));
    for (const auto& [name, token] : special_tokens_) run.define(name, s.text(token));
    for (const auto& [name, v] : options.variables) run.define(name, jinja::from_json(s, v));
    run.define("messages", s.failed ? jinja::value{} : s.list(std::move(chat)));
    run.define("tools", jinja::from_json(s, options.tools));
    run.define("documents", jinja::from_json(s, options.documents));
    run.define("add_generation_prompt", jinja::boolean(options.add_generation_prompt));
    std::string out = s.failed ? std::string() : run.run();
    if (s.failed) return template_error(file_, s);
    return out;
  });
}

// A special token in tokenizer_config.json: its text, or an object with its content.
inline const json* token_text(const json& v) {
  const json* content = v.is_object() ? v.find("content") : &v;
  return content != nullptr && content->is_string() ? content : nullptr;
}

// Adds the templates of a folder, which are named by their files.
inline status additional_templates(const std::string& folder, chat_template_source& out) {
  std::error_code failed;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator i(folder, failed), end; !failed && i != end; i.increment(failed))
    if (i->path().extension() == ".jinja") files.push_back(i->path());
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    const result<std::vector<std::byte>> bytes = read_file(file.string(), jinja::template_limits{}.source_bytes);
    if (!bytes) return bytes.failure();
    out.templates.emplace_back(file.stem().string(), as_chars(*bytes));
  }
  return ok;
}

GRAFT_LIBRARY result<chat_template_source> read_chat_templates(const std::string& folder) {
  return guarded(folder, [&]() -> result<chat_template_source> {
    const std::string config = folder + "/tokenizer_config.json", jinja_file = folder + "/chat_template.jinja";
    chat_template_source out{config, {}, {}};
    if (exists(config)) {
      const result<json> top = read_json(config);
      if (!top) return top.failure();
      if (!top->is_object()) return fail_in(config, "expected a JSON object");
      for (const char* key :
           {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
        if (const json* v = top->find(key); v != nullptr && !v->is_null()) {
          const json* token = token_text(*v);
          if (token == nullptr)
            return fail_in(config, '\'', key, "' is neither a string nor an object with 'content', expected a token");
          out.special_tokens.emplace_back(key, token->word);
        }
      const json* v = top->find("chat_template");
      if (v != nullptr && v->is_string()) {
        out.templates.emplace_back("default", v->word);
      } else if (v != nullptr && v->is_list()) {
        for (const json& one : v->items) {
          const json *name = one.is_object() ? one.find("name") : nullptr,
                     *source = one.is_object() ? one.find("template") : nullptr;
          if (name == nullptr || source == nullptr || !name->is_string() || !source->is_string())
            return fail_in(config,
                           "'chat_template' holds an entry without a name or a template, expected "
                           "{\"name\": …, \"template\": …}");
          out.templates.emplace_back(name->word, source->word);
        }
      } else if (v != nullptr && !v->is_null()) {
        return fail_in(config, "'chat_template' is neither a string nor a list of named templates");
      }
    }
    // As in transformers, the file replaces what the configuration says.
    if (exists(jinja_file)) {
      const result<std::vector<std::byte>> bytes = read_file(jinja_file, jinja::template_limits{}.source_bytes);
      if (!bytes) return bytes.failure();
      out.file = jinja_file;
      out.templates = {{"default", std::string(as_chars(*bytes))}};
      if (const status more = additional_templates(folder + "/additional_chat_templates", out); !more)
        return more.failure();
    }
    if (out.templates.empty())
      return fail_in(folder,
                     "there is no chat template: neither chat_template.jinja nor 'chat_template' in "
                     "tokenizer_config.json");
    return out;
  });
}

GRAFT_LIBRARY result<chat_template> choose_chat_template(const chat_template_source& from, bool with_tools,
                                                         std::string_view name) {
  return guarded(from.file, [&]() -> result<chat_template> {
    const auto find = [&](std::string_view wanted) {
      return std::find_if(from.templates.begin(), from.templates.end(),
                          [&](const auto& t) { return t.first == wanted; });
    };
    auto at = !name.empty() ? find(name) : with_tools ? find("tool_use") : from.templates.end();
    if (name.empty() && at == from.templates.end()) at = find("default");
    if (at == from.templates.end()) {
      std::string names;
      for (const auto& t : from.templates) names += (names.empty() ? "" : ", ") + t.first;
      return fail_in(from.file, "there is no chat template named ", in_quotes(name.empty() ? "default" : name),
                     ", expected one of: ", clipped(names));
    }
    return chat_template::parse(at->second, from.file, from.special_tokens);
  });
}

GRAFT_LIBRARY result<chat_template> read_chat_template(const std::string& folder, bool with_tools,
                                                       std::string_view name) {
  const result<chat_template_source> all = read_chat_templates(folder);
  if (!all) return all.failure();
  return choose_chat_template(*all, with_tools, name);
}

}  // namespace graft::io::hf
#endif
