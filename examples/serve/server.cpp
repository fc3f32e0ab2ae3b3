// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <fcntl.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <deque>
#include <filesystem>
#include <random>
#include <thread>

#include "client_connection.h"
#include "log.h"
#include "metrics.h"
#include "page.h"

namespace serve {

using graft::io::json;
using namespace graft::serving;
using seconds = std::chrono::duration<double>;

namespace {

// Threads that answer connections. While all of them are busy no further connection is accepted; the kernel keeps some,
// and refuses the rest.
class connection_threads : public httplib::TaskQueue {
 public:
  explicit connection_threads(int count) {
    for (int k = 0; k < count; ++k) threads_.emplace_back([this] { work(); });
  }
  void enqueue(std::function<void()> answer) override {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return busy_ + waiting_.size() < threads_.size() || ended_; });
    waiting_.push_back(std::move(answer));
    guard.unlock();
    changed_.notify_all();
  }
  void shutdown() override {
    {
      const std::lock_guard guard(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

 private:
  void work() {
    std::unique_lock guard(mutex_);
    for (;;) {
      changed_.wait(guard, [&] { return !waiting_.empty() || ended_; });
      if (waiting_.empty()) return;
      const std::function<void()> answer = std::move(waiting_.front());
      waiting_.pop_front(), ++busy_;
      guard.unlock();
      answer();
      guard.lock();
      --busy_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::size_t busy_ = 0;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

class http_server : public httplib::Server {
 public:
  // httplib's queue of connections that wait to be accepted is 5 long, and clients that come at the same moment would
  // be refused.
  void lengthen_backlog(int n) { static_cast<void>(::listen(svr_sock_, n)); }
};

// Compares in a time that does not depend on where two keys differ.
bool same_key(const std::string& a, const std::string& b) {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    different |= static_cast<unsigned>(static_cast<unsigned char>(a[i])) ^
                 static_cast<unsigned>(static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]));
  return different == 0;
}
std::string new_id(const char* kind) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  char id[40];
  static_cast<void>(std::snprintf(id, sizeof id, "%s-%016llx", kind, static_cast<unsigned long long>(random())));
  return id;
}
std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[40];
  static_cast<void>(std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc));
  return text;
}
// One line of the log for a completion, filled in when it has ended.
struct completion_record {
  std::string id, path, model, finish;
  int status = 200;
  long long prompt_tokens = 0, made_tokens = 0, reused_tokens = 0;
  clock::time_point begin = clock::now();
  double first_token = 0;
};

// SIGINT and SIGTERM as bytes of a pipe, which a thread can wait for: 's' for a signal.
namespace signals {
int pipe_ends[2];

void send(char what) {
  if (::write(pipe_ends[1], &what, 1) < 0) return;  // the pipe is full of signals already
}
graft::status open() {
  if (::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) return graft::fail("no pipe can be made for signals");
  for (const int by : {SIGINT, SIGTERM}) std::signal(by, [](int) { send('s'); });
  return graft::ok;
}
// Returns the next byte, or 0 if there is none within the time; -1 waits for ever.
char wait(int milliseconds) {
  pollfd at{pipe_ends[0], POLLIN, 0};
  char what = 0;
  do {
    if (::poll(&at, 1, milliseconds) > 0 && ::read(pipe_ends[0], &what, 1) == 1) return what;
  } while (milliseconds < 0);
  return 0;
}
}  // namespace signals

class routes {
 public:
  routes(serving_base& engine, const model_facts& facts, const server_options& options)
      : engine_(engine), facts_(facts), options_(options) {
    if (!options.adapter_folder.empty()) adapter_folder_ = std::filesystem::canonical(options.adapter_folder);
  }

