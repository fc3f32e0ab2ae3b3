// SPDX-License-Identifier: Apache-2.0
#include <graft/cuda.h>

static_assert(graft::cuda::layers == graft::gpu::layers);
