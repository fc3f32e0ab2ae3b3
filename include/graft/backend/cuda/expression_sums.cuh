// SPDX-License-Identifier: Apache-2.0
// Sums of an expression: of each row, of each column, or over any axes. A warp takes four narrow rows, whose operands are on
// their way together, a block of threads a wide one. The rows of a sum per column are cut into parts, a block of a cluster
// each, which are added in their order. The matrices of a stack are added up by a thread for eight numbers.
// Everything else is a block of threads for each number of the result.
#pragma once
#include <graft/backend/cuda/expression_steps.cuh>
#include <graft/backend/cuda/sum_form.h>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

struct expression_row_sums {
  expression_eights<false> of;
  cells<float> out;

  template <class Team> __device__ void operator()(long long row, Team t) const {
    const unsigned eights = of.width / 8;
    float part = 0;
    for (auto c = static_cast<unsigned>(t.rank); c < eights; c += static_cast<unsigned>(t.size)) {
      float v[8];
      of.value(v, row * eights + c);
      for (int k = 0; k < 8; ++k) part += v[k];
    }
    const float sum = t.sum(part);
    if (t.leads()) out.put(row, sum);
  }
};
struct expression_narrow_row_sums {
  static constexpr int together = 4;

  expression_eights<false> of;
  cells<float> out;
  unsigned rows;
  bool multiplies;

  template <class Team> __device__ void operator()(long long group, Team t) const {
    const unsigned eights = of.width / 8, first = static_cast<unsigned>(group) * together;
    const auto mine = static_cast<unsigned>(t.rank);
    auto add = [&](unsigned row, const float(&v)[8]) {
      float part = 0;
      for (int k = 0; k < 8; ++k) part += v[k];
      const float sum = t.sum(part);
      if (t.leads()) out.put(row, sum);
    };
    if (multiplies && first + together <= rows) {
      float v[together][8] = {};
      if (mine < eights) of.products(v, static_cast<long long>(first) * eights + mine, eights);
#pragma unroll
      for (int n = 0; n < together; ++n) add(first + n, v[n]);
      return;
    }
    for (unsigned row = first; row < rows && row < first + together; ++row) {
      float v[8] = {};
      if (mine < eights) of.value(v, static_cast<long long>(row) * eights + mine);
      add(row, v);
    }
  }
};
struct expression_column_sums {
  static constexpr unsigned threads = 256, across = 2, down = threads / across, wide = 8 * across, most_parts = 8;

  expression_eights<false> of;
  cells<float> out;
  unsigned rows;
  bool multiplies;

  // Of eight columns, over the rows of a part.
  __device__ void add(float (&sum)[8], unsigned eight, unsigned first, unsigned end) const {
    constexpr int ahead = 4;
    const unsigned eights = of.width / 8;
    unsigned r = first;
    for (; multiplies && r + (ahead - 1) * down < end; r += ahead * down) {
      float v[ahead][8];
      of.products(v, static_cast<long long>(r) * eights + eight, static_cast<long long>(down) * eights);
#pragma unroll
      for (int n = 0; n < ahead; ++n)
        for (int k = 0; k < 8; ++k) sum[k] += v[n][k];
    }
    for (; r < end; r += down) {
      float v[8];
      of.value(v, static_cast<long long>(r) * eights + eight);
      for (int k = 0; k < 8; ++k) sum[k] += v[k];
    }
  }
};
// A part of the rows of sixteen columns.
template <class Sums> __global__ void __launch_bounds__(Sums::threads) sum_columns_of(Sums g) {
  __shared__ float by_warp[Sums::threads / 32][Sums::wide], total[Sums::wide];
  take_turn();
  const unsigned part = blockIdx.x, parts = gridDim.x, eight = blockIdx.y * Sums::across + threadIdx.x % Sums::across;
  const auto begin = [&](unsigned p) {
    return static_cast<unsigned>(static_cast<unsigned long long>(g.rows) * p / parts);
  };
  float sum[8] = {};
  if (eight < g.of.width / 8) g.add(sum, eight, begin(part) + threadIdx.x / Sums::across, begin(part + 1));
#pragma unroll
  for (int k = 0; k < 8; ++k)
    for (unsigned d = 16; d >= Sums::across; d /= 2)
      sum[k] += __shfl_xor_sync(0xffffffffU, sum[k], static_cast<int>(d));
  if (threadIdx.x % 32 < Sums::across)
    for (int k = 0; k < 8; ++k) by_warp[threadIdx.x / 32][threadIdx.x % 32 * 8 + k] = sum[k];
  __syncthreads();
  const unsigned column = blockIdx.y * Sums::wide + threadIdx.x;
  const bool adds = threadIdx.x < Sums::wide;
  float all = 0;
  if (adds) {
    for (unsigned w = 0; w < Sums::threads / 32; ++w) all += by_warp[w][threadIdx.x];
    total[threadIdx.x] = all;
  }
#if __CUDA_ARCH__ >= 900
  if (parts > 1) {
    ptx::cluster_sync();
    if (part == 0 && adds)
      for (unsigned p = 1; p < parts; ++p) all += ptx::load_one_at(ptx::shared_address(&total[threadIdx.x]), p);
    ptx::cluster_sync();  // nobody leaves while its sums are read
  }
#endif
  if (part == 0 && adds && column < g.of.width) g.out.put(column, all);
}
template <class Sums> status sum_columns_by_parts(cudaStream_t stream, Sums sums) {
  const unsigned groups = (sums.of.width + Sums::wide - 1) / Sums::wide;
  unsigned parts = device_chains() ? Sums::most_parts : 1;  // clusters came with the same devices
  while (parts > 1 && (groups * parts > 512 || sums.rows < parts * Sums::down)) parts /= 2;
  cudaLaunchAttribute how[2];
  how[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  how[0].val.programmaticStreamSerializationAllowed = 1;
  how[1].id = cudaLaunchAttributeClusterDimension;
  how[1].val.clusterDim = {parts, 1, 1};
  const cudaLaunchConfig_t config{dim3(parts, groups), dim3(Sums::threads), 0, stream, how, device_chains() ? 2U : 0U};
  void* arguments[] = {&sums};
  return launch(config, reinterpret_cast<const void*>(&sum_columns_of<Sums>), arguments, "sums of columns");
}

struct expression_sums {
  expression e;
  cells<float> out;
  unsigned size[4], to[4];  // of what is added up, and of the result: 1 along the axes that are summed

  __host__ __device__ unsigned added() const {
    unsigned n = 1;
    for (int k = 0; k < 4; ++k) n *= to[k] == size[k] ? 1 : size[k];
    return n;
  }
  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    unsigned first[4], place = static_cast<unsigned>(i);
    for (int k = 3; k >= 0; --k) first[k] = place % to[k], place /= to[k];
    float part = 0;
    for (auto n = static_cast<unsigned>(t.rank); n < added(); n += static_cast<unsigned>(t.size)) {
      unsigned c[4], rest = n;
      for (int k = 3; k >= 0; --k) {
        const bool summed = to[k] != size[k];
        c[k] = summed ? rest % size[k] : first[k];
        if (summed) rest /= size[k];
      }
      part += e.at(c);
    }
    const float sum = t.sum(part);
    if (t.leads()) out.put(i, sum);
  }
};

