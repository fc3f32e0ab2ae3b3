// SPDX-License-Identifier: Apache-2.0
// fuzz GOLDEN [--rounds N | --seconds S] [--seed S]: the readers and whole layers on changed files. Ends with 0 after N
// inputs each (the tests) or S seconds in all (by hand); the first input that is not handled is written to
// fuzz-failure.bin with the words that find it again. An input may take ten seconds of processor time and 64 MiB, no more.
#include <sys/time.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "mutate.h"
#include "readers.h"

extern std::size_t largest_request;  // counted_new.cpp

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
    layer_case c{
        text_of(folder / "adapter/adapter_config.json"), text_of(folder / "adapter/adapter_model.safetensors"), {}};
    const auto base = io::read_safetensors((folder / "base.safetensors").string());
    if (!base || c.config.empty() || c.weights.empty()) continue;
    for (const io::tensor_view& t : base->tensors) {
      if (t.name.ends_with(".bias")) c.base.bias = true;
      if (!t.name.ends_with(".weight")) continue;
      c.base.module = t.name.substr(0, t.name.size() - 7);
      c.base.in = 1;
      for (std::size_t k = 0; k < t.shape.size(); ++k) {
        c.base.shape.push_back(static_cast<long long>(t.shape[k]));
        (k == 0 ? c.base.out : c.base.in) *= k == 0 ? 0 : static_cast<long long>(t.shape[k]);
      }
      c.base.out = static_cast<long long>(t.shape[0]);
      c.base.kind = t.shape.size() == 4 ? "conv2d" : t.shape.size() == 1 ? "layer_norm" : "linear";
    }
    if (c.config.find("embedding") != std::string::npos || c.weights.find("lora_embedding") != std::string::npos)
      c.base.kind = "embedding";
    all.push_back(std::move(c));
  }
  return all;
}

// Base layers that are codes, as bitsandbytes stored them.
std::vector<std::string> coded_below(const std::filesystem::path& golden) {
  std::vector<std::filesystem::path> folders;
  for (const auto& e : std::filesystem::directory_iterator(golden / "quantized/layers")) folders.push_back(e.path());
  std::sort(folders.begin(), folders.end());
  std::vector<std::string> all;
  for (const auto& folder : folders) all.push_back(text_of(folder / "base.safetensors"));
  return all;
}

// Two facts and three tensors, one of each form.
std::string small_gguf() {
  std::string s = "GGUF";
  const auto put = [&](auto v) { s.append(reinterpret_cast<const char*>(&v), sizeof v); };
  const auto word = [&](std::string_view w) { put(std::uint64_t{w.size()}), s += w; };
  put(std::uint32_t{3}), put(std::uint64_t{3}), put(std::uint64_t{2});
  word("general.architecture"), put(std::uint32_t{8}), word("llama");
  word("tokens"), put(std::uint32_t{9}), put(std::uint32_t{8}), put(std::uint64_t{2}), word("a"), word("b");
  const auto tensor = [&](std::string_view name, std::uint32_t type, std::uint64_t place) {
    word(name), put(std::uint32_t{2}), put(std::uint64_t{32}), put(std::uint64_t{2}), put(type), put(place);
  };
  tensor("plain", 0, 0), tensor("eight", 8, 256), tensor("four", 2, 352);
  s.resize((s.size() + 31) / 32 * 32 + 352 + 36, '\x11');
  return s;
}

const char* const kinds[] = {"json", "safetensors", "adapter_config", "pattern", "layer", "codes", "gguf"};
constexpr int kind_count = 7;
const char* current_kind = "";
std::uint64_t current_seed = 0;
std::string current_input;

[[noreturn]] void fail_with(const char* why) {
  std::fprintf(stderr, "fuzz: %s, seed %llu: %s; the input is in fuzz-failure.bin\n", current_kind,
               static_cast<unsigned long long>(current_seed), why);
  if (std::FILE* f = std::fopen("fuzz-failure.bin", "wb")) {
    std::fwrite(current_input.data(), 1, current_input.size(), f);
    std::fclose(f);
  }
  std::_Exit(1);
}
void too_long(int) { fail_with("it takes longer than ten seconds"); }

// Of processor time: a busy machine is no reason to fail.
void may_take(int seconds) {
  const itimerval left{{0, 0}, {seconds, 0}};
  ::setitimer(ITIMER_PROF, &left, nullptr);
}

// One input, found by its number alone.
void one(int kind, std::uint64_t seed, const std::vector<layer_case>& cases, const std::vector<std::string>& coded) {
  dice d(seed * kind_count + static_cast<std::uint64_t>(kind));
  const layer_case& c = cases[d.below(cases.size())];
  const bool numbers_only = d.below(2) == 0;
  current_kind = kinds[kind], current_seed = seed, largest_request = 0;
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
    case 5: good = feed_codes(current_input = mutated(coded[d.below(coded.size())], d, numbers_only)); break;
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
      good = feed_layer(c, current_input, weights);
    }
  }
  if (!good) fail_with("what was accepted cannot be used");
  if (largest_request > most_bytes) fail_with("it takes more than 64 MiB");
}

}  // namespace

int main(int argc, char** argv) {
  long long rounds = 2000, seconds = 0;
  std::uint64_t seed = 1;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    const long long n = std::atoll(argv[i + 1]);
    if (option == "--rounds") rounds = n;
    if (option == "--seconds") seconds = n;
    if (option == "--seed") seed = static_cast<std::uint64_t>(n);
  }
  if (argc < 2) return std::fprintf(stderr, "usage: fuzz GOLDEN [--rounds N | --seconds S] [--seed S]\n"), 2;
  const std::vector<layer_case> cases = cases_below(argv[1]);
  if (cases.empty()) return std::fprintf(stderr, "no cases below %s/layers\n", argv[1]), 2;
  const std::vector<std::string> coded = coded_below(argv[1]);
  if (coded.empty()) return std::fprintf(stderr, "no cases below %s/quantized/layers\n", argv[1]), 2;
  for (const std::string& c : coded)
    if (!io::parse_safetensors(as_bytes(c), "x"))
      return std::fprintf(stderr, "a base that was not changed is not read\n"), 1;
  for (const layer_case& c : cases)
    if (!io::parse_adapter_config(c.config, "x") || !io::parse_safetensors(as_bytes(c.weights), "x"))
      return std::fprintf(stderr, "a case that was not changed is not read\n"), 1;
  if (!io::parse_gguf(io::hold(as_bytes(small_gguf())), "x"))
    return std::fprintf(stderr, "a GGUF file that was not changed is not read\n"), 1;
  std::signal(SIGPROF, too_long);
  const auto end = clock_type::now() + std::chrono::seconds(seconds);
  long long done = 0;
  for (; seconds > 0 ? clock_type::now() < end : done < rounds; ++done)
    for (int kind = 0; kind < kind_count; ++kind) {
      may_take(10);
      one(kind, seed + static_cast<std::uint64_t>(done), cases, coded);
    }
  may_take(0);
  std::printf("%lld inputs of each kind, from seed %llu: all were answered\n", done,
              static_cast<unsigned long long>(seed));
  return 0;
}
