// SPDX-License-Identifier: Apache-2.0
// Fine-tunes a model with a new LoRA: text or tokens in, a PEFT folder out, with the loss as CSV and as SVG beside it.
//     finetune MODEL DATA OUT [--steps N] [--length N] [--batch N] [--rank N] [--rate X] [--resume CHECKPOINT] [--on cpu|cuda]
//              [--mode standard|reduce-overhead|max-autotune] [--choices FILE]
// DATA ending in .ids holds token numbers; anything else is text and needs the model's tokenizer.json. Control-C ends the
// run with everything saved.
//     mpirun -n 4 finetune … --parallel data              4 processes, one progress bar; --batch is that of each
//     mpirun -n 4 finetune … --parallel tensor            4 processes that each compute a part of the model
//     finetune … --parallel data --on cuda --process 0/4 --meet FILE        one of 4 that were started by hand, with a GPU each
// run: finetune test/golden/models/llama/base examples/tokens.ids build/finetuned --steps 12 --length 24
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/hf/tokenizer_file.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "arguments.h"
#include "engines.h"
#include "modes.h"
#include "ranks.h"

using sequences = std::vector<std::vector<std::int64_t>>;
namespace io = graft::io;
namespace hf = graft::io::hf;

volatile std::sig_atomic_t stopped = 0;

struct wishes {
  std::string model, data, out, resume, on;
  parallel_wishes ranks;
  int steps = 100, length = 128, batch = 4, rank = 8;
  double rate = 1e-3;
  std::string mode, choices;
};

graft::result<sequences> read_data(const wishes& w) {
  const auto file = io::read_file(w.data);
  if (!file) return file.failure();
  std::vector<std::int64_t> ids;
  if (w.data.ends_with(".ids")) {
    auto numbers = numbers_in(io::as_chars(*file), " ,\t\r\n");
    if (!numbers) return io::fail_in(w.data, numbers.message(), ", expected token numbers with spaces between them");
    ids = std::move(*numbers);
  } else {
    const auto words = hf::read_tokenizer(w.model);
    if (!words) return graft::fail(words.message(), "; token numbers in a file that ends in .ids need none");
    const auto encoded = words->encode(io::as_chars(*file));
    if (!encoded) return encoded.failure();
    ids = *encoded;
  }
  sequences all;
  const auto n = static_cast<std::size_t>(w.length);
  for (std::size_t i = 0; i + 2 <= ids.size(); i += n)
    all.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(i),
                     ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), i + n)));
  if (!all.empty() && all.back().size() < 2) all.pop_back();
  if (all.empty())
    return io::fail_in(w.data, "there are ", static_cast<long long>(ids.size()), " tokens, expected 2 or more");
  return all;
}

void show(const graft::step_report& r) {
  constexpr int width = 24;
  const int filled = static_cast<int>(width * r.step / r.steps);
  std::printf("\r[%.*s%.*s] %lld/%lld  loss %.4f  %.0f tokens/s  %.0f s left ", filled, "########################",
              width - filled, "........................", r.step, r.steps, r.loss, r.tokens_per_second(),
              r.seconds_left());
  std::fflush(stdout);
}

graft::status draw(const std::string& folder, const std::vector<double>& losses) {
  std::string csv = "step,loss\n", points;
  const double top = *std::max_element(losses.begin(), losses.end());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    csv += std::to_string(i + 1) + "," + std::to_string(losses[i]) + "\n";
    const double x =
        40 + 540 * static_cast<double>(i) / static_cast<double>(std::max<std::size_t>(1, losses.size() - 1));
    points += std::to_string(x) + "," + std::to_string(280 - 260 * losses[i] / top) + " ";
  }
  const std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 600 300\"><rect width=\"600\" height=\"300\" "
      "fill=\"white\"/><text x=\"4\" y=\"24\" font-size=\"12\">" +
      std::to_string(top).substr(0, 5) + "</text><polyline fill=\"none\" stroke=\"steelblue\" points=\"" + points +
      "\"/></svg>\n";
  if (graft::status s = io::write_file(folder + "/loss.csv", std::as_bytes(std::span(csv))); !s) return s;
  return io::write_file(folder + "/loss.svg", std::as_bytes(std::span(svg)));
}

