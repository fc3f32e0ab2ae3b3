// SPDX-License-Identifier: Apache-2.0
// A PEFT folder of a user-defined method: leaf names are tensor names, and adapter_config.json has the scalars.
#include <doctest/doctest.h>
#include <graft/io/peft/layer.h>
#include <graft/io/safetensors/writer.h>
#include <graft/run/cpu_layer.h>

#include "support.h"

using namespace graft;
using namespace graft::io;
using graft::io::test::bytes_of;
using graft::io::test::temp_folder;

namespace {

struct tilted {  // W' = W + s a (B D) with D shared by all layers
  static constexpr const char* name = "tilted";
  static constexpr ex weight(scope p, ex W) {
    auto r = p.size("r");
    auto D = p.frozen("tilt_D", r, W.cols());
    return W + p.scalar("scaling") * (p.scalar("tilt") * (p.param("tilt_B.weight", W.rows(), r) * D));
  }
};

struct folder_of_tilted {
  temp_folder dir;
  method_table methods;
  std::vector<float> B = std::vector<float>(6 * 2, 0.5F), D = std::vector<float>(2 * 4, 0.25F);
  std::string config = R"({"peft_type": "TILTED", "target_modules": ["lin"], "r": 2, "alpha": 8, "tilt": 0.5})";
  std::string key = "base_model.model.lin.tilt_B.weight";

  folder_of_tilted() { REQUIRE(bool(methods.add<tilted>("TILTED"))); }
  result<peft_layer> read() {
    REQUIRE(bool(write_file(dir.path / "adapter_config.json", bytes_of(config))));
    const tensor_view tensors[] = {
        {key, io::safetensors_type::f32, {6, 2}, std::as_bytes(std::span(B))},
        {"base_model.tilt_D", io::safetensors_type::f32, {2, 4}, std::as_bytes(std::span(D))},
    };
    REQUIRE(bool(write_safetensors(dir.path / "adapter_model.safetensors", tensors)));
    const auto c = read_adapter_config(dir.path, methods);
    if (!c) return c.failure();
    const auto f = read_adapter_weights(dir.path);
    REQUIRE(bool(f));
    return read_peft_layer(*c, *f, {"linear", "lin", 6, 4, {6, 4}, false});
  }
};
bool says(const char* sentence, const std::string& part) {
  return std::string(sentence).find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("own method: read from a folder and run") {
  folder_of_tilted t;
  const auto layer = t.read();
  INFO(std::string(layer.message()));
  REQUIRE(bool(layer));
  CHECK(layer->scalars.at("scaling") == 4);  // alpha / r
  CHECK(layer->scalars.at("tilt") == 0.5);
  CHECK(layer->sizes.at("r") == 2);
  const auto g = t.methods.graphs("linear", layer->formula.name, false);
  REQUIRE(bool(g));
  cpu::executor<float> e(*g);
  const std::vector<float> W(24, 1), x{1, 2, 3, 4};
  std::vector<float> y(6);
  REQUIRE(bool(e.set("weight", view_of(W.data(), 6, 4))));
  const status attached = attach(e, *layer);
  INFO(std::string(attached.message()));
  REQUIRE(bool(attached));
  REQUIRE(bool(e.forward(view_of(x.data(), 1, 4), view_into(y.data(), 1, 6))));
  for (const float v : y) CHECK(v == doctest::Approx(10 * (1 + 4 * 0.5 * 2 * 0.5 * 0.25)));
}

TEST_CASE("own method: a missing tensor and an unexpected one are named") {
  folder_of_tilted t;
  t.key = "base_model.model.lin.tilt_C.weight";
  CHECK(says(t.read().message(), "there is no tensor 'base_model.model.lin.tilt_B.weight'"));
  folder_of_tilted u;
  u.config = R"({"peft_type": "TILTED", "target_modules": ["lin"], "r": 2, "alpha": 8})";
  CHECK(says(u.read().message(), "adapter_config.json beside it has no number 'tilt', which TILTED needs"));
  u.config = R"({"peft_type": "TILTED", "target_modules": ["lin"], "r": 2.5, "scaling": 1, "tilt": 1})";
  CHECK(says(u.read().message(), "states a size 'r' that is no positive integer"));
  u.config = R"({"peft_type": "TILTED", "target_modules": ["lin"], "r": 2, "alpha": 1e308, "tilt": 1})";
  CHECK(says(u.read().message(),
             "adapter_config.json beside it gives 'scaling' a value that no float can hold; the largest is 3.4e38"));
  u.config = R"({"peft_type": "TILDED", "target_modules": ["lin"]})";
  CHECK(says(u.read().message(), "'peft_type' is \"TILDED\", expected one of LORA, "));
  CHECK(says(u.read().message(), ", TILTED (in capitals)"));
  u.config = R"({"peft_type": "lora", "target_modules": ["lin"]})";  // the name in a method table is no PEFT type
  CHECK(says(u.read().message(), "'peft_type' is \"lora\", expected one of"));
  CHECK(says(read_adapter_config(t.dir.path).message(), "'peft_type' is \"TILTED\", expected one of LORA, "));
}
