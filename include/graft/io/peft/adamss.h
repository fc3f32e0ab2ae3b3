// SPDX-License-Identifier: Apache-2.0
// AdaMSS in PEFT's format (ADAMSS): A and B of every group of rows, and the right singular vectors of the base weight.
// No file says which rows form a group: the groups are recomputed by k-means on the left singular vectors of the base
// weight, which a randomized SVD with random_seed finds.
#pragma once
#include <graft/adapter/adamss.h>
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/peft/kmeans.h>
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/svd/low_rank.h>

namespace graft::io::peft {

// The decomposed matrix is [W, b]: a bias is one more column.
inline long long adamss_columns(const peft_layer_state& s) { return s.base.in + (s.base.bias ? 1 : 0); }
inline long long adamss_directions(const peft_layer_state& s) {
  return std::min({static_cast<long long>(s.config.whole("r")), s.base.out, adamss_columns(s)});
}
inline status adamss_numbers(peft_layer_state& s) {
  if (s.config.whole("r") >= s.base.out && s.base.out <= adamss_columns(s))
    return fail_in(
        s.file.file, "'r' is ", s.config.whole("r"), " and ", s.base.module.c_str(), " has ", s.base.out,
        " outputs, expected an r below them: all rows of U are equally far from each other then, and rounding "
        "decides which are a group");
  s.layer.sizes["directions"] = adamss_directions(s);
  return ok;
}
inline status check_adamss_base(const peft_layer_state& s) {
  const auto numbers = [](const view& v) { return v.data != nullptr && is_floating(v.type); };
  const view &w = s.base.weight, &b = s.base.bias_values;
  const bool weight = numbers(w) && w.rank == 2 && w.size[0] == s.base.out && w.size[1] == s.base.in;
  if (weight && (!s.base.bias || (numbers(b) && b.count() == s.base.out))) return ok;
  return fail_in(s.file.file,
                 "AdaMSS' groups follow from the base weight and bias: give them to read_peft_layer as "
                 "base_layer::weight, [",
                 s.base.out, ", ", s.base.in, "], and base_layer::bias_values");
}
// The leading min(r, size of the layer) singular triplets, and the sorted rows of each group.
struct adamss_decomposition {
  svd::singular_triplets pairs;
  std::vector<std::vector<std::size_t>> groups;
};
inline adamss_decomposition decompose_for_adamss(const peft_layer_state& s) {
  const auto out = static_cast<std::size_t>(s.base.out), in = static_cast<std::size_t>(s.base.in),
             directions = static_cast<std::size_t>(adamss_directions(s));
  svd::matrix a(out, static_cast<std::size_t>(adamss_columns(s)));
  std::vector<double> row(in), bias(out);
  if (s.base.bias) cpu::read(s.base.bias_values, 0, s.base.out, bias.data());
  for (std::size_t i = 0; i < out; ++i) {
    cpu::read(s.base.weight, static_cast<long long>(i) * s.base.in, s.base.in, row.data());
    for (std::size_t j = 0; j < in; ++j) a(i, j) = row[j];
    if (s.base.bias) a(i, in) = bias[i];
  }
  adamss_decomposition d{svd::randomized_svd(std::move(a), directions, 2, s.config.seed("random_seed")), {}};
  svd::matrix left(out, directions);
  for (std::size_t j = 0; j < directions; ++j)
    for (std::size_t i = 0; i < out; ++i) left(i, j) = d.pairs.left[j][i];
  const std::size_t groups = std::min(static_cast<std::size_t>(s.config.whole("num_subspaces")), out);
  const std::vector<std::size_t> of = kmeans::of(std::move(left), groups, 123456789);
  d.groups.resize(groups);
  for (std::size_t i = 0; i < out; ++i) d.groups[of[i]].push_back(i);
  return d;
}

// Initial tensors: A is the leading directions of the group's rows, B is zero.
inline result<std::vector<loaded_tensor>> adamss_initial_tensors(const peft_layer_state& s) {
  if (status good = check_adamss_base(s); !good) return good.failure();
  const adamss_decomposition d = decompose_for_adamss(s);
  const long long directions = adamss_directions(s);
  std::vector<loaded_tensor> all{{s.prefix() + "adamss_newB", {}, {directions, adamss_columns(s)}}};
  for (const std::vector<double>& v : d.pairs.right) all[0].data.insert(all[0].data.end(), v.begin(), v.end());
  for (std::size_t k = 0; k < d.groups.size(); ++k) {
    const std::vector<std::size_t>& rows = d.groups[k];
    svd::matrix of_group(rows.size(), static_cast<std::size_t>(directions));
    for (std::size_t j = 0; j < of_group.cols; ++j)
      for (std::size_t i = 0; i < rows.size(); ++i) of_group(i, j) = d.pairs.left[j][rows[i]];
    const std::size_t most = static_cast<std::size_t>(s.config.whole("subspace_rank"));
    const svd::singular_triplets own = svd::largest_singular_triplets(
        std::move(of_group), std::min({rows.size(), most, static_cast<std::size_t>(directions)}));
    const double least = s.on("use_dynamic_rank") ? std::sqrt(s.config.number("svd_threshold")) * own.values[0] : -1;
    loaded_tensor A{s.prefix() + "adamss_A." + std::to_string(k), {}, {0, directions}};
    for (std::size_t i = 0; i < own.right.size() && (i == 0 || own.values[i] > least); ++i, ++A.shape[0])
      A.data.insert(A.data.end(), own.right[i].begin(), own.right[i].end());
    const auto size = static_cast<long long>(rows.size());
    loaded_tensor B{s.prefix() + "adamss_B." + std::to_string(k), {}, {size, A.shape[0]}};
    B.data.resize(static_cast<std::size_t>(size * A.shape[0]));
    all.push_back(std::move(A)), all.push_back(std::move(B));
  }
  return all;
}

inline status check_adamss_parts(const peft_layer_state& s, const char* name) {
  const auto groups = static_cast<std::size_t>(std::min<long long>(s.config.whole("num_subspaces"), s.base.out)),
             parts = s.layer.tensors.at(name).parts.size();
  const std::string first_wrong = s.prefix() + name + "." + std::to_string(std::min(groups, parts));
  if (parts < groups) return s.file.find(first_wrong).failure();
  if (parts == groups) return ok;
  return fail_in(s.file.file, "tensor ", in_quotes(first_wrong), " is one too many: num_subspaces says ",
                 static_cast<long long>(groups), " groups");
}

// Checks that the groups have all rows of the layer, and that each group's A has as many rows as its B has columns.
inline status check_adamss_groups(const peft_layer_state& s) {
  const std::vector<std::vector<long long>>&A = s.layer.tensors.at("adamss_A").parts,
                                     &B = s.layer.tensors.at("adamss_B").parts;
  const long long most = s.config.whole("subspace_rank");
  long long rows = 0;
  for (std::size_t k = 0; k < A.size(); ++k) {
    const auto key = [&](const char* name) { return in_quotes(s.prefix() + name + "." + std::to_string(k)); };
    if (A[k][0] > most)
      return fail_in(s.file.file, "key ", key("adamss_A"), ": the tensor has shape ", shape_text(A[k]),
                     ", expected at most subspace_rank = ", most, " rows");
    if (B[k][1] != A[k][0])
      return fail_in(s.file.file, "key ", key("adamss_B"), ": the tensor has shape ", shape_text(B[k]), ", expected ",
                     A[k][0], " columns, as many as its adamss_A has rows");
    rows += B[k][0];
  }
  if (rows == s.base.out) return ok;
  return fail_in(s.file.file, "the parts of ", in_quotes(s.prefix() + "adamss_B"), " have ", rows,
                 " rows in all, expected ", s.base.out, ", one for each output of ", s.base.module.c_str());
}

// Checks that the file's right singular vectors lie in the span of the recomputed ones. If they do not, the base weight
// is another one, and groups of the right sizes would be a coincidence.
inline status check_adamss_span(const peft_layer_state& s, const loaded_tensor& right,
                                const svd::singular_triplets& found) {
  const std::size_t columns = found.right[0].size();
  for (std::size_t k = 0; k < found.right.size(); ++k) {
    double length = 0, within = 0;
    const float* v = right.data.data() + k * columns;
    for (std::size_t j = 0; j < columns; ++j) length += static_cast<double>(v[j]) * static_cast<double>(v[j]);
    for (const std::vector<double>& direction : found.right) {
      double dot = 0;
      for (std::size_t j = 0; j < columns; ++j) dot += static_cast<double>(v[j]) * direction[j];
      within += dot * dot;
    }
    if (within < 0.99 * length)
      return fail_in(s.file.file, "key ", in_quotes(right.key), ": its row ", static_cast<long long>(k),
                     " is no singular vector of the weight of ", s.base.module.c_str(),
                     "; give the base weight that the adapter was trained on");
  }
  return ok;
}

inline status adamss_frozen(peft_layer_state& s) {
  for (const char* name : {"adamss_A", "adamss_B"})
    if (status good = check_adamss_parts(s, name); !good) return good;
  if (status good = check_adamss_groups(s); !good) return good;
  if (status good = check_adamss_base(s); !good) return good;
  result<loaded_tensor> right = s.read(s.prefix() + "adamss_newB");
  if (!right) return right.failure();
  const long long columns = adamss_columns(s), directions = adamss_directions(s);
  if (status good = check_shape(*right, {directions, columns}, s.file.file); !good) return good;
  loaded_tensor of_weight{right->key + " of the weight", {}, {directions, s.base.in}, safetensors_type::f32, false};
  loaded_tensor of_bias{right->key + " of the bias", {}, {directions}, safetensors_type::f32, false};
  for (long long k = 0; k < directions; ++k) {
    const auto first = right->data.begin() + k * columns;
    of_weight.data.insert(of_weight.data.end(), first, first + s.base.in);
    if (s.base.bias) of_bias.data.push_back(first[s.base.in]);
  }
  const adamss_decomposition found = decompose_for_adamss(s);
  if (status good = check_adamss_span(s, *right, found.pairs); !good) return good;
  const std::vector<std::vector<std::size_t>>& groups = found.groups;
  const std::vector<std::vector<long long>>&A = s.layer.tensors.at("adamss_A").parts,
                                     &B = s.layer.tensors.at("adamss_B").parts;
  loaded_tensor indices{s.prefix() + "adamss_indices", {}, {2, 0}, safetensors_type::i64, false};
  std::vector<std::int64_t> cols;
  long long rank = 0;
  for (std::size_t k = 0; k < groups.size(); ++k) {
    const auto rows = static_cast<long long>(groups[k].size());
    const std::vector<long long> expected{rows, A[k][0]};
    if (B[k] != expected)
      return fail_in(s.file.file, "key ", in_quotes(s.prefix() + "adamss_B." + std::to_string(k)),
                     ": the tensor has shape ", shape_text(B[k]), ", expected ", shape_text(expected),
                     ", the rows of the group that follows from the weight of ", s.base.module.c_str(),
                     " and of its adamss_A; give the base weight that the adapter was trained on");
    for (const std::size_t row : groups[k])
      for (long long j = 0; j < A[k][0]; ++j)
        indices.indices.push_back(static_cast<std::int64_t>(row)), cols.push_back(rank + j);
    rank += A[k][0];
  }
  indices.shape[1] = static_cast<long long>(cols.size());
  indices.indices.insert(indices.indices.end(), cols.begin(), cols.end());
  s.layer.tensors["adamss_right"] = std::move(of_weight);
  if (s.base.bias) s.layer.tensors["adamss_right_of_bias"] = std::move(of_bias);
  s.layer.tensors["adamss_indices"] = std::move(indices);
  s.layer.extra_tensors.push_back(std::move(*right));
  return ok;
}

inline constexpr peft_key adamss_keys[] = {whole("r", 100),
                                           whole("num_subspaces", 5),
                                           whole("subspace_rank", 1),
                                           or_null(word("init_weights", "orthogonal", "orthogonal false")),
                                           flag("use_asa"),
                                           unread("asa_target_subspaces"),
                                           unread("init_warmup"),
                                           unread("final_warmup"),
                                           unread("mask_interval"),
                                           unread("asa_importance_beta"),
                                           unread("asa_uncertainty_beta"),
                                           unread("asa_schedule_exponent"),
                                           flag("use_dynamic_rank"),
                                           real("svd_threshold", 0.1),
                                           seed("random_seed")};
inline constexpr peft_variant adamss_variants[] = {
    variant<adamss_with_bias<>>([](const peft_layer_state& s) { return s.base.bias; }), variant<adamss<>>()};
inline constexpr tensor_layout adamss_parts[] = {{.leaf = "adamss_A", .shape = tensor_shape_kind::parts},
                                                 {.leaf = "adamss_B", .shape = tensor_shape_kind::parts}};
inline constexpr peft_method adamss_files{.type = "ADAMSS",
                                          .keys = adamss_keys,
                                          .variants = adamss_variants,
                                          .layouts = adamss_parts,
                                          .numbers = adamss_numbers,
                                          .frozen = adamss_frozen,
                                          .initial_tensors = adamss_initial_tensors};

}  // namespace graft::io::peft
