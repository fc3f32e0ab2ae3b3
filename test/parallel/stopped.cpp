// SPDX-License-Identifier: Apache-2.0
// One rank dies at the step that the argument names, in the middle of an all-reduce. The others must get an error
// within the timeout and exit with 3.
#include <graft/parallel/mpi.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  const int deadly = argc > 1 ? std::atoi(argv[1]) : 5;
  auto made = graft::mpi_communicator::make({.timeout = 2});
  if (!made) return std::fprintf(stderr, "%s\n", made.message()), 1;
  graft::communicator& ranks = **made;
  std::vector<float> values(1000, 1.0F);
  for (int step = 0; step < deadly + 50; ++step) {
    if (step == deadly && ranks.rank() == ranks.size() - 1) std::raise(SIGKILL);
    const auto begun = std::chrono::steady_clock::now();
    const graft::status s = ranks.all_reduce(graft::view_into(values.data(), 1000), graft::reduction::sum);
    if (s) continue;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begun;
    const bool again = static_cast<bool>(ranks.barrier());
    std::fprintf(stderr, "%s (after %.1f s)\n", s.message(), waited.count());
    _exit(step >= deadly && waited.count() < 10 && !again ? 3 : 1);  // MPI cannot be finalized any more
  }
  return std::fprintf(stderr, "rank %d went on without the one that died\n", ranks.rank()), 1;
}
