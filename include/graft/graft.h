// SPDX-License-Identifier: Apache-2.0
// The language: floors 0 to 4, without Eigen, CUDA or a container.
#pragma once
#include <graft/core/text.h>
#include <graft/core/version.h>
