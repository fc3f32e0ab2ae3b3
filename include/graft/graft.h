// SPDX-License-Identifier: Apache-2.0
// Graft: adapters as formulas. This header is the language (floors 0 to 4): formulas, what is derived from them, plans,
// verdicts, explanations. It needs no other library and no GPU; cpu.h and io.h add the CPU backend and the files.
#pragma once
#include <graft/adapter/all.h>
#include <graft/adapter/erased.h>
#include <graft/core/version.h>
#include <graft/plan/compile.h>
#include <graft/plan/draw.h>
#include <graft/plan/explain.h>
