// SPDX-License-Identifier: Apache-2.0
// Serves requests that each name their adapter, as multi-LoRA batches. A request is a line: the name of an adapter,
// several joined by +, or - for the base; a space; then the prompt, which is text, or token ids with --ids. The answer
// to each line is a line too, with \n for a new line, \r for a carriage return and \\ for a backslash in texts.
// Requests come from standard input, from a file, or from the clients of a Unix socket, which are answered when they
// have written their last line (docs/serving.md). With --client the program is such a client.
//     serve_multi_lora MODEL sql=FOLDER chat=FOLDER < requests
//     serve_multi_lora MODEL --socket PATH sql=FOLDER chat=FOLDER
//     serve_multi_lora --client PATH < requests
// serve_multi_lora --help lists all options.
// run: serve_multi_lora test/golden/models/llama/base --ids --max-new-tokens 8 --input examples/requests.txt sql=test/golden/models/llama/multi/a chat=test/golden/models/llama/multi/c oft=test/golden/models/llama/oft/adapter_init scaled=test/golden/models/llama/ia3/adapter_init
#include <graft/io/hf/adapters.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "arguments.h"
#include "generation_options.h"

using engine = graft::cpu::engine<float>;
using graft::status;
namespace io = graft::io;
namespace hf = graft::io::hf;
using names = graft::adapter_registry::names;

struct request {
  names adapters;
  std::vector<std::int64_t> prompt;
  std::string answer;  // or an error message
};

// in_one_line() escapes a text, from_one_line() reverses it. A backslash before any other letter is literal.
std::string in_one_line(const std::string& text) {
  std::string line;
  for (const char c : text)
    if (c == '\n')
      line += "\\n";
    else if (c == '\r')
      line += "\\r";
    else
      line += c == '\\' ? "\\\\" : std::string(1, c);
  return line;
}
std::string from_one_line(const std::string& line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char next = line[i] == '\\' && i + 1 < line.size() ? line[i + 1] : '\0';
    if (next == 'n' || next == 'r' || next == '\\')
      text += next == 'n' ? '\n' : next == 'r' ? '\r' : '\\', ++i;
    else
      text += line[i];
  }
  return text;
}

class server {
 public:
  // Without a tokenizer (`words`) a prompt is token ids.
  server(graft::causal_lm<engine> model, std::optional<hf::tokenizer> words, const graft::generation_settings& settings,
         int batch)
      : model_(std::move(model)), words_(std::move(words)), settings_(settings), batch_(batch) {}

  status load(const std::string& name, const std::string& folder) { return hf::load_adapter(model_, name, folder); }

  request read(std::string line) const {
    if (line.ends_with('\r')) line.pop_back();
    request r;
    if (status s = read_into(r, line); !s) r.answer = std::string("error: ") + s.message();
    return r;
  }

  // Answers all requests in batches of at most batch_.
  void serve(std::vector<request>& all) {
    std::vector<request*> open;
    for (request& r : all)
      if (!r.prompt.empty() && r.answer.empty()) open.push_back(&r);
    for (std::size_t at = 0; at < open.size(); at += static_cast<std::size_t>(batch_)) {
      const std::size_t count = std::min(open.size() - at, static_cast<std::size_t>(batch_));
      batch(std::span(open).subspan(at, count));
    }
  }
  void report() const {
    std::fprintf(stderr, "%lld tokens of %lld requests in %lld batches, %.1f tokens per second\n", made_, served_,
                 batches_, seconds_ > 0 ? static_cast<double>(made_) / seconds_ : 0);
  }

