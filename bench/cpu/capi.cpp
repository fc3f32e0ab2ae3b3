// SPDX-License-Identifier: Apache-2.0
// A C interface to the CPU executor, so that bench/compare_peft.py --cpu can run it in its process and on the tensors
// of PEFT. The adapter is read from the folder that PEFT saved. Functions return 0, or 1 with a message in
// graft_error().
#include <graft/cpu.h>
#include <graft/io.h>

namespace {

using namespace graft;

std::string message;

int report(const status& s) {
  if (!s) message = s.message();
  return s ? 0 : 1;
}
struct adapted_layer {
  io::peft_layer adapter;  // owns the tensors
  long long out, in;
  cpu::executor<float> runs;
  std::vector<std::vector<float>> memory{};
  std::vector<gradient> gradients{};

  adapted_layer(const layer_graphs& graphs, long long rows, long long cols) : out(rows), in(cols), runs(graphs) {}
  // Requests the gradient of every parameter, into memory of this object.
  void ask_for_all(const layer_graphs& graphs) {
    const graph& g = graphs.backward;
    for (const auto& [name, t] : adapter.tensors) {
      if (g.find_output(name.c_str()) < 0) continue;
      memory.emplace_back(t.data.size());
      gradients.push_back({name, view_into(memory.back().data(), static_cast<long long>(t.data.size()))});
    }
  }
};
adapted_layer* of(void* l) { return static_cast<adapted_layer*>(l); }

result<adapted_layer*> load(const char* folder, const float* weight, long long out, long long in) {
  const bool bare = folder == nullptr;
  std::string method = "none";
  io::peft_layer adapter;
  if (!bare) {
    const auto config = io::read_adapter_config(folder);
    if (!config) return config.failure();
    const auto file = io::read_adapter_weights(folder);
    if (!file) return file.failure();
    io::base_layer base{"linear", "lin", out, in, {out, in}, false};
    base.weight = view_of(weight, out, in);
    auto read = io::read_peft_layer(*config, *file, base);
    if (!read) return read.failure();
    adapter = std::move(*read), method = adapter.formula.name;
  }
  const auto graphs = built_in_methods().graphs("linear", method.c_str(), false);
  if (!graphs) return graphs.failure();
  auto made = std::make_unique<adapted_layer>(*graphs, out, in);
  made->adapter = std::move(adapter);
  if (status s = made->runs.set("weight", view_of(weight, out, in)); !s) return s.failure();
  if (!bare)
    if (status s = io::attach(made->runs, made->adapter); !s) return s.failure();
  made->ask_for_all(*graphs);
  return made.release();
}

}  // namespace

extern "C" {

const char* graft_error() { return message.c_str(); }
// Loads the adapter of a module "lin"; without a folder the bare layer.
void* graft_layer(const char* folder, const float* weight, long long out, long long in) {
  auto made = load(folder, weight, out, in);
  if (!made) return message = made.message(), nullptr;
  return *made;
}
void graft_free(void* l) { delete of(l); }
void graft_train(void* l, int on) { of(l)->runs.train(on != 0); }
int graft_forward(void* l, const float* x, float* y, long long tokens) {
  return report(of(l)->runs.forward(view_of(x, tokens, of(l)->in), view_into(y, tokens, of(l)->out)));
}
int graft_backward(void* l, const float* x, const float* dy, float* dx, long long tokens) {
  return report(of(l)->runs.backward(view_of(x, tokens, of(l)->in), view_of(dy, tokens, of(l)->out),
                                     view_into(dx, tokens, of(l)->in), of(l)->gradients));
}
// Called as an optimizer would after its step.
int graft_parameters_changed(void* l) { return report(of(l)->runs.parameters_changed()); }
}
