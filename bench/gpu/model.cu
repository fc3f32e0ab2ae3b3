// SPDX-License-Identifier: Apache-2.0
// A whole model on the GPU, random bf16 weights in the shape of Llama-3-8B: a token step over a KV cache, a prompt, and
// a training step, bare and with adapters on all seven projections. Prints one line of JSON, microseconds of whole
// calls with the work of the host, and for a token step its floor: the bytes of the layers' weights, the adapter and
// the KV cache at 4.3 TB/s. compare_models_gpu.py runs PEFT in the same shape. `quantized` runs a token step and a
// training step with LoRA of the bf16 model and of an NF4 model, and the memory of their weights; `steps` all token
// steps of the bare model and of LoRA, or those with SEQUENCES; `all` those, other adapters, prompts and training;
// `launches` prints the launches of a token step with LoRA, each with its floor, its expected and its measured time.
// ADAPTER selects a single one.
//     bench_gpu_model [LAYERS [VOCABULARY [MODE [SEQUENCES [ADAPTER]]]]]
//     MODE is short, steps, all, train, profile, step, quantized or launches
#include <graft/model/explain_step.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "model_calls.cuh"

using namespace graft;
using namespace graft::model_calls;

namespace {

double used_megabytes() {
  std::size_t left = 0, all = 0;
  return cudaMemGetInfo(&left, &all) == cudaSuccess ? static_cast<double>(all - left) / 1e6 : 0;
}

constexpr int longest = 32768 + 64;

model_config shape(int layers, int vocabulary) {
  return graft::test::llama_config(layers, 4096, 14336, vocabulary, longest);
}
// The bytes of weights, of the adapter as kernels read it, and of keys and values of every slot.
double floor_of(const model_config& c, const std::string& adapter, const wanted& w) {
  const double h = c.hidden_size, kv = c.kv_heads * c.head_dim, wide = c.intermediate_size;
  const double weights = 2 * (2 * h * h + 2 * h * kv + 3 * h * wide), in_and_out = 11 * h + 2 * kv + 3 * wide;
  const double more = adapter == "oft" ? 2 * 32 * (6 * h + wide) : adapter == "bare" ? 0 : 2 * 16 * in_and_out;
  double places = 0;
  for (int k = 0; k < w.sequences; ++k) places += length_of(k, w.sequences, w.context, w.ragged);
  return c.layers * (weights + more + 4 * kv * places) / 4.3e6;
}
constexpr wanted table[] = {{1, 1024, true},
                            {16, 1024, true},
                            {2, 1024},
                            {4, 1024},
                            {8, 1024},
                            {32, 1024, true},
                            {64, 1024, true},
                            {1, 64},
                            {16, 64},
                            {32, 64},
                            {64, 64},
                            {1, 4096},
                            {8, 4096},
                            {16, 4096},
                            {1, 32768},
                            {4, 8192},
                            {16, 2048, false, true},
                            {64, 2048, false, true}};
enum class amount : unsigned char { short_run, steps, all, profile, train, step, quantized, launches };

status say(const std::string& name, const result<double>& v, double floor = 0) {
  if (!v) return v.failure();
  std::printf(", \"%s\": %.1f", name.c_str(), *v);
  if (floor > 0) std::printf(", \"%s_floor\": %.1f", name.c_str(), floor);
  std::fflush(stdout);
  return ok;
}
status measure_steps(causal_lm<engine>& model, const std::string& adapter, amount how_much, int sequences) {
  for (const wanted& w : table) {
    const bool is_first = w.context == 1024 && (w.sequences == 1 || w.sequences == 16);
    if (sequences != 0 && w.sequences != sequences) continue;
    if (!is_first && (how_much == amount::short_run || (!w.every_adapter && adapter != "bare" && adapter != "lora")))
      continue;
    const std::string name = adapter + "_decode_" + std::to_string(w.sequences) +
                             (w.context == 1024 ? "" : (w.ragged ? "_upto_" : "_at_") + std::to_string(w.context));
    const auto took = decode(model, w, step_mode::reduce_overhead);
    if (status s = say(name, took, floor_of(model.config(), adapter, w)); !s) return s;
  }
  if (how_much == amount::steps) return ok;
  return say(adapter + "_prefill_2048", prefill(model, 2048));
}
status measure_quantized(int layers, int vocabulary) {
  const model_config c = shape(layers, vocabulary);
  std::printf("{\"layers\": %d, \"vocabulary\": %d", layers, vocabulary);
  for (const bool is_quantized : {false, true}) {
    const std::string name = is_quantized ? "nf4" : "bf16";
    const double before = used_megabytes();
    model_weights weights = graft::test::random_weights(c, is_quantized);
    double stored = 0;
    for (const auto& [tensor, v] : weights.tensors)
      stored += v.quant != nullptr ? static_cast<double>(bytes_of(v.quant->format, v.size[0], v.size[1])) / 1e6
                                   : static_cast<double>(v.count()) * 2e-6;
    auto model = causal_lm<engine>::make(c, std::move(weights), {.context = 4096});
    if (!model) return model.failure();
    if (status s = say(name + "_weights_mb", stored); !s) return s;
    if (status s = say(name + "_used_mb", used_megabytes() - before); !s) return s;
    auto set = adapter_named(*model, "lora");
    if (!set) return set.failure();
    if (status s = model->set_adapters(*set); !s) return s;
    for (const int sequences : {1, 8, 16})
      if (status s = say(name + "_decode_" + std::to_string(sequences),
                         decode(*model, {sequences, 1024}, step_mode::reduce_overhead));
          !s)
        return s;
    if (status s = say(name + "_prefill_2048", prefill(*model, 2048)); !s) return s;
    if (status s = say(name + "_train_2x2048", train(*model, 2, 2048, step_mode::reduce_overhead)); !s) return s;
  }
  std::printf("}\n");
  return ok;
}
status measure_launches(int layers, int vocabulary, int sequences, const std::string& adapter) {
  const model_config c = shape(layers, vocabulary);
  auto model = causal_lm<engine>::make(c, graft::test::random_weights(c), {.context = 4096});
  if (!model) return model.failure();
  auto set = adapter_named(*model, adapter);
  if (!set) return set.failure();
  if (status s = model->set_adapters(*set); !s) return s;
  return explain_step(*model, {sequences, 1024}, [](const text& t) {
    if (std::strstr(t.c_str(), "floor") != nullptr) std::puts(t.c_str());
  });
}
status measure(int layers, int vocabulary, amount how_much, int sequences, const std::string& named) {
  if (how_much == amount::quantized) return measure_quantized(layers, vocabulary);
  if (how_much == amount::launches)
    return measure_launches(layers, vocabulary, std::max(1, sequences), named.empty() ? "lora" : named);
  const model_config c = shape(layers, vocabulary);
  auto model = causal_lm<engine>::make(c, graft::test::random_weights(c), {.context = longest});
  if (!model) return model.failure();
  std::printf("{\"layers\": %d, \"vocabulary\": %d", layers, vocabulary);
  for (const std::string adapter : {"bare", "lora", "dora", "oft", "lora_dropout"}) {
    if (!named.empty() && adapter != named) continue;
    const bool trains = how_much == amount::train || how_much == amount::step, drops = adapter == "lora_dropout";
    if (named.empty() && !trains && (drops || (how_much != amount::all && adapter != "bare" && adapter != "lora")))
      continue;
    if (adapter != "bare") {
      auto set = adapter_named(*model, adapter);
      if (!set) return set.failure();
      if (status s = model->set_adapters(*set); !s) return s;
    }
    if (how_much == amount::train) {
      if (adapter == "bare") continue;
      if (status s = say(adapter + "_train_2x2048", train(*model, 2, 2048, step_mode::reduce_overhead)); !s) return s;
      continue;
    }
    if (how_much == amount::step) {  // one training step for a profiler, after one that allocates
      if (adapter != "bare")
        if (status s = say(adapter + "_step", train(*model, 2, 2048, step_mode::standard, 2)); !s) return s;
      continue;
    }
    if (how_much == amount::profile) {  // launches for a profiler
      if (status s = say(adapter + "_prefill", prefill(*model, 2048)); !s) return s;
      if (status s = say(adapter + "_step", decode(*model, {16, 1024}, step_mode::standard, 4)); !s) return s;
      if (status s = say(adapter + "_step_1", decode(*model, {1, 1024}, step_mode::standard, 4)); !s) return s;
      continue;
    }
    if (status s = measure_steps(*model, adapter, how_much, sequences); !s) return s;
    if (adapter != "lora" || how_much == amount::steps) continue;
    if (status s = say("lora_decode_1_standard", decode(*model, {1, 1024}, step_mode::standard)); !s) return s;
    if (status s = say("lora_train_2x2048", train(*model, 2, 2048, step_mode::reduce_overhead)); !s) return s;
    if (status s = say("lora_train_2x2048_standard", train(*model, 2, 2048, step_mode::standard)); !s) return s;
  }
  std::printf(", \"used_mb\": %.0f}\n", used_megabytes());
  return ok;
}

}  // namespace

int main(int count, char** all) {
  const std::string how_much = count > 3 ? all[3] : "short";
  const status s = measure(count > 1 ? std::atoi(all[1]) : 4, count > 2 ? std::atoi(all[2]) : 1024,
                           how_much == "all"         ? amount::all
                           : how_much == "steps"     ? amount::steps
                           : how_much == "profile"   ? amount::profile
                           : how_much == "quantized" ? amount::quantized
                           : how_much == "train"     ? amount::train
                           : how_much == "step"      ? amount::step
                           : how_much == "launches"  ? amount::launches
                                                     : amount::short_run,
                           count > 4 ? std::atoi(all[4]) : 0, count > 5 ? all[5] : "");
  return s ? 0 : (std::fprintf(stderr, "\n%s\n", s.message()), 1);
}
