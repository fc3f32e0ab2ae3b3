// SPDX-License-Identifier: Apache-2.0
// Extern templates of the CPU engines and executors in the library graft::cpu_compiled, for programs that link it
// instead of compiling them: they are nearly all of what a file with a layer costs to compile.
#pragma once
#include <graft/backend/cpu/runtime/engine.h>
#include <graft/run/executor.h>

extern template graft::cpu::operations<float> graft::cpu::every_operation<float>();
extern template graft::cpu::operations<double> graft::cpu::every_operation<double>();
extern template struct graft::cpu::engine<float>;
extern template struct graft::cpu::engine<double>;
extern template class graft::executor<graft::cpu::engine<float>>;
extern template class graft::executor<graft::cpu::engine<double>>;
