// SPDX-License-Identifier: Apache-2.0
// Serves requests that each name their adapter, many in one batch. A request is a line: the name of an adapter, several
// with + between them, or - for the base; a space; then token ids with commas between them, or text where the model's
// folder has a tokenizer. An answer is a line too. Lines come from standard input, from a file, or from the clients of a
// Unix socket, each of which is answered when it has written its last line; docs/serving.md shows it. With --ask it is such
// a client.
//     serve_mixed MODEL [--batch N] [--tokens N] [--from FILE | --socket PATH] NAME=FOLDER [NAME=FOLDER …]
//     serve_mixed --ask PATH < requests
// run: serve_mixed test/golden/models/llama/base --tokens 8 --from examples/requests.txt sql=test/golden/models/llama/multi/a chat=test/golden/models/llama/multi/c turned=test/golden/models/llama/oft/adapter_init scaled=test/golden/models/llama/ia3/adapter_init
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/tokenizer_file.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "arguments.h"

using engine = graft::cpu::engine<float>;
using graft::status;
namespace hf = graft::io::hf;
using names = graft::named_adapters::names;

struct request {
  names adapters;
  std::vector<std::int64_t> prompt;
  std::string answer;  // or why there is none
};

class server {
 public:
  server(graft::causal_lm<engine> model, std::optional<hf::tokenizer> words, int batch, int tokens)
      : model_(std::move(model)), words_(std::move(words)), batch_(batch), tokens_(tokens) {}

  status load(const std::string& name, const std::string& folder) { return hf::load_adapter(model_, name, folder); }

  request read(const std::string& line) const {
    request r;
    const std::size_t space = std::min(line.find(' '), line.size());
    for (std::size_t at = 0; at < space;) {
      const std::size_t plus = std::min(line.find('+', at), space);
      if (const std::string name = line.substr(at, plus - at); name != "-") r.adapters.push_back(name);
      at = plus + 1;
    }
    for (const std::string& name : r.adapters)
      if (model_.find(name) == nullptr) r.answer = "error: there is no adapter '" + name + "'";
    const std::string rest = space < line.size() ? line.substr(space + 1) : "";
    if (rest.find_first_not_of("0123456789,") == rest.npos) {
      if (const auto ids = numbers_in(rest, ","); ids) r.prompt = *ids;
    } else if (words_) {
      if (const auto ids = words_->encode(rest); ids) r.prompt = *ids;
    }
    if (r.prompt.empty() && r.answer.empty()) r.answer = "error: there is no prompt";
    for (const std::int64_t id : r.prompt)
      if (id >= model_.config().vocabulary && r.answer.empty())
        r.answer = "error: token " + std::to_string(id) + " is none of this model";
    return r;
  }

  // All requests, as many at a time as there is room for.
  status serve(std::vector<request>& all) {
    std::vector<request*> open;
    for (request& r : all)
      if (r.answer.empty()) open.push_back(&r);
    for (std::size_t at = 0; at < open.size(); at += static_cast<std::size_t>(batch_)) {
      const std::size_t count = std::min(open.size() - at, static_cast<std::size_t>(batch_));
      if (status s = batch(std::span(open).subspan(at, count)); !s) return s;
    }
    return graft::ok;
  }
  void report() const {
    std::fprintf(stderr, "%lld tokens of %lld requests in %lld batches, %.1f tokens per second\n", made_, served_,
                 batches_, seconds_ > 0 ? static_cast<double>(made_) / seconds_ : 0);
  }

