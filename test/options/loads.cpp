// SPDX-License-Identifier: Apache-2.0
// loads GOLDEN: a layer from files, in a program that is compiled with other options than usual: without exceptions, or
// with -ffast-math, where a comparison with NaN is true or false as the compiler likes. A golden layer gives PEFT's
// numbers, and a file with a number that is none is still refused.
#include <graft/cpu.h>
#include <graft/io.h>

#include <cstdio>

using namespace graft;

namespace {

int wrong = 0;
void expect(bool good, const char* what) {
  if (!good) ++wrong, std::printf("%s\n", what);
}
std::vector<float> numbers(const io::safetensors& f, const char* name) {
  const auto t = f.find(name);
  auto v = t ? io::to_float(*t) : io::to_float({});
  return v ? *v : std::vector<float>();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = std::string(argc > 1 ? argv[1] : ".") + "/layers/lora";
  const auto base = io::read_safetensors(folder + "/base.safetensors"),
             expected = io::read_safetensors(folder + "/expected.safetensors"),
             weights = io::read_adapter_weights(folder + "/adapter");
  const auto config = io::read_adapter_config(folder + "/adapter");
  if (!base || !expected || !weights || !config) return std::printf("%s\n", config.message()), 1;
  const std::vector<float> w = numbers(*base, "lin.weight"), b = numbers(*base, "lin.bias"),
                           x = numbers(*expected, "x"), y = numbers(*expected, "y");
  const auto out = static_cast<long long>(b.size()), in = static_cast<long long>(w.size()) / out,
             tokens = static_cast<long long>(x.size()) / in;
  const io::base_layer layer{"linear", "lin", out, in, {out, in}, true};
  const auto adapter = io::read_peft_layer(*config, *weights, layer);
  if (!adapter) return std::printf("%s\n", adapter.message()), 1;
  const auto graphs = built_in_methods().graphs("linear", adapter->formula.name, true);
  if (!graphs) return std::printf("%s\n", graphs.message()), 1;
  cpu::executor<float> e(*graphs);
  std::vector<float> ours(y.size());
  expect(bool(e.set("weight", view_of(w.data(), out, in))), "the weight is refused");
  expect(bool(e.set("bias", view_of(b.data(), out))), "the bias is refused");
  expect(bool(io::attach(e, *adapter)), "the adapter is refused");
  expect(bool(e.forward(view_of(x.data(), tokens, in), view_into(ours.data(), tokens, out))), "forward is refused");
  float most = 0, scale = 0;
  for (std::size_t i = 0; i < y.size(); ++i)
    most = std::max(most, std::abs(ours[i] - y[i])), scale = std::max(scale, std::abs(y[i]));
  expect(most < 2e-5F * scale && scale > 0, "y is not PEFT's");

  for (const std::uint32_t bits : {0x7fc00000U, 0x7f800000U, 0xff800000U, 0xffc00001U}) {
    auto bytes = io::read_file(folder + "/adapter/adapter_model.safetensors");
    if (!bytes) return 1;
    std::memcpy(bytes->data() + bytes->size() - 4, &bits, 4);
    const auto file = io::parse_safetensors(std::move(*bytes), "changed.safetensors");
    expect(bool(file), "the changed file is not read");
    const auto refused = io::read_peft_layer(*config, *file, layer);
    expect(!refused && contains(refused.message(), "is not finite"), "a number that is none is accepted");
  }
  for (const char* text : {"NaN", "-Infinity", "1e999", "[1e400]", "{\"r\": nan}"})
    expect(!io::parse_json(text, "numbers.json"), "JSON without a number is accepted");
  expect(
      !io::parse_adapter_config("{\"peft_type\": \"LORA\", \"target_modules\": [\"lin\"], \"lora_alpha\": 1e999}", "a"),
      "an alpha that is none is accepted");
  return wrong == 0 ? 0 : 1;
}
