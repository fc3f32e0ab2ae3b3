// SPDX-License-Identifier: Apache-2.0
// The text that explain() prints for every adapter, compared with explain.txt in this folder. After an intended change:
//     GRAFT_UPDATE=1 build/test/test_plan -tc='explain*'      and read the difference before committing it
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "../support/all_layers.h"
#include "../support/static_check.h"

using namespace test;

namespace {

const char* const stored = GRAFT_GOLDEN_DIR "/../plan/explain.txt";

std::string everything() {
  std::string all;
  auto line = [&](const text& t) {
    INFO(std::string(t.c_str()));
    CHECK(t.n < text::capacity);  // no line is cut off
    all += std::string(t.c_str()) + "\n";
  };
  for_all_layers([&](const char* name, auto tag) {
    all += "# " + std::string(name) + "\n";
    explain<typename decltype(tag)::type>(line, 512);
  });
  all += "# type-erased\n";
  explain<linear<1024, 1024, bf16, erased>>(line, 512);
  all += "# sizes known only at run time\n";
  explain<linear<dyn, dyn, float, lora<>>>(line);
  return all;
}

}  // namespace

TEST_CASE("explain: the stored text") {
  const std::string now = everything();
  if (std::getenv("GRAFT_UPDATE") != nullptr) {
    std::ofstream(stored) << now;
    MESSAGE("explain.txt was rewritten");
  }
  std::ifstream file(stored);
  REQUIRE(file.good());
  std::istringstream ours(now);
  std::string expected, found;
  int number = 0;
  while (++number, std::getline(file, expected)) {
    REQUIRE_MESSAGE(std::getline(ours, found), "explain() stops before line " << number << " of explain.txt");
    INFO("line ", number, " of explain.txt");
    REQUIRE(found == expected);
  }
  CHECK_MESSAGE(!std::getline(ours, found), "explain() says more than explain.txt: " << found);
}

namespace {

constexpr text big(long long n) {
  text t;
  print_si(t, n);
  return t;
}
struct lines {
  int count = 0;
  bool priced = false, folded = false;
};
template <class Layer> constexpr lines said(long long tokens) {
  lines l;
  explain<Layer>(
      [&](const text& t) {
        ++l.count;
        l.priced = l.priced || contains(t.c_str(), "flop");
        l.folded = l.folded || contains(t.c_str(), "forward (folded)");
      },
      tokens);
  return l;
}

}  // namespace

TEST_CASE("explain: large numbers with a unit prefix") {
  SAYS(big(0), "0 ");
  SAYS(big(999), "999 ");
  SAYS(big(1000), "1.0 k");
  SAYS(big(33554432), "33.6 M");
  SAYS(big(123456789), "123 M");
  SAYS(big(2147483648LL), "2.1 G");
  SAYS(big(5000000000000LL), "5.0 T");
}

TEST_CASE("explain: costs only if the sizes are known") {
  BOTH((said<linear<1024, 1024, bf16, lora<16>>>(512).priced));  // explain() also works while compiling
  CHECK_FALSE((said<linear<1024, 1024, bf16, lora<16>>>(dyn).priced));
  CHECK_FALSE((said<linear<1024, dyn, bf16, lora<16>>>(512).priced));
  CHECK_FALSE((said<linear<1024, 1024, bf16, lora<>>>(512).priced));
}

TEST_CASE("explain: it shows the form that runs") {
  CHECK((said<linear<1024, 1024, bf16, loha<16>>>(512).folded));
  CHECK_FALSE((said<linear<1024, 1024, bf16, lora<16>>>(512).folded));
}
TEST_CASE("explain: bytes of a quantized weight, and that nothing is folded into it") {
  std::string all;
  const auto line = [&](const text& t) { all += std::string(t.c_str()) + "\n"; };
  explain<linear<1024, 1024, nf4<64>, lora<1024>>>(line, 16);
  CHECK(all.find("  weight    nf4 in blocks of 64, 4.50 bits per weight with scales: 589 kB\n") != std::string::npos);
  CHECK(all.find("of a quantized weight it stays a low-rank branch") != std::string::npos);
  CHECK(all.find("(folded)") == std::string::npos);
  all.clear();
  explain<linear<4096, 4096, int8, lora<16>>>(line, 16);
  CHECK(all.find("int8, 8.01 bits per weight with scales") != std::string::npos);
  CHECK(all.find("stays a low-rank branch") == std::string::npos);
}