  void declare(httplib::Server& s) {
    s.set_pre_routing_handler([this](const httplib::Request& q, httplib::Response& a) { return admit(q, a); });
    s.set_error_handler(httplib::Server::Handler([](const httplib::Request& q, httplib::Response& a) {
      if (!a.body.empty()) return;
      const char* const why = a.status == 404   ? "there is no such path"
                              : a.status == 413 ? "the body is larger than this server takes"
                              : a.status == 400 ? "the request is no HTTP that this server reads"
                                                : "the request failed";
      a.set_content(api_error{a.status, why + (a.status == 404 ? ": " + q.path.substr(0, 100) : std::string())}.body(),
                    "application/json");
    }));
    s.set_exception_handler([](const httplib::Request&, httplib::Response& a, const std::exception_ptr&) {
      a.status = 500;
      a.set_content(api_error{500, "the server met an error of its own", "server_error"}.body(), "application/json");
    });
    s.set_logger([this](const httplib::Request& q, const httplib::Response& a) { answered(q, a); });
    s.Get("/", [](const httplib::Request&, httplib::Response& a) { a.set_content(page, "text/html; charset=utf-8"); });
    s.Get("/health", [this](const httplib::Request&, httplib::Response& a) {
      if (ending) a.status = 503;
      a.set_content(written({{"status", ending ? "ending" : "ok"}}), "application/json");
    });
    s.Get("/metrics", [this](const httplib::Request&, httplib::Response& a) {
      a.set_content(metrics_.text(engine_.stats(), log_lines.lost()), "text/plain; version=0.0.4");
    });
    s.Get("/v1/models", [this](const httplib::Request&, httplib::Response& a) { models(a); });
    s.Get("/lora-adapters", [this](const httplib::Request&, httplib::Response& a) { adapters(a); });
    using body = const std::string&;
    post(s, "/lora-adapters", [this](const httplib::Request&, body b, httplib::Response& a) { set_usual(b, a); });
    post(s, "/tokenize", [this](const httplib::Request&, body b, httplib::Response& a) { tokenize(b, a); });
    post(s, "/detokenize", [this](const httplib::Request&, body b, httplib::Response& a) { detokenize(b, a); });
    post(s, "/v1/completions",
         [this](const httplib::Request& q, body b, httplib::Response& a) { complete(q, b, a, false); });
    post(s, "/v1/chat/completions",
         [this](const httplib::Request& q, body b, httplib::Response& a) { complete(q, b, a, true); });
    post(s, "/v1/load_lora_adapter",
         [this](const httplib::Request&, body b, httplib::Response& a) { load_adapter(b, a); });
    post(s, "/v1/unload_lora_adapter",
         [this](const httplib::Request&, body b, httplib::Response& a) { unload_adapter(b, a); });
  }
  std::atomic<bool> ending{false};
  std::atomic<int> active{0};  // completions whose answer is not sent yet
  line_log log_lines;

