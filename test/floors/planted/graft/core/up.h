// SPDX-License-Identifier: Apache-2.0
// clang-format off
#pragma once
#include <graft/core/light.h>
#include <graft/graph/node.h>  // planted: up one floor
#include <graft/graft.h>  // planted: up to an umbrella
#  include <graft/io/json/json.h>  // planted: up, spelled with blanks
#include "light.h"  // planted: relative
#include <graft/attic/old.h>  // planted: no such floor
