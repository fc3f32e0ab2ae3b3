// SPDX-License-Identifier: Apache-2.0
#include <graft/run/executor.h>

template class graft::executor<float>;
