// SPDX-License-Identifier: Apache-2.0
// Serves a model and its adapters over OpenAI's API: every request names its adapter, and all share one batch
// (docs/how-to/serve.md).
//     serve MODEL sql=FOLDER chat=FOLDER
//     serve model.gguf sql=adapter.gguf
//     curl localhost:8000/v1/chat/completions -d '{"model": "sql", "messages": [{"role": "user", "content": "Hello"}]}'
// serve --help lists all options.
#include <graft/io/load_model.h>
#include <graft/model/serving/on_cpu.h>

#include <filesystem>

#include "../arguments.h"
#include "../engine_options.h"
#include "../generation_options.h"
#include "../mode_options.h"
#include "server.h"

namespace io = graft::io;
namespace hf = graft::io::hf;
namespace serving = graft::serving;

struct options {
  std::string model, on = "cpu", served_model_name, chat_template;
  arguments::pairs adapters;
  std::vector<std::string> pinned;
  context_options context;
  mode_options mode;
  serve::server_options server;
  int max_num_seqs = 32, max_num_batched_tokens = 512, kv_cache_tokens = 0, max_loaded_adapters = 16;
  int max_waiting_seqs = 512, default_max_tokens = 256, max_loaded_adapter_megabytes = 0;
  bool no_prefix_caching = false, lazy_adapters = false, no_batch_invariance = false;
};

