// SPDX-License-Identifier: Apache-2.0
// Umbrella header of the language (floors 0 to 4): adapters as formulas, the graphs derived from them, plans, compile<>
// and explain<>. It needs no other library and no GPU; cpu.h adds the CPU backend and io.h adds files.
#pragma once
#include <graft/adapter/all.h>
#include <graft/adapter/erased.h>
#include <graft/core/version.h>
#include <graft/plan/compile.h>
#include <graft/plan/draw.h>
#include <graft/plan/explain.h>
