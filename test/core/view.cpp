// SPDX-License-Identifier: Apache-2.0
#include <graft/core/view.h>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr float numbers[24]{};
constexpr bf16 halves[6]{};
constexpr std::int64_t ids[3]{};

}  // namespace

TEST_CASE("view: the element type follows from the pointer") {
  BOTH(view_of(numbers, 24).type == dtype::f32);
  BOTH(view_of(halves, 6).type == dtype::bf16);
  BOTH(view_of(ids, 3).type == dtype::i64);
  BOTH(dtype_of<double>() == dtype::f64);
}

TEST_CASE("view: sizes are listed as in a file") {
  BOTH(view_of(numbers, 24).rank == 1);
  BOTH(view_of(numbers, 4, 6).rank == 2);
  BOTH(view_of(numbers, 1, 2, 3, 4).rank == 4);
  BOTH(view_of(numbers, 4, 6).count() == 24);
  BOTH(view_of(numbers, 0, 6).count() == 0);
  BOTH(view{}.count() == 1);  // a scalar
  BOTH(view{}.data == nullptr);
  SAYS(shape_of(view_of(numbers, 24)), "[24]");
  SAYS(shape_of(view_of(numbers, 4, 6)), "[4, 6]");
  SAYS(shape_of(view_of(numbers, 2, 3, 4, 1)), "[2, 3, 4, 1]");
  SAYS(shape_of(view{}), "[]");
}

TEST_CASE("view: element counts beyond 32 bits") { BOTH(view_of(numbers, 1LL << 32, 1LL << 20).count() == 1LL << 52); }

TEST_CASE("view_into: element type and sizes of memory to write") {
  float memory[6]{};
  const mutable_view v = view_into(memory, 2, 3);
  CHECK(v.data == memory);
  CHECK(v.count() == 6);
  CHECK(v.type == dtype::f32);
}

TEST_CASE("view: strides are row-major unless they are set") {
  BOTH(view_of(numbers, 2, 3, 4).stride(0) == 12);
  BOTH(view_of(numbers, 2, 3, 4).stride(1) == 4);
  BOTH(view_of(numbers, 2, 3, 4).stride(2) == 1);
  BOTH(view_of(numbers, 2, 3, 4).contiguous());
  BOTH(view{}.contiguous());
  constexpr view part = [] {
    view v = view_of(numbers, 4, 3);  // the first columns of [4, 6]
    v.strides[0] = 6;
    return v;
  }();
  BOTH(part.stride(0) == 6);
  BOTH(part.stride(1) == 1);
  BOTH(part.count() == 12);
  BOTH(!part.contiguous());
}

TEST_CASE("view: transposed swaps the last two axes, and twice restores the tensor") {
  constexpr view t = view_of(numbers, 2, 3, 4).transposed();
  SAYS(shape_of(t), "[2, 4, 3]");
  BOTH(t.stride(0) == 12);
  BOTH(t.stride(1) == 1);
  BOTH(t.stride(2) == 4);
  BOTH(!t.contiguous());
  BOTH(t.transposed().contiguous());
  BOTH(view_of(numbers, 6).transposed().size[0] == 6);
  BOTH(view_of(numbers, 1, 6).transposed().contiguous());  // one axis of size 1: contiguous in both orders
}

TEST_CASE("dtype: names and widths, all of them") {
  struct fact {
    dtype type;
    const char* name;
    int bits;
  };
  for (const fact f :
       {fact{dtype::f32, "f32", 32}, fact{dtype::f64, "f64", 64}, fact{dtype::bf16, "bf16", 16},
        fact{dtype::f16, "f16", 16}, fact{dtype::i64, "i64", 64}, fact{dtype::nf4, "nf4", 4},
        fact{dtype::int8, "int8", 8}, fact{dtype::fp4, "fp4", 4}, fact{dtype::u8, "u8", 8}, fact{dtype::u2, "u2", 2},
        fact{dtype::u3, "u3", 3}, fact{dtype::u4, "u4", 4}, fact{dtype::f4_e2m1, "f4_e2m1", 4},
        fact{dtype::f8_e4m3, "f8_e4m3", 8}, fact{dtype::f8_e5m2, "f8_e5m2", 8}, fact{dtype::f8_e8m0, "f8_e8m0", 8},
        fact{dtype::ggml, "ggml", 0}}) {
    CHECK(std::string(name_of(f.type)) == f.name);
    CHECK(bits_of(f.type) == f.bits);
  }
  BOTH(storage<nf4<64>>::type == dtype::nf4);
  BOTH(storage<int8>::type == dtype::int8);
}
