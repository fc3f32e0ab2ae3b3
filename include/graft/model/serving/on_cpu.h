// SPDX-License-Identifier: Apache-2.0
// The serving engine on the CPU. A program that links graft::models_compiled takes it from that library (extern
// template) instead of compiling it.
#pragma once
#include <graft/model/on_cpu.h>
#include <graft/model/serving/serving_engine.h>
#if defined(GRAFT_MODELS_COMPILED)
extern template class graft::serving::serving_engine<graft::cpu::engine<float>>;
#endif
