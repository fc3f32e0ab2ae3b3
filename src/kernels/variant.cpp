// SPDX-License-Identifier: Apache-2.0
// The kernels of one instruction set; part of graft::cpu_compiled, which compiles this file once for each of them with
// its flags (cmake/cpu_kernels.cmake). GRAFT_KERNEL_SET is the name of the set, GRAFT_KERNEL_LEVEL its level. The
// namespaces of the library and of Eigen are renamed, so that the linker never takes a function of this file for one of
// the same name that has to run on every processor; of the standard library only functions that are inlined are used
// (test/kernel_sets). Whether the processor has the instructions is asked in cpu_kernels.cpp, which every one runs.
#define GRAFT_JOIN_NAMES(a, b) a##b
#define GRAFT_NAME_WITH(a, b) GRAFT_JOIN_NAMES(a, b)
#define graft GRAFT_NAME_WITH(graft_for_, GRAFT_KERNEL_SET)
#define Eigen GRAFT_NAME_WITH(Eigen_for_, GRAFT_KERNEL_SET)
#undef GRAFT_CPU_KERNELS
#include <graft/backend/cpu/gemm/matmul.h>

namespace graft_kernels {
namespace {

using namespace graft::cpu;

void multiply(const product& c, int kernel, bool overwrite) {
  detail::run(problem_of<float>(c), static_cast<gemm_kernel>(kernel), overwrite);
}
void reserve(const product& c, int kernel) {
  detail::reserve_scratch(problem_of<float>(c), static_cast<gemm_kernel>(kernel));
}
void multiply_bf16(const product& c) { skinny_nt_gemm(problem_of<graft::bf16>(c)); }
void multiply_f16(const product& c) { skinny_nt_gemm(problem_of<graft::f16>(c)); }
bool reads_quantized(const quantized& w, long long tokens) {
  return detail::reads_quantized<float>(weight_of_kernel(w).view, tokens);
}
void multiply_quantized(const product& c, const quantized& w, long long first) {
  detail::quantized_share(problem_of<float>(c), weight_of_kernel(w).view, first);
}
void dequantize(const quantized& w, long long first, long long n, float* to) {
  graft::cpu::dequantize(weight_of_kernel(w).view, first, n, to);
}
}  // namespace

extern const set GRAFT_NAME_WITH(set_, GRAFT_KERNEL_SET);
#define GRAFT_TEXT_OF(a) #a
#define GRAFT_TEXT(a) GRAFT_TEXT_OF(a)
const set GRAFT_NAME_WITH(set_, GRAFT_KERNEL_SET) = {
    GRAFT_TEXT(GRAFT_KERNEL_SET), GRAFT_KERNEL_LEVEL, multiply, reserve, multiply_bf16, multiply_f16, reads_quantized,
    multiply_quantized,           dequantize};

}  // namespace graft_kernels
