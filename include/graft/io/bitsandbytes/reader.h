// SPDX-License-Identifier: Apache-2.0
// Reads weights quantized by bitsandbytes (NF4, FP4, int8), and FP8 weights, from the tensors that transformers saves:
//     4 bits    NAME (U8, two values per byte), NAME.absmax, NAME.quant_map,
//               NAME.quant_state.bitsandbytes__nf4 or __fp4 (JSON: quant_type, blocksize, dtype, shape); with double
//               quantization also NAME.nested_absmax, NAME.nested_quant_map, and nested_blocksize and nested_offset in
//               the JSON
//     int8      NAME (I8), MODULE.SCB (scale per row), MODULE.weight_format (0: row-major)
//     FP8       NAME (F8_E4M3), MODULE.weight_scale (one scale, or one per row)
// Every companion tensor is checked against the weight: a wrong scale would give wrong numbers without any other sign.
#pragma once
#include <graft/core/quant_formats.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/safetensors/bind.h>

#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <set>

namespace graft::io {

// Owns the quant_state of every quantized view; it must live as long as the views and the bytes of the file.
using quant_state_pool = std::deque<quant_state>;

class quantized_reader {
 public:
  using finder = std::function<const tensor_view*(const std::string&)>;
  // `blocks` is scale_granularity::flat_block, or scale_granularity::row_flat_block to reproduce bitsandbytes on CPUs
  // with AVX-512 (core/quant_format.h).
  quantized_reader(std::string_view file, finder find, quant_state_pool& store_state,
                   scale_granularity blocks = scale_granularity::flat_block)
      : file_(file), find_(std::move(find)), pool_(store_state), blocks_(blocks) {}

  // Names of the companion tensors (scales, tables, states) that read() has used.
  const std::set<std::string>& used() const { return used_; }

  // Returns a view of a quantized weight, and nothing for an unquantized one.
  result<std::optional<view>> read(const tensor_view& t) {
    name_ = t.name;
    for (const char* type : {"nf4", "fp4"})
      if (const tensor_view* state = find_companion(std::string(".quant_state.bitsandbytes__") + type))
        return four_bits(t, *state, type);
    if (t.type == safetensors_type::u8)
      return bad("is U8 and there is no ", in_quotes(name_ + ".quant_state.bitsandbytes__nf4"),
                 " (or __fp4) beside it");
    if (t.type == safetensors_type::i8) return eight_bits(t);
    if (t.type == safetensors_type::f8_e4m3) return fp8(t);
    return std::optional<view>();
  }

 private:
  template <class... Parts> error bad(const Parts&... parts) const {
    return fail_in(file_, "tensor ", in_quotes(name_), " ", parts...);
  }
  const tensor_view* named(const std::string& name) {
    const tensor_view* const t = find_(name);
    if (t != nullptr) used_.insert(name);
    return t;
  }
  const tensor_view* find_companion(const std::string& suffix) { return named(name_ + suffix); }
  const tensor_view* module_tensor(const char* name) {
    if (!name_.ends_with(".weight")) return nullptr;
    return named(name_.substr(0, name_.size() - std::string_view("weight").size()) + name);
  }
  static std::uint64_t count(const tensor_view& t) {
    return t.data.size() * 8 / static_cast<std::uint64_t>(facts(t.type).bits);
  }
  // Checks a companion tensor of n floats: count, alignment, finite values; if they are magnitudes, no negative ones.
  result<const float*> floats(const tensor_view* t, const std::string& name, std::uint64_t n, bool magnitudes) {
    if (t == nullptr) return bad("has no ", in_quotes(name), " beside it");
    if (t->type != safetensors_type::f32 || count(*t) != n)
      return bad("has ", in_quotes(name), " of ", number(count(*t)), " ", name_of(t->type), ", expected ", number(n),
                 " F32");
    if (!is_aligned(*t)) return bad("has ", in_quotes(name), " at an address that is no multiple of 4");
    const auto* const p = reinterpret_cast<const float*>(t->data.data());
    for (std::uint64_t i = 0; i < n; ++i)
      if (const auto bits = std::bit_cast<std::uint32_t>(p[i]);
          (bits & 0x7f800000U) == 0x7f800000U || (magnitudes && (bits & 0x80000000U) != 0 && bits != 0x80000000U))
        return bad("has ", in_quotes(name), " with a number that is ",
                   magnitudes ? "negative or not finite" : "not finite");
    return p;
  }
  result<std::optional<view>> store_state(const tensor_view& t, const quant_state& p, long long rows, long long cols) {
    pool_.push_back(p);
    return std::optional<view>({t.data.data(), p.format.type, {rows, cols, 1, 1}, 2, {}, &pool_.back()});
  }

