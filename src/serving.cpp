// SPDX-License-Identifier: Apache-2.0
// Instantiates the serving engine on the CPU engine; part of graft::models_compiled (graft/model/serving/on_cpu.h).
#include <graft/model/serving/on_cpu.h>

template class graft::serving::serving_engine<graft::cpu::engine<float>>;
