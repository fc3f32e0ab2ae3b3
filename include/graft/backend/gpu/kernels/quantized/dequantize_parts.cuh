// SPDX-License-Identifier: Apache-2.0
// Dequantization of the formats of files, 16 elements per thread: the block formats of ggml, the integers with zero
// points of GPTQ and AWQ, and the 4-bit floats of MXFP4 and NVFP4.
//
//   to[i] = round(scale · code + minimum)   or   round((code - zero) · scale)      n elements, flat
//
// What a format stores is its description in core/quant: a kernel is a template of the description, so that a format
// that is listed in quant_formats.h needs no line here.
//
// Part             16 elements of a run of a block, or of a row. All have one scale, except where GPTQ puts columns
//                  into groups of any order or a group ends within a part.
// Blocks           A CTA copies 4096 elements' blocks to shared memory by 16 bytes a load, because blocks of
//                  18 to 210 bytes are not aligned; threads then read single bytes there.
// Planes           A thread loads its 4 to 16 bytes of codes at once; rows are whole parts.
// Stores           Two lanes exchange halves of their parts, so that a store instruction of a warp writes whole sectors
//                  of 32 bytes.
// Experts          blockIdx.y is the matrix of a stack. With few rows, CTAs of experts without any return: a
//                  decode step of 8 experts of 128 writes a sixteenth of them.
// Types            The type of the result is known at run time, so that there is one instance per format.
#pragma once
#include <graft/backend/gpu/kernels/quantized/dequantize.cuh>

namespace graft::gpu {

using quant_formats::part_size;

// Dequantizes a part of a weight of ggml's blocks. Parts are counted over the whole weight.
__host__ __device__ inline void dequantize_block_part(const quantized_weight& w, long long part,
                                                      float (&to)[part_size]) {
  for (float& v : to) v = nanf("");
  quant_formats::ggml_formats::visit(w.format, [&](auto format) {
    using Format = decltype(format);
    constexpr int parts = Format::block / part_size;
    quant_formats::dequantize_part<Format>(w.qweight + part / parts * Format::bytes, static_cast<int>(part % parts),
                                           to);
  });
}

// The stored bytes of a part whose codes have as many bits as the type, aligned as they are in a weight.
template <dtype Type> struct stored_part {
  static constexpr int bits = bits_of(Type), bytes = part_size / 8 * bits, alignment = bytes & -bytes;
  alignas(alignment) unsigned char codes[bytes];

  __host__ __device__ float number(int k, float scale, int zero) const {
    if constexpr (Type == dtype::f4_e2m1)
      return quant_formats::e2m1::value(quant_formats::e2m1::code_at(codes, k)) * scale;
    else
      return quant_formats::grouped_uint::dequantize(quant_formats::grouped_uint::code(codes, k, bits), zero, scale);
  }
};
// The groups of a part's columns.
struct alignas(16) part_groups {
  std::int32_t of[part_size];
};
// Dequantizes a part of a weight whose scales, and zero points if any, are for groups of columns within rows.
template <dtype Type>
__host__ __device__ void dequantize_row_part(const quantized_weight& w, unsigned part, float (&to)[part_size]) {
  const auto row_parts = static_cast<unsigned>(w.cols / part_size), column = part % row_parts * part_size;
  const auto stored = reinterpret_cast<const stored_part<Type>*>(w.qweight)[part];
  const long long row_group = part / row_parts * w.row_groups;
  const auto zero = [&](long long k) { return Type == dtype::f4_e2m1 ? 0 : static_cast<int>(w.zeros[k]); };
  const bool in_order = w.format.scaled == scale_granularity::block;
  const auto block = static_cast<unsigned>(w.format.block);
  if (in_order && column / block == (column + part_size - 1) / block) {
    const long long k = row_group + column / block;
    const float scale = w.scale(k);
    const int less = zero(k);
#pragma unroll
    for (int i = 0; i < part_size; ++i) to[i] = stored.number(i, scale, less);
    return;
  }
  part_groups groups;
  if (in_order)
    for (int i = 0; i < part_size; ++i) groups.of[i] = static_cast<std::int32_t>((column + i) / block);
  else
    groups = *reinterpret_cast<const part_groups*>(w.column_group + column);
#pragma unroll
  for (int i = 0; i < part_size; ++i) {
    const long long k = row_group + groups.of[i];
    to[i] = stored.number(i, w.scale(k), zero(k));
  }
}

struct dequantize_parts_args {
  static constexpr int threads = 256;
  quantized_weight from;
  element_ptr<float> to;
  long long parts;  // of a matrix
  used_experts used;

