// SPDX-License-Identifier: Apache-2.0
// How an engine reaches the ranks that compute with it: numbers of its memory become the sums of all ranks' numbers, or the
// largest of them. A program that has a communicator brings it.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>

#include <functional>

namespace graft {

using rank_exchange = std::function<status(const mutable_view& values, bool largest)>;

}  // namespace graft
