// SPDX-License-Identifier: Apache-2.0
#include <graft/model/methods.h>

template graft::layer_graphs graft::graphs_for<void>(graft::layer_kind, graft::method, bool);