 private:
  // Reads the body of a request, at most as much of it as the limit says: cpp-httplib applies its own limit to bodies
  // that state their length, and neither to chunks nor to what is unpacked. What is beyond is read and dropped, so that
  // the client reads its status, unless it is very much.
  template <class Answer> void post(httplib::Server& s, const char* path, Answer answer) {
    s.Post(path, [this, answer](const httplib::Request& q, httplib::Response& a, const httplib::ContentReader& read) {
      const auto close = [&] { a.set_header("Connection", "close"); };  // what was not read is no request
      if (q.is_multipart_form_data()) return close(), refuse(a, {400, "expected JSON, and no form"});
      const std::size_t most = static_cast<std::size_t>(options_.max_body_megabytes) << 20U;
      std::string body;
      std::size_t size = 0;
      const bool whole = read([&](const char* data, std::size_t n) {
        size += n;
        if (size <= most) body.append(data, n);
        return size <= most + dropped_bytes;
      });
      if (size > most) a.status = 413;
      if (!whole) close();
      if (whole && size <= most) answer(q, body, a);
    });
  }
  static void refuse(httplib::Response& a, const api_error& e) {
    a.status = e.status;
    if (e.status == 429 || e.status == 503) a.set_header("Retry-After", "1");
    a.set_content(e.body(), "application/json");
  }
  httplib::Server::HandlerResponse admit(const httplib::Request& q, httplib::Response& a) const {
    const bool open = q.path == "/" || q.path == "/health";
    if (open || options_.key.empty() || same_key("Bearer " + options_.key, q.get_header_value("Authorization")))
      return httplib::Server::HandlerResponse::Unhandled;
    refuse(a, {401,
               "the API key is missing or wrong; send it as Authorization: Bearer KEY",
               "invalid_request_error",
               {},
               "invalid_api_key"});
    a.set_header("Connection", "close");  // the body of the request was not read
    return httplib::Server::HandlerResponse::Handled;
  }
  void answered(const httplib::Request& q, const httplib::Response& a) {
    static const char* const paths[] = {"/",
                                        "/health",
                                        "/metrics",
                                        "/v1/models",
                                        "/lora-adapters",
                                        "/tokenize",
                                        "/detokenize",
                                        "/v1/completions",
                                        "/v1/chat/completions",
                                        "/v1/load_lora_adapter",
                                        "/v1/unload_lora_adapter"};
    const auto known = std::find(std::begin(paths), std::end(paths), q.path);
    metrics_.answered(known != std::end(paths) ? *known : "other", a.status);
    if (!options_.quiet && a.status >= 400)
      log({{"time", time_now()},
           {"event", "refused"},
           {"path", q.path.substr(0, 200)},
           {"status", a.status},
           {"from", q.remote_addr}});
  }
  void log(const ordered_json& line) { log_lines.write(written(line)); }

  void models(httplib::Response& a) const {
    ordered_json all = ordered_json::array();
    const auto entry = [&](const std::string& id, const std::string& root, const ordered_json& parent) {
      all.push_back({{"id", id},
                     {"object", "model"},
                     {"created", created_},
                     {"owned_by", "graft"},
                     {"root", root},
                     {"parent", parent},
                     {"max_model_len", facts_.context}});
    };
    entry(facts_.name, options_.model_folder, nullptr);
    for (const adapter_info& i : engine_.adapters().list()) entry(i.name, i.folder, facts_.name);
    a.set_content(written({{"object", "list"}, {"data", all}}), "application/json");
  }
  // Lists adapters as llama-server does; the scale is that in requests which name neither a model nor adapters.
  void adapters(httplib::Response& a) const {
    ordered_json all = ordered_json::array();
    const std::vector<std::string> usual = names_of_adapters().usual;
    for (const adapter_info& i : engine_.adapters().list())
      all.push_back({{"id", all.size()},
                     {"name", i.name},
                     {"path", i.folder},
                     {"scale", std::find(usual.begin(), usual.end(), i.name) != usual.end() ? 1.0 : 0.0},
                     {"version", i.version},
                     {"in_memory", i.version > 0},
                     {"bytes", i.bytes},
                     {"sequences", i.sequences},
                     {"pinned", i.pinned},
                     {"loading", i.loading}});
    a.set_content(written(all), "application/json");
  }
  // The usual adapters that were unloaded since are none.
  adapter_names names_of_adapters() const {
    adapter_names names;
    for (const adapter_info& i : engine_.adapters().list()) names.all.push_back(i.name);
    const std::lock_guard guard(usual_mutex_);
    for (const std::string& name : usual_)
      if (std::find(names.all.begin(), names.all.end(), name) != names.all.end()) names.usual.push_back(name);
    return names;
  }
  // Sets the adapters of requests that name neither a model nor adapters.
  void set_usual(const std::string& text, httplib::Response& a) {
    if (refuses_changes(a)) return;
    const graft::result<json> body = graft::io::parse_json(text, "the body");
    if (!body) return refuse(a, {400, body.message()});
    parsed<std::vector<std::string>> names = parse_scales(*body, names_of_adapters().all);
    if (names.problem) return refuse(a, *names.problem);
    if (const graft::status fits = engine_.adapters().check(names.value); !fits)
      return refuse(a, {400, fits.message()});
    {
      const std::lock_guard guard(usual_mutex_);
      usual_ = std::move(names.value);
    }
    a.set_content(written({{"success", true}}), "application/json");
  }
  bool refuses_changes(httplib::Response& a) const {
    if (!adapter_folder_.empty()) return false;
    refuse(a, {403, "adapters are not changed while this server runs; start it with --adapter-folder FOLDER"});
    return true;
  }
  static const json* text_of(const json& body, std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (const json* v = body.find(name); v != nullptr && v->is_string()) return v;
    return nullptr;
  }
  void tokenize(const std::string& given, httplib::Response& a) const {
    const auto body = parse_body(given);
    if (body.problem) return refuse(a, *body.problem);
    const json* const text = text_of(body.value, {"prompt", "content"});
    if (text == nullptr) return refuse(a, {400, "expected a text, 'prompt' or 'content'"});
    if (!facts_.words) return refuse(a, {400, "the model has no tokenizer"});
    const json *const vllm = body.value.find("add_special_tokens"), *const llama = body.value.find("add_special");
    const json* const special = vllm != nullptr ? vllm : llama;
    const bool add_special = special != nullptr && special->is_boolean()
                                 ? special->flag
                                 : vllm != nullptr || text_of(body.value, {"prompt"}) != nullptr;
    const auto ids = facts_.words->encode(text->word, add_special);
    if (!ids) return refuse(a, {400, ids.message()});
    a.set_content(written({{"count", ids->size()}, {"max_model_len", facts_.context}, {"tokens", *ids}}),
                  "application/json");
  }
  void detokenize(const std::string& given, httplib::Response& a) const {
    const auto body = parse_body(given);
    if (body.problem) return refuse(a, *body.problem);
    const json* const tokens = body.value.find("tokens");
    if (tokens == nullptr || !tokens->is_list()) return refuse(a, {400, "expected a list of tokens, 'tokens'"});
    if (!facts_.words) return refuse(a, {400, "the model has no tokenizer"});
    std::vector<std::int64_t> ids;
    for (const json& t : tokens->items)
      ids.push_back(t.is_unsigned() && t.whole < (1U << 30U) ? static_cast<std::int64_t>(t.whole) : -1);
    const std::string text = facts_.words->decode(ids, false);
    a.set_content(written({{"prompt", text}, {"content", text}}), "application/json");
  }

