// SPDX-License-Identifier: Apache-2.0
// A layer with the compiled executor, in a program that instantiates none.
#include <graft/cpu.h>

#include <cstdio>

#if !defined(GRAFT_CPU_COMPILED)
#error "graft::cpu_compiled does not say that the executors are compiled"
#endif

struct small : graft::linear<2, 3, float, graft::lora<1>> {};

int main() {
  const float w[] = {1, 1, 1, 2, 2, 2}, a[] = {1, 0, 0}, b[] = {3, 6}, x[] = {1, 2, 3};
  float y[2] = {};
  graft::cpu::layer<small> q;
  for (const graft::status& s :
       {q.set("weight", graft::view_of(w, 2, 3)), q.set("lora_A.weight", graft::view_of(a, 1, 3)),
        q.set("lora_B.weight", graft::view_of(b, 2, 1)), q.set("scaling", 2.0),
        q.forward(graft::view_of(x, 1, 3), graft::view_into(y, 1, 2))})
    if (!s) return std::printf("%s\n", s.message()), 1;
  std::printf("y %g %g\n", static_cast<double>(y[0]), static_cast<double>(y[1]));
}
