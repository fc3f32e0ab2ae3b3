// SPDX-License-Identifier: Apache-2.0
// clang-format off
#pragma once
#include <graft/graft.h>
#include <graft/backend/free.h>
#include <vector>
