// SPDX-License-Identifier: Apache-2.0
#include <graft/run/executor.h>

template struct graft::cpu::evaluator<float>;
template class graft::executor<float>;
