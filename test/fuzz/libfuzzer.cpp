// SPDX-License-Identifier: Apache-2.0
// The readers for clang's libFuzzer, which is guided by coverage: the first byte of an input chooses a reader.
//     cmake … -DCMAKE_CXX_COMPILER=clang++ -DGRAFT_LIBFUZZER=ON     build/test/fuzz/libfuzzer CORPUS
#include <cstdlib>

#include "readers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  bool good = true;
  switch (data[0] % 5) {
    case 0: good = fuzz::feed_json(input); break;
    case 1: good = fuzz::feed_safetensors(input); break;
    case 2: good = fuzz::feed_adapter_config(input); break;
    case 3: good = fuzz::feed_chat_template(input); break;
    default: good = fuzz::feed_pattern(input);
  }
  if (!good) std::abort();
  return 0;
}
