// SPDX-License-Identifier: Apache-2.0
#include <graft/run/cuda_together.cuh>

template class graft::cuda::executor<float>;
