// SPDX-License-Identifier: Apache-2.0
// Graft: adapters as formulas. This header is the language (floors 0 to 4): formulas, what is derived from them, plans,
// verdicts, explanations. It needs no other library and no GPU; cpu.h and io.h add the CPU backend and the files.
#pragma once
#include <graft/adapter/adalora.h>
#include <graft/adapter/boft.h>
#include <graft/adapter/dora.h>
#include <graft/adapter/erased.h>
#include <graft/adapter/hra.h>
#include <graft/adapter/ia3.h>
#include <graft/adapter/ln_tuning.h>
#include <graft/adapter/loha.h>
#include <graft/adapter/lokr.h>
#include <graft/adapter/lora.h>
#include <graft/adapter/miss.h>
#include <graft/adapter/none.h>
#include <graft/adapter/oft.h>
#include <graft/adapter/vblora.h>
#include <graft/adapter/vera.h>
#include <graft/core/version.h>
#include <graft/plan/compile.h>
#include <graft/plan/draw.h>
#include <graft/plan/explain.h>