  // Adapters that are loaded and unloaded while the server runs lie below one folder, also after links were followed.
  std::optional<std::string> below_adapter_folder(const std::string& path, std::string& why) const {
    if (path.find('\0') != std::string::npos) return why = "the path has a zero byte", std::nullopt;
    std::error_code failed;
    const std::filesystem::path whole = std::filesystem::canonical(adapter_folder_ / path, failed);
    const auto [end, rest] = std::mismatch(adapter_folder_.begin(), adapter_folder_.end(), whole.begin(), whole.end());
    if (failed || end != adapter_folder_.end() || whole == adapter_folder_)
      return why = "there is no such folder below the adapters' folder", std::nullopt;
    return whole.string();
  }
  std::optional<json> management_body(const std::string& text, httplib::Response& a, std::string& name) const {
    if (refuses_changes(a)) return std::nullopt;
    auto body = parse_body(text);
    if (body.problem) return refuse(a, *body.problem), std::nullopt;
    const json* const given = text_of(body.value, {"lora_name"});
    if (given == nullptr || given->word.empty() || given->word == facts_.name || given->word.size() > 200)
      return refuse(a,
                    {400, "expected 'lora_name', a name other than the model's", "invalid_request_error", "lora_name"}),
             std::nullopt;
    name = given->word;
    return std::move(body.value);
  }
  void load_adapter(const std::string& text, httplib::Response& a) {
    std::string name, why;
    const auto body = management_body(text, a, name);
    if (!body) return;
    const json *const path = text_of(*body, {"lora_path"}), *const in_place = body->find("load_inplace");
    if (path == nullptr) return refuse(a, {400, "expected 'lora_path'", "invalid_request_error", "lora_path"});
    const auto folder = below_adapter_folder(path->word, why);
    if (!folder) return refuse(a, {403, why, "invalid_request_error", "lora_path"});
    const graft::status added = engine_.adapters().add(name, *folder);
    if (!added && !(in_place != nullptr && in_place->is_boolean() && in_place->flag))
      return refuse(a, {400, std::string(added.message()) + "; load_inplace replaces one that is there",
                        "invalid_request_error", "lora_name"});
    const auto patience = std::chrono::seconds(options_.request_timeout);
    failure_cause cause{};
    if (const graft::status done = engine_.adapters().load(name, *folder, patience, &cause); !done) {
      if (cause == failure_cause::unknown_adapter)
        return refuse(a, {404, done.message(), "invalid_request_error", "lora_name", "model_not_found"});
      if (added) static_cast<void>(engine_.adapters().remove(name));
      return refuse(a, {400, done.message(), "invalid_request_error", "lora_path"});
    }
    if (const json* pinned = body->find("pinned"); pinned != nullptr && pinned->is_boolean())
      static_cast<void>(engine_.adapters().pin(name, pinned->flag));
    log({{"time", time_now()}, {"event", "loaded"}, {"adapter", name}, {"folder", *folder}});
    a.set_content(written({{"status", "ok"}, {"lora_name", name}}), "application/json");
  }
  void unload_adapter(const std::string& text, httplib::Response& a) {
    std::string name;
    if (!management_body(text, a, name)) return;
    if (const graft::status done = engine_.adapters().remove(name); !done)
      return refuse(a, {404, done.message(), "invalid_request_error", "lora_name", "model_not_found"});
    log({{"time", time_now()}, {"event", "unloaded"}, {"adapter", name}});
    a.set_content(written({{"status", "ok"}, {"lora_name", name}}), "application/json");
  }