template <class Engine> graft::status run(const wishes& w) {
  if (graft::status s = io::can_save_folder(w.out); !s) return s;
  auto ranks = ranks_for<Engine>(w.ranks);
  if (!ranks) return ranks.failure();
  graft::model_options options;
  if (w.ranks.parallel == "tensor") options.ranks = *ranks;
  auto model = hf::load_model<Engine>(w.model, options);
  if (!model) return model.failure();
  const auto data = read_data(w);
  if (!data) return data.failure();
  const auto config = io::make_adapter_config("LORA", {},
                                              {{"target_modules", io::json_word("all-linear")},
                                               {"r", io::json_number(w.rank)},
                                               {"lora_alpha", io::json_number(2.0 * w.rank)},
                                               {"task_type", io::json_word("CAUSAL_LM")}});
  if (!config) return config.failure();
  auto adapters = hf::new_adapter(*model, *config);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(adapters->set); !s) return s;
  const auto steps = mode_named(w.mode, graft::step_mode::standard, w.choices, *model);
  if (!steps) return steps.failure();
  graft::trainer_settings how;
  how.mode = *steps;
  how.steps = w.steps, how.batch = w.batch, how.optimizer.rate = w.rate;
  how.rate = {graft::schedule_kind::cosine, w.steps / 20, w.steps};
  if (w.ranks.parallel == "data") {
    auto beside = ranks_beside(*ranks, *model);
    if (!beside) return beside.failure();
    how.ranks = *beside;
  }
  const bool first = (*ranks)->rank() == 0;  // it speaks and saves for all
  auto run = graft::trainer<Engine>::make(*model, *data, how);
  if (!run) return run.failure();
  if (!w.resume.empty())
    if (graft::status s = hf::resume(w.resume, *model, *run); !s) return s;
  const auto kept = run->kept_bytes();
  if (!kept) return kept.failure();
  if (first) std::printf("a step keeps at most %.1f MB for its backward pass\n", static_cast<double>(*kept) / 1e6);
  std::signal(SIGINT, [](int) { stopped = 1; });
  std::vector<double> losses;
  const graft::status trained = run->run([&](const graft::step_report& r) {
    losses.push_back(r.loss);
    if (first) show(r);
    return stopped == 0;
  });
  if (first) std::printf("\n");
  if (!trained) return trained;
  if (!first) return (*ranks)->barrier();
  if (graft::status s = hf::save_checkpoint(w.out, *adapters, *run); !s) return s;
  std::printf("%s %s\n", stopped != 0 ? "stopped; everything is in" : "the adapter is in", w.out.c_str());
  if (!losses.empty())
    if (graft::status s = draw(w.out, losses); !s) return s;
  return (*ranks)->barrier();
}

int main(int argc, char** argv) {
  wishes w;
  arguments in(argc, argv);
  while (in.next()) {
    if (in.is("--steps"))
      w.steps = in.whole(1);
    else if (in.is("--length"))
      w.length = in.whole(2);
    else if (in.is("--batch"))
      w.batch = in.whole(1);
    else if (in.is("--rank"))
      w.rank = in.whole(1);
    else if (in.is("--mode"))
      w.mode = in.value();
    else if (in.is("--choices"))
      w.choices = in.value();
    else if (in.is("--rate"))
      w.rate = in.real();
    else if (in.is("--on"))
      w.on = in.value();
    else if (in.is("--resume"))
      w.resume = in.value();
    else if (!takes(w.ranks, in))
      in.plain_into({&w.model, &w.data, &w.out});
  }
  if (!in.problem().empty()) return std::fprintf(stderr, "finetune: %s\n", in.problem().c_str()), 2;
  if (w.out.empty())
    return std::fputs("usage: finetune MODEL DATA OUT [--steps N] [--length N] [--batch N] …\n", stderr), 2;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(w.out).parent_path(), ignored);
  const graft::status s = on_engine(w.on, [&]<class Engine>() { return run<Engine>(w); });
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  return s ? 0 : 1;
}
