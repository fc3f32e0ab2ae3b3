// SPDX-License-Identifier: Apache-2.0
// The collectives over MPI, run by mpirun with any number of ranks, each compared with its definition. Exit 0: all
// correct.
#include <graft/parallel/mpi.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

using namespace graft;

namespace {

int wrong = 0;
void check(bool good, const char* what, int rank) {
  if (good) return;
  std::fprintf(stderr, "rank %d: %s is wrong\n", rank, what);
  ++wrong;
}
// A number that differs for every rank and index.
float number(int rank, long long i) { return 0.25F * static_cast<float>(rank + 1) + static_cast<float>(i % 97) / 3; }

void sums(communicator& c, long long n) {
  std::vector<float> a(static_cast<std::size_t>(n)), b(a.size()), expected(a.size());
  for (long long i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    a[at] = number(c.rank(), i), b[at] = -a[at];
    for (int r = 0; r < c.size(); ++r) expected[at] = r == 0 ? number(0, i) : expected[at] + number(r, i);
  }
  check(static_cast<bool>(c.begin_all_reduce(view_into(a.data(), n))), "begin_all_reduce", c.rank());
  check(static_cast<bool>(c.begin_all_reduce(view_into(b.data(), n))), "a second begin_all_reduce", c.rank());
  check(static_cast<bool>(c.wait()), "wait", c.rank());
  bool same = true;
  for (std::size_t i = 0; i < a.size(); ++i) same = same && a[i] == expected[i] && b[i] == -expected[i];
  check(same, "a sum in the order of the ranks", c.rank());
}

void parts(communicator& c) {
  const auto ranks = static_cast<std::size_t>(c.size());
  std::vector<double> mine(3), all(3 * ranks), back(3);
  for (std::size_t i = 0; i < 3; ++i) mine[i] = number(c.rank(), static_cast<long long>(i));
  check(static_cast<bool>(c.all_gather(view_of(mine.data(), 3), view_into(all.data(), 3 * ranks))), "gather", c.rank());
  bool same = true;
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < 3; ++i)
      same = same && all[3 * r + i] == static_cast<double>(number(static_cast<int>(r), static_cast<long long>(i)));
  check(same, "what was gathered", c.rank());
  check(static_cast<bool>(c.reduce_scatter(view_of(all.data(), 3 * ranks), view_into(back.data(), 3))), "scatter",
        c.rank());
  for (std::size_t i = 0; i < 3; ++i) same = same && back[i] == mine[i] * c.size();
  check(same, "what was reduced and scattered", c.rank());
  double most = c.rank(), from_last = c.rank();
  check(c.all_reduce(view_into(&most, 1), reduction::max) && most == c.size() - 1, "the largest", c.rank());
  check(c.broadcast(view_into(&from_last, 1), c.size() - 1) && from_last == c.size() - 1, "a broadcast", c.rank());
  check(static_cast<bool>(c.barrier()), "a barrier", c.rank());
}

void mistakes(communicator& c) {
  std::int64_t whole = 0;
  float some[6] = {};
  check(!c.all_reduce(view_into(&whole, 1), reduction::sum), "refusing integers", c.rank());
  check(!c.all_gather(view_of(some, 2), view_into(some, 5)), "refusing parts of another size", c.rank());
  check(!c.broadcast(view_into(some, 6), c.size()), "refusing a rank that is not there", c.rank());
}

}  // namespace

int main() {
  auto c = mpi_communicator::make({.timeout = 60});
  if (!c) return std::fprintf(stderr, "%s\n", c.message()), 1;
  for (const long long n : {1LL, 2LL, 7LL, 1000LL, 100003LL}) sums(**c, n);
  parts(**c);
  mistakes(**c);
  return wrong == 0 ? 0 : 1;
}
