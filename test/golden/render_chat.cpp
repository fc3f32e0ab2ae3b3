// SPDX-License-Identifier: Apache-2.0
// Renders chat templates, for comparisons with transformers (compare_chat_templates.py).
//     render_chat CASES.json      prints a JSON list with {"text": …} or {"error": …} for each case
// The file holds a list of {"template", "messages", "tools", "documents", "add_generation_prompt", "now",
// "variables"}, all but the first two optional.
#include <graft/io/chat_template/chat_template.h>

#include <cstdio>

using namespace graft;
using namespace graft::io;

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: render_chat CASES.json\n"), 2;
  const result<json> cases = read_json(argv[1], 1'000'000'000);
  if (!cases) return std::fprintf(stderr, "%s\n", cases.message()), 1;
  std::printf("[");
  for (std::size_t i = 0; i < cases->items.size(); ++i) {
    const json& c = cases->items[i];
    const json *source = c.find("template"), *messages = c.find("messages"), *v = nullptr;
    if (source == nullptr || messages == nullptr)
      return std::fprintf(stderr, "%s: a case lacks its template or its messages\n", argv[1]), 1;
    hf::chat_options options;
    if ((v = c.find("tools")) != nullptr) options.tools = *v;
    if ((v = c.find("documents")) != nullptr) options.documents = *v;
    if ((v = c.find("add_generation_prompt")) != nullptr) options.add_generation_prompt = v->flag;
    if ((v = c.find("now")) != nullptr) options.now = static_cast<std::int64_t>(v->whole);
    if ((v = c.find("variables")) != nullptr)
      for (std::size_t k = 0; k < v->keys.size(); ++k) options.variables.emplace_back(v->keys[k], v->items[k]);
    const result<hf::chat_template> made = hf::chat_template::parse(source->word, "template");
    const result<std::string> text = made ? made->render(*messages, options) : result<std::string>(made.failure());
    std::printf("%s{\"%s\": %s}", i > 0 ? ",\n" : "", text ? "text" : "error",
                json_text(text ? *text : std::string(text.message())).c_str());
  }
  std::printf("]\n");
  return 0;
}
