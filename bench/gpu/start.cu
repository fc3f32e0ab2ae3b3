// SPDX-License-Identifier: Apache-2.0
// The time from the start of a process to the first token on the GPU: the driver, a model and an adapter from their
// folders, plans, kernels, the prompt. Prints one line of JSON with the first token, seconds of each phase and of all;
// then, on another line, the time to read the model's files only. bench/compare_start.py makes the folders and starts
// this program anew each time, and PEFT as well.
//     bench_gpu_start MODEL ADAPTER [standard | reduce-overhead]
#include <graft/io/hf/load_adapters.h>
#include <graft/model/generate.h>
#include <graft/model/on_gpu.cuh>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

using namespace graft;

namespace {

using engine = gpu::engine<__nv_bfloat16>;

class phases {
 public:
  void end(const char* name) {
    const auto now = std::chrono::steady_clock::now();
    std::printf("%s\"%s\": %.3f", first_ ? "{" : ", ", name, std::chrono::duration<double>(now - since_).count());
    since_ = now, first_ = false;
  }
  void end_all() {
    std::printf(", \"all\": %.3f}\n", std::chrono::duration<double>(since_ - begin_).count());
    std::fflush(stdout);
    since_ = std::chrono::steady_clock::now(), first_ = true;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), since_ = begin_;
  bool first_ = true;
};

// Reads every byte of the weights into one buffer, which is the lower bound of any reader.
status read_weights(const std::string& folder) {
  std::vector<char> buffer(16 << 20);
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()))) {}
  }
  if (failed) return fail("cannot read ", folder.c_str());
  return ok;
}

status measure(const std::string& folder, const std::string& adapter, step_mode how) {
  phases took;
  if (cudaFree(nullptr) != cudaSuccess) return fail("there is no GPU here");
  took.end("driver");
  auto model = io::hf::load_model<engine>(folder, {.context = 1024});
  if (!model) return model.failure();
  took.end("model");
  auto adapters = io::hf::load_adapters(adapter, *model);
  if (!adapters) return adapters.failure();
  if (status s = model->set_adapters(adapters->set); !s) return s;
  took.end("adapter");
  generation_settings settings;
  settings.max_new_tokens = 2, settings.eos_tokens = no_eos_tokens;
  const std::vector<std::int64_t> prompt{5, 9, 200, 17, 3, 44, 101, 8};
  auto g = generator<engine>::make(*model, settings, 1, 64, how);
  if (!g) return g.failure();
  int seen = 0;
  const auto made = g->run(std::span(&prompt, 1), [&](std::size_t, std::int64_t) {
    if (seen++ == 0) took.end("first_token"), took.end_all();
    return true;
  });
  if (!made) return made.failure();
  took.end("second_token");
  if (status s = read_weights(folder); !s) return s;
  took.end("read_only");
  std::printf("}\n");
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fputs("usage: bench_gpu_start MODEL ADAPTER [standard | reduce-overhead]\n", stderr), 2;
  const bool captures = argc < 4 || std::strcmp(argv[3], "standard") != 0;
  const status s = measure(argv[1], argv[2], captures ? step_mode::reduce_overhead : step_mode::standard);
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  return s ? 0 : 1;
}