  // True for all threads of a block whose expert has no rows. The routing may be what the previous kernel writes.
  __device__ bool is_unused() const {
    if (!waits_for_routing()) return false;
    pdl_begin();
    return !used.has(blockIdx.y);
  }
  __device__ bool waits_for_routing() const { return used.routing.rows > 0; }
  __device__ element_ptr<float> matrix() const { return to + blockIdx.y * parts * part_size; }
};
template <class T> __device__ __forceinline__ uint4 pack8(const float* v) {
  return {pack<T>(v[0], v[1]), pack<T>(v[2], v[3]), pack<T>(v[4], v[5]), pack<T>(v[6], v[7])};
}
// Stores part `part` of `parts`. All lanes of a warp call it, also those that have none; even lanes have even parts.
__device__ inline void store_part(const element_ptr<float>& matrix, long long part, long long parts,
                                  const float (&v)[part_size]) {
  if (matrix.type == dtype::f32) {
    if (part >= parts) return;
    auto* const to = static_cast<float4*>(matrix.at) + part * (part_size / 4);
    for (int k = 0; k < part_size / 4; ++k) to[k] = {v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]};
    return;
  }
  const bool is_bf16 = matrix.type == dtype::bf16, is_odd = part % 2 != 0;
  const uint4 low = is_bf16 ? pack8<__nv_bfloat16>(v) : pack8<__half>(v),
              high = is_bf16 ? pack8<__nv_bfloat16>(v + 8) : pack8<__half>(v + 8), mine = is_odd ? low : high;
  const uint4 other{__shfl_xor_sync(0xffffffffU, mine.x, 1), __shfl_xor_sync(0xffffffffU, mine.y, 1),
                    __shfl_xor_sync(0xffffffffU, mine.z, 1), __shfl_xor_sync(0xffffffffU, mine.w, 1)};
  auto* const to = static_cast<uint4*>(matrix.at) + part / 2 * 4;
  if (part / 2 * 2 + 1 < parts) {
    to[is_odd ? 1 : 0] = is_odd ? other : low;
    to[is_odd ? 3 : 2] = is_odd ? high : other;
  } else if (part < parts) {  // the last part of an odd number
    to[0] = low, to[1] = high;
  }
}

template <class Format>
__global__ void __launch_bounds__(dequantize_parts_args::threads)
    dequantize_blocks_kernel(const __grid_constant__ dequantize_parts_args g) {
  constexpr int threads = dequantize_parts_args::threads, parts = Format::block / part_size,
                tile_bytes = threads / parts * Format::bytes, load = 16;
  static_assert(tile_bytes % load == 0);
  __shared__ __align__(16) unsigned char tile[tile_bytes];
  if (g.is_unused()) return;
  const int thread = static_cast<int>(threadIdx.x);
  const long long matrix_bytes = g.parts / parts * Format::bytes;
  for (long long at = blockIdx.x; at * threads < g.parts; at += gridDim.x) {
    const unsigned char* const from = g.from.qweight + blockIdx.y * matrix_bytes + at * tile_bytes;
    const long long rest = matrix_bytes - at * tile_bytes;
    const int bytes = rest < tile_bytes ? static_cast<int>(rest) : tile_bytes;
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(from) % load == 0;
    const int vectors = is_aligned ? bytes / load : 0;
    for (int i = thread; i < vectors; i += threads)
      reinterpret_cast<uint4*>(tile)[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i);
    for (int i = vectors * load + thread; i < bytes; i += threads) tile[i] = from[i];
    __syncthreads();
    // The previous kernel may still read the buffer.
    if (at == blockIdx.x && !g.waits_for_routing()) pdl_begin();
    float v[part_size] = {};
    const long long part = at * threads + thread;
    if (part < g.parts)
      quant_formats::dequantize_part<Format>(tile + thread / parts * Format::bytes, thread % parts, v);
    store_part(g.matrix(), part, g.parts, v);
    __syncthreads();
  }
}
template <dtype Type>
__global__ void __launch_bounds__(dequantize_parts_args::threads)
    dequantize_rows_kernel(const __grid_constant__ dequantize_parts_args g) {
  constexpr int threads = dequantize_parts_args::threads;
  if (g.is_unused()) return;
  for (long long at = blockIdx.x; at * threads < g.parts; at += gridDim.x) {
    const long long part = at * threads + threadIdx.x;
    float v[part_size] = {};
    if (part < g.parts) dequantize_row_part<Type>(g.from, static_cast<unsigned>(blockIdx.y * g.parts + part), v);
    // The previous kernel may still read the buffer.
    if (at == blockIdx.x && !g.waits_for_routing()) pdl_begin();
    store_part(g.matrix(), part, g.parts, v);
  }
}