  // ---- Completions. Nothing of a stream is sent before its first event, and nothing of another answer before its last
  // one, so that a request which fails, such as one whose adapter cannot be read, has its status. Whatever then
  // happens, a client that is gone ends its sequences.
  struct completion {
    completion_writer writer;
    std::shared_ptr<response> from;
    completion_record record;
    std::map<int, clock::time_point> last_token{};  // by choice
    bool sent = false;
    std::atomic<int>& active_completions;

    completion(completion_writer w, std::shared_ptr<response> r, std::atomic<int>& active)
        : writer(std::move(w)), from(std::move(r)), active_completions(active) {
      ++active_completions;
    }
    ~completion() { from->cancel(), --active_completions; }
    completion(const completion&) = delete;
    completion& operator=(const completion&) = delete;
  };
  void complete(const httplib::Request& q, const std::string& body, httplib::Response& a, bool chat) {
    const auto begin = clock::now();
    auto parsed_body = parse_completion(body, chat, facts_, names_of_adapters());
    if (parsed_body.problem) return refuse(a, *parsed_body.problem);
    auto to = std::make_shared<response>();
    const auto deadline = clock::now() + std::chrono::seconds(options_.request_timeout);
    int first_choice = 0;
    for (request& r : parsed_body.value.prompts) {
      r.deadline = deadline;
      const submission sent = engine_.submit(r, to, first_choice);
      if (sent.what != submission::kind::accepted) return to->cancel(), refuse(a, error_of(sent));
      first_choice += r.choices;
    }
    const bool stream = parsed_body.value.stream;
    auto c = std::make_shared<completion>(
        completion_writer(new_id(chat ? "chatcmpl" : "cmpl"), std::move(parsed_body.value), facts_), to, active);
    c->record.begin = begin, c->record.path = q.path, c->record.model = c->writer.completion().model,
    c->record.prompt_tokens = c->writer.prompt_tokens();
    const client_connection client(q);
    auto looked = begin;
    for (;;) {
      const std::optional<event> e = to->next(look_for_client);
      // A client that is gone is looked for between events that come often, too.
      if (clock::now() - looked >= look_for_client) {
        looked = clock::now();
        if (client.is_gone(q)) return a.status = 499, over(*c);  // nobody reads this status; it is for the figures
      }
      if (!e) continue;
      const bool is_first = c->writer.made_tokens() == 0;
      if (e->finished && (e->why == finish_reason::failed || e->why == finish_reason::cancelled ||
                          (e->why == finish_reason::deadline && is_first)))
        return c->record.status = error_of(*e).status, over(*c), refuse(a, error_of(*e));
      if (stream) return begin_stream(a, c, *e);
      static_cast<void>(take(*c, *e));
      if (!c->writer.finished()) continue;
      a.set_content(c->writer.body(to->reused_tokens()), "application/json");
      return over(*c);
    }
  }
  void begin_stream(httplib::Response& a, const std::shared_ptr<completion>& c, std::optional<event> first) {
    a.set_header("Cache-Control", "no-cache");
    a.set_header("X-Accel-Buffering", "no");
    a.set_chunked_content_provider("text/event-stream", [this, c, first](std::size_t, httplib::DataSink& sink) mutable {
      const bool goes_on = stream_events(*c, first, sink);
      if (!goes_on) c->from->cancel(), over(*c);
      return goes_on;
    });
  }
  static api_error error_of(const submission& s) {
    switch (s.what) {
      case submission::kind::unknown_adapter:
        return {404, s.message, "invalid_request_error", "model", "model_not_found"};
      case submission::kind::queue_full: return {429, s.message + "; try again later", "rate_limit_error"};
      case submission::kind::stopping: return {503, s.message, "server_error"};
      default: return {400, s.message};
    }
  }
  static api_error error_of(const event& e) {
    if (e.why == finish_reason::deadline) return {504, e.message, "timeout_error"};
    switch (e.cause) {
      case failure_cause::shutting_down: return {503, e.message, "server_error"};
      case failure_cause::unknown_adapter: return {404, e.message, "invalid_request_error", "model", "model_not_found"};
      case failure_cause::no_memory: return {400, e.message, "invalid_request_error", "model"};
      default: return {500, e.message.empty() ? "the request was cancelled" : e.message, "server_error"};
    }
  }
  // Takes an event; returns what a stream sends for it.
  std::string take(completion& c, const event& e) {
    if (e.token >= 0) {
      const auto now = clock::now();
      const auto [last, is_first] = c.last_token.try_emplace(e.choice, now);
      if (!is_first) metrics_.between_tokens(seconds(now - std::exchange(last->second, now)).count());
      if (c.record.first_token == 0) {
        c.record.first_token = seconds(now - c.record.begin).count();
        metrics_.first_token(c.record.first_token);
      }
    }
    return c.writer.take(e);
  }
  // One call for each event; false closes the connection without an end, so that the client sees that it is incomplete.
  bool stream_events(completion& c, std::optional<event>& first, httplib::DataSink& sink) {
    std::optional<event> e = first ? std::exchange(first, std::nullopt) : c.from->next(std::chrono::milliseconds(200));
    if (!sink.is_writable()) return false;
    if (!e) return true;
    const auto send = [&](const std::string& data) {
      const std::string line = "data: " + data + "\n\n";
      return sink.write(line.data(), line.size());
    };
    if (e->finished && e->why == finish_reason::failed) {
      c.record.status = error_of(*e).status;
      static_cast<void>(send(error_of(*e).body()));
      return false;
    }
    const std::string data = take(c, *e);
    if (!data.empty() && !send(data)) return false;
    if (!c.writer.finished()) return true;
    if (c.writer.completion().include_usage && !send(c.writer.usage_chunk(c.from->reused_tokens()))) return false;
    if (!send("[DONE]")) return false;
    sink.done();
    over(c);
    return true;
  }
  void over(completion& c) {
    if (std::exchange(c.sent, true)) return;
    const double took = seconds(clock::now() - c.record.begin).count();
    metrics_.completed(took);
    if (options_.quiet) return;
    const std::string finish = c.writer.finished()      ? c.writer.finish()
                               : c.record.status == 200 ? "client gone"
                                                        : "error";
    log({{"time", time_now()},
         {"event", "completion"},
         {"path", c.record.path},
         {"model", c.record.model},
         {"finish", finish},
         {"prompt_tokens", c.record.prompt_tokens},
         {"reused_tokens", c.from->reused_tokens()},
         {"completion_tokens", c.writer.made_tokens()},
         {"first_token_seconds", c.record.first_token},
         {"seconds", took}});
  }

