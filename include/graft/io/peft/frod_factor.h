// SPDX-License-Identifier: Apache-2.0
// FRoD's left factor U, from the base weight W [out, in] and the basis V [in, in] of its kind of layer. As in PEFT, the
// arithmetic is double:
//     V B = Wᵀ by Gaussian elimination with partial pivoting;  U_j = B_jᵀ / ‖B_j‖, or zero for a norm below 1e-12
#pragma once
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/core/result.h>
#include <graft/core/view.h>

#include <cmath>
#include <vector>

namespace graft::io {

// Returns U [out, in] in row-major order; empty if V is singular.
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

}  // namespace graft::io
