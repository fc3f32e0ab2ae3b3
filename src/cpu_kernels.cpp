// SPDX-License-Identifier: Apache-2.0
// Chooses the kernels that this processor runs fastest, once; part of graft::cpu_compiled. It is compiled with the
// flags of the project, as everything that runs before the choice.
#include <graft/backend/cpu/instructions/kernel_set.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace graft_kernels {

#if defined(__x86_64__)
extern const set set_avx2, set_avx512;
#elif defined(__aarch64__)
extern const set set_dotprod, set_i8mm;
#endif

namespace {

struct choice {
  const set* runs[2] = {};
  int count = 0;

  void add(const set& s, bool has) {
    if (has) runs[count++] = &s;
  }
  choice() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    add(set_avx2, avx2);
    add(set_avx512, avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
#elif defined(__aarch64__) && defined(__linux__)
    // Bits of the Linux kernel, asm/hwcap.h: HWCAP_ASIMDDP and HWCAP2_I8MM.
    const bool dot = (getauxval(AT_HWCAP) >> 20U & 1U) != 0, matrices = (getauxval(AT_HWCAP2) >> 13U & 1U) != 0;
    add(set_dotprod, dot);
    add(set_i8mm, dot && matrices);
#elif defined(__aarch64__)
    add(set_dotprod, true);  // Apple's processors since the first M
#endif
  }
};
const choice& chosen() {
  static const choice once;
  return once;
}

}  // namespace

const set* best() { return supported(chosen().count - 1); }
const set* supported(int k) { return k >= 0 && k < chosen().count ? chosen().runs[k] : nullptr; }

}  // namespace graft_kernels
