// SPDX-License-Identifier: Apache-2.0
// An adapter whose formula is only known at run time: a function from W to W'. It runs in eager mode, and is a graph
// break everywhere else, because nothing can be derived from what the compiler does not see.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

inline constexpr const char* erased_name = "type_erased_adapter";

struct erased {
  static constexpr const char* name = "type-erased";
  static constexpr ex weight(scope, ex W) { return host(erased_name, W); }
};

}  // namespace graft
