// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/safetensors/convert.h>

#include <array>

using namespace graft::io;

namespace {

// The elements begin at an odd address, so that all are unaligned.
template <class T> struct stored {
  std::vector<std::byte> bytes;
  tensor_view view;
  stored(safetensors_type type, std::vector<T> values) : bytes(1 + values.size() * sizeof(T)) {
    if (!values.empty()) std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
    view = {"t", type, {values.size()}, std::span<const std::byte>(bytes).subspan(1)};
  }
};

}  // namespace

TEST_CASE("tensor_values: integers of every width, signed and unsigned") {
  CHECK(*to_int64(stored<std::int8_t>(safetensors_type::i8, {-128, 127}).view) == std::vector<std::int64_t>{-128, 127});
  CHECK(*to_int64(stored<std::uint8_t>(safetensors_type::u8, {255}).view) == std::vector<std::int64_t>{255});
  CHECK(*to_int64(stored<std::int16_t>(safetensors_type::i16, {-32768}).view) == std::vector<std::int64_t>{-32768});
  CHECK(*to_int64(stored<std::uint16_t>(safetensors_type::u16, {65535}).view) == std::vector<std::int64_t>{65535});
  CHECK(*to_int64(stored<std::int32_t>(safetensors_type::i32, {-5}).view) == std::vector<std::int64_t>{-5});
  CHECK(*to_int64(stored<std::uint32_t>(safetensors_type::u32, {4294967295}).view) ==
        std::vector<std::int64_t>{4294967295});
  CHECK(*to_int64(stored<std::int64_t>(safetensors_type::i64, {INT64_MIN, 1}).view) ==
        std::vector<std::int64_t>{INT64_MIN, 1});
  CHECK(*to_int64(stored<std::uint64_t>(safetensors_type::u64, {7}).view) == std::vector<std::int64_t>{7});
  CHECK(*to_int64(stored<std::uint8_t>(safetensors_type::boolean, {0, 1, 2}).view) ==
        std::vector<std::int64_t>{0, 1, 1});
  CHECK(to_int64(stored<std::int32_t>(safetensors_type::i32, {}).view)->empty());
  CHECK(*to_double(stored<std::int64_t>(safetensors_type::i64, {-3, 4}).view) == std::vector<double>{-3, 4});
  CHECK(*to_float(stored<std::uint8_t>(safetensors_type::u8, {200}).view) == std::vector<float>{200});
  CHECK(graft::contains(to_int64(stored<std::uint64_t>(safetensors_type::u64, {~0ULL}).view).message(),
                        "larger than 2^63-1"));
  CHECK(graft::contains(to_int64(stored<float>(safetensors_type::f32, {1}).view).message(),
                        "tensor 't': F32 values are not integers"));
}

TEST_CASE("tensor_values: floats, also NaN and infinity") {
  const float inf = std::numeric_limits<float>::infinity();
  const auto f = to_float(stored<float>(safetensors_type::f32, {1.5f, -0.0f, inf, 1e-45f, std::nanf("")}).view);
  REQUIRE(f);
  CHECK((*f)[0] == 1.5f);
  CHECK(std::signbit((*f)[1]));
  CHECK((*f)[2] == inf);
  CHECK((*f)[3] == 1e-45f);
  CHECK(std::isnan((*f)[4]));
  CHECK(*to_double(stored<double>(safetensors_type::f64, {1e300}).view) == std::vector<double>{1e300});
  CHECK(*to_float(stored<double>(safetensors_type::f64, {0.1}).view) == std::vector<float>{0.1f});
  const std::vector<std::uint16_t> bf{0x3f80, 0xc000, 0x7f80, 0x0001, 0x8000};
  CHECK(*to_float(stored<std::uint16_t>(safetensors_type::bf16, bf).view) ==
        std::vector<float>{1, -2, inf, 0x1p-133f, -0.0f});
  for (const safetensors_type t :
       {safetensors_type::c64, safetensors_type::f4, safetensors_type::f6_e2m3, safetensors_type::f6_e3m2})
    CHECK(graft::contains(to_float({"t", t, {0}, {}}).message(), "cannot be read as real numbers"));
}

TEST_CASE("tensor_values: all 65536 half floats are compared with their definition") {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto f = to_double(stored<std::uint16_t>(safetensors_type::f16, all).view);
  REQUIRE(f);
  int wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    const int e = (i >> 10) & 31, m = i & 1023;
    const double v = (*f)[static_cast<std::size_t>(i)];
    double want = e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25);
    if (e == 31) want = std::numeric_limits<double>::infinity();
    const bool right = e == 31 && m != 0 ? std::isnan(v) : std::abs(v) == want && std::signbit(v) == (i >= 32768);
    wrong += right ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("tensor_values: 8-bit floats at their special values") {
  const auto one = [](safetensors_type t, std::uint8_t v) { return (*to_float(stored<std::uint8_t>(t, {v}).view))[0]; };
  CHECK(one(safetensors_type::f8_e4m3, 0x7e) == 448);
  CHECK(one(safetensors_type::f8_e4m3, 0x01) == 0x1p-9f);
  CHECK(one(safetensors_type::f8_e4m3, 0xb8) == -1);
  CHECK(std::isnan(one(safetensors_type::f8_e4m3, 0xff)));
  CHECK(one(safetensors_type::f8_e5m2, 0x7b) == 57344);
  CHECK(one(safetensors_type::f8_e5m2, 0x01) == 0x1p-16f);
  CHECK(one(safetensors_type::f8_e5m2, 0xfc) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(one(safetensors_type::f8_e5m2, 0x7d)));
  CHECK(one(safetensors_type::f8_e4m3fnuz, 0x7f) == 240);
  CHECK(one(safetensors_type::f8_e4m3fnuz, 0x01) == 0x1p-10f);
  CHECK(std::isnan(one(safetensors_type::f8_e4m3fnuz, 0x80)));
  CHECK(one(safetensors_type::f8_e5m2fnuz, 0x7f) == 57344);
  CHECK(std::isnan(one(safetensors_type::f8_e5m2fnuz, 0x80)));
  CHECK(one(safetensors_type::f8_e8m0, 127) == 1);
  CHECK(one(safetensors_type::f8_e8m0, 0) == 0x1p-127f);
  CHECK(std::isnan(one(safetensors_type::f8_e8m0, 255)));
}

TEST_CASE("tensor_values: facts of the types") {
  CHECK(std::string_view(name_of(safetensors_type::f8_e4m3fnuz)) == "F8_E4M3FNUZ");
  for (int k = 0; k < static_cast<int>(std::size(safetensors_types)); ++k)
    CHECK(safetensors_type_named(safetensors_types[k].name) == static_cast<safetensors_type>(k));
  CHECK_FALSE(safetensors_type_named("f32"));
  CHECK_FALSE(safetensors_type_named(""));
}
