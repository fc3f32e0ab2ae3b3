// SPDX-License-Identifier: Apache-2.0
// Fine-tunes a model with a new adapter on text or token ids, and writes a PEFT folder with the losses as CSV and SVG.
//     finetune MODEL DATA OUT --method dora --rank 16 --targets q_proj,v_proj --eval-fraction 0.1
//     finetune MODEL DATA OUT --resume OUT --steps 2000   continues a run bit for bit
//     mpirun -n 4 finetune … --parallel data              data parallel, 4 processes; --batch is that of each
//     mpirun -n 4 finetune … --parallel tensor            tensor parallel, 4 processes
//     finetune … --parallel data --on gpu --process 0/4 --rendezvous FILE      one of 4 processes started by hand
// MODEL is a Hugging Face folder or a GGUF file. A model with quantized weights is trained like any other (QLoRA), and
// its weights stay quantized. DATA ending in .ids holds token ids, in .jsonl a conversation {"messages": […]} on each
// line, which the model's chat template writes; anything else is text. Text needs the model's tokenizer. Everything is
// saved every --save-every steps, at the end, and when SIGINT (control-C) or SIGTERM ends the run. finetune --help
// lists all options.
// run: finetune test/golden/models/llama/base examples/tokens.ids build/finetuned --overwrite --steps 12 --max-length 24
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/load_model.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "arguments.h"
#include "engine_options.h"
#include "loss_files.h"
#include "mode_options.h"
#include "parallel_options.h"

using sequences = std::vector<std::vector<std::int64_t>>;
namespace io = graft::io;
namespace hf = graft::io::hf;

volatile std::sig_atomic_t stopped = 0;

struct options {
  std::string model, data, out, resume, on = "cpu";
  parallel_options ranks;
  mode_options mode;
  bool overwrite = false;
  std::string method, targets, schedule = "cosine";
  std::vector<std::string> settings;
  std::optional<int> length, rank, warmup_steps;
  std::optional<double> alpha;
  int steps = 100, batch = 4, accumulate = 1, seed = 0, save_every = 100;
  double rate = 1e-3, evaluate = 0;
};

// ---- data

