// SPDX-License-Identifier: Apache-2.0
// The kernels that dequantize, by the functions that executors call: every format in every type of result has the bits
// of the CPU's dequantizer, whatever the sizes and the alignment, for matrices, stacks of experts and looked-up rows.
#include <graft/backend/gpu/dispatch/launchers.cuh>

#include <cstring>

#include "../support/quantized.h"
#include "gpu.h"

using namespace test;

namespace {

std::vector<named_quant_format> every_format() {
  std::vector<named_quant_format> all = every_quant_format();
  for (const auto* more : {&every_wide_quant_format(), &every_checkpoint_format()})
    all.insert(all.end(), more->begin(), more->end());
  return all;
}
quantized_and_plain weight_in(const quant_format& format, long long rows, long long cols) {
  return {normal_numbers(rows * cols, static_cast<unsigned>(rows + cols)), rows, cols, format};
}
struct placed_weight {
  gpu::buffer memory;
  quant_state state;
  view there;

  explicit placed_weight(const view& host) {
    const auto placed = gpu::upload_quantized(nullptr, host, memory, state);
    INFO(std::string(placed ? "" : placed.message()));
    REQUIRE(bool(placed));
    there = *placed;
  }
};
// Bytes of n numbers in a type, rounded on the host.
std::vector<unsigned char> stored(const float* from, std::size_t n, dtype type) {
  std::vector<unsigned char> to(n * static_cast<std::size_t>(bits_of(type)) / 8);
  for (std::size_t i = 0; i < n; ++i)
    if (type == dtype::f32) {
      std::memcpy(to.data() + 4 * i, from + i, 4);
    } else {
      const std::uint16_t half = type == dtype::bf16 ? narrow(from[i]).bits : narrow_to_f16(from[i]).bits;
      std::memcpy(to.data() + 2 * i, &half, 2);
    }
  return to;
}
constexpr int guard = 64;  // bytes after the result, which must not be written
template <class T> void check_dequantized(const view& there, const float* numbers, dtype type) {
  const gpu::dequantize_functions by = gpu::all_launchers<T>().quantized;
  const auto n = static_cast<std::size_t>(there.count());
  std::vector<unsigned char> wanted = stored(numbers, n, type);
  wanted.insert(wanted.end(), guard, 0xa5);
  gpu::buffer to;
  REQUIRE(bool(to.reserve(static_cast<long long>(wanted.size()))));
  REQUIRE(cudaMemset(to.data(), 0xa5, wanted.size()) == cudaSuccess);
  const status done = by.dequantize(nullptr, gpu::quantized_weight_of(there), there.count(), {to.data(), type},
                                    there.rank == 3 ? there.size[0] : 1, {});
  INFO(std::string(done ? "" : done.message()));
  REQUIRE(bool(done));
  std::vector<unsigned char> got(wanted.size());
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(cudaMemcpy(got.data(), to.data(), got.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(got == wanted);
}
void check_every_type(const view& there, const float* numbers) {
  check_dequantized<__nv_bfloat16>(there, numbers, dtype::bf16);
  check_dequantized<__nv_bfloat16>(there, numbers, dtype::f32);
  check_dequantized<__half>(there, numbers, dtype::f16);
  check_dequantized<float>(there, numbers, dtype::f32);
}

}  // namespace

TEST_CASE("gpu: every format is dequantized to the CPU's numbers, bit for bit") {
  if (no_gpu()) return;
  for (const named_quant_format& e : every_format())
    for (const auto& [rows, cols] :
         {std::pair{1LL, 32LL}, {3, 96}, {5, 256}, {37, 768}, {130, 1024}, {3, 40}, {7, 200}, {5, 264}}) {
      const bool whole_blocks = e.format.type != dtype::f4_e2m1 || cols % e.format.block == 0;
      if (!exists_on(e.format, cols) || !whole_blocks) continue;
      INFO(e.name, ", ", rows, " x ", cols);
      const quantized_and_plain made = weight_in(e.format, rows, cols);
      const placed_weight w(made.quantized.as_view());
      check_every_type(w.there, made.numbers.data());
    }
}
TEST_CASE("gpu: rows from the second on, whose addresses are not aligned") {
  if (no_gpu()) return;
  for (const named_quant_format& e : every_format()) {
    const bool in_rows = e.format.block_bytes > 0 || has_zero_points(e.format) || e.format.type == dtype::f4_e2m1;
    const long long cols = e.format.block_bytes > 0 ? e.format.block : 96;
    if (!in_rows) continue;
    INFO(e.name);
    const quantized_and_plain made = weight_in(e.format, 9, cols);
    const placed_weight w(made.quantized.as_view());
    const long long groups = scale_counts_of(e.format, 1, cols).scales;
    quant_state state = w.state;
    state.scales = static_cast<const char*>(state.scales) + groups * bits_of(e.format.scales) / 8;
    if (state.zeros != nullptr) state.zeros += groups;
    view rest = w.there;
    rest.data = static_cast<const char*>(rest.data) + quantized_bytes(e.format, 1, cols);
    rest.size[0] = 8, rest.quant = &state;
    check_every_type(rest, made.numbers.data() + cols);
  }
}
TEST_CASE("gpu: a stack of experts is placed and dequantized whole") {
  if (no_gpu()) return;
  for (const named_quant_format& e : every_format()) {
    if (e.format.block_bytes == 0 && e.format.type != dtype::f4_e2m1) continue;
    INFO(e.name);
    const quantized_and_plain made = weight_in(e.format, 5 * 24, 256);
    view stack = made.quantized.as_view();
    stack.rank = 3, stack.size[0] = 5, stack.size[1] = 24, stack.size[2] = 256;
    const placed_weight w(stack);
    check_every_type(w.there, made.numbers.data());
  }
}
TEST_CASE("gpu: of a stack, the experts that have rows are dequantized, and the others are left as they are") {
  if (no_gpu()) return;
  constexpr long long experts = 6, rows = 24, cols = 256, count = rows * cols;
  // Sorted rows by token, expert and pair; the stack begins with expert 1.
  const std::vector<float> lines{0, 0, 0, 0, 1, 1, 1, 1, 2, 1, 4, 3, 2, 6, 4};
  const std::vector<bool> has_rows{true, false, false, true, false, true};
  gpu::buffer table;
  REQUIRE(bool(table.reserve(static_cast<long long>(lines.size() * 4))));
  REQUIRE(cudaMemcpy(table.data(), lines.data(), lines.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
  const gpu::tensor<float> routing{table.as<float>(), {1, 1, 5, 3}};
  const gpu::used_experts used = gpu::used_experts::of(gpu::routing_table<float>(routing), experts, 1);
  CHECK(used.routing.rows == 5);
  CHECK(gpu::used_experts::of(gpu::routing_table<float>(routing), 2, 1).routing.rows == 0);  // every expert has some
  const gpu::dequantize_functions by = gpu::all_launchers<__nv_bfloat16>().quantized;
  for (const named_quant_format& e : every_format()) {
    if (e.format.block_bytes == 0 && e.format.type != dtype::f4_e2m1) continue;
    INFO(e.name);
    const quantized_and_plain made = weight_in(e.format, experts * rows, cols);
    const placed_weight w(made.quantized.as_view());
    gpu::buffer to;
    REQUIRE(bool(to.reserve(experts * count * 4)));
    REQUIRE(cudaMemset(to.data(), 0, static_cast<std::size_t>(experts * count * 4)) == cudaSuccess);
    REQUIRE(bool(
        by.dequantize(nullptr, gpu::quantized_weight_of(w.there), experts * count, to.as<float>(), experts, used)));
    std::vector<float> got(static_cast<std::size_t>(experts * count)), wanted = made.numbers;
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(got.data(), to.data(), got.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (!has_rows[i / static_cast<std::size_t>(count)]) wanted[i] = 0;
    CHECK(got == wanted);
  }
}
TEST_CASE("gpu: rows and columns of a quantized table") {
  if (no_gpu()) return;
  constexpr long long rows = 6, cols = 256;
  const std::vector<std::int64_t> ids{4, 0, 5, 4, 11, 3};
  gpu::buffer at;
  REQUIRE(bool(at.reserve(static_cast<long long>(ids.size() * 8))));
  REQUIRE(cudaMemcpy(at.data(), ids.data(), ids.size() * 8, cudaMemcpyHostToDevice) == cudaSuccess);
  const gpu::dequantize_functions by = gpu::all_launchers<__nv_bfloat16>().quantized;
  for (const named_quant_format& e : every_format())
    for (const bool by_column : {false, true}) {
      INFO(e.name, by_column ? ", columns" : ", rows");
      const quantized_and_plain made = weight_in(e.format, rows, cols);
      const placed_weight w(made.quantized.as_view());
      const long long width = by_column ? rows : cols;
      std::vector<float> wanted, got(ids.size() * static_cast<std::size_t>(width));
      for (const std::int64_t id : ids)
        for (long long c = 0; c < width; ++c)
          wanted.push_back(id < (by_column ? cols : rows)
                               ? made.numbers[static_cast<std::size_t>(by_column ? c * cols + id : id * cols + c)]
                               : 0.0F);  // the table is a shard
      gpu::buffer to;
      REQUIRE(bool(to.reserve(static_cast<long long>(got.size() * 4))));
      const status done = by.gather(nullptr, {{to.as<float>(), {1, 1, static_cast<long long>(ids.size()), width}},
                                              gpu::quantized_weight_of(w.there),
                                              rows,
                                              at.as<std::int64_t>(),
                                              by_column,
                                              {true, 0}});
      REQUIRE(bool(done));
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      REQUIRE(cudaMemcpy(got.data(), to.data(), got.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
      CHECK(got == wanted);
    }
}
