// SPDX-License-Identifier: Apache-2.0
// Chat templates: cases that transformers rendered (make_chat_templates.py), errors, limits, and files.
#include <doctest/doctest.h>
#include <graft/io/chat_template/chat_template.h>

#include <filesystem>

using namespace graft;
using namespace graft::io;

namespace {

#ifndef GRAFT_GOLDEN_DIR
#error "GRAFT_GOLDEN_DIR is the path of test/golden"
#endif

result<std::string> rendered(std::string_view source, const json& messages = hf::chat_messages({{"user", "Hi"}}),
                             const hf::chat_options& options = {}) {
  const result<hf::chat_template> made = hf::chat_template::parse(source, "t");
  if (!made) return made.failure();
  return made->render(messages, options);
}
std::string text_of(const result<std::string>& r) { return r ? *r : "error: " + std::string(r.message()); }
std::string message_of(std::string_view source) {
  const result<std::string> r = rendered(source);
  return r ? "no error: " + *r : std::string(r.message());
}
const json& field(const json& c, const json& shared, const char* key) {
  static const json null;
  if (const json* v = c.find(key)) return *v;
  const json* v = shared.find(key);
  return v != nullptr ? *v : null;
}

struct folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / "graft_chat_template_test";
  folder() { std::filesystem::remove_all(path), std::filesystem::create_directory(path); }
  ~folder() { std::filesystem::remove_all(path); }
  void write(const char* name, std::string_view content) const {
    std::filesystem::create_directories((path / name).parent_path());
    const auto* bytes = reinterpret_cast<const std::byte*>(content.data());
    REQUIRE(write_file((path / name).string(), std::span(bytes, content.size())));
  }
};

}  // namespace

TEST_CASE("chat templates print what transformers prints") {
  const result<json> all = read_json(std::string(GRAFT_GOLDEN_DIR) + "/chat_templates/cases.json");
  REQUIRE_MESSAGE(all, all.message());
  const json &shared = *all->find("shared"), &cases = *all->find("cases");
  REQUIRE(cases.items.size() > 700);
  ::setenv("TZ", "UTC", 1), ::tzset();
  for (const json& c : cases.items) {
    hf::chat_options options;
    options.tools = field(c, shared, "tools"), options.documents = field(c, shared, "documents");
    options.add_generation_prompt = field(c, shared, "add_generation_prompt").flag;
    options.now = static_cast<std::int64_t>(field(c, shared, "now").whole);
    const json& variables = field(c, shared, "variables");
    for (std::size_t i = 0; i < variables.keys.size(); ++i)
      options.variables.emplace_back(variables.keys[i], variables.items[i]);
    const std::string& source = c.find("template")->word;
    const result<std::string> r = rendered(source, field(c, shared, "messages"), options);
    CAPTURE(source);
    if (const json* text = c.find("text")) {
      CHECK(text_of(r) == text->word);
    } else {
      const json* why = c.find("refused");
      REQUIRE(why != nullptr);
      CHECK_MESSAGE(!r, *r);
      if (why->is_string()) CHECK(std::string(r.message()) == "t: the template refuses the messages: " + why->word);
    }
  }
}

TEST_CASE("errors of chat templates name the line and the construct") {
  CHECK(message_of("a\n{% if x %}") == "t: line 2: unexpected the end of the template, expected {% endif %}");
  CHECK(message_of("a\n\n{{ 1 | nothing }}") == "t: line 3: there is no filter named 'nothing'");
  CHECK(message_of("{{ 1 is nothing }}") == "t: line 1: there is no test named 'nothing'");
  CHECK(message_of("{{ 1 | urlize }}") == "t: line 1: the filter 'urlize' is not supported in chat templates");
  CHECK(message_of("{% include 'x' %}") == "t: line 1: the statement 'include' is not supported in chat templates");
  CHECK(message_of("{% for m in messages %}\n{{ m.a.b }}{% endfor %}") ==
        "t: line 2: 'dict object' has no attribute 'a'");
  CHECK(message_of("{{ messages.append(1) }}") ==
        "t: line 1: the method list.append changes the list, which the sandbox of templates refuses");
  CHECK(message_of("{{ 'a'.encode() }}") == "t: line 1: the method str.encode is not supported");
  CHECK(message_of("{% for x in [1] recursive %}{% endfor %}") == "t: line 1: recursive loops are not supported");
  CHECK(message_of("{{ f(*x) }}") == "t: line 1: '*' in arguments is not supported, expected arguments one by one");
  CHECK(message_of("{{ x + 1 }}") == "t: line 1: 'x' is undefined");
  CHECK(message_of("{{ 9223372036854775807 + 1 }}") == "t: line 1: the result of + does not fit 64 bits");
  CHECK(message_of("{{ strftime_now('%c') }}")
            .starts_with("t: line 1: strftime_now: the directive %'c' is not supported"));
  CHECK(message_of("{{ raise_exception('nö') }}") == "t: the template refuses the messages: nö");
  CHECK(message_of("\xff") == "t: the template is not UTF-8");
  CHECK(message_of(std::string_view("\0", 1)) == "t: the template holds a NUL character");
  json wrong;
  CHECK(std::string(rendered("a", wrong).message()) ==
        "t: the messages are not a list, expected objects with role and content");
  wrong.what = json::kind::list, wrong.items.emplace_back();
  CHECK(std::string(rendered("a", wrong).message()) == "t: a message is not an object with role and content");
}