graft::result<std::vector<std::int64_t>> read_tokens(const options& o) {
  const auto file = io::read_file(o.data);
  if (!file) return file.failure();
  if (o.data.ends_with(".ids")) {
    auto ids = numbers_in(io::as_chars(*file), " ,\t\r\n");
    if (!ids) return io::fail_in(o.data, ids.message(), ", expected token ids with spaces between them");
    return ids;
  }
  const auto words = io::read_tokenizer(o.model);
  if (!words) return graft::fail(words.message(), "; token ids in a file that ends in .ids need none");
  return words->encode(io::as_chars(*file));
}
// One sequence for each line, of whatever the chat template makes of its messages.
graft::result<sequences> read_conversations(const options& o, int length) {
  const auto file = io::read_file(o.data);
  if (!file) return file.failure();
  const auto words = io::read_tokenizer(o.model);
  if (!words) return words.failure();
  const auto form = io::read_chat_template(o.model);
  if (!form) return form.failure();
  sequences all;
  std::istringstream lines{std::string(io::as_chars(*file))};
  std::string line;
  for (long long n = 1; std::getline(lines, line); ++n) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = o.data + ", line " + std::to_string(n);
    const auto parsed = io::parse_json(line, where);
    if (!parsed) return parsed.failure();
    const io::json* const messages = parsed->find("messages");
    if (messages == nullptr)
      return io::fail_in(where, "there is no key 'messages' with the messages of a conversation");
    const auto text = form->render(*messages);
    if (!text) return graft::fail(where.c_str(), ": ", text.message());
    auto ids = words->encode(*text, false);
    if (!ids) return io::fail_in(where, ids.message());
    if (ids->size() > static_cast<std::size_t>(length))
      return io::fail_in(where, "the conversation has ", static_cast<long long>(ids->size()),
                         " tokens; ask for a --max-length of as many");
    all.push_back(std::move(*ids));
  }
  return all;
}
struct split_data {
  sequences training, evaluation;
};
// The text of a file in sequences of the given length.
graft::result<sequences> read_text(const options& o, int length) {
  const auto ids = read_tokens(o);
  if (!ids) return ids.failure();
  sequences all;
  const auto n = static_cast<std::size_t>(length);
  for (std::size_t i = 0; i + 2 <= ids->size(); i += n)
    all.emplace_back(ids->begin() + static_cast<std::ptrdiff_t>(i),
                     ids->begin() + static_cast<std::ptrdiff_t>(std::min(ids->size(), i + n)));
  if (all.empty())
    return io::fail_in(o.data, "there are ", static_cast<long long>(ids->size()), " tokens, expected 2 or more");
  return all;
}
graft::result<split_data> read_data(const options& o, int length, int vocabulary) {
  auto read = o.data.ends_with(".jsonl") ? read_conversations(o, length) : read_text(o, length);
  if (!read) return read.failure();
  for (const std::vector<std::int64_t>& sequence : *read)
    for (const std::int64_t id : sequence)
      if (id < 0 || id >= vocabulary)
        return io::fail_in(o.data, "token ", static_cast<long long>(id), " is none of this model, which has ",
                           vocabulary);
  if (read->empty()) return io::fail_in(o.data, "there are no conversations");
  split_data all{std::move(*read), {}};
  const auto held = static_cast<std::size_t>(std::ceil(o.evaluate * static_cast<double>(all.training.size())));
  if (held >= all.training.size())
    return io::fail_in(o.data, "there are ", static_cast<long long>(all.training.size()), " sequences of ", length,
                       " tokens, and --eval-fraction leaves none to train on; lower it, or --max-length");
  all.evaluation.assign(all.training.end() - static_cast<std::ptrdiff_t>(held), all.training.end());
  all.training.resize(all.training.size() - held);
  return all;
}
// A sequence has at most as many tokens as the model has positions.
graft::result<int> length_of(const options& o, int positions) {
  if (!o.length) return std::min(128, positions);
  if (*o.length > positions)
    return graft::fail("--max-length ", *o.length, " is more than the ", positions, " positions of the model; ask for ",
                       positions, " or fewer");
  return *o.length;
}

// ---- the adapter

// Makes PEFT's configuration of a new adapter. The keys of --set come first, so that they take precedence.
graft::result<io::adapter_config> adapter_config_of(const options& o) {
  std::string type = o.method.empty() ? "LORA" : o.method;
  for (char& c : type) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::vector<std::pair<std::string, io::json>> keys;
  for (const std::string& s : o.settings) {
    const std::size_t equals = s.find('=');
    if (equals == s.npos || equals == 0) return graft::fail("--set takes KEY=VALUE, not '", s.c_str(), "'");
    const std::string value = s.substr(equals + 1);
    const auto read = io::parse_json(value, "--set");
    keys.emplace_back(s.substr(0, equals), read ? *read : io::json_string(value));
  }
  for (const auto& [name, key] : {std::pair{"DORA", "use_dora"}, {"RSLORA", "use_rslora"}})
    if (type == name) keys.emplace_back(key, io::json_bool(true)), type = "LORA";
  std::vector<std::string> targets;
  if (o.targets.empty() || o.targets == "all-linear")
    keys.emplace_back("target_modules", io::json_string("all-linear"));
  else
    targets = split_commas(o.targets);
  keys.emplace_back("task_type", io::json_string("CAUSAL_LM"));
  keys.emplace_back("base_model_name_or_path", io::json_string(o.model));
  const auto usual = io::make_adapter_config(type.c_str(), targets, keys);
  if (!usual) return graft::fail("--method ", o.method.empty() ? "lora" : o.method.c_str(), ": ", usual.message());
  const char *rank = nullptr, *alpha = nullptr;
  for (const char* key : {"r", "init_r"})
    if (usual->key(key) != nullptr) rank = key;
  for (const char* key : {"alpha", "lora_alpha"})
    if (usual->key(key) != nullptr) alpha = key;
  if (o.rank && rank == nullptr) return graft::fail("--rank: ", usual->type_name(), " has no rank");
  if (o.alpha && alpha == nullptr) return graft::fail("--alpha: ", usual->type_name(), " has no alpha");
  if (o.rank) keys.emplace_back(rank, io::json_number(*o.rank));
  if (o.alpha) keys.emplace_back(alpha, io::json_number(*o.alpha));
  if (!o.alpha && alpha != nullptr && rank != nullptr)
    keys.emplace_back(alpha, io::json_number(2.0 * (o.rank ? *o.rank : usual->whole(rank))));
  if (usual->key("total_step") != nullptr) keys.emplace_back("total_step", io::json_number(o.steps));
  return io::make_adapter_config(type.c_str(), targets, keys);
}
// Loads the adapter of the checkpoint, or makes a new one.
template <class Engine>
graft::result<hf::loaded_adapters> adapters_of(const options& o, graft::causal_lm<Engine>& model) {
  if (!o.resume.empty()) return hf::load_adapters(o.resume, model);
  const auto config = adapter_config_of(o);
  if (!config) return config.failure();
  return hf::new_adapter(model, *config, static_cast<std::uint64_t>(o.seed));
}

