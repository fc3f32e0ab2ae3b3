// SPDX-License-Identifier: Apache-2.0
// The BLAS of graft's CPU backend in this package: sgemm_ and dgemm_, with Fortran's interface, as torch's own
// products. So large products take the time that they take in torch, on its threads, and there is no second BLAS.
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/tensor.h>

namespace {

using torch::stable::Tensor;

// A tensor that reads or writes column-major memory, or with 'T' its transpose.
Tensor column_major(const void* data, char form, int rows, int cols, int stride, std::int32_t type) {
  const bool transposed = form == 'T';
  const std::int64_t sizes[] = {rows, cols};
  const std::int64_t strides[] = {transposed ? stride : 1, transposed ? 1 : stride};
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(const_cast<void*>(data), 2, sizes, strides, 0, type,
                                                            aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}
// c = beta c + alpha op(a) op(b); with beta 0, c is not read.
template <class Real>
void multiply(char form_a, char form_b, int m, int n, int k, Real alpha, const Real* a, int a_stride, const Real* b,
              int b_stride, Real beta, Real* c, int c_stride, std::int32_t type) {
  const Tensor left = column_major(a, form_a, m, k, a_stride, type),
               right = column_major(b, form_b, k, n, b_stride, type), out = column_major(c, 'N', m, n, c_stride, type);
  TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(out.get(), out.get(), left.get(), right.get(),
                                                  static_cast<double>(beta), static_cast<double>(alpha)));
}

}  // namespace

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): Fortran's names
void sgemm_(const char* form_a, const char* form_b, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* a_stride, const float* b, const int* b_stride, const float* beta, float* c,
            const int* c_stride) {
  multiply(*form_a, *form_b, *m, *n, *k, *alpha, a, *a_stride, b, *b_stride, *beta, c, *c_stride,
           aoti_torch_dtype_float32());
}
void dgemm_(const char* form_a, const char* form_b, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* a_stride, const double* b, const int* b_stride, const double* beta, double* c,
            const int* c_stride) {
  multiply(*form_a, *form_b, *m, *n, *k, *alpha, a, *a_stride, b, *b_stride, *beta, c, *c_stride,
           aoti_torch_dtype_float64());
}
// NOLINTEND(readability-identifier-naming)
}
