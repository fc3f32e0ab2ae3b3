// SPDX-License-Identifier: Apache-2.0
// Generates text with a model, from a Hugging Face folder or a GGUF file, and optionally an adapter; or talks.
//     generate MODEL "Once upon a time" --adapter FOLDER --max-new-tokens 64
//     generate model.gguf --chat "What is a graft?"       one question and its answer
//     generate model.gguf --chat                          a conversation on the terminal
//     generate MODEL --ids 1,2,3                          token ids need no tokenizer
//     mpirun -n 4 generate … --parallel tensor            tensor parallel, 4 processes, the first of which prints
//     generate … --parallel tensor --on gpu --process 0/4 --rendezvous FILE      one of 4 processes started by hand
// generate --help lists all options.
// run: generate test/golden/models/llama/base --adapter test/golden/models/llama/lora/adapter_init --compare-base --ids 5,9,200
#include <graft/io/load_model.h>
#include <graft/io/tokenizer/text_stream.h>
#include <graft/model/generate.h>
#include <graft/model/serving/stop_strings.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <optional>

#include "arguments.h"
#include "engine_options.h"
#include "generation_options.h"
#include "mode_options.h"
#include "parallel_options.h"

namespace io = graft::io;
namespace hf = graft::io::hf;

volatile std::sig_atomic_t interrupted = 0;

struct options {
  std::string model, adapter, text, ids, system, on = "cpu";
  std::vector<std::string> stops;
  parallel_options ranks;
  sampling_options sampling;
  context_options context;
  mode_options mode;
  bool compare = false, chat = false, statistics = false;
  std::optional<int> tokens;
};

// A model that is ready to answer, and what its answers are printed with.
template <class Engine> struct speaker {
  graft::causal_lm<Engine>& model;
  const graft::generation_settings& settings;
  graft::step_mode steps;
  const hf::tokenizer* words;  // null: token ids are printed
  const options& chosen;
  bool prints;
};
struct answer {
  std::string text;
  graft::stop_reason why = graft::stop_reason::running;
};

using seconds = std::chrono::duration<double>;

void print_statistics(std::size_t prompt, seconds first, std::size_t tokens, seconds rest) {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  std::fprintf(
      stderr,
      "prompt: %zu tokens, %.2f s to the first new one; then %.1f tokens per second; at most %.0f MB of memory\n",
      prompt, first.count(), tokens > 1 ? static_cast<double>(tokens - 1) / rest.count() : 0.0,
      static_cast<double>(used.ru_maxrss) / 1e3);
}

// Prints new tokens as they come, until an end token, a stop string, the limits, or control-C in a conversation.
template <class Engine>
graft::result<answer> speak(const speaker<Engine>& by, const std::vector<std::int64_t>& prompt, const char* title) {
  const long long wanted = static_cast<long long>(prompt.size()) + *by.settings.max_new_tokens;
  const int length = static_cast<int>(std::min<long long>(by.model.context(), wanted));
  auto g = graft::generator<Engine>::make(by.model, by.settings, 1, length, by.steps);
  if (!g) return g.failure();
  answer out;
  hf::text_stream characters;
  graft::serving::stop_strings stops(by.chosen.stops);
  const auto show = [&](const std::string& text) {
    out.text += text;
    if (by.prints) std::printf("%s", text.c_str()), std::fflush(stdout);
  };
  if (by.prints) std::printf("%s", title);
  const auto begin = std::chrono::steady_clock::now();
  auto first = begin;
  std::size_t count = 0;
  bool stopped = false;
  const auto made = g->run(std::span(&prompt, 1), [&](std::size_t, std::int64_t token) {
    if (count++ == 0) first = std::chrono::steady_clock::now();
    if (by.words == nullptr) {
      show(" " + std::to_string(token));
      return true;
    }
    std::string_view bytes = by.words->bytes(token);
    // An answer begins a text of its own, whose first word some tokenizers write with a space.
    if (by.chosen.chat && count == 1 && bytes.starts_with(' ') &&
        !by.words->decode(std::span(&token, 1)).starts_with(' '))
      bytes.remove_prefix(1);
    const auto fed = stops.feed(characters.feed(bytes));
    show(fed.text);
    stopped = fed.stopped;
    return !stopped && interrupted == 0;
  });
  if (!made) return made.failure();
  if (!stopped) {
    const auto fed = stops.feed(characters.finish());
    show(fed.text);
    if (!fed.stopped) show(stops.finish());
  }
  out.why = (*made)[0].why;
  if (!by.prints) return out;
  const auto end = std::chrono::steady_clock::now();
  const auto n = static_cast<double>(count);
  if (by.chosen.chat)
    std::printf("\n");
  else
    std::printf("\n%.0f tokens, %.1f per second\n", n, n / seconds(end - begin).count());
  std::fflush(stdout);
  if (by.chosen.statistics) print_statistics(prompt.size(), first - begin, count, end - first);
  if (out.why == graft::stop_reason::cache_full && n < *by.settings.max_new_tokens)
    std::fprintf(stderr, "generate: all %d positions are full; %s\n", by.model.context(),
                 context_options::context_advice(by.model.context(), by.model.config().positions).c_str());
  return out;
}

