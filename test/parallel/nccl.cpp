// SPDX-License-Identifier: Apache-2.0
// The collectives over NCCL with one rank on one GPU: they return their input, in device memory and in host memory,
// ordered on a stream and inside a captured graph. A stream that stalls is an error after the timeout, and so is every
// later call.
#include <graft/core/bf16.h>
#include <graft/parallel/nccl.h>
#include <graft/parallel/single_process.h>

#include <vector>

using namespace graft;

namespace {

int wrong = 0;
void check(bool good, const char* what) {
  if (!good) std::fprintf(stderr, "%s is wrong\n", what), ++wrong;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU: nothing to exchange"), 0;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream) == cudaSuccess, "a stream");
  single_process nobody;
  auto made = nccl_communicator::make(nobody, {.stream = stream, .timeout = 30});
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  communicator& c = **made;
  check(c.rank() == 0 && c.size() == 1 && c.reads_device_memory(), "who it is");

  std::vector<float> values(1000), back(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 7;
  gpu::buffer here, there;
  check(here.reserve(4000) && there.reserve(4000), "device memory");
  const mutable_view a = view_into(here.as<float>(), 1000), b = view_into(there.as<float>(), 1000);
  const view from = view_of(here.as<float>(), 1000);
  cudaMemcpy(here.data(), values.data(), 4000, cudaMemcpyHostToDevice);
  check(c.begin_all_reduce(a) && c.wait(), "a sum");
  check(static_cast<bool>(c.all_gather(from, b)), "gathering");
  check(static_cast<bool>(c.reduce_scatter(from, b)), "scattering");
  check(c.broadcast(b, 0) && c.barrier() && c.wait(), "a broadcast");
  cudaMemcpy(back.data(), there.data(), 4000, cudaMemcpyDeviceToHost);
  check(back == values, "what came back");

  const mutable_view narrow{here.data(), dtype::bf16, {2000, 1, 1, 1}, 1};
  check(c.all_reduce(narrow, reduction::sum) && c.wait(), "a sum of 16 bits");
  cudaMemcpy(back.data(), here.data(), 4000, cudaMemcpyDeviceToHost);
  check(back == values, "a sum of 16 bits");

  double loss = 2.5;
  check(c.all_reduce(view_into(&loss, 1), reduction::max) && loss == 2.5, "a number in host memory");
  check(!c.all_gather(view_of(values.data(), 1000), b), "refusing to gather host memory");

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runs = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "beginning a capture");
  check(static_cast<bool>(c.begin_all_reduce(a)), "a captured sum");
  check(cudaStreamEndCapture(stream, &graph) == cudaSuccess && cudaGraphInstantiate(&runs, graph, 0) == cudaSuccess,
        "a captured graph");
  for (int k = 0; k < 3; ++k) check(cudaGraphLaunch(runs, stream) == cudaSuccess, "a replay");
  check(static_cast<bool>(c.wait()), "waiting for replays");
  cudaMemcpy(back.data(), here.data(), 4000, cudaMemcpyDeviceToHost);
  check(back == values, "what replays leave");
  cudaGraphExecDestroy(runs), cudaGraphDestroy(graph);

  auto stalled = nccl_communicator::make(nobody, {.timeout = 0.5});
  if (!stalled) return std::fprintf(stderr, "%s\n", stalled.message()), 1;
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::seconds(2)); };
  check((*stalled)->stream() != nullptr, "a stream of its own");
  check(cudaLaunchHostFunc(static_cast<cudaStream_t>((*stalled)->stream()), sleep, nullptr) == cudaSuccess, "a stall");
  check(!(*stalled)->wait(), "waiting for a stream that stalls");
  check(!(*stalled)->all_reduce(a, reduction::sum), "an exchange after that");
  std::puts(wrong == 0 ? "one rank: all exchanges are right" : "wrong");
  return wrong == 0 ? 0 : 1;
}
