// SPDX-License-Identifier: Apache-2.0
// What is fuzzed of chat templates: a template that is parsed is rendered, within small limits.
#pragma once
#include <graft/io/chat_template/chat_template.h>

namespace fuzz {

// A template that uses most of the language, for mutations.
inline constexpr std::string_view small_chat_template =
    "{%- macro f(v, n=2) -%}{% if v is mapping %}{% for k, w in v | dictsort %}{{ k ~ f(w, n - 1) }}{% endfor %}{% "
    "elif v is "
    "string %}{{ v.split(' ')[0] | upper }}{% else %}{{ v | tojson(indent=n) }}{% endif %}{%- endmacro -%}\n"
    "{% set ns = namespace(i=0, s='') %}{%- for m in messages if m.role != 'x' %}{# c #}\n"
    "  {%- if loop.first and m['content'] | trim | length > 2 %}{% set ns.s = ns.s ~ m.content[::-1] %}{% elif "
    "loop.last "
    "%}{% break %}{% endif %}{{ f(m) }}{% set ns.i = ns.i + loop.index0 * 3 // 2 ** 2 %}{% else %}none{% endfor %}\n"
    "{% filter indent(2, true) %}{{ ns.i }} {{ '%s' % ns.s }}{{ '{}'.format(1.5e3) }}{% endfilter %}{% raw %}{{ }}{% "
    "endraw %}"
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}"
    "{% set b %}{{ range(3) | list }}{% endset %}{{ b if b in ['[0, 1, 2]'] else none | default((1, 'q')) }}"
    "{{ [3, 1, 2] | sort(reverse=true) | map('string') | unique | list }}{{ 'é\\u00e9ß'.title().rsplit('s', 1) }}";

inline bool feed_chat_template(std::string_view source) {
  using namespace graft;
  const result<io::hf::chat_template> t = io::hf::chat_template::parse(source, "fuzz");
  if (!t) return *t.message() != '\0';
  io::hf::chat_options options;
  options.limits.steps = 50'000, options.limits.output_bytes = 1U << 20U, options.limits.text_bytes = 8U << 20U;
  options.now = 0;
  options.tools = io::hf::chat_messages({{"function", "f"}});
  const result<std::string> text = t->render(
      io::hf::chat_messages({{"system", "Be brief."}, {"user", " H\xC3\xB6llo 'you' "}, {"assistant", "Hi"}}), options);
  return text ? io::is_utf8(*text) : *text.message() != '\0';
}

}  // namespace fuzz