// ---- what is printed

// Prints the bytes of the quantized weights, and how much smaller they are than float.
void show_quantized(const graft::model_weights& w) {
  long long stored = 0, numbers = 0;
  for (const auto& [name, v] : w.tensors)
    if (v.quant != nullptr) stored += graft::bytes_of(v.quant->format, v.size[0], v.size[1]), numbers += v.count();
  if (stored == 0) return;
  std::printf("%lld quantized weights in %lld bytes: %.2f bits each, %.1f times less than float\n", numbers, stored,
              8.0 * static_cast<double>(stored) / static_cast<double>(numbers),
              4.0 * static_cast<double>(numbers) / static_cast<double>(stored));
}
void show(const graft::step_report& r) {
  constexpr int width = 24;
  const int filled = static_cast<int>(width * r.step / r.steps);
  std::printf("\r[%.*s%.*s] %lld/%lld  loss %.4f  %.0f tokens/s  %.0f s left ", filled, "########################",
              width - filled, "........................", r.step, r.steps, r.loss, r.tokens_per_second(),
              r.seconds_left());
  std::fflush(stdout);
}

// ---- the training

// A folder with another run's adapter, which may be days of work, is only overwritten with --overwrite.
graft::status may_write(const options& o) {
  std::error_code ignored;
  const bool goes_on = !o.resume.empty() && std::filesystem::equivalent(o.resume, o.out, ignored);
  const bool is_new = !std::filesystem::exists(o.out, ignored) || std::filesystem::is_empty(o.out, ignored);
  if (!is_new && !goes_on && !o.overwrite)
    return io::fail_in(o.out, "this folder is there already; name another one, go on with --resume ", o.out.c_str(),
                       ", or say --overwrite");
  std::filesystem::create_directories(std::filesystem::path(o.out).parent_path(), ignored);
  return io::can_save_folder(o.out);
}
graft::result<graft::lr_schedule> schedule_of(const options& o) {
  const long long warmup_steps = o.warmup_steps.value_or(o.steps / 20);
  for (const auto& [name, kind] : {std::pair{"constant", graft::schedule_kind::constant},
                                   {"linear", graft::schedule_kind::linear},
                                   {"cosine", graft::schedule_kind::cosine}})
    if (o.schedule == name) return graft::lr_schedule{kind, warmup_steps, o.steps};
  return graft::fail("--lr-scheduler takes constant, linear or cosine, not ", o.schedule.c_str());
}

