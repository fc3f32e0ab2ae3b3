// SPDX-License-Identifier: Apache-2.0
// Element types (dtype) and storage types. A *storage* type says how a tensor is stored in memory; in this mixed
// precision, products accumulate in its *compute* type: float for every storage type of at most 32 bits, double for
// double.
#pragma once
#include <cstdint>

namespace graft {

// f32, f64, bf16 and f16 are numbers that kernels compute with, and i64 are indices. All others are quantized values or
// quantized scales (core/quant_format.h). Two nf4 or fp4 values share a byte, the first one in the upper half; values
// of u2, u3, u4 and f4_e2m1 begin with the lowest bits. fp4 is the type of bitsandbytes, f4_e2m1 that of MXFP4 and
// NVFP4. ggml blocks store scales and values in one layout of their own.
enum class dtype : unsigned char {
  f32,
  f64,
  bf16,
  f16,
  i64,
  nf4,
  fp4,
  int8,
  u2,
  u3,
  u4,
  u8,
  f4_e2m1,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  ggml
};

// bfloat16 is the upper half of a float; core/bf16.h converts it.
struct bf16 {
  std::uint16_t bits = 0;
};
// IEEE half precision has 5 exponent bits and 10 fraction bits; core/f16.h converts it.
struct f16 {
  std::uint16_t bits = 0;
};

// Quantized storage types of a frozen base weight. Block is the number of weights that share one scale.
template <int Block> struct nf4 {};
struct int8 {};

template <class Storage> struct storage;
template <> struct storage<float> {
  using compute = float;
  static constexpr dtype type = dtype::f32;
};
template <> struct storage<double> {
  using compute = double;
  static constexpr dtype type = dtype::f64;
};
template <> struct storage<bf16> {
  using compute = float;
  static constexpr dtype type = dtype::bf16;
};
template <> struct storage<f16> {
  using compute = float;
  static constexpr dtype type = dtype::f16;
};
template <int Block> struct storage<nf4<Block>> {
  static constexpr int block = Block;
  using compute = float;
  static constexpr dtype type = dtype::nf4;
};
template <> struct storage<int8> {
  using compute = float;
  static constexpr dtype type = dtype::int8;
};

constexpr const char* name_of(dtype t) {
  switch (t) {
    case dtype::f32: return "f32";
    case dtype::f64: return "f64";
    case dtype::bf16: return "bf16";
    case dtype::f16: return "f16";
    case dtype::i64: return "i64";
    case dtype::nf4: return "nf4";
    case dtype::fp4: return "fp4";
    case dtype::int8: return "int8";
    case dtype::u2: return "u2";
    case dtype::u3: return "u3";
    case dtype::u4: return "u4";
    case dtype::u8: return "u8";
    case dtype::f4_e2m1: return "f4_e2m1";
    case dtype::f8_e4m3: return "f8_e4m3";
    case dtype::f8_e5m2: return "f8_e5m2";
    case dtype::f8_e8m0: return "f8_e8m0";
    case dtype::ggml: return "ggml";
  }
  return "?";
}
// Returns true for the types that kernels compute with, false for quantized values and indices.
constexpr bool is_floating(dtype t) {
  return t == dtype::f32 || t == dtype::f64 || t == dtype::bf16 || t == dtype::f16;
}

constexpr int bits_of(dtype t) {
  switch (t) {
    case dtype::f64:
    case dtype::i64: return 64;
    case dtype::f32: return 32;
    case dtype::bf16:
    case dtype::f16: return 16;
    case dtype::int8:
    case dtype::u8:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0: return 8;
    case dtype::nf4:
    case dtype::fp4:
    case dtype::u4:
    case dtype::f4_e2m1: return 4;
    case dtype::u3: return 3;
    case dtype::u2: return 2;
    case dtype::ggml: break;  // a ggml type states its bytes per block instead
  }
  return 0;
}

}  // namespace graft
