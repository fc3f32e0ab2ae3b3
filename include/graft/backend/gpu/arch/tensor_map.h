// SPDX-License-Identifier: Apache-2.0
// TMA tensor maps (CUtensorMap): how the copy engine addresses boxes of a row-major 16-bit matrix. The rows of a box
// are 32, 64 or 128 bytes long (16, 32 or 64 columns) and are swizzled over that span, which is the layout that wgmma
// and tile_offset() in wgmma.cuh expect. Reads beyond the matrix give zeros.
#pragma once
#include <cuda.h>
#include <graft/backend/gpu/arch/error.h>
#include <graft/core/dtype.h>

namespace graft::gpu {

namespace detail {
// The driver encodes tensor maps. Its entry points are looked up at run time, once per process, so that programs do not
// link libcuda.
inline void* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer{};
  const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer);
  return e == cudaSuccess && answer == cudaDriverEntryPointSuccess ? found : nullptr;
}
inline auto map_encoder() {
  static const auto found =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(driver_function("cuTensorMapEncodeTiled"));
  return found;
}
inline auto map_replacer() {
  static const auto found =
      reinterpret_cast<decltype(&cuTensorMapReplaceAddress)>(driver_function("cuTensorMapReplaceAddress"));
  return found;
}
inline CUtensorMapSwizzle swizzle_of(int columns) {
  return columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
         : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                         : CU_TENSOR_MAP_SWIZZLE_32B;
}
}  // namespace detail

// A row-major matrix of 16-bit elements in device memory.
struct matrix {
  const void* data;
  long long rows, cols;
  long long pitch = cols;  // elements from one row to the next
};

inline status make_map(CUtensorMap& map, dtype type, const matrix& of, int box_rows, int box_cols) {
  const auto encode = detail::map_encoder();
  if (encode == nullptr) return fail("CUDA: there is no driver that makes tensor maps; install 12.0 or later");
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(of.cols), static_cast<cuuint64_t>(of.rows)};
  const cuuint64_t pitch[1] = {static_cast<cuuint64_t>(of.pitch) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)}, step[2] = {1, 1};
  const CUresult e =
      encode(&map, type == dtype::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
             const_cast<void*>(of.data), sizes, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
             detail::swizzle_of(box_cols), CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e == CUDA_SUCCESS) return ok;
  return fail("CUDA: no tensor map for a matrix of ", of.rows, " x ", of.cols, " (error ", static_cast<long long>(e),
              "); rows and addresses must be multiples of 16 bytes");
}

// A 3-D map of a matrix whose columns are heads next to each other. A box has `box_rows` rows and `box_chunks` chunks
// of `chunk` columns; in shared memory the chunks follow one another, each a swizzled tile of rows. Rows beyond the
// last are read as zeros and are not written.
inline status make_heads_map(CUtensorMap& map, dtype type, const matrix& of, int box_rows, int chunk, int box_chunks) {
  const auto encode = detail::map_encoder();
  if (encode == nullptr) return fail("CUDA: there is no driver that makes tensor maps; install 12.0 or later");
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(chunk), static_cast<cuuint64_t>(of.rows),
                               static_cast<cuuint64_t>(of.cols / chunk)};
  const cuuint64_t pitch[2] = {static_cast<cuuint64_t>(of.pitch) * 2, static_cast<cuuint64_t>(chunk) * 2};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(chunk), static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(box_chunks)},
                   step[3] = {1, 1, 1};
  const CUresult e =
      encode(&map, type == dtype::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
             const_cast<void*>(of.data), sizes, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
             detail::swizzle_of(chunk), CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e == CUDA_SUCCESS) return ok;
  return fail("CUDA: no tensor map for heads in a matrix of ", of.rows, " x ", of.cols, " (error ",
              static_cast<long long>(e), "); rows and addresses must be multiples of 16 bytes");
}

// Points the map at another matrix of the same sizes.
inline status set_map_address(CUtensorMap& map, const void* to) {
  const auto move = detail::map_replacer();
  if (move != nullptr && move(&map, const_cast<void*>(to)) == CUDA_SUCCESS) return ok;
  return fail("CUDA: a tensor map cannot be moved; addresses must be multiples of 16 bytes");
}

}  // namespace graft::gpu