  result<std::optional<view>> four_bits(const tensor_view& t, const tensor_view& state, const char* type) {
    const std::string_view chars(reinterpret_cast<const char*>(state.data.data()), state.data.size());
    const result<json> parsed = parse_json(chars, std::string(file_) + " (" + state.name + ")", 3);
    if (!parsed) return parsed.failure();
    if (!parsed->is_object()) return bad("has a quant_state that is no JSON object");
    config_reader in{*parsed, std::string(file_) + " (" + state.name + ")"};
    int block = 0, second_block = 0;
    std::string quant_type = type;
    in.word("quant_type", quant_type), in.integer("blocksize", block, 1),
        in.integer("nested_blocksize", second_block, 1);
    if (in.problem) return *in.problem;
    if (quant_type != type) return bad("has a quant_state of '", type, "' that says ", in_quotes(quant_type));
    if (!quant_formats::is_four_bit_block(block))
      return bad("has blocks of ", block, ", expected a power of two from 32 to 4096");
    const json* const shape = parsed->find("shape");
    if (shape == nullptr || !shape->is_list() || shape->items.size() != 2 || !fits_int(shape->items[0]) ||
        !fits_int(shape->items[1]) || shape->items[0].real < 1 || shape->items[1].real < 1)
      return bad("has a quant_state without the shape of a matrix");
    const auto rows = static_cast<long long>(shape->items[0].real), cols = static_cast<long long>(shape->items[1].real);
    const std::uint64_t n = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(cols);
    if (t.data.size() != (n + 1) / 2)
      return bad("has ", number(t.data.size()), " bytes of quantized values, expected ", number((n + 1) / 2), " for [",
                 rows, ", ", cols, "]");
    quant_state p;
    p.format = {quant_type == "nf4" ? dtype::nf4 : dtype::fp4, blocks_, block};
    const float* const table =
        quant_type == "nf4" ? quant_formats::nf4_format::table : quant_formats::fp4_format::table;
    const result<const float*> map = floats(find_companion(".quant_map"), name_ + ".quant_map", 16, false);
    if (!map) return map.failure();
    for (int k = 0; k < 16; ++k)
      if ((*map)[k] != table[k]) return bad("has a quant_map that is not the table of ", quant_type.c_str());
    const std::uint64_t blocks = (n + static_cast<std::uint64_t>(block) - 1) / static_cast<std::uint64_t>(block);
    const tensor_view* const absmax = find_companion(".absmax");
    if (status s = second_block > 0 ? nested(p, *parsed, absmax, blocks, second_block) : single(p, absmax, blocks); !s)
      return s.failure();
    return store_state(t, p, rows, cols);
  }
  status single(quant_state& p, const tensor_view* absmax, std::uint64_t blocks) {
    if (absmax != nullptr && absmax->type == safetensors_type::u8)
      return bad("has quantized scales (double quantization), and its quant_state has no nested_blocksize");
    const result<const float*> scales = floats(absmax, name_ + ".absmax", blocks, true);
    if (!scales) return scales.failure();
    p.scales = *scales;
    return ok;
  }
  status nested(quant_state& p, const json& state, const tensor_view* absmax, std::uint64_t blocks, int second_block) {
    if (absmax == nullptr) return bad("has no ", in_quotes(name_ + ".absmax"), " beside it");
    if (absmax->type != safetensors_type::u8 || count(*absmax) != blocks)
      return bad("has ", in_quotes(name_ + ".absmax"), " of ", number(count(*absmax)), " ", name_of(absmax->type),
                 ", expected ", number(blocks), " U8");
    const std::uint64_t seconds =
        (blocks + static_cast<std::uint64_t>(second_block) - 1) / static_cast<std::uint64_t>(second_block);
    const auto scales = floats(find_companion(".nested_absmax"), name_ + ".nested_absmax", seconds, true);
    if (!scales) return scales.failure();
    const auto table = floats(find_companion(".nested_quant_map"), name_ + ".nested_quant_map", 256, false);
    if (!table) return table.failure();
    const json* const offset = state.find("nested_offset");
    if (offset == nullptr || !offset->is_number() || !(std::abs(offset->real) <= 3.4028234663852886e38))
      return bad("has a quant_state without a finite nested_offset");
    const double most = static_cast<double>(abs_max(*table, 256)) *
                        static_cast<double>(abs_max(*scales, static_cast<long long>(seconds)));
    if (most + std::abs(offset->real) > 3.4e38) return bad("has nested scales that are larger than a float can be");
    p.format.scales = dtype::u8, p.format.second_block = second_block;
    p.scales = absmax->data.data(), p.second_scales = *scales, p.second_codebook = *table;
    p.offset = static_cast<float>(offset->real);
    return ok;
  }
  result<std::optional<view>> eight_bits(const tensor_view& t) {
    if (t.shape.size() != 2) return bad("has shape ", shape_text(t.shape), ", expected a matrix");
    if (const tensor_view* format = module_tensor("weight_format"))
      if (format->data.size() != 1 || format->data[0] != std::byte{0})
        return bad("has a weight_format that is not 0 (row-major); save it with bitsandbytes 0.45 or later");
    const auto scales = floats(module_tensor("SCB"), "SCB", t.shape[0], true);
    if (!scales) return scales.failure();
    quant_state p;
    p.format = {dtype::int8, scale_granularity::row}, p.scales = *scales;
    return store_state(t, p, static_cast<long long>(t.shape[0]), static_cast<long long>(t.shape[1]));
  }
  result<std::optional<view>> fp8(const tensor_view& t) {
    if (t.shape.size() != 2) return bad("has shape ", shape_text(t.shape), ", expected a matrix");
    const tensor_view* const scale = module_tensor("weight_scale");
    const bool one = scale != nullptr && count(*scale) == 1;
    const auto scales = floats(scale, "weight_scale", one ? 1 : t.shape[0], true);
    if (!scales) return scales.failure();
    if (abs_max(*scales, one ? 1 : static_cast<long long>(t.shape[0])) > 3.4e38F / quant_formats::fp8_format::largest)
      return bad("has a weight_scale that is larger than a float can be");
    for (const std::byte c : t.data)
      if ((c & std::byte{0x7f}) == std::byte{0x7f}) return bad("holds a value that is NaN");
    quant_state p;
    p.format = {dtype::f8_e4m3, one ? scale_granularity::tensor : scale_granularity::row}, p.scales = *scales;
    return store_state(t, p, static_cast<long long>(t.shape[0]), static_cast<long long>(t.shape[1]));
  }

  std::string_view file_;
  finder find_;
  quant_state_pool& pool_;
  scale_granularity blocks_;
  std::set<std::string> used_;
  std::string name_;
};

}  // namespace graft::io