 private:
  status batch(std::span<request* const> some) {
    std::vector<std::vector<std::int64_t>> prompts;
    std::vector<names> adapters;
    std::size_t longest = 0;
    for (const request* r : some) {
      prompts.push_back(r->prompt), adapters.push_back(r->adapters);
      longest = std::max(longest, r->prompt.size());
    }
    graft::generation_settings how;
    how.new_tokens = tokens_;
    const int length = std::min(model_.context(), static_cast<int>(longest) + tokens_);
    auto g = graft::generator<engine>::make(model_, how, static_cast<int>(some.size()), length);
    if (!g) return g.failure();
    const auto begin = std::chrono::steady_clock::now();
    const auto made = g->run(
        prompts, [](std::size_t, std::int64_t) { return true; }, adapters);
    if (!made) {
      for (request* r : some) r->answer = std::string("error: ") + made.message();
      return graft::ok;
    }
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto fresh = std::span((*made)[i].tokens).subspan(prompts[i].size());
      made_ += static_cast<long long>(fresh.size());
      for (const std::int64_t t : fresh)
        some[i]->answer += words_ ? words_->bytes(t) : (some[i]->answer.empty() ? "" : ",") + std::to_string(t);
    }
    served_ += static_cast<long long>(some.size()), ++batches_;
    return graft::ok;
  }

  graft::causal_lm<engine> model_;
  std::optional<hf::tokenizer> words_;
  int batch_, tokens_;
  long long made_ = 0, served_ = 0, batches_ = 0;
  double seconds_ = 0;
};

status serve_stream(server& s, std::istream& in) {
  std::vector<request> all;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) all.push_back(s.read(line));
  if (status done = s.serve(all); !done) return done;
  for (const request& r : all) std::printf("%s\n", r.answer.c_str());
  s.report();
  return graft::ok;
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

// One client after the other: all its lines, then all answers.
status serve_socket(server& s, const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.failure();
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ::unlink(path.c_str());
  if (listener < 0 || ::bind(listener, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      ::listen(listener, 16) != 0)
    return graft::fail("the socket ", path.c_str(), " cannot be opened: ", std::strerror(errno));
  for (int client = ::accept(listener, nullptr, nullptr); client >= 0; client = ::accept(listener, nullptr, nullptr)) {
    const std::string text = read_all(client);
    std::vector<request> all;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      if (end > at) all.push_back(s.read(text.substr(at, end - at)));
      at = end + 1;
    }
    const status done = s.serve(all);
    std::string answers = done ? "" : std::string("error: ") + done.message() + "\n";
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
  std::fputs(read_all(server).c_str(), stdout);
  ::close(server);
  return graft::ok;
}

int main(int argc, char** argv) {
  std::string folder, from, socket, asked;
  int batch = 32, tokens = 32;
  std::vector<std::pair<std::string, std::string>> adapters;
  arguments in(argc, argv);
  while (in.next()) {
    if (in.is("--ask"))
      asked = in.value();
    else if (in.is("--from"))
      from = in.value();
    else if (in.is("--socket"))
      socket = in.value();
    else if (in.is("--batch"))
      batch = in.whole(1);
    else if (in.is("--tokens"))
      tokens = in.whole(1);
    else if (const std::size_t is = in.plain().find('='); !folder.empty() && is != std::string::npos)
      adapters.emplace_back(in.plain().substr(0, is), in.plain().substr(is + 1));
    else
      in.plain_into({&folder});
  }
  const auto wrong = [](const char* why) { return std::fprintf(stderr, "serve_mixed: %s\n", why), 1; };
  if (!in.problem().empty()) return wrong(in.problem().c_str());
  if (!asked.empty()) {
    const status done = ask(asked);
    return done ? 0 : wrong(done.message());
  }
  if (folder.empty())
    return wrong("usage: serve_mixed MODEL [--batch N] [--tokens N] [--from FILE | --socket PATH] NAME=FOLDER ...");
  auto model = hf::load_model<engine>(folder);
  if (!model) return wrong(model.message());
  std::optional<hf::tokenizer> words;
  if (auto read = hf::read_tokenizer(folder); read) words = std::move(*read);
  server s(std::move(*model), std::move(words), batch, tokens);
  for (const auto& [name, its] : adapters)
    if (status done = s.load(name, its); !done) return wrong(done.message());
  std::ifstream file(from);
  if (!from.empty() && !file) return wrong("the file with the requests cannot be read");
  const status done = !socket.empty() ? serve_socket(s, socket) : serve_stream(s, from.empty() ? std::cin : file);
  return done ? 0 : wrong(done.message());
}
