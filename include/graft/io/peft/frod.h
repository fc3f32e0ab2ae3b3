// SPDX-License-Identifier: Apache-2.0
// FRoD in PEFT's format (FROD). Layers of one kind share a basis V and the indices of the trained entries, which the
// file holds once under the name of the kind; U follows from V and the base weight. A file saved without
// save_projection has no basis. It cannot be recomputed because it depends on rounding: PEFT reproduces it only on the
// same machine.
#pragma once
#include <graft/adapter/frod.h>
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/core/result.h>
#include <graft/core/view.h>
#include <graft/io/peft/tensor_layout.h>

#include <cmath>
#include <vector>

namespace graft::io::peft {

// The left factor U [out, in], row-major, from the base weight W [out, in] and the basis V [in, in] of its kind of
// layer; empty if V is singular. As in PEFT, the arithmetic is double:
//     V B = Wᵀ by Gaussian elimination with partial pivoting;  U_j = B_jᵀ / ‖B_j‖, or zero for a norm below 1e-12
inline std::vector<float> frod_left_factor(const view& weight, const std::vector<float>& V) {
  const auto out = static_cast<std::size_t>(weight.size[0]), in = static_cast<std::size_t>(weight.size[1]);
  std::vector<double> a(V.begin(), V.end()), b(in * out), w(in);
  for (std::size_t i = 0; i < out; ++i) {
    cpu::read(weight, static_cast<long long>(i) * weight.size[1], weight.size[1], w.data());
    for (std::size_t j = 0; j < in; ++j) b[j * out + i] = w[j];
  }
  const auto subtract = [](double* from, const double* what, double times, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) from[i] -= times * what[i];
  };
  for (std::size_t k = 0; k < in; ++k) {
    std::size_t pivot = k;
    for (std::size_t i = k + 1; i < in; ++i)
      if (std::abs(a[i * in + k]) > std::abs(a[pivot * in + k])) pivot = i;
    if (a[pivot * in + k] == 0) return {};
    if (pivot != k) {
      std::swap_ranges(&a[k * in], &a[k * in] + in, &a[pivot * in]);
      std::swap_ranges(&b[k * out], &b[k * out] + out, &b[pivot * out]);
    }
    for (std::size_t i = k + 1; i < in; ++i) {
      const double times = a[i * in + k] / a[k * in + k];
      subtract(&a[i * in + k], &a[k * in + k], times, in - k);
      subtract(&b[i * out], &b[k * out], times, out);
    }
  }
  std::vector<float> u(out * in);
  for (std::size_t k = in; k-- > 0;) {
    double length = 0;
    for (std::size_t i = 0; i < out; ++i) b[k * out + i] /= a[k * in + k], length += b[k * out + i] * b[k * out + i];
    for (std::size_t i = 0; i < k; ++i) subtract(&b[i * out], &b[k * out], a[i * in + k], out);
    length = std::sqrt(length);
    for (std::size_t i = 0; i < out; ++i)
      u[i * in + k] = length > 1e-12 ? static_cast<float>(b[k * out + i] / length) : 0;
  }
  return u;
}

// PEFT's name of a layer's kind: the last two components of its path, or the last if a number precedes it.
inline std::string frod_kind(const std::string& module) {
  std::vector<std::string> words{""};
  for (const char c : module) c == '.' ? static_cast<void>(words.emplace_back()) : words.back().push_back(c);
  const std::size_t n = words.size();
  const auto number = [](const std::string& w) { return w.find_first_not_of("0123456789") == w.npos && !w.empty(); };
  if (n == 1 || number(words[n - 2])) return words[n - 1];
  if (n >= 3 && words[n - 3] == "attention" && words[n - 2] == "output" && words[n - 1] == "dense")
    return "attention_output";
  return words[n - 2] + "_" + words[n - 1];
}

inline status frod_numbers(peft_layer_state& s) {
  if (s.on("save_projection")) return ok;
  return fail_in(s.file.file, "save_projection is false: such a file has no basis; save with it set to true");
}

inline status frod_frozen(peft_layer_state& s) {
  const std::string kind = frod_kind(s.base.module);
  const long long out = s.base.out, in = s.base.in;
  const view& w = s.base.weight;
  if (w.data == nullptr || !is_floating(w.type) || w.rank != 2 || w.size[0] != out || w.size[1] != in)
    return fail_in(
        s.file.file,
        "FRoD's left factor follows from the base weight: give it to read_peft_layer as base_layer::weight, [", out,
        ", ", in, "]");
  if (status got = s.take("frod_V", "base_model.frod_V." + kind); !got) return got;
  const loaded_tensor& V = s.layer.tensors.at("frod_V");
  if (status good = check_shape(V, {in, in}, s.file.file); !good) return good;
  const auto keep = [&](result<loaded_tensor> t, const std::vector<long long>& shape) -> status {
    if (!t) return t.failure();
    if (status good = check_shape(*t, shape, s.file.file); !good) return good;
    s.layer.extra_tensors.push_back(std::move(*t));
    return ok;
  };
  if (status got = keep(s.read_indices("base_model.frod_s_size." + kind), {2}); !got) return got;
  if (s.config.number("sparse_rate") == 0) {  // PEFT stores no entries as empty tensors
    if (status got = keep(s.read_indices("base_model.frod_s_indices." + kind), {2, 0}); !got) return got;
    if (status got = keep(s.read(s.prefix() + "frod_lambda_s_values"), {0}); !got) return got;
  } else {
    if (status got = s.take("frod_s_indices", "base_model.frod_s_indices." + kind, true); !got) return got;
    const long long entries = s.layer.tensors.at("frod_lambda_s_values").shape[0];
    if (status good = check_shape(s.layer.tensors.at("frod_s_indices"), {2, entries}, s.file.file); !good) return good;
  }
  loaded_tensor U{s.prefix() + "frod_U", frod_left_factor(w, V.data), {out, in}, safetensors_type::f32, false};
  if (U.data.empty()) return fail_in(s.file.file, "tensor ", in_quotes(V.key), " has no inverse");
  s.layer.tensors["frod_U"] = std::move(U);
  return ok;
}

inline constexpr peft_key frod_keys[] = {
    seed("projection_prng_key"),           flag("save_projection", true),      dropout("frod_dropout"),
    real("sparse_rate", 0.01, 1),          real("regularization_alpha", 1e-3), unread("progressbar"),
    unread("runtime_offload_base_weight"), flag("init_weights", true)};
inline constexpr peft_variant frod_variants[] = {
    variant<frod<>>([](const peft_layer_state& s) { return s.config.number("sparse_rate") != 0; }),
    variant<frod_diagonal>()};
inline constexpr tensor_layout frod_layouts[] = {{.leaf = "frod_V", .shared = true},
                                                 {.leaf = "frod_s_indices", .shared = true}};
inline constexpr peft_method frod_files{.type = "FROD",
                                        .bias_only = "frod_only",
                                        .keys = frod_keys,
                                        .variants = frod_variants,
                                        .layouts = frod_layouts,
                                        .numbers = frod_numbers,
                                        .frozen = frod_frozen};

}  // namespace graft::io::peft