// Losses are written before the checkpoint, so a run that resumes from it finds the losses of all its steps and drops
// those of later ones.
template <class Engine>
graft::status save(const options& o, const hf::loaded_adapters& adapters, graft::trainer<Engine>& t,
                   const std::vector<step_losses>& losses) {
  std::error_code code;
  std::filesystem::create_directory(o.out, code);
  if (code) return io::fail_in(o.out, "cannot create this folder: ", code.message().c_str());
  if (graft::status s = loss_files::write(o.out, losses); !s) return s;
  return hf::save_checkpoint(o.out, adapters, t);
}

template <class Engine> graft::status run(const options& o) {
  if (graft::status s = may_write(o); !s) return s;
  const auto schedule = schedule_of(o);
  if (!schedule) return schedule.failure();
  auto ranks = ranks_for<Engine>(o.ranks);
  if (!ranks) return ranks.failure();
  const bool first = (*ranks)->rank() == 0;  // only this rank prints and saves
  const auto config = io::read_model_config(o.model);
  if (!config) return config.failure();
  const auto length = length_of(o, config->positions);
  if (!length) return length.failure();
  const auto data = read_data(o, *length, config->vocabulary);
  if (!data) return data.failure();
  graft::model_options loading;
  loading.context = *length;
  if (o.ranks.parallel == "tensor") loading.ranks = *ranks;
  auto model = io::load_model<Engine>(o.model, loading);
  if (!model) return model.failure();
  if (first) show_quantized(model->weights());
  auto adapters = adapters_of(o, *model);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;
  const auto steps = mode_named(o.mode, graft::step_mode::standard, *model);
  if (!steps) return steps.failure();
  graft::trainer_settings settings;
  settings.mode = *steps;
  settings.steps = o.steps, settings.batch = o.batch, settings.accumulate = o.accumulate,
  settings.optimizer.rate = o.rate;
  settings.rate = *schedule, settings.seed = static_cast<std::uint64_t>(o.seed);
  if (adapters->config.key("total_step") != nullptr) settings.adalora = hf::adalora_settings_of(adapters->config);
  if (o.ranks.parallel == "data") {
    auto trainer_ranks = ranks_on_stream(*ranks, *model);
    if (!trainer_ranks) return trainer_ranks.failure();
    settings.ranks = *trainer_ranks;
  }
  auto t = graft::trainer<Engine>::make(*model, data->training, settings);
  if (!t) return t.failure();
  std::vector<step_losses> losses;
  if (!o.resume.empty()) {
    if (graft::status s = hf::resume(o.resume, *model, *t); !s) return s;
    const long long done = t->optimizer().steps();
    if (done >= o.steps)
      return graft::fail("--steps ", o.steps, ": ", o.resume.c_str(), " has made ", done, " steps; ask for more");
    auto before = loss_files::read(o.resume, done);
    if (!before) return before.failure();
    losses = std::move(*before);
  }
  const auto saved_bytes = t->saved_bytes();
  if (!saved_bytes) return saved_bytes.failure();
  if (first)
    std::printf("a step saves at most %.1f MB for its backward pass\n", static_cast<double>(*saved_bytes) / 1e6);
  for (const int ended : {SIGINT, SIGTERM}) {  // a second signal ends the program at once
    struct sigaction action {};
    action.sa_handler = [](int) { stopped = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(ended, &action, nullptr);
  }
  graft::status saved = graft::ok;
  // Every rank evaluates, the first one saves.
  const auto finish = [&] {
    if (!data->evaluation.empty()) {
      const auto loss = t->evaluate(data->evaluation);
      if (!loss) return saved = loss.failure();
      losses.back().evaluation = *loss;
      if (first) std::printf(" evaluation loss %.4f\n", *loss);
    }
    if (first) saved = save(o, *adapters, *t, losses);
  };
  const graft::status trained = t->run([&](const graft::step_report& r) {
    losses.push_back({r.step, r.loss});
    if (first) show(r);
    if (r.step % o.save_every == 0 && r.step < r.steps) finish();
    return stopped == 0 && bool(saved);
  });
  if (first) std::printf("\n");
  if (!trained) return trained;
  if (saved) finish();
  if (!saved) return saved;
  if (first) std::printf("%s %s\n", stopped != 0 ? "stopped; everything is in" : "the adapter is in", o.out.c_str());
  return (*ranks)->barrier();
}

int main(int argc, char** argv) {
  options o;
  arguments in(
      "finetune",
      "Fine-tunes a model with a new adapter and writes it as a PEFT folder, with loss.csv and loss.svg. A model with "
      "quantized\nweights is trained like any other. Control-C and SIGTERM end the run with everything saved.");
  in.word("MODEL", o.model, "Hugging Face folder or GGUF file of the model");
  in.word(
      "DATA", o.data,
      "file with token ids, if its name ends in .ids; with a conversation {\"messages\": [...]} on each line, if it "
      "ends in .jsonl; otherwise with text");
  in.word("OUT", o.out, "folder that the adapter is written to");
  in.option("--method NAME", o.method,
            "PEFT's name of the method: lora, dora, rslora, oft, loha, ia3, ...; not given: lora");
  in.option("--rank N", o.rank, "rank of the adapter; not given: PEFT's default", 1);
  in.option("--alpha X", o.alpha, "scale of the adapter, lora_alpha; not given: twice the rank");
  in.option("--targets A,B,C", o.targets, "modules that are adapted; not given: all linear layers (all-linear)");
  in.option("--set KEY=VALUE", o.settings,
            "any other key of PEFT's adapter_config.json, lora_dropout=0.1; may be repeated");
  in.option("--steps N", o.steps, "steps of the optimizer, with those of a run that is resumed", 1);
  in.option("--batch N", o.batch, "sequences of one call", 1);
  in.option("--gradient-accumulation-steps N", o.accumulate, "calls of one step: gradients are summed over them", 1);
  in.earlier_name("--accumulate");
  in.option("--max-length N", o.length,
            "tokens of a sequence; not given: 128, or the positions of the model if it has fewer", 2);
  in.earlier_name("--length");
  in.option("--learning-rate X", o.rate, "largest learning rate of AdamW");
  in.earlier_name("--rate");
  in.option("--lr-scheduler NAME", o.schedule, "course of the learning rate: constant, linear or cosine");
  in.earlier_name("--schedule");
  in.option("--warmup-steps N", o.warmup_steps,
            "steps over which the learning rate grows; not given: a twentieth of all", 0);
  in.earlier_name("--warm-up");
  in.option("--seed N", o.seed, "of the new adapter, the order of sequences, and dropout", 0);
  in.option("--eval-fraction X", o.evaluate,
            "part of the sequences that is not trained on; their loss is computed at every save");
  in.earlier_name("--evaluate");
  in.option("--save-every N", o.save_every, "steps between saves", 1);
  in.option("--resume FOLDER", o.resume,
            "goes on from what a run saved there, with its adapter; OUT may be the same folder");
  in.flag("--overwrite", o.overwrite, "replaces what a folder OUT holds of another run; its other files stay");
  declare_engine(in, o.on);
  o.mode.declare(in);
  o.ranks.declare(in);
  if (const auto code = in.read(argc, argv)) return *code;
  if (!(o.rate > 0)) return in.mistake("--learning-rate takes a number above 0");
  if (!(o.evaluate >= 0 && o.evaluate < 1))
    return in.mistake("--eval-fraction takes a part of the sequences, from 0 to below 1");
  if (!o.resume.empty() && (o.rank || o.alpha || !o.method.empty() || !o.targets.empty() || !o.settings.empty()))
    return in.mistake(
        "--resume goes on with the adapter that was saved: leave out --method, --rank, --alpha, --targets and --set");
  const graft::status s = on_engine(o.on, [&]<class Engine>() { return run<Engine>(o); });
  if (!s) std::fprintf(stderr, "finetune: %s\n", s.message());
  return s ? 0 : 1;
}