// The matrices of a stack, where they are many numbers: eight of each for a thread.
struct expression_matrix_sums {
  expression_eights<false> of;
  unsigned matrices;
  bool multiplies;

  __device__ void operator()(long long i) const {
    constexpr int ahead = 4;
    const long long each = static_cast<long long>(of.rows[2]) * (of.width / 8);
    float sum[8] = {};
    unsigned m = 0;
    for (; multiplies && m + ahead <= matrices; m += ahead) {
      float v[ahead][8];
      of.products(v, i + m * each, each);
#pragma unroll
      for (int n = 0; n < ahead; ++n)
        for (int k = 0; k < 8; ++k) sum[k] += v[n][k];
    }
    for (; m < matrices; ++m) {
      float v[8];
      of.value(v, i + m * each);
      for (int k = 0; k < 8; ++k) sum[k] += v[k];
    }
    store_eight(sum, of.out, 8 * i);
  }
};

// The kernels of the forms, as pointers: to name one is to compile it.
struct sum_functions {
  using of_eights = status (*)(cudaStream_t, const expression_eights<false>&, const cells<float>& out, unsigned rows);
  of_eights special[sum_forms - 1] = {};
  status (*any)(cudaStream_t, const expression_sums&) = nullptr;
};
template <sum_form Form>
status add_up(cudaStream_t stream, const expression_eights<false>& wide, const cells<float>& out, unsigned rows) {
  const on_stream on{stream};
  if constexpr (Form == sum_form::narrow_rows)
    return on.rows((rows + 3LL) / expression_narrow_row_sums::together,
                   expression_narrow_row_sums{wide, out, rows, wide.multiplies()}, "sums of rows");
  else if constexpr (Form == sum_form::rows)
    return on.blocks(rows, between((wide.width / 8 + 31) / 32 * 32, 32U, 256U), expression_row_sums{wide, out},
                     "sums of rows");
  else
    return sum_columns_by_parts(stream, expression_column_sums{wide, out, rows, wide.multiplies()});
}
template <class Sums = expression_sums> status add_up_any(cudaStream_t stream, const Sums& sums) {
  const unsigned threads = between((sums.added() / 4 + 31) / 32 * 32, 32U, 1024U),
                 numbers = sums.to[0] * sums.to[1] * sums.to[2] * sums.to[3];
  const bool stack = sums.to[0] * sums.to[1] == 1 && sums.to[2] == sums.size[2] && sums.to[3] == sums.size[3];
  if (expression_eights<false> wide{sums.e, sums.out, sums.size[3], {}};
      stack && numbers >= 16384 && wide.take(sums.size))
    return each(stream, numbers / 8, expression_matrix_sums{wide, sums.added(), wide.multiplies()}, "sum of matrices");
  return on_stream{stream}.blocks(numbers, threads, sums, "sum of an expression");
}

// By the kernel of its form, where it takes the operands, else by the one for any.
inline status add_up(cudaStream_t stream, const sum_functions& by, const expression& e, const unsigned (&size)[4],
                     const unsigned (&to)[4], const cells<float>& out) {
  const sum_form form = form_of_sum(size, to);
  const auto special = form == sum_form::any ? nullptr : by.special[static_cast<int>(form)];
  expression_eights<false> wide{e, {}, size[3], {}};
  if (special != nullptr && wide.take(size)) return special(stream, wide, out, size[0] * size[1] * size[2]);
  if (by.any == nullptr) return not_launched("sums of expressions");
  return by.any(stream, {e, out, {size[0], size[1], size[2], size[3]}, {to[0], to[1], to[2], to[3]}});
}

}  // namespace graft::cuda
