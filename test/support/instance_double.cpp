// SPDX-License-Identifier: Apache-2.0
#include <graft/run/executor.h>

template struct graft::cpu::evaluator<double>;
template class graft::executor<double>;
