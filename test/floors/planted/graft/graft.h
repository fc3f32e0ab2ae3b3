// SPDX-License-Identifier: Apache-2.0
// clang-format off
#pragma once
#include <graft/plan/heavy.h>
#include <graft/backend/free.h>  // planted: above floor 4
#include <string>  // planted
