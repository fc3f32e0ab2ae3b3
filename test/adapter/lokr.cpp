// SPDX-License-Identifier: Apache-2.0
// PEFT's choice of Kronecker factors.
#include <graft/adapter/lokr.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr bool gives(long long size, long long f, long long m, long long n) {
  const kronecker_factors k = factorize(size, f);
  return k.m == m && k.n == n;
}

}  // namespace

TEST_CASE("lokr: the examples of PEFT, without a limit") {
  BOTH(gives(768, -1, 24, 32));
  BOTH(gives(3072, -1, 48, 64));
  BOTH(gives(4096, -1, 64, 64));
  BOTH(gives(11008, -1, 86, 128));
  BOTH(gives(127, -1, 1, 127));
}

TEST_CASE("lokr: a factor that divides is used unsorted; another one is an upper limit") {
  BOTH(gives(128, 5, 4, 32));
  BOTH(gives(128, 64, 64, 2));
  BOTH(gives(64, 4, 4, 16));
  BOTH(gives(48, 4, 4, 12));
  BOTH(gives(48, 48, 48, 1));
  BOTH(gives(48, 1, 1, 48));
  BOTH(gives(48, 1000, 6, 8));
  BOTH(gives(127, 5, 1, 127));
}

TEST_CASE("lokr: small sizes") {
  BOTH(gives(1, -1, 1, 1));
  BOTH(gives(2, -1, 1, 2));
  BOTH(gives(4, -1, 2, 2));
  BOTH(gives(6, -1, 2, 3));
}

TEST_CASE("lokr: the product of the factors is the size, and without a limit they are the nearest to its root") {
  for (long long size = 1; size <= 700; ++size) {
    long long best = 1;
    for (long long m = 1; m * m <= size; ++m)
      if (size % m == 0) best = m;
    const kronecker_factors k = factorize(size, -1);
    if (k.m != best || k.n != size / best) FAIL_CHECK(size << " gives " << k.m << " and " << k.n);
    for (const long long f : {2, 3, 7, 16, 64}) {
      const kronecker_factors limited = factorize(size, f);
      if (limited.m * limited.n != size) FAIL_CHECK(size << " with " << f << " loses elements");
      if (size % f != 0 && limited.m > f) FAIL_CHECK(size << " with " << f << " passes the limit");
    }
  }
}

TEST_CASE("lokr: the layer's sizes give the factors of rows and columns") {
  using adapter = lokr<8, -1>;
  BOTH(adapter::size("a", 768, 3072) == 24);
  BOTH(adapter::size("c", 768, 3072) == 48);
  BOTH(adapter::size("r", 768, 3072) == unknown);
  BOTH(lokr<8, 4>::size("a", 64, 48) == 4);
  BOTH(lokr<8, 4>::size("c", 64, 48) == 4);
  BOTH(formula_of<adapter>().adapter_size("a", 768, 3072) == 24);
}
