// SPDX-License-Identifier: Apache-2.0
// The executors and the table of methods are compiled once, in the files beside this one, instead of once in every test
// and example: Eigen's products and some hundred captured graphs are nearly all of what these programs cost to build.
// Included by force into the programs of this project.
#pragma once
#include <graft/model/methods.h>
#include <graft/run/executor.h>

extern template struct graft::cpu::evaluator<float>;
extern template struct graft::cpu::evaluator<double>;
extern template class graft::executor<float>;
extern template class graft::executor<double>;
extern template graft::layer_graphs graft::graphs_for<void>(graft::layer_kind, graft::method, bool);