TEST_CASE("chat templates are bounded") {
  const auto failed_with = [](std::string_view source, std::string_view part, const hf::chat_options& options = {}) {
    const std::string why = rendered(source, hf::chat_messages({}), options).message();
    CAPTURE(why);
    CHECK(why.find(part) != why.npos);
  };
  const auto many = [](std::string_view s, std::size_t n) {
    std::string all;
    for (std::size_t i = 0; i < n; ++i) all += s;
    return all;
  };
  failed_with(std::string(2U << 20U, 'a'), "expected at most 1048576");
  failed_with("{{ " + many("(", 5000) + "1" + many(")", 5000) + " }}", "nested deeper than 200");
  failed_with("{{ 1" + many(" + 1", 5000) + " }}", "nested deeper than 200");
  failed_with("{{ " + many("-", 5000) + "1 }}", "nested deeper than 200");
  failed_with("{{ " + many("not ", 5000) + "1 }}", "nested deeper than 200");
  failed_with("{{ 1" + many(" if 1 else 1", 5000) + " }}", "nested deeper than 200");
  failed_with("{{ 1" + many("|string", 5000) + " }}", "nested deeper than 200");
  failed_with(many("{% if 1 %}", 5000), "nested deeper than 200");
  failed_with("{% for " + many("(", 5000) + "a" + many(")", 5000) + " in [] %}", "nested deeper than 200");
  failed_with("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested deeper than 800");
  failed_with("{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}",
              "nested deeper than 128");
  // What a method or a key holds is nesting too.
  failed_with("{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x.copy] %}{% endfor %}",
              "nested deeper than 128");
  failed_with(
      "{% set ns = namespace(x={}) %}{% for i in range(99999) %}{% set ns.x = {(ns.x.values,): 1} %}{% endfor %}",
      "nested deeper than 128");
  for (const char* source :
       {"{{ {(1, [2]): 3} }}", "{{ dict([((1, ([2],)), 3)]) }}", "{{ {}.get(([],)) }}", "{{ ({},) in {} }}"})
    failed_with(source, "unhashable type");
  hf::chat_options few;
  few.limits.steps = 200'000, few.limits.output_bytes = 1U << 20U, few.limits.text_bytes = 64U << 20U;
  failed_with("{% for i in range(9999) %}{% for i in range(9999) %}{% endfor %}{% endfor %}", "more than 200000 steps",
              few);
  failed_with("{{ 'a' * 1000000000 }}", "a repeated value is too long");
  failed_with("{% for i in range(99999) %}{{ 'abcdefgh' * 100000 }}{% endfor %}", "bytes", few);
  failed_with("{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
              "a string has more than 1048576 bytes", few);
  failed_with("{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
              "more than 1048576 bytes", few);
  failed_with("{{ ['a'] | map(" + many("'map',", 5000) + "'string') }}", "nested deeper than 800");
  failed_with("{{ range(100001) }}", "the limit of Jinja's sandbox");
  failed_with("{{ 'a'.ljust(100000000) }}", "a string has more than 67108864 bytes");
  failed_with("{{ ('a' * 100000).replace('a', 'bbbbbbbbbbbbbbbbbbbb') }}", "a string has more than 1048576 bytes", few);
  // Work that grows with the size of the template is counted: scopes, parameters and arguments with thousands of names.
  const auto names = [](std::string_view before, std::string_view after, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all.append(before).append(std::to_string(i)).append(after);
    return all;
  };
  failed_with(names("{% set v", " = 1 %}", 1000) + "{% for i in range(9999) %}{{ v999 }}{% endfor %}",
              "more than 200000 steps", few);
  failed_with("{% macro f(" + names("v", ",", 4000) + ") %}{% endmacro %}{{ f() }}{{ f() }}", "more than 200000 steps",
              few);
  failed_with("{% macro f(" + names("v", ",", 4000) + ") %}{% endmacro %}{{ f(" + names("v", "=1,", 4000) + ") }}",
              "more than 200000 steps", few);
  failed_with("{{ ('{v99}' * 5000).format(" + names("v", "=1,", 4000) + ") }}", "more than 200000 steps", few);
  hf::chat_options little;
  little.limits.text_bytes = 1U << 20U;
  failed_with("{{ [" + many("x,", 50'000) + "] }}", "more than 1048576 bytes together", little);
  failed_with("{{ [" + many("range,", 50'000) + "] }}", "more than 1048576 bytes together", little);
  failed_with("{{ [" + many("''.upper,", 50'000) + "] }}", "more than 1048576 bytes together", little);
  hf::chat_options small;
  small.limits.output_bytes = 10;
  CHECK(std::string(rendered("{% for i in range(11) %}a{% endfor %}", hf::chat_messages({}), small).message()) ==
        "t: line 1: the output has more than 10 bytes, expected shorter messages");
  // A namespace that holds itself, and a macro that holds the scope it is in, are freed (LeakSanitizer).
  CHECK(text_of(rendered("{% set ns = namespace() %}{% set ns.a = [ns] %}{% macro f() %}x{% endmacro %}{{ f() }}")) ==
        "x");
}

TEST_CASE("the template of a folder") {
  const folder f;
  CHECK(std::string(hf::read_chat_template(f.path.string()).message()).find("there is no chat template") !=
        std::string::npos);
  f.write("tokenizer_config.json",
          R"({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>", "pad_token": null,
              "chat_template": "{{ bos_token ~ messages[0].content ~ eos_token ~ (pad_token is defined) }}"})");
  const json hello = hf::chat_messages({{"user", "Hello"}});
  result<hf::chat_template> t = hf::read_chat_template(f.path.string());
  REQUIRE_MESSAGE(t, t.message());
  CHECK(text_of(t->render(hello)) == "<s>Hello</s>False");
  hf::chat_options other;
  other.variables.emplace_back("bos_token", hello.items[0].items[1]);
  CHECK(text_of(t->render(hello, other)) == "HelloHello</s>False");

  f.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "d"},
                                                         {"name": "tool_use", "template": "t"}]})");
  const auto from = [&](bool tools, std::string_view name) {
    const result<hf::chat_template> found = hf::read_chat_template(f.path.string(), tools, name);
    return found ? text_of(found->render(hello)) : std::string(found.message());
  };
  CHECK(from(false, "") == "d");
  CHECK(from(true, "") == "t");
  CHECK(from(true, "default") == "d");
  CHECK(from(false, "rag").find("there is no chat template named 'rag', expected one of: default, tool_use") !=
        std::string::npos);
  f.write("chat_template.jinja", "file\n");
  CHECK(from(true, "") == "file");
  f.write("additional_chat_templates/tool_use.jinja", "more");
  CHECK(from(true, "") == "more");
  CHECK(from(false, "") == "file");
  f.write("tokenizer_config.json", R"({"chat_template": 5})");
  CHECK(from(false, "").find("'chat_template' is neither a string nor a list") != std::string::npos);
  f.write("tokenizer_config.json", R"({"bos_token": 5})");
  CHECK(from(false, "").find("'bos_token' is neither a string nor an object with 'content'") != std::string::npos);
}

TEST_CASE("values given to a template are checked") {
  hf::chat_options options;
  const auto with = [&](std::string_view source) {
    const result<json> v = parse_json(source, "v");
    REQUIRE_MESSAGE(v, v.message());
    options.variables = {{"v", *v}};
    return text_of(rendered("{{ v }}", hf::chat_messages({}), options));
  };
  CHECK(with("[1, -2, 1.5, 1e2, \"a\", null, true]") == "[1, -2, 1.5, 100.0, 'a', None, True]");
  CHECK(with("9223372036854775807") == "9223372036854775807");
  CHECK(with("18446744073709551615").find("does not fit 64 bits") != std::string::npos);
  CHECK(with("-18446744073709551615").find("does not fit 64 bits") != std::string::npos);
  json broken = hf::chat_messages({{"user", "\xff"}});
  CHECK(std::string(rendered("a", broken).message()) == "t: line 1: a string given to the template is not UTF-8");
  json deep;
  deep.what = json::kind::list;
  for (int i = 0; i < 1000; ++i) {
    json outer;
    outer.what = json::kind::list, outer.items.push_back(std::move(deep));
    deep = std::move(outer);
  }
  options.variables = {{"v", deep}};
  CHECK(std::string(rendered("{{ v }}", hf::chat_messages({}), options).message()).find("nested deeper than 128") !=
        std::string::npos);
}