// Whether the kernels above take this weight: ggml's blocks always, groups of columns where rows are whole aligned
// parts.
inline bool has_parts(const quantized_weight& w, long long n) {
  if (w.format.block_bytes > 0) return true;
  const auto is_aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return (has_zero_points(w.format) || w.format.type == dtype::f4_e2m1) && w.cols % part_size == 0 &&
         n % part_size == 0 && n / part_size < (1LL << 31) && is_aligned(w.qweight) && is_aligned(w.column_group);
}
// Templates, because naming them compiles the kernels of every format; graft::gpu_compiled compiles them once.
template <class = void>
status dequantize_parts(cudaStream_t stream, const quantized_weight& from, long long n, const element_ptr<float>& to,
                        long long matrices, const used_experts& used) {
  constexpr long long threads = dequantize_parts_args::threads;
  const dequantize_parts_args g{from, to, n / part_size / matrices, used};
  // A CTA per tile of a matrix. Those of a stack share the tiles of their expert, so that an expert without
  // rows costs few of them.
  constexpr long long enough = 8192;
  const long long tiles = (g.parts + threads - 1) / threads,
                  blocks = matrices == 1 ? tiles : min_of(tiles, (enough + matrices - 1) / matrices);
  status done = no_quantized_kernels();
  const auto run = [&](auto* kernel) {
    done = n == 0 ? status(ok)
                  : launch_pdl(stream, kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(matrices)),
                               dim3(static_cast<unsigned>(threads)), "dequantize", g);
  };
  switch (from.format.type) {
    case dtype::ggml:
      quant_formats::ggml_formats::visit(from.format,
                                         [&](auto format) { run(&dequantize_blocks_kernel<decltype(format)>); });
      break;
    case dtype::u2: run(&dequantize_rows_kernel<dtype::u2>); break;
    case dtype::u3: run(&dequantize_rows_kernel<dtype::u3>); break;
    case dtype::u4: run(&dequantize_rows_kernel<dtype::u4>); break;
    case dtype::u8: run(&dequantize_rows_kernel<dtype::u8>); break;
    case dtype::f4_e2m1: run(&dequantize_rows_kernel<dtype::f4_e2m1>); break;
    case dtype::nf4:
    case dtype::fp4:
    case dtype::int8:
    case dtype::f8_e4m3:
    case dtype::f32:
    case dtype::f64:
    case dtype::bf16:
    case dtype::f16:
    case dtype::i64:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0: break;  // has_parts() is false
  }
  return done;
}

// Look-up in a table of ggml's blocks: a part of a row per index, or an element where columns are looked up.
struct gathered_parts {
  gathered_dequantized of;
  __host__ __device__ static constexpr int width(bool by_column) { return by_column ? 1 : part_size; }
  __host__ __device__ void operator()(long long at) const {
    const long long i = at * width(of.by_column), c = i % of.out.d[3], row = of.looked_up(i);
    const bool inside = of.is_inside(row);
    const long long element = !inside ? 0 : of.by_column ? c * of.from.cols + row : row * of.from.cols + c;
    float v[part_size];
    dequantize_block_part(of.from, element / part_size, v);
    for (int k = 0; k < part_size; ++k)
      if (!of.by_column)
        of.out.p.put(i + k, inside ? v[k] : of.outside());
      else if (k == element % part_size)
        of.out.p.put(i, inside ? v[k] : of.outside());
  }
};
template <class = void> status gather_parts(cudaStream_t stream, const gathered_dequantized& f) {
  return on_stream{stream}.elements(f.out.count() / gathered_parts::width(f.by_column), gathered_parts{f},
                                    "gather from a quantized table");
}
#if defined(GRAFT_GPU_COMPILED)
extern template status dequantize_parts<void>(cudaStream_t, const quantized_weight&, long long,
                                              const element_ptr<float>&, long long, const used_experts&);
extern template status gather_parts<void>(cudaStream_t, const gathered_dequantized&);
#endif

// Every format, for programs that learn the formats of their weights at run time.
template <class T>
status dequantize_any(cudaStream_t stream, const quantized_weight& from, long long n, const element_ptr<float>& to,
                      long long matrices, const used_experts& used) {
  return has_parts(from, n) ? dequantize_parts(stream, from, n, to, matrices, used)
                            : dequantize_weight<T>(stream, from, n, to);
}
template <class = void> status gather_any(cudaStream_t stream, const gathered_dequantized& f) {
  return f.from.format.block_bytes > 0 ? gather_parts(stream, f) : gather_dequantized(stream, f);
}

}  // namespace graft::gpu
