// SPDX-License-Identifier: Apache-2.0
// A weight that is codes, as kernels read it, and how it comes to the device. Look-ups decode the rows they want. What a
// code means is in the files of core/encoding.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/memory.h>
#include <graft/backend/cuda/tensor.cuh>
#include <graft/core/encodings.h>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

struct coded {
  encoding how{};
  const unsigned char* codes = nullptr;
  const void* scales = nullptr;
  const float *second_scales = nullptr, *second_table = nullptr;
  float offset = 0;
  long long cols = 0;
  float table[16] = {};  // of codes of four bits
  int shift = 0;         // two to this power is a block of such codes,
  int second_shift = 0;  // and the scales that share a second scale; -1: they are no such power
  long long pitch = 0;   // how far their blocks are from row to row, in elements
  long long scale_count = 0;

  // As encodings::nested_scale rounds.
  __device__ float nested_from(float value, float second) const { return __fadd_rn(__fmul_rn(value, second), offset); }
  __device__ float nested(unsigned code, float second) const { return nested_from(__ldg(second_table + code), second); }
  __device__ float scale(long long k) const {
    if (how.scales == dtype::u8)
      return nested(static_cast<const unsigned char*>(scales)[k],
                    __ldg(second_scales + (second_shift < 0 ? k / how.second_block : k >> second_shift)));
    return cells<float>(const_cast<void*>(scales), how.scales)[k];
  }
  // The scale that element i is multiplied with.
  __device__ long long place_of_scale(long long i) const {
    switch (how.scaled) {
      case scaled_by::row: return i / cols;
      case scaled_by::run: return i / how.block;
      case scaled_by::row_run: return i / cols * (cols / how.block) + i % cols / how.block;
      default: return 0;
    }
  }
  __device__ float value(long long i, float scale) const {
    switch (how.codes) {
      case dtype::int8: return encodings::int8_codes::number(static_cast<signed char>(codes[i]), scale);
      case dtype::f8_e4m3: return encodings::fp8_codes::value(codes[i]) * scale;
      default: return table[encodings::four_bits_at(codes, i)] * scale;
    }
  }
  // N elements from `first` on, all of one block of ggml where there are such blocks.
  template <int N> __device__ void load(float (&to)[N], long long first) const {
    if (how.block_bytes > 0) {
      const unsigned char* const block = codes + first / how.block * how.block_bytes;
      const auto inside = static_cast<int>(first % how.block);
      const float s = encodings::half_at(block);
      for (int k = 0; k < N; ++k)
        to[k] = how.block_type == encodings::q8_0_codes::number_in_files
                    ? encodings::q8_0_codes::number(block, inside + k, s)
                    : encodings::q4_0_codes::number(block, inside + k, s);
      return;
    }
    const long long place = place_of_scale(first);
    if (N == 1 || place_of_scale(first + N - 1) == place) {
      const float s = scale(place);
      for (int k = 0; k < N; ++k) to[k] = value(first + k, s);
    } else {
      for (int k = 0; k < N; ++k) to[k] = value(first + k, scale(place_of_scale(first + k)));
    }
  }
};
inline coded coded_of(const view& v) {
  const planes& p = *v.beside;
  coded c{p.how,
          static_cast<const unsigned char*>(v.data),
          p.scales,
          p.second_scales,
          p.second_table,
          p.offset,
          v.size[v.rank - 1]};
  const float* const values = p.how.codes == dtype::fp4 ? encodings::fp4_codes::table : encodings::nf4_codes::table;
  for (int k = 0; k < 16; ++k) c.table[k] = values[k];
  c.scale_count = planes_of(p.how, v.size[0], v.size[1]).scales;
  if (has_four_bits(p.how)) {
    while (1 << (c.shift + 1) <= p.how.block) ++c.shift;
    while (1 << (c.second_shift + 1) <= p.how.second_block) ++c.second_shift;
    if (1 << c.second_shift != p.how.second_block) c.second_shift = -1;
    c.pitch = p.how.scaled == scaled_by::run ? c.cols : c.cols >> c.shift << c.shift;
  }
  return c;
}

struct gathered_codes {
  tensor<float> out;
  coded from;
  long long rows;
  const std::int64_t* ids;
  bool by_column;
  table_part part{};
  __device__ void operator()(long long i) const {
    const long long c = i % out.d[3], row = ids[i / out.d[3]] - part.first;
    float v[1] = {part.is ? 0.0F : nanf("")};  // an id outside the table gives no number
    if (row >= 0 && row < (by_column ? from.cols : rows))
      from.load(v, by_column ? c * from.cols + row : row * from.cols + c);
    out.p.put(i, v[0]);
  }
};

// Codes of host memory with all that belongs to them, in device memory; `beside` says where, and lives with it.
inline result<view> place_codes(cudaStream_t stream, const view& host, buffer& into, planes& beside) {
  if (status s = check_codes("weight", host); !s) return s.failure();
  const planes& from = *host.beside;
  const plane_sizes n = planes_of(from.how, host.size[0], host.size[1]);
  struct piece {
    const void* from;
    long long bytes, at;
  };
  piece all[4] = {{host.data, bytes_of_codes(from.how, host.size[0], host.size[1]), 0},
                  {from.scales, n.scales * bits_of(from.how.scales) / 8, 0},
                  {from.second_scales, n.second_scales * 4, 0},
                  {from.second_table, from.how.second_block > 0 ? 256 * 4 : 0, 0}};
  long long total = 0;
  for (piece& p : all) p.at = total, total += (p.bytes + 255) / 256 * 256;
  if (status s = into.reserve(larger_of(256LL, total)); !s) return s.failure();
  char* const at = into.as<char>();
  for (const piece& p : all)
    if (p.bytes > 0)
      if (status s = check(
              cudaMemcpyAsync(at + p.at, p.from, static_cast<std::size_t>(p.bytes), cudaMemcpyHostToDevice, stream),
              "bringing codes to the GPU");
          !s)
        return s.failure();
  if (status s = check(cudaStreamSynchronize(stream), "bringing codes to the GPU"); !s) return s.failure();
  beside = from;
  if (all[1].bytes > 0) beside.scales = at + all[1].at;
  if (from.how.second_block > 0)
    beside.second_scales = reinterpret_cast<float*>(at + all[2].at),
    beside.second_table = reinterpret_cast<float*>(at + all[3].at);
  view placed = host;
  placed.data = at, placed.beside = &beside;
  return placed;
}

}  // namespace graft::cuda
