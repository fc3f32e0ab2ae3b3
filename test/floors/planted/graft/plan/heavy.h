// SPDX-License-Identifier: Apache-2.0
// clang-format off
#pragma once
#include <graft/core/light.h>
#include <Eigen/Core>  // planted
#include <cuda_runtime.h>  // planted
#include <vector>  // planted
#include <memory>  // planted: allowed in core/result.h only