// The sampling of requests that set none: what generation_config.json says where it draws, else OpenAI's defaults.
graft::result<graft::sampling_settings> usual_sampling(const std::string& folder, const graft::model_config& config) {
  const auto read = io::read_generation_settings(folder, config.tokens);
  if (!read) return read.failure();
  graft::sampling_settings s = read->sampling;
  if (!s.sample) s = {.sample = true, .top_k = 0};
  return s;
}
graft::result<serve::model_facts> facts_of(const options& o, const graft::model_config& config, int context) {
  serve::model_facts facts;
  const std::filesystem::path folder = std::filesystem::absolute(o.model).lexically_normal();
  const bool is_gguf = io::is_gguf_path(o.model);
  facts.name = !o.served_model_name.empty() ? o.served_model_name
               : is_gguf                    ? folder.stem().string()
                         : (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  facts.vocabulary = config.vocabulary, facts.context = context, facts.default_tokens = o.default_max_tokens;
  const auto sampling = usual_sampling(o.model, config);
  if (!sampling) return sampling.failure();
  facts.sampling = *sampling;
  if (!is_gguf && !std::filesystem::exists(folder / "tokenizer.json")) {
    std::fprintf(stderr, "serve: %s has no tokenizer.json, so that prompts and answers are token ids\n",
                 o.model.c_str());
    return facts;
  }
  auto words = io::read_tokenizer(o.model);
  if (!words) return words.failure();
  facts.words = std::move(*words);
  if (!o.chat_template.empty()) {
    const auto text = io::read_file(o.chat_template, 1U << 20U);
    if (!text) return text.failure();
    auto chat = hf::chat_template::parse(io::as_chars(*text), o.chat_template);
    if (!chat) return chat.failure();
    facts.chat = std::move(*chat);
  } else if (auto chat = io::read_chat_template(o.model); chat) {
    facts.chat = std::move(*chat);
  } else {
    std::fprintf(stderr, "serve: /v1/chat/completions is off: %s\n", chat.message());
  }
  return facts;
}

// Reads the files of the weights once and says how far it is. The model maps them, and its first requests would wait
// for the disk otherwise. Files that cannot be read are left to the reader of the model, which has the error.
void read_ahead(const std::string& model) {
  std::vector<std::filesystem::path> files;
  std::error_code failed;
  if (std::filesystem::is_directory(model, failed)) {
    for (std::filesystem::directory_iterator at(model, failed), end; !failed && at != end; at.increment(failed))
      if (at->path().extension() == ".safetensors") files.push_back(at->path());
  } else {
    files.emplace_back(model);
  }
  std::uintmax_t all = 0, done = 0;
  for (const auto& file : files)
    if (const auto size = std::filesystem::file_size(file, failed); !failed) all += size;
  std::vector<char> part(std::size_t{8} << 20U);
  auto said = std::chrono::steady_clock::now();
  for (const auto& file : files) {
    const io::open_file in(std::fopen(file.c_str(), "rb"));
    while (in) {
      const std::size_t n = std::fread(part.data(), 1, part.size(), in.get());
      if (n == 0) break;
      done += n;
      if (std::chrono::steady_clock::now() - said < std::chrono::seconds(2)) continue;
      said = std::chrono::steady_clock::now();
      std::printf("serve: read %.1f of %.1f GB\n", static_cast<double>(done) / 1e9, static_cast<double>(all) / 1e9);
      std::fflush(stdout);
    }
  }
}

template <class Engine> graft::status run(const options& o) {
  auto loading = o.context.model(o.model);
  if (!loading) return loading.failure();
  loading->adapters = {std::numeric_limits<int>::max(), std::numeric_limits<long long>::max()};
  std::printf("serve: loading %s\n", o.model.c_str());
  std::fflush(stdout);
  const auto begin = std::chrono::steady_clock::now();
  read_ahead(o.model);
  auto model = io::load_model<Engine>(o.model, *loading);
  if (!model) return model.failure();
  std::printf("serve: model in %.2f s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  std::fflush(stdout);
  auto facts = facts_of(o, model->config(), model->context());
  if (!facts) return facts.failure();
  const auto steps = mode_named(o.mode, graft::step_mode::reduce_overhead, *model);
  if (!steps) return steps.failure();
  serving::serving_settings settings;
  settings.batch.sequences = o.max_num_seqs;
  settings.batch.tokens_per_step = std::max(o.max_num_batched_tokens, o.max_num_seqs);
  settings.batch.slots = o.kv_cache_tokens > 0 ? o.kv_cache_tokens : 8LL * model->context();
  settings.batch.reuse_prefixes = !o.no_prefix_caching, settings.batch_invariant = !o.no_batch_invariance;
  settings.resident_adapters = o.max_loaded_adapters, settings.max_waiting = o.max_waiting_seqs;
  settings.resident_adapter_bytes = static_cast<long long>(o.max_loaded_adapter_megabytes) << 20U;
  settings.steps = *steps;
  serving::serving_base::token_bytes bytes;
  if (facts->words) bytes = [&facts](std::int64_t token) { return facts->words->bytes(token); };
  const auto load = [&model](const std::string& folder) -> graft::result<graft::adapter_set> {
    auto read = io::load_adapters(folder, *model);
    if (!read) return read.failure();
    return std::move(*read).with_origin();
  };
  auto engine = serving::serving_engine<Engine>::make(*model, settings, bytes, load);
  if (!engine) return engine.failure();
  serving::adapter_store& store = (*engine)->adapters();
  for (const auto& [name, folder] : o.adapters) {
    const bool pinned = std::find(o.pinned.begin(), o.pinned.end(), name) != o.pinned.end();
    if (name == facts->name)
      return graft::fail("'", name.c_str(), "' is the name of the model; --served-model-name gives it another one");
    if (graft::status s = store.add(name, folder, pinned); !s) return s;
  }
  for (const std::string& name : o.pinned)
    if (graft::status s = store.check({name}); !s) return graft::fail("--pinned-adapters: ", s.message());
  // Adapters are read once before the server is ready, so that one which cannot be is found out now.
  const auto started = [&]() -> graft::status {
    for (const auto& [name, folder] : o.adapters) {
      if (o.lazy_adapters) break;
      const auto started_at = std::chrono::steady_clock::now();
      if (graft::status s = store.load(name, "", std::chrono::hours(24)); !s)
        return graft::fail("adapter '", name.c_str(), "': ", s.message());
      std::printf("serve: adapter %s from %s in %.2f s\n", name.c_str(), folder.c_str(),
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - started_at).count());
      std::fflush(stdout);
    }
    std::printf("serve: ready, %d sequences of up to %d tokens and %lld tokens in the KV cache\n", o.max_num_seqs,
                model->context(), settings.batch.slots);
    std::fflush(stdout);
    return graft::ok;
  };
  return serve::serve(
      **engine, [&] { (*engine)->run(); }, *facts, o.server, started);
}

int main(int argc, char** argv) {
  options o;
  std::string pinned;
  arguments in("serve", "Serves a model and its adapters over OpenAI's API; every request names its adapter.");
  in.word("MODEL", o.model, "Hugging Face folder or GGUF file of the model");
  in.named_words("NAME=FOLDER", o.adapters, "adapters, and the names that requests call them by");
  in.option("--host ADDRESS", o.server.host, "where to listen; 0.0.0.0 for every network of this machine");
  in.option("--port N", o.server.port, "0 takes any that is free", 0);
  in.option("--api-key KEY", o.server.key, "clients have to send it; the variable GRAFT_API_KEY is taken otherwise");
  in.option("--served-model-name NAME", o.served_model_name,
            "what requests call the model; not given: the name of its folder");
  in.option("--chat-template FILE", o.chat_template, "another one than the model's own");
  in.option("--adapter-folder FOLDER", o.server.adapter_folder,
            "adapters below it may be loaded and unloaded while the server runs; not given: none");
  in.option("--max-loaded-adapters N", o.max_loaded_adapters,
            "adapters in memory at a time; others are read when a request names them", 1);
  in.option("--max-loaded-adapter-megabytes N", o.max_loaded_adapter_megabytes,
            "megabytes of the tensors of adapters in memory; 0: any number", 0);
  in.option("--pinned-adapters NAME,...", pinned, "adapters that stay in memory");
  in.flag("--lazy-adapters", o.lazy_adapters, "reads adapters when they are asked for, not at the start");
  in.option("--max-num-seqs N", o.max_num_seqs, "sequences that run at a time", 1);
  in.option("--max-num-batched-tokens N", o.max_num_batched_tokens,
            "tokens of a step: of answers, and of prompts, which go through in chunks", 1);
  in.option("--kv-cache-tokens N", o.kv_cache_tokens,
            "tokens in the KV cache, prompts and answers together; 0: eight times the context", 0);
  in.option("--max-waiting-seqs N", o.max_waiting_seqs, "sequences that wait; further requests are refused with 429",
            1);
  in.option("--default-max-tokens N", o.default_max_tokens, "new tokens of requests that set no max_tokens", 1);
  in.flag("--no-prefix-caching", o.no_prefix_caching, "computes every prompt from its beginning");
  in.flag("--no-batch-invariance", o.no_batch_invariance,
          "computes prompts faster on the CPU; logits may then differ in their last bits with the rest of the batch");
  in.option("--max-connections N", o.server.max_connections, "connections that are answered at a time", 1);
  in.option("--max-body-megabytes N", o.server.max_body_megabytes, "megabytes of a request, at most", 1);
  in.option("--request-timeout N", o.server.request_timeout, "seconds from a request to the end of its answer, at most",
            1);
  in.option("--read-timeout N", o.server.read_timeout, "seconds that a client may pause while it sends", 1);
  in.option("--write-timeout N", o.server.write_timeout, "seconds that a client may pause while it reads", 1);
  in.option("--shutdown-timeout N", o.server.shutdown_timeout, "seconds to finish accepted requests after SIGTERM", 0);
  in.flag("--quiet", o.server.quiet, "no line on stderr for every request");
  o.context.declare(in);
  declare_engine(in, o.on);
  o.mode.declare(in);
  if (const auto code = in.read(argc, argv)) return *code;
  if (o.server.port > 65535) return in.mistake("--port takes a number up to 65535");
  if (const char* key = std::getenv("GRAFT_API_KEY"); key != nullptr && o.server.key.empty()) o.server.key = key;
  o.pinned = split_commas(pinned), o.server.model_folder = o.model;
  const graft::status s = on_engine(o.on, [&]<class Engine>() { return run<Engine>(o); });
  if (!s) std::fprintf(stderr, "serve: %s\n", s.message());
  return s ? 0 : 1;
}