 private:
  status read_into(request& r, const std::string& line) const {
    const char* const form = "expected an adapter's name, or -, a space and a prompt";
    if (line.find_first_not_of(' ') == line.npos) return graft::fail("the request is empty, ", form);
    const std::size_t space = std::min(line.find(' '), line.size());
    for (std::size_t at = 0; at < space;) {
      const std::size_t plus = std::min(line.find('+', at), space);
      if (const std::string name = line.substr(at, plus - at); name != "-") r.adapters.push_back(name);
      at = plus + 1;
    }
    for (const std::string& name : r.adapters)
      if (model_.find(name) == nullptr) return graft::fail("there is no adapter '", name.c_str(), "'");
    const std::string rest = space < line.size() ? line.substr(space + 1) : "";
    if (rest.empty()) return graft::fail("there is no prompt, ", form);
    const auto ids = words_ ? words_->encode(from_one_line(rest)) : numbers_in(rest, ",");
    if (!ids && words_) return ids.failure();
    if (!ids) return graft::fail(ids.message(), "; with --ids a prompt is token ids with commas between them");
    r.prompt = *ids;
    if (r.prompt.empty()) return graft::fail("the prompt has no tokens");
    for (const std::int64_t id : r.prompt)
      if (id < 0 || id >= model_.config().vocabulary)
        return graft::fail("token ", static_cast<long long>(id), " is none of this model, which has ",
                           model_.config().vocabulary);
    if (r.prompt.size() > static_cast<std::size_t>(model_.context()))
      return graft::fail("the prompt has ", static_cast<long long>(r.prompt.size()), " tokens, and the capacity is ",
                         model_.context(), "; ",
                         context_options::context_advice(model_.context(), model_.config().positions).c_str());
    return graft::ok;
  }
  // Returns the new tokens as an answer; an end token is left out of a text.
  std::string answer(const graft::generated_sequence& made, std::size_t prompt) const {
    auto fresh = std::span(made.tokens).subspan(prompt);
    if (words_ && made.why == graft::stop_reason::eos_token) fresh = fresh.first(fresh.size() - 1);
    if (words_) return in_one_line(words_->decode(fresh));
    std::string all;
    for (const std::int64_t t : fresh) all += (all.empty() ? "" : ",") + std::to_string(t);
    return all;
  }
  void batch(std::span<request* const> some) {
    const auto made = generate(some);
    for (std::size_t i = 0; i < some.size(); ++i)
      some[i]->answer = made ? answer((*made)[i], some[i]->prompt.size()) : std::string("error: ") + made.message();
  }
  graft::result<std::vector<graft::generated_sequence>> generate(std::span<request* const> some) {
    std::vector<std::vector<std::int64_t>> prompts;
    std::vector<names> adapters;
    std::size_t longest = 0;
    for (const request* r : some) {
      prompts.push_back(r->prompt), adapters.push_back(r->adapters);
      longest = std::max(longest, r->prompt.size());
    }
    const long long wanted = static_cast<long long>(longest) + *settings_.max_new_tokens;
    const int length = static_cast<int>(std::min<long long>(model_.context(), wanted));
    auto g = graft::generator<engine>::make(model_, settings_, static_cast<int>(some.size()), length);
    if (!g) return g.failure();
    const auto begin = std::chrono::steady_clock::now();
    auto made = g->run(
        prompts, [](std::size_t, std::int64_t) { return true; }, adapters);
    if (!made) return made;
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (std::size_t i = 0; i < some.size(); ++i)
      made_ += static_cast<long long>((*made)[i].tokens.size() - prompts[i].size());
    served_ += static_cast<long long>(some.size()), ++batches_;
    return made;
  }

  graft::causal_lm<engine> model_;
  std::optional<hf::tokenizer> words_;
  graft::generation_settings settings_;
  int batch_;
  long long made_ = 0, served_ = 0, batches_ = 0;
  double seconds_ = 0;
};

void serve_stream(server& s, std::istream& in) {
  std::vector<request> all;
  for (std::string line; std::getline(in, line);) all.push_back(s.read(line));
  s.serve(all);
  for (const request& r : all) std::cout << r.answer << '\n';
  s.report();
}

graft::result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return graft::fail("the path of the socket is too long");
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}
std::string read_all(int from) {
  std::string text;
  char part[4096];
  for (ssize_t n = ::read(from, part, sizeof part); n > 0; n = ::read(from, part, sizeof part))
    text.append(part, static_cast<std::size_t>(n));
  return text;
}
void write_all(int to, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::send(to, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return;
    at += static_cast<std::size_t>(n);
  }
}

// Removes the socket of a server that was killed, to which nobody answers, and nothing else.
status remove_stale(const std::string& path, const sockaddr_un& address) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return graft::ok;
  if (!S_ISSOCK(found.st_mode)) return graft::fail(path.c_str(), " is there and is no socket; name another path");
  if (found.st_uid != ::geteuid())
    return graft::fail(path.c_str(), " is the socket of another user; name another path");
  const int asking = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const bool answered = ::connect(asking, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int why = errno;
  ::close(asking);
  if (answered || why != ECONNREFUSED)
    return graft::fail("a server runs at ", path.c_str(), " already; end it, or name another path");
  ::unlink(path.c_str());
  return graft::ok;
}
char open_socket[sizeof(sockaddr_un::sun_path)];

