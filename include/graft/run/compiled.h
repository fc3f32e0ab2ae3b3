// SPDX-License-Identifier: Apache-2.0
// The executors as a program finds them in the library graft::cpu_compiled, instead of compiling them itself: nearly all
// of what a file with a layer costs to build. cpu.h includes this where that library is linked.
#pragma once
#include <graft/run/layer.h>

extern template struct graft::cpu::evaluator<float>;
extern template struct graft::cpu::evaluator<double>;
extern template class graft::cpu::bound_plan<float>;
extern template class graft::cpu::bound_plan<double>;
extern template struct graft::cpu::engine<float>;
extern template struct graft::cpu::engine<double>;
extern template class graft::executor<graft::cpu::engine<float>>;
extern template class graft::executor<graft::cpu::engine<double>>;
