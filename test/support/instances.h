// SPDX-License-Identifier: Apache-2.0
// The executors are compiled once, in instances.cpp, instead of once in every test and example: Eigen's products are
// nearly all of what these programs cost to build. Included by force into the programs of this project.
#pragma once
#include <graft/run/executor.h>

extern template class graft::executor<float>;
extern template class graft::executor<double>;