// Serves one client after the other: reads all lines, then writes all answers.
status serve_socket(server& s, const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.failure();
  if (status removed = remove_stale(path, *address); !removed) return removed;
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (listener < 0 || ::bind(listener, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      ::listen(listener, 16) != 0)
    return graft::fail("the socket ", path.c_str(), " cannot be opened: ", std::strerror(errno));
  path.copy(open_socket, sizeof open_socket - 1);
  for (const int ended : {SIGINT, SIGTERM})
    std::signal(ended, [](int by) { ::unlink(open_socket), ::_exit(128 + by); });
  for (int client = ::accept(listener, nullptr, nullptr); client >= 0; client = ::accept(listener, nullptr, nullptr)) {
    const std::string text = read_all(client);
    std::vector<request> all;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      all.push_back(s.read(text.substr(at, end - at)));
      at = end + 1;
    }
    s.serve(all);
    std::string answers;
    for (const request& r : all) answers += r.answer + "\n";
    write_all(client, answers);
    ::close(client);
    s.report();
  }
  return graft::fail("the socket was closed");
}

status ask(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.failure();
  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (server < 0 || ::connect(server, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return graft::fail("nobody answers at ", path.c_str(), ": ", std::strerror(errno));
  write_all(server, read_all(STDIN_FILENO));
  ::shutdown(server, SHUT_WR);
  const std::string answers = read_all(server);
  std::fwrite(answers.data(), 1, answers.size(), stdout);
  ::close(server);
  return graft::ok;
}

int main(int argc, char** argv) {
  std::string folder, from, socket, ask_path;
  int batch = 32, tokens = 32;
  bool ids = false;
  arguments::pairs adapters;
  sampling_options sampling;
  context_options context;
  arguments in("serve_multi_lora",
               "Serves requests that each name their adapter, many in one batch. A request is a line: NAME PROMPT.");
  in.optional_word("MODEL", folder, "Hugging Face folder or GGUF file of the model");
  in.named_words("NAME=FOLDER", adapters, "adapters and the names that requests call them by");
  in.flag("--ids", ids, "prompts and answers are token ids with commas between them; not given: text");
  in.option("--batch N", batch, "requests of one batch, at most", 1);
  in.option("--max-new-tokens N", tokens, "new tokens of an answer, at most: an end token of the model ends it before",
            1);
  in.earlier_name("--tokens");
  context.declare(in);
  sampling.declare(in);
  in.option("--input FILE", from, "requests from a file instead of standard input");
  in.earlier_name("--from");
  in.option("--socket PATH", socket, "requests from clients of a Unix socket at this path");
  in.option("--client PATH", ask_path,
            "sends the requests of standard input to the server at this path, and prints its answers");
  in.earlier_name("--ask");
  if (const auto code = in.read(argc, argv)) return *code;
  const auto wrong = [](const char* why) { return std::fprintf(stderr, "serve_multi_lora: %s\n", why), 1; };
  if (!ask_path.empty()) {
    const status done = ask(ask_path);
    return done ? 0 : wrong(done.message());
  }
  if (folder.empty()) return in.mistake("MODEL is missing");
  const auto loading = context.model(folder);
  if (!loading) return wrong(loading.message());
  auto model = io::load_model<engine>(folder, *loading);
  if (!model) return wrong(model.message());
  auto settings = sampling.settings(folder, model->config());
  if (!settings) return wrong(settings.message());
  if (status good = graft::check_sampling(settings->sampling); !good) return wrong(good.message());
  settings->max_new_tokens = tokens;
  std::optional<hf::tokenizer> words;
  if (!ids) {
    auto read = io::read_tokenizer(folder);
    if (!read)
      return wrong(graft::fail(read.message(), "; with --ids prompts are token ids and need none").what.c_str());
    words = std::move(*read);
  }
  server s(std::move(*model), std::move(words), *settings, batch);
  for (const auto& [name, its] : adapters)
    if (status done = s.load(name, its); !done) return wrong(done.message());
  std::ifstream file(from);
  if (!from.empty() && !file) return wrong(graft::fail("--input ", from.c_str(), " cannot be read").what.c_str());
  if (socket.empty()) return serve_stream(s, from.empty() ? std::cin : file), 0;
  return wrong(serve_socket(s, socket).message());
}