  serving_base& engine_;
  const model_facts& facts_;
  const server_options& options_;
  std::filesystem::path adapter_folder_;
  metrics metrics_;
  mutable std::mutex usual_mutex_;
  std::vector<std::string> usual_;  // adapters of requests that name neither a model nor adapters
  static constexpr std::chrono::milliseconds look_for_client{100};
  static constexpr std::size_t dropped_bytes = std::size_t{256} << 20U;
  const long long created_ = static_cast<long long>(std::time(nullptr));
};

}  // namespace

graft::status serve(serving_base& engine, const std::function<void()>& run_engine, const model_facts& facts,
                    const server_options& options, const std::function<graft::status()>& started) {
  if (!options.adapter_folder.empty() && !std::filesystem::is_directory(options.adapter_folder))
    return graft::fail("--adapter-folder ", options.adapter_folder.c_str(), " is no folder");
  if (graft::status s = signals::open(); !s) return s;
  // Lines of the log that cannot be written, since the disk is full or the file as large as it may be, are lost.
  for (const int by : {SIGPIPE, SIGXFSZ}) std::signal(by, SIG_IGN);

  routes all(engine, facts, options);
  http_server http;
  http.new_task_queue = [&] { return new connection_threads(options.max_connections); };
  http.set_payload_max_length(static_cast<std::size_t>(options.max_body_megabytes) << 20U);
  http.set_read_timeout(options.read_timeout, 0).set_write_timeout(options.write_timeout, 0);
  http.set_keep_alive_max_count(1000).set_keep_alive_timeout(5);
  http.set_tcp_nodelay(true);
  all.declare(http);
  const int port = options.port == 0                               ? http.bind_to_any_port(options.host)
                   : http.bind_to_port(options.host, options.port) ? options.port
                                                                   : -1;
  if (port < 0)
    return graft::fail("the server cannot listen at ", options.host.c_str(), ":", options.port,
                       "; is another program there? --port takes another one, 0 any that is free");
  http.lengthen_backlog(1024);
  std::mutex mutex;
  bool engine_ended = false;
  std::thread steps([&] {
    run_engine();
    const std::lock_guard guard(mutex);
    engine_ended = true;
  });
  std::thread listens([&] { http.listen_after_bind(); });
  std::thread ends([&] {
    if (signals::wait(-1) != 's') return;
    all.log_lines.write("serve: ending; requests that were accepted have " + std::to_string(options.shutdown_timeout) +
                        " seconds");
    all.ending = true;
    engine.drain();
    const auto patience = clock::now() + std::chrono::seconds(options.shutdown_timeout);
    const auto over = [&] {
      const std::lock_guard guard(mutex);
      return engine_ended && all.active == 0;
    };
    // A second signal ends them at once.
    while (!over() && clock::now() < patience && signals::wait(20) != 's') continue;
    engine.stop();
    // Sends the text that was generated, as far as clients read it.
    const auto sent = clock::now() + std::chrono::seconds(options.write_timeout);
    while (!over() && clock::now() < sent) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    http.stop();
  });
  std::printf("serve: listening at http://%s:%d\n", options.host.c_str(), port);
  std::fflush(stdout);
  const graft::status good = started();
  if (!good) {
    engine.stop();
    signals::send('e');
    while (!http.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    http.stop();
  }
  listens.join(), steps.join(), ends.join();
  return good;
}

}  // namespace serve
