// SPDX-License-Identifier: Apache-2.0
// Tensor maps: how the copy engine finds a box of a row-major 16-bit matrix. The rows of a box are 32, 64 or 128 bytes
// long and are swizzled over that span, the layout that wgmma reads.
#pragma once
#include <cuda.h>
#include <graft/backend/cuda/error.h>
#include <graft/core/dtype.h>

namespace graft::cuda {

namespace detail {
// The encoder lives in the driver; asking for it at run time saves the program from linking the driver.
inline result<decltype(&cuTensorMapEncodeTiled)> map_encoder() {
  static void* found = nullptr;
  if (found == nullptr) {
    cudaDriverEntryPointQueryResult answer{};
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &answer);
    if (status s = check(e, "looking for cuTensorMapEncodeTiled in the driver"); !s) return s.failure();
    if (found == nullptr) return fail("CUDA: the driver is older than 12.0: it has no tensor maps");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}
}  // namespace detail

struct matrix {
  const void* data;
  long long rows, cols;
};

inline status make_map(CUtensorMap& map, dtype type, const matrix& of, int box_rows, int box_cols) {
  auto encode = detail::map_encoder();
  if (!encode) return encode.failure();
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(of.cols), static_cast<cuuint64_t>(of.rows)};
  const cuuint64_t pitch[1] = {static_cast<cuuint64_t>(of.cols) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)}, step[2] = {1, 1};
  const CUtensorMapSwizzle swizzle = box_cols == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : box_cols == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                      : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUresult e =
      (*encode)(&map, type == dtype::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
                const_cast<void*>(of.data), sizes, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e == CUDA_SUCCESS) return ok;
  return fail("CUDA: no tensor map for a matrix of ", of.rows, " x ", of.cols, " (error ", static_cast<long long>(e),
              "); rows and addresses must be multiples of 16 bytes");
}

}  // namespace graft::cuda