graft::status check_prompt(const std::vector<std::int64_t>& prompt, int vocabulary, int context, int positions) {
  if (prompt.empty()) return graft::fail("the prompt has no tokens");
  for (const std::int64_t id : prompt)
    if (id < 0 || id >= vocabulary)
      return graft::fail("token ", static_cast<long long>(id), " is none of this model, which has ", vocabulary);
  if (prompt.size() > static_cast<std::size_t>(context))
    return graft::fail("the prompt has ", static_cast<long long>(prompt.size()), " tokens, and the capacity is ",
                       context, "; ", context_options::context_advice(context, positions).c_str());
  return graft::ok;
}

// ---- conversations

class conversation {
 public:
  conversation(const hf::chat_template& form, const hf::tokenizer& words, const std::string& system)
      : form_(form), words_(words), system_(system) {
    reset();
  }
  void reset() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({"system", system_});
  }
  void add(const char* role, std::string text) { messages_.push_back({role, std::move(text)}); }
  void take_back() { messages_.pop_back(); }
  // The tokens of all messages and of what begins an answer. The template writes the special tokens.
  graft::result<std::vector<std::int64_t>> prompt() const {
    hf::chat_options options;
    options.add_generation_prompt = true;
    const auto text = form_.render(hf::chat_messages(messages_), options);
    if (!text) return text.failure();
    return words_.encode(*text, false);
  }

 private:
  const hf::chat_template& form_;
  const hf::tokenizer& words_;
  const std::string& system_;
  std::vector<hf::chat_message> messages_;
};

template <class Engine>
graft::status reply(const speaker<Engine>& by, conversation& talk, const std::string& question, const char* title) {
  talk.add("user", question);
  const auto prompt = talk.prompt();
  graft::status good =
      prompt ? check_prompt(*prompt, by.model.config().vocabulary, by.model.context(), by.model.config().positions)
             : graft::status(prompt.failure());
  if (!good) return talk.take_back(), good;
  const auto spoken = speak(by, *prompt, title);
  if (!spoken) return talk.take_back(), spoken.failure();
  talk.add("assistant", spoken->text);
  return graft::ok;
}

// Reads questions until the input ends. Control-C ends an answer, or the program while it waits for a question.
template <class Engine> graft::status converse(const speaker<Engine>& by, conversation& talk) {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  ::sigaction(SIGINT, &action, nullptr);
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) std::printf("/reset forgets the conversation, /exit or control-D ends it, control-C ends an answer\n");
  for (std::string line;;) {
    if (terminal) std::printf("> "), std::fflush(stdout);
    interrupted = 0;
    if (!std::getline(std::cin, line) || interrupted != 0) break;
    if (line == "/exit") return graft::ok;
    if (line == "/reset") talk.reset();
    if (line.empty() || line == "/reset") continue;
    if (graft::status s = reply(by, talk, line, ""); !s) {
      if (!terminal) return s;
      std::fprintf(stderr, "generate: %s; /reset begins a new conversation\n", s.message());
    }
  }
  if (terminal) std::printf("\n");
  return graft::ok;
}

// ---- the program

