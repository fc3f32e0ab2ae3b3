// SPDX-License-Identifier: Apache-2.0
// A token step in words: every launch that ran has a time, and what the model computes afterwards is what it was.
#include <doctest/doctest.h>
#include <graft/io/hf/load_model.h>
#include <graft/model/explain_step.h>
#include <graft/model/on_cpu.h>

#include <filesystem>
#include <string>

using namespace graft;
using engine = cpu::engine<float>;

TEST_CASE("explain_step: each launch of a step is timed, and the clock is taken off again") {
  auto model = io::hf::load_model<engine>(std::filesystem::path(GRAFT_GOLDEN_DIR "/models/llama/base"));
  REQUIRE(model);
  int launches = 0, timed = 0, programs = 0;
  REQUIRE(explain_step(*model, {2, 5}, [&](const text& t) {
    const std::string line = t.c_str();
    launches += line.starts_with("    launch ") ? 1 : 0;
    timed += line.find("measured ") != std::string::npos ? 1 : 0;
    programs += line.starts_with("program ") ? 1 : 0;
  }));
  CHECK(programs == model->programs().count());
  CHECK(timed >= 3);  // of the embedding, the blocks and the head
  CHECK(timed <= launches);
  CHECK(model->programs().queue.clock == nullptr);
}
TEST_CASE("explain_step: launches are counted with the weights as they lie") {
  auto model =
      io::hf::load_model<engine>(std::filesystem::path(GRAFT_GOLDEN_DIR "/quantized/models/llama_nf4_double/base"));
  REQUIRE(model);
  REQUIRE(explain_step(*model, {1, 4}, [](const text&) {}));
  int of_codes = 0, plain = 0;
  for (int k = 0; k < model->programs().count(); ++k) {
    const encoding how = detail::stored_in(model->weights(), model->programs()[k].value());
    of_codes += how.codes == dtype::nf4 ? 1 : 0, plain += how.plain() ? 1 : 0;
  }
  CHECK(of_codes > 0);  // the blocks
  CHECK(plain > 0);     // embedding and head
  CHECK(of_codes + plain == model->programs().count());
}
TEST_CASE("explain_step: more tokens than the model has positions are an error") {
  auto model = io::hf::load_model<engine>(std::filesystem::path(GRAFT_GOLDEN_DIR "/models/llama/base"));
  REQUIRE(model);
  CHECK(!explain_step(*model, {1, 1 << 20}, [](const text&) {}));
}
