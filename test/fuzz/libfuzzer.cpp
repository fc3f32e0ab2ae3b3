// SPDX-License-Identifier: Apache-2.0
// One reader for clang's libFuzzer, which is guided by coverage: CMake compiles this file once for each of them, from
// the headers, so that the reader reports what it covers. FUZZ_HEADER has the function FUZZ_READER.
//     cmake … -DCMAKE_CXX_COMPILER=clang++ -DGRAFT_LIBFUZZER=ON     sh test/fuzz/libfuzzer.sh BUILD SECONDS
#include <cstdlib>

#include FUZZ_HEADER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (!fuzz::FUZZ_READER(std::string_view(reinterpret_cast<const char*>(data), size))) std::abort();
  return 0;
}
