// SPDX-License-Identifier: Apache-2.0
// A program of a user who has many warnings on (-Wconversion, -Wsign-conversion, -Wshadow, -Wpedantic), finds the
// headers by a plain -I, has no run-time type information (-fno-rtti), and says `using namespace graft;` beside common
// words as names of its own. It only has to compile, once for all of this, because the headers are most of the time.
#include <graft/blocks.h>
#include <graft/io/hf/layer_adapters.h>
#include <graft/models.h>

namespace layers {

struct q_proj : graft::linear<64, 64, float, graft::dora<4>> {};
struct rotated : graft::linear<64, 64, float, graft::oft<8>> {};
struct quantized : graft::linear<64, 64, graft::nf4<64>, graft::lora<4>> {};

template <class Layer> graft::status use() {
  graft::cpu::layer<Layer> one;
  one.train(true);
  return one.bind();
}
graft::status use_all() {
  for (const graft::status& s : {use<q_proj>(), use<rotated>(), use<quantized>()})
    if (!s) return s;
  return graft::io::hf::load_model<graft::cpu::engine<float>>("folder") ? graft::status(graft::ok)
                                                                        : graft::fail("there is no folder");
}

}  // namespace layers

namespace adapters {

using namespace graft;
using engine = cpu::engine<float>;

struct q_proj : linear<64, 64, float, lora<4>> {};

status use(causal_lm<engine>& model, adapted_layer<engine>& layer, const io::base_layer& base) {
  cpu::layer<q_proj> one;
  one.train(true);
  if (status s = io::hf::load_adapter(model, "a", "folder"); !s) return s;
  if (status s = io::hf::replace_adapter(model, "a", "folder"); !s) return s;
  if (status s = io::hf::combine(model, "c", {"a"}, {1.0}); !s) return s;
  if (status s = io::hf::load_adapter(layer, base, "a", "folder"); !s) return s;
  if (status s = io::hf::save_adapter("folder", layer, "a"); !s) return s;
  return io::hf::save_adapter("folder", model, "c");
}

}  // namespace adapters

// In a namespace of the program every word may be its own. At global scope those may that are no name of graft: a word
// that is added there fails here.
namespace own {

using namespace graft;

struct plan {
  int v;
};
struct node {
  int v;
};
struct text {
  int v;
};
struct slot {
  int v;
};
struct id {
  int v;
};
enum op { plus_op };
using view = int;
using status = int;
using result = int;
int make(int v) { return v; }
int row(int v) { return v; }
int on(int v) { return v; }
int where = 1, at = 2, call = 3, mode = 4, count = 5, unknown = 6;

int all() {
  const plan p{1};
  const node n{2};
  const text t{3};
  const slot s{4};
  const id i{5};
  const op o = plus_op;
  const view v = 6;
  const status u = 7;
  const result r = 8;
  return p.v + n.v + t.v + s.v + i.v + o + v + u + r + make(1) + row(2) + on(3) + where + at + call + mode + count +
         unknown;
}
// What is not a name of the program's own is graft's.
struct q_proj : linear<64, 64, float, lora<4>> {};
static_assert(compile<q_proj, fullgraph>::kernels == 1);

}  // namespace own

using namespace graft;

// Types, because g++ 12 says of a global variable that it is shadowed by the parameters of that name of all lambdas in
// templates (-Wshadow).
struct value {};
struct item {};
struct size {};
struct name {};
struct data {};
struct rows {};
struct rank {};
struct model {};
struct input {};
struct layer {};
struct key {};
struct batch {};
struct loss {};
struct plan {};
struct slot {};
struct mode {};
struct fault {};
struct flow {};
struct axes {};
struct call {};
int make(int v) { return v; }
int run(int v) { return v; }
int on(int v) { return v; }
int at(int v) { return v; }
int row(int v) { return v; }
int count(int v) { return v; }
int fit(int v) { return v; }
int store(int v) { return v; }
int below(int v) { return v; }
int plus(int v) { return v; }
int times(int v) { return v; }
int adds(int v) { return v; }
int either(int v) { return v; }
enum where { here };

// Local names may be any word, graft's too: the program's hide them.
int locals() {
  const int make = 1, plan = 2, on = 3, at = 4, row = 5, size = 6, cost = 7, view = 8, node = 9, graph = 10, text = 11,
            status = 12, result = 13, fail = 15, target = 16, layer = 17, stage = 18, pass = 19, program = 20;
  return make + plan + on + at + row + size + cost + view + node + graph + text + status + result + fail + target +
         layer + stage + pass + program;
}

int main() {
  const auto bytes = sizeof(value) + sizeof(item) + sizeof(size) + sizeof(name) + sizeof(data) + sizeof(rows) +
                     sizeof(rank) + sizeof(model) + sizeof(input) + sizeof(layer) + sizeof(key) + sizeof(batch) +
                     sizeof(loss) + sizeof(plan) + sizeof(slot) + sizeof(mode) + sizeof(fault) + sizeof(flow) +
                     sizeof(axes) + sizeof(call) + sizeof(where);
  const int calls = make(3) + run(4) + on(5) + at(6) + row(7) + count(8) + fit(9) + store(10) + below(11) + plus(12) +
                    times(13) + adds(14) + either(15) + here;
  return bytes > 0 && calls + locals() + own::all() > 0 ? 0 : 1;
}
