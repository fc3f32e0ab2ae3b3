// SPDX-License-Identifier: Apache-2.0
// A profile of a training step of a model on the CPU: every node of every plan is timed, and times are summed by
// operation and by sizes. If the rows of a node are distributed over threads, the time of the first thread counts; the
// rest of the step are copies, waits and the optimizer.
//     bench_training_step MODEL ADAPTER [BATCH LENGTH STEPS LINES]
#include <graft/backend/cpu/ops/evaluate.h>
#include <graft/backend/cpu/runtime/threads.h>
#include <graft/models.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace {

using namespace graft;
using engine = cpu::engine<float>;

struct total {
  double seconds = 0, flops = 0;
  long long calls = 0;
};
std::map<std::string, total> by_kind, by_sizes;
cpu::node_function<float> evaluate = nullptr;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
bool first_thread() {
#if defined(_OPENMP)
  return omp_get_thread_num() == 0;
#else
  return true;
#endif
}
std::string sizes_of(const cpu::tensor<float>& t) {
  std::string all = "[";
  for (int k = 0; k < 4; ++k)
    if (k >= 2 || t.d[k] != 1) all += std::to_string(t.d[k]) + (k < 3 ? "x" : "");
  return all + "]";
}
// GEMMs with a size of at most this are those of an adapter, others those of a weight of the model.
constexpr long long rank_size = 64;

void timed(const cpu::evaluator<float>& e, id i, cpu::tensor<float> out, const cpu::operands<float>& x,
           int accumulate) {
  const double start = now();
  evaluate(e, i, out, x, accumulate);
  if (!first_thread()) return;
  const double took = now() - start;
  const node& v = e.g[i];
  const bool product = v.what == op::matmul;
  const long long inner = product ? x.a.d[v.ta ? 2 : 3] : 0;
  const double flops = product ? 2.0 * static_cast<double>(out.count()) * static_cast<double>(inner) *
                                     (v.sum ? static_cast<double>(x.a.matrices()) : 1.0)
                               : 0;
  const bool small = product && std::min({inner, out.d[2], out.d[3]}) <= rank_size;
  const std::string kind = !product ? traits_of(v.what).name : small ? "product of a rank" : "product";
  std::string sizes = kind + (v.ta ? " t" : "") + (product && v.tb ? " (t)" : "") + (accumulate != 0 ? " +=" : "") +
                      " " + sizes_of(x.a) + " " + sizes_of(x.b) + " -> " + sizes_of(out);
  for (total* t : {&by_kind[kind], &by_sizes[sizes]}) t->seconds += took, t->flops += flops, ++t->calls;
}

void say(const std::map<std::string, total>& all, double step, int steps, int lines) {
  std::vector<std::pair<std::string, total>> sorted(all.begin(), all.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double named = 0;
  for (const auto& [what, t] : sorted) {
    named += t.seconds / steps;
    if (lines-- > 0)
      std::printf("%8.2f ms %5.1f %% %6lld calls %7.1f GF/s  %s\n", 1e3 * t.seconds / steps,
                  100 * t.seconds / steps / step, t.calls / steps, t.flops / t.seconds * 1e-9, what.c_str());
  }
  std::printf("%8.2f ms %5.1f %% the rest\n\n", 1e3 * (step - named), 100 * (step - named) / step);
}

status measure(const std::string& folder, const std::string& adapter, int batch, int length, int steps, int lines) {
  auto model = io::hf::load_model<engine>(folder);
  if (!model) return model.failure();
  auto adapters = io::hf::load_adapters(adapter, *model);
  if (!adapters) return adapters.failure();
  if (status s = model->set_adapters(adapters->set); !s) return s;
  auto run = training_run<engine>::make(*model);
  if (!run) return run.failure();
  auto optimizer = run->optimizer();
  if (!optimizer) return optimizer.failure();
  std::vector<std::vector<std::int64_t>> data(static_cast<std::size_t>(batch));
  for (int s = 0; s < batch; ++s)
    for (int t = 0; t < length; ++t)
      data[static_cast<std::size_t>(s)].push_back((s * 7919LL + t * 104729LL + 11) % model->config().vocabulary);
  std::vector<labeled_sequence> rows;
  for (const auto& s : data) rows.push_back({s});
  status went = ok;
  double parts[3] = {0, 0, 0};
  const auto step = [&] {
    const double a = now();
    run->clear();
    if (auto loss = run->add(rows); !loss) went = loss.failure();
    const double b = now();
    if (status s = optimizer->step(); !s) went = s;
    const double c = now();
    if (status s = run->parameters_changed(); !s) went = s;
    parts[0] += b - a, parts[1] += c - b, parts[2] += now() - c;
  };
  step(), step();
  std::fill_n(parts, 3, 0.0);
  for (int k = 0; k < steps; ++k) step();
  std::printf("a step: passes %.1f ms, optimizer %.1f, parameters changed %.1f\n", 1e3 * parts[0] / steps,
              1e3 * parts[1] / steps, 1e3 * parts[2] / steps);
  auto& has = model->programs().queue.has;
  evaluate = std::exchange(has.evaluate, &timed);
  std::fill_n(parts, 3, 0.0);
  for (int k = 0; k < steps; ++k) step();
  const double each = (parts[0] + parts[1] + parts[2]) / steps;
  std::printf("timed: %.1f ms\n\n", 1e3 * each);
  say(by_kind, each, steps, 100);
  say(by_sizes, each, steps, lines);
  return went;
}

}  // namespace

int main(int count, char** all) {
  if (count != 3 && count != 7)
    return std::fprintf(stderr, "usage: bench_training_step MODEL ADAPTER [BATCH LENGTH STEPS LINES]\n"), 2;
  int at[4] = {4, 128, 3, 40};
  for (int k = 0; k < count - 3; ++k) at[k] = std::max(1, std::atoi(all[3 + k]));
  const status s = measure(all[1], all[2], at[0], at[1], at[2], at[3]);
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
