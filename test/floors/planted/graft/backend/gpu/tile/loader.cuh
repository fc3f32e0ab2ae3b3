// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90.cuh>  // planted: kernels are built from tile
