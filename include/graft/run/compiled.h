// SPDX-License-Identifier: Apache-2.0
// The executors as a program finds them in the library graft::cpu_compiled, instead of compiling them itself: nearly all
// of what a file with a layer costs to build.
#pragma once
#include <graft/backend/cpu/engine.h>
#include <graft/run/executor.h>

extern template graft::cpu::operations<float> graft::cpu::every_operation<float>();
extern template graft::cpu::operations<double> graft::cpu::every_operation<double>();
extern template struct graft::cpu::engine<float>;
extern template struct graft::cpu::engine<double>;
extern template class graft::executor<graft::cpu::engine<float>>;
extern template class graft::executor<graft::cpu::engine<double>>;
