// SPDX-License-Identifier: Apache-2.0
// Ranks train in parallel and rank 0 writes a checkpoint after every step; some microseconds after a step one of them,
// possibly rank 0 while it writes, is killed. The others must get an error within the timeout (they exit with 3), and
// the last checkpoint must be complete: `killed check` continues from it.
//     mpirun -n 2 killed train MODEL OUT STEP MICROSECONDS VICTIM           killed check MODEL OUT
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_cpu.h>
#include <graft/parallel/mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace graft;
using engine = cpu::engine<float>;

namespace {

constexpr double timeout = 5;

struct shown_error {
  explicit shown_error(const char* what) { std::fprintf(stderr, "%s\n", what); }
  operator int() const { return 1; }
};

struct death {
  long long step = 0, microseconds = 0;
  int victim = 0;
};

int train_or_check(bool train, const char* folder, const char* out, const death& when) {
  std::shared_ptr<communicator> ranks = std::make_shared<single_process>();
  if (train) {
    auto made = mpi_communicator::make({.timeout = timeout});
    if (!made) return shown_error(made.message());
    ranks = std::move(*made);
  }
  auto model = io::hf::load_model<engine>(folder);
  if (!model) return shown_error(model.message());
  const auto config = io::make_adapter_config("LORA", {},
                                              {{"target_modules", io::json_string("all-linear")},
                                               {"r", io::json_number(4)},
                                               {"task_type", io::json_string("CAUSAL_LM")}});
  if (!config) return shown_error(config.message());
  auto adapters = io::hf::new_adapter(*model, *config);
  if (!adapters) return shown_error(adapters.message());
  if (status s = model->set_adapters(adapters->set); !s) return shown_error(s.message());
  std::vector<std::vector<std::int64_t>> data;
  for (int s = 0; s < 8; ++s) data.push_back({3 + s, 40, 7 + s, 9, 100 + s, 5});
  trainer_settings settings;
  settings.steps = 1000000, settings.batch = 4 / ranks->size(), settings.ranks = ranks;
  auto t = trainer<engine>::make(*model, data, settings);
  if (!t) return shown_error(t.message());
  if (!train) {
    if (status s = io::hf::resume(out, *model, *t); !s) return shown_error(s.message());
    const auto step = t->step();
    if (!step) return shown_error(step.message());
    return std::printf("%lld\n", step->step), 0;
  }
  const status s = ranks->rank() == 0 ? io::hf::save_checkpoint(out, *adapters, *t) : status(ok);
  if (!s) return shown_error(s.message());
  if (status all = ranks->barrier(); !all) return shown_error(all.message());
  const auto die_after = [&](long long step) {
    if (ranks->rank() != when.victim || step != when.step) return;
    std::thread([n = when.microseconds] {
      std::this_thread::sleep_for(std::chrono::microseconds(n));
      std::raise(SIGKILL);
    }).detach();
  };
  auto last = std::chrono::steady_clock::now();
  die_after(0);
  const status ended = t->run([&](const step_report& r) {
    die_after(r.step);
    const bool saved = ranks->rank() != 0 || io::hf::save_checkpoint(out, *adapters, *t);
    last = std::chrono::steady_clock::now();
    return saved;
  });
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - last;
  std::fprintf(stderr, "told after %.1f s: %s\n", waited.count(), ended ? "nothing" : ended.message());
  _exit(!ended && waited.count() < timeout + 10 ? 3 : 1);  // MPI cannot be finalized after the death of a rank
}

}  // namespace

int main(int count, char** all) {
  if (count == 7 && std::strcmp(all[1], "train") == 0)
    return train_or_check(true, all[2], all[3], {std::atoll(all[4]), std::atoll(all[5]), std::atoi(all[6])});
  if (count == 4 && std::strcmp(all[1], "check") == 0) return train_or_check(false, all[2], all[3], {});
  return std::fprintf(stderr, "usage: killed train MODEL OUT STEP MICROSECONDS VICTIM | killed check MODEL OUT\n"), 2;
}