template <class Engine> graft::status run(const options& o) {
  auto ranks = ranks_for<Engine>(o.ranks);
  if (!ranks) return ranks.failure();
  auto loading = o.context.model(o.model);
  if (!loading) return loading.failure();
  if (o.ranks.parallel == "tensor") loading->ranks = *ranks;
  std::optional<hf::tokenizer> words;
  std::optional<hf::chat_template> form;
  if (o.ids.empty()) {
    auto read = io::read_tokenizer(o.model);
    if (!read) return graft::fail(read.message(), "; --ids takes token ids and needs none");
    words = std::move(*read);
  }
  if (o.chat) {
    auto read = io::read_chat_template(o.model);
    if (!read) return graft::fail(read.message(), "; without --chat the model continues a text");
    form = std::move(*read);
  }
  auto model = io::load_model<Engine>(o.model, *loading);
  if (!model) return model.failure();
  auto generation = o.sampling.settings(o.model, model->config());
  if (!generation) return generation.failure();
  generation->max_new_tokens = o.tokens.value_or(o.chat ? 512 : 32);
  const auto steps = mode_named(o.mode, graft::step_mode::reduce_overhead, *model);
  if (!steps) return steps.failure();
  const speaker<Engine> by{*model, *generation, *steps, words ? &*words : nullptr, o, (*ranks)->rank() == 0};
  std::vector<std::int64_t> prompt;
  if (!o.chat) {
    const auto ids = words ? words->encode(o.text) : numbers_in(o.ids, ",");
    if (!ids) return words ? ids.failure() : graft::fail("--ids: ", ids.message());
    if (graft::status s = check_prompt(*ids, model->config().vocabulary, model->context(), model->config().positions);
        !s)
      return s;
    prompt = *ids;
  }
  const auto say = [&](const char* title) -> graft::status {
    if (!o.chat) {
      const auto spoken = speak(by, prompt, title);
      return spoken ? graft::status(graft::ok) : spoken.failure();
    }
    conversation talk(*form, *words, o.system);
    if (o.text.empty()) return converse(by, talk);
    return reply(by, talk, o.text, o.compare ? title : "");
  };
  if (o.compare || o.adapter.empty())
    if (graft::status s = say(o.chat ? "the model: " : "the model:"); !s) return s;
  if (o.adapter.empty()) return graft::ok;
  auto adapters = io::load_adapters(o.adapter, *model);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;
  return say(o.chat ? "with the adapter: " : "with the adapter:");
}

int main(int argc, char** argv) {
  options o;
  arguments in(
      "generate",
      "Generates text with a model, with an adapter or without. With --chat it answers TEXT, or what is typed, "
      "as the model's\nchat template asks for it.");
  in.word("MODEL", o.model, "Hugging Face folder or GGUF file of the model");
  in.optional_word("TEXT", o.text, "the prompt, or with --chat the question; it needs the model's tokenizer");
  in.flag("--chat", o.chat, "a conversation; without TEXT its questions are lines of the input");
  in.option("--system TEXT", o.system, "system message of the conversation; not given: what the chat template says");
  in.option("--ids 1,2,3", o.ids, "token ids as the prompt instead of TEXT");
  in.option("--adapter FOLDER", o.adapter, "adapter: a folder that PEFT, or finetune, wrote, or a GGUF file");
  in.flag("--compare-base", o.compare, "generates without the adapter first");
  in.option("--max-new-tokens N", o.tokens,
            "new tokens, at most: an end token of the model ends the text before; not given: 32, with --chat 512", 0);
  in.earlier_name("--tokens");
  in.option("--stop TEXT", o.stops, "ends the text before TEXT; may be repeated");
  o.context.declare(in);
  o.sampling.declare(in);
  in.flag("--stats", o.statistics, "prints speed and memory to the standard error");
  declare_engine(in, o.on);
  o.mode.declare(in);
  o.ranks.declare(in);
  if (const auto code = in.read(argc, argv)) return *code;
  if (!o.text.empty() && !o.ids.empty()) return in.mistake("there are two prompts, expected TEXT or --ids");
  if (o.chat && !o.ids.empty()) return in.mistake("--chat takes text, not --ids");
  if (!o.chat && o.text.empty() && o.ids.empty())
    return in.mistake("there is no prompt, expected TEXT, --ids or --chat");
  if (!o.chat && !o.system.empty()) return in.mistake("--system is a message of a conversation, which --chat begins");
  if (!o.ids.empty() && !o.stops.empty()) return in.mistake("--stop ends a text, and --ids makes none");
  if (o.chat && o.text.empty() && (o.compare || !o.ranks.parallel.empty()))
    return in.mistake(o.compare ? "--compare-base compares answers to one question, expected TEXT"
                                : "a conversation on the terminal runs in one process, expected TEXT");
  const graft::status s = on_engine(o.on, [&]<class Engine>() { return run<Engine>(o); });
  if (!s) std::fprintf(stderr, "generate: %s\n", s.message());
  return s ? 0 : 1;
}
