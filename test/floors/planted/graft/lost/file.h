// SPDX-License-Identifier: Apache-2.0  // planted: a folder that is no floor
// clang-format off
#pragma once
