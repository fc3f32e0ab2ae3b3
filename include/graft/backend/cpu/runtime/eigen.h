// SPDX-License-Identifier: Apache-2.0
// Includes the subset of Eigen that is used: packets and the gebp kernels. Eigen's own header adds every matrix
// expression, a third of what a file with a layer parses. For release 3.4.0 on x86-64 the parts are included one by one
// in Eigen's order; any other release or processor (NEON's kernels cannot be included twice) includes <Eigen/Core>. A
// program may include <Eigen/Core> before or after this header.
#pragma once

#if !defined(EIGEN_CORE_H) && !__has_include(<Eigen/src/Core/InternalHeaderCheck.h>)
// Eigen's macros have to come first.
#include <Eigen/src/Core/util/Macros.h>
// The vector extensions of the processor.
#include <Eigen/src/Core/util/ConfigureVectorization.h>
#if EIGEN_WORLD_VERSION == 3 && EIGEN_MAJOR_VERSION == 4 && EIGEN_MINOR_VERSION == 0 && defined(EIGEN_VECTORIZE_SSE)
#define GRAFT_EIGEN_SUBSET
#endif
#endif

#if !defined(GRAFT_EIGEN_SUBSET)
#include <Eigen/Core>
#else
#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <climits>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace Eigen {
using std::ptrdiff_t;
using std::size_t;
}  // namespace Eigen

// clang-format off
#include <Eigen/src/Core/util/DisableStupidWarnings.h>
#include <Eigen/src/Core/util/Constants.h>
#include <Eigen/src/Core/util/Meta.h>
#include <Eigen/src/Core/util/ForwardDeclarations.h>
#include <Eigen/src/Core/util/StaticAssert.h>
#include <Eigen/src/Core/util/XprHelper.h>
#include <Eigen/src/Core/util/Memory.h>
#include <Eigen/src/Core/util/IntegralConstant.h>
#include <Eigen/src/Core/NumTraits.h>
#include <Eigen/src/Core/MathFunctions.h>
#include <Eigen/src/Core/GenericPacketMath.h>
#include <Eigen/src/Core/MathFunctionsImpl.h>
#include <Eigen/src/Core/arch/Default/ConjHelper.h>
#include <Eigen/src/Core/arch/Default/Half.h>
#include <Eigen/src/Core/arch/Default/BFloat16.h>
#include <Eigen/src/Core/arch/Default/TypeCasting.h>
#include <Eigen/src/Core/arch/Default/GenericPacketMathFunctionsFwd.h>
#include <Eigen/src/Core/arch/SSE/PacketMath.h>
#include <Eigen/src/Core/arch/SSE/TypeCasting.h>
#if defined(EIGEN_VECTORIZE_AVX)
#include <Eigen/src/Core/arch/AVX/PacketMath.h>
#include <Eigen/src/Core/arch/AVX/TypeCasting.h>
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
#include <Eigen/src/Core/arch/AVX512/PacketMath.h>
#include <Eigen/src/Core/arch/AVX512/TypeCasting.h>
#endif
#include <Eigen/src/Core/arch/SSE/MathFunctions.h>
#if defined(EIGEN_VECTORIZE_AVX)
#include <Eigen/src/Core/arch/AVX/MathFunctions.h>
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
#include <Eigen/src/Core/arch/AVX512/MathFunctions.h>
#endif
#include <Eigen/src/Core/arch/Default/Settings.h>
#include <Eigen/src/Core/arch/Default/GenericPacketMathFunctions.h>
#include <Eigen/src/Core/DenseCoeffsBase.h>
#include <Eigen/src/Core/util/BlasUtil.h>
#include <Eigen/src/Core/products/GeneralBlockPanelKernel.h>
#include <Eigen/src/Core/util/ReenableStupidWarnings.h>
// clang-format on
#undef GRAFT_EIGEN_SUBSET
#endif
