// SPDX-License-Identifier: Apache-2.0
// Eigen's packets (SIMD vectors), with which rows are summed, scaled and mapped. They are loaded from any address at
// which a row begins. Eigen's own expressions start at the first aligned address, so that equal numbers give other bits
// in another buffer, and they compile a loop for every expression.
#pragma once
#include <graft/backend/cpu/runtime/eigen.h>
#include <graft/core/bf16.h>
#include <graft/core/f16.h>

#include <cmath>
#include <limits>

namespace graft::cpu {

template <class Real> using packet = typename Eigen::internal::packet_traits<Real>::type;
template <class Real> inline constexpr long long packet_width = Eigen::internal::unpacket_traits<packet<Real>>::size;
template <class Real>
inline constexpr std::size_t packet_lanes = static_cast<std::size_t>(packet_width<Real>);  // array bounds

template <class Real> packet<Real> all(Real v) { return Eigen::internal::pset1<packet<Real>>(v); }
template <class Real> packet<Real> load(const Real* p) { return Eigen::internal::ploadu<packet<Real>>(p); }

// A bf16 is the upper half of a float.
inline packet<float> load(const bf16* p) {
#if defined(EIGEN_VECTORIZE_AVX512)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
#elif defined(EIGEN_VECTORIZE_AVX2)
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#elif defined(EIGEN_VECTORIZE_NEON)
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
#else
  float wide[packet_width<float>];
  for (float& v : wide) v = widen(*p++);
  return load(wide);
#endif
}

inline packet<float> load(const f16* p) {
#if defined(EIGEN_VECTORIZE_AVX512)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(EIGEN_VECTORIZE_AVX) && defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
#else
  float wide[packet_width<float>];
  for (float& v : wide) v = widen(*p++);
  return load(wide);
#endif
}

// Applies f to each number, for functions without a packet instruction.
template <class Real, class F> packet<Real> each(packet<Real> p, F f) {
  Real v[packet_width<Real>];
  Eigen::internal::pstoreu(v, p);
  for (Real& x : v) x = f(x);
  return load(v);
}
// e^x; results below the smallest normal number, where Eigen's exp is clamped, are zero.
template <class Real> packet<Real> exp(packet<Real> p) {
  using namespace Eigen::internal;
  if constexpr (packet_traits<Real>::HasExp) {
    const packet<Real> e = pexp(p);
    return pandnot(e, pcmp_lt(e, all(std::numeric_limits<Real>::min())));
  } else {
    return each<Real>(p, [](Real x) { return std::exp(x); });
  }
}
template <class Real> packet<Real> tanh(packet<Real> p) {
  if constexpr (Eigen::internal::packet_traits<Real>::HasTanh)
    return Eigen::internal::ptanh(p);
  else
    return each<Real>(p, [](Real x) { return std::tanh(x); });
}
template <class Real> packet<Real> sigmoid(packet<Real> p) {
  using namespace Eigen::internal;
  return pdiv(all(Real(1)), padd(all(Real(1)), exp<Real>(pnegate(p))));
}

}  // namespace graft::cpu
