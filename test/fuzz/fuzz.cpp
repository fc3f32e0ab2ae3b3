// SPDX-License-Identifier: Apache-2.0
// fuzz GOLDEN [--inputs N | --seconds S] [--seed S] [--first N]: the readers and whole layers on changed files. Ends
// with 0 after N inputs (the tests) or S seconds (by hand). An input follows from the seed and its number: every seed
// is another stream of inputs. The first one that is not handled is written to fuzz-failure.bin, with the options that
// find it again. An input may take ten seconds of processor time and 64 MiB, no more.
#include <sys/time.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "counted_new.h"
#include "gguf_files.h"
#include "http_bodies.h"
#include "layers.h"
#include "mutate.h"
#include "tokenizers.h"

#if defined(__SANITIZE_ADDRESS__)
// An input is found again by its number, so the stacks of allocations, a fifth of the time, need not be stored.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "malloc_context_size=1"; }
#endif

namespace {

using namespace fuzz;
constexpr std::size_t most_bytes = 64U << 20U;
using clock_type = std::chrono::steady_clock;

std::string text_of(const std::filesystem::path& file) {
  const auto bytes = io::read_file(file.string());
  return bytes ? std::string(io::as_chars(*bytes)) : std::string();
}
// What a case is about is read from its files, as the golden tests do.
std::vector<layer_case> cases_below(const std::filesystem::path& golden) {
  std::vector<std::filesystem::path> folders;
  for (const auto& e : std::filesystem::directory_iterator(golden / "layers")) folders.push_back(e.path());
  std::sort(folders.begin(), folders.end());
  std::vector<layer_case> all;
  for (const auto& folder : folders) {
    layer_case c{text_of(folder / "adapter/adapter_config.json"),
                 text_of(folder / "adapter/adapter_model.safetensors"),
                 {},
                 {},
                 {}};
    const auto base = io::read_safetensors((folder / "base.safetensors").string());
    if (!base || c.config.empty() || c.weights.empty()) continue;
    for (const io::tensor_view& t : base->tensors) {
      const bool is_weight = t.name.ends_with(".weight");
      (is_weight ? c.weight : c.bias) = *io::to_float(t);
      if (!is_weight) continue;
      c.base.module = t.name.substr(0, t.name.size() - 7);
      for (const std::uint64_t n : t.shape) c.base.shape.push_back(static_cast<long long>(n));
    }
    c.base.bias = !c.bias.empty();
    c.base.kind = c.base.module == "emb"    ? "embedding"
                  : c.base.module == "conv" ? "conv2d"
                  : c.base.module == "norm" ? "layer_norm"
                                            : "linear";
    if (c.config.find("\"fan_in_fan_out\": true") != c.config.npos) std::swap(c.base.shape[0], c.base.shape[1]);
    c.base.out = c.base.shape[0], c.base.in = static_cast<long long>(c.weight.size()) / c.base.out;
    c.base.weight = view_of(c.weight.data(), c.base.out, c.base.in);
    if (c.base.bias) c.base.bias_values = view_of(c.bias.data(), static_cast<long long>(c.bias.size()));
    all.push_back(std::move(c));
  }
  return all;
}

// Base layers that are codes, as bitsandbytes stored them, and models of GPTQ, AWQ, MXFP4 and NVFP4.
std::vector<std::string> quantized_below(const std::filesystem::path& golden) {
  std::vector<std::filesystem::path> folders;
  for (const auto& e : std::filesystem::directory_iterator(golden / "quantized/layers")) folders.push_back(e.path());
  std::sort(folders.begin(), folders.end());
  std::vector<std::string> all;
  for (const auto& folder : folders) all.push_back(text_of(folder / "base.safetensors"));
  for (const char* name : {"awq", "gptq_3", "gptq_4", "mxfp4", "nvfp4"})
    all.push_back(text_of(golden / "checkpoints/models" / name / "base/model.safetensors"));
  return all;
}

std::vector<std::string> tokenizers_below(const std::filesystem::path& golden) {
  std::vector<std::filesystem::path> files;
  for (const auto& e : std::filesystem::directory_iterator(golden / "tokenizers"))
    if (const auto file = e.path() / "tokenizer.json"; std::filesystem::exists(file)) files.push_back(file);
  std::sort(files.begin(), files.end());
  std::vector<std::string> all;
  for (const auto& file : files) all.push_back(text_of(file));
  return all;
}

// Facts and tensors of each form: numbers, blocks of 32 and blocks of 256 elements.
std::string small_gguf() {
  std::string s = "GGUF";
  const auto put = [&](auto v) { s.append(reinterpret_cast<const char*>(&v), sizeof v); };
  const auto word = [&](std::string_view w) { put(std::uint64_t{w.size()}), s += w; };
  put(std::uint32_t{3}), put(std::uint64_t{4}), put(std::uint64_t{4});
  word("general.architecture"), put(std::uint32_t{8}), word("llama");
  word("tokens"), put(std::uint32_t{9}), put(std::uint32_t{8}), put(std::uint64_t{2}), word("a"), word("b");
  word("llama.rope.scaling.type"), put(std::uint32_t{8}), word("yarn");
  word("llama.block_count"), put(std::uint32_t{4}), put(std::uint32_t{1});
  const auto tensor = [&](std::string_view name, std::uint64_t cols, std::uint32_t type, std::uint64_t place) {
    word(name), put(std::uint32_t{2}), put(cols), put(std::uint64_t{2}), put(type), put(place);
  };
  tensor("token_embd.weight", 32, 0, 0), tensor("eight", 32, 8, 256), tensor("four", 32, 2, 352);
  tensor("wide", 256, 12, 416);
  s.resize((s.size() + 31) / 32 * 32 + 416 + 288, '\x11');
  return s;
}

const char* const kinds[] = {"json",  "safetensors", "adapter_config", "pattern",   "layer",
                             "codes", "gguf",        "chat_template",  "tokenizer", "http_body"};
constexpr int kind_count = 10;
const char* current_kind = "";
std::uint64_t current_seed = 0, current_number = 0;
std::string current_input;

[[noreturn]] void fail_with(const char* why) {
  std::fprintf(stderr, "fuzz: %s: %s; the input is in fuzz-failure.bin, and --seed %llu --first %llu begins with it\n",
               current_kind, why, static_cast<unsigned long long>(current_seed),
               static_cast<unsigned long long>(current_number));
  if (std::FILE* f = std::fopen("fuzz-failure.bin", "wb")) {
    std::fwrite(current_input.data(), 1, current_input.size(), f);
    std::fclose(f);
  }
  std::_Exit(1);
}
void too_long(int) { fail_with("it takes longer than ten seconds"); }

// The limit is processor time, because a busy machine is no reason to fail.
void may_take(int seconds) {
  const itimerval left{{0, 0}, {seconds, 0}};
  ::setitimer(ITIMER_PROF, &left, nullptr);
}

// One input, found by the seed and its number alone.
void one(std::uint64_t seed, std::uint64_t number, const std::vector<layer_case>& cases,
         const std::vector<std::string>& quantized, const std::vector<std::string>& tokenizers) {
  dice d = dice_of(seed, number);
  const int kind = static_cast<int>(number % kind_count);
  const layer_case& c = cases[d.below(cases.size())];
  const bool numbers_only = d.below(2) == 0;
  current_kind = kinds[kind], current_seed = seed, current_number = number;
  counted::begin();
  bool good = true;
  switch (kind) {
    case 0: good = feed_json(current_input = mutated(c.config, d, numbers_only)); break;
    case 1: good = feed_safetensors(current_input = mutated(c.weights, d, numbers_only)); break;
    case 2: good = feed_adapter_config(current_input = mutated(c.config, d, numbers_only)); break;
    case 3:
      current_input =
          mutated("(?:model\\.)?layers\\.\\d+\\.(q|k)_proj[a-z]*|.{0,3}|x(?!y)layers.12.q_projmodel.x", d, false);
      good = feed_pattern(current_input);
      break;
    case 5:
      good = feed_quantized(current_input = mutated(quantized[d.below(quantized.size())], d, numbers_only));
      break;
    case 7:
      good = feed_chat_template(current_input = mutated(std::string(small_chat_template), d, numbers_only));
      break;
    case 8:
      good = feed_tokenizer(current_input = mutated(tokenizers[d.below(tokenizers.size())], d, numbers_only));
      break;
    case 9: good = feed_http_body(current_input = mutated(std::string(small_http_body), d, numbers_only)); break;
    case 6: good = feed_gguf(current_input = mutated(small_gguf(), d, numbers_only)); break;
    default: {
      // Numbers of a file stay in their places: its header keeps its length, and what it says becomes wrong.
      std::string weights = c.weights;
      if (d.below(3) == 0) {
        const std::size_t end = std::min(weights.size(), weights.find("}}") + 2);
        for (std::size_t tries = 0; tries < 64; ++tries)
          if (const std::size_t at = 8 + d.below(end - 8); is_digit(weights[at])) {
            weights[at] = static_cast<char>('0' + d.below(10));
            break;
          }
      }
      current_input = mutated(c.config, d, true);
      good = feed_layer(c, current_input, weights, d.below(4) == 0 ? 1 + d.below(3) : 0);
    }
  }
  if (!good) fail_with("what was accepted cannot be used");
  if (counted::largest() > most_bytes) fail_with("it takes more than 64 MiB");
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage = "usage: fuzz GOLDEN [--inputs N | --seconds S] [--seed S] [--first N]\n";
  std::uint64_t inputs = 14000, seconds = 0, seed = 1, first = 0;
  for (int i = 2; i < argc; i += 2) {
    const std::string option = argv[i];
    std::uint64_t* const number = option == "--inputs"    ? &inputs
                                  : option == "--seconds" ? &seconds
                                  : option == "--seed"    ? &seed
                                  : option == "--first"   ? &first
                                                          : nullptr;
    char* end = nullptr;
    if (number != nullptr && i + 1 < argc && is_digit(*argv[i + 1])) *number = std::strtoull(argv[i + 1], &end, 10);
    if (end == nullptr || *end != '\0') return std::fputs(usage, stderr), 2;
  }
  if (argc < 2) return std::fputs(usage, stderr), 2;
  const std::vector<layer_case> cases = cases_below(argv[1]);
  if (cases.empty()) return std::fprintf(stderr, "no cases below %s/layers\n", argv[1]), 2;
  const std::vector<std::string> quantized = quantized_below(argv[1]);
  if (quantized.empty()) return std::fprintf(stderr, "no cases below %s/quantized/layers\n", argv[1]), 2;
  const std::vector<std::string> tokenizers = tokenizers_below(argv[1]);
  if (tokenizers.empty()) return std::fprintf(stderr, "no tokenizers below %s/tokenizers\n", argv[1]), 2;
  for (const std::string& c : tokenizers)
    if (!io::hf::parse_tokenizer(c, "x"))
      return std::fprintf(stderr, "a tokenizer that was not changed is not read\n"), 1;
  for (const std::string& c : quantized)
    if (!io::parse_safetensors(as_bytes(c), "x"))
      return std::fprintf(stderr, "a base that was not changed is not read\n"), 1;
  for (const layer_case& c : cases)
    if (!io::parse_adapter_config(c.config, "x") || !io::parse_safetensors(as_bytes(c.weights), "x"))
      return std::fprintf(stderr, "a case that was not changed is not read\n"), 1;
  if (!io::parse_gguf(io::make_owned_bytes(as_bytes(small_gguf())), "x"))
    return std::fprintf(stderr, "a GGUF file that was not changed is not read\n"), 1;
  if (!io::hf::chat_template::parse(small_chat_template, "x"))
    return std::fprintf(stderr, "a chat template that was not changed is not read\n"), 1;
  std::signal(SIGPROF, too_long);
  counted::refuse_above(16 * most_bytes);
  const auto end = clock_type::now() + std::chrono::seconds(seconds);
  std::uint64_t done = 0;
  for (; seconds > 0 ? clock_type::now() < end : done < inputs; ++done) {
    may_take(10);
    one(seed, first + done, cases, quantized, tokenizers);
  }
  may_take(0);
  std::printf("%llu inputs of seed %llu, from input %llu: all were answered\n", static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(first));
  return 0;
}
