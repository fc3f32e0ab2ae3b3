// SPDX-License-Identifier: Apache-2.0
// explain_step: every launch of a token step has a time, and the model computes the same afterwards.
#include <doctest/doctest.h>
#include <graft/io/hf/load_model.h>
#include <graft/model/explain_step.h>
#include <graft/model/on_cpu.h>

#include <filesystem>
#include <string>

using namespace graft;
using engine = cpu::engine<float>;

TEST_CASE("explain_step: each launch of a step is timed, and timing ends afterwards") {
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
  CHECK(timed >= 3);  // launches of the embedding, the blocks and the head
  CHECK(timed <= launches);
  CHECK(model->programs().queue.clock == nullptr);
}
TEST_CASE("explain_step: the costs of launches use the stored format of the weights") {
  auto model =
      io::hf::load_model<engine>(std::filesystem::path(GRAFT_GOLDEN_DIR "/quantized/models/llama_nf4_double/base"));
  REQUIRE(model);
  REQUIRE(explain_step(*model, {1, 4}, [](const text&) {}));
  int from_quantized = 0, plain = 0;
  for (int k = 0; k < model->programs().count(); ++k) {
    const quant_format format = detail::weight_format_of(model->weights(), model->programs()[k].value());
    from_quantized += format.type == dtype::nf4 ? 1 : 0, plain += format.plain() ? 1 : 0;
  }
  CHECK(from_quantized > 0);  // the blocks
  CHECK(plain > 0);           // embedding and head
  CHECK(from_quantized + plain == model->programs().count());
}
TEST_CASE("explain_step: more tokens than the model has positions are an error") {
  auto model = io::hf::load_model<engine>(std::filesystem::path(GRAFT_GOLDEN_DIR "/models/llama/base"));
  REQUIRE(model);
  CHECK(!explain_step(*model, {1, 1 << 20}, [](const text&) {}));
}
